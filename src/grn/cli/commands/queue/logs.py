"""`grn logs`: what jobs have printed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import click

from grn import wire
from grn.cli import selection
from grn.cli.help import command, flag
from grn.cli.output import pager
from grn.cli.output.style import paint
from grn.cli.output.terminal import echo, has_colour
from grn.client import logs as job_logs
from grn.client import queue
from grn.client.submit import exit_code_of
from grn.errors import UsageError
from grn.model.text import counted
from grn.model.units import parse_time
from grn.protocol.queue_rows import JobEnd, JobRow
from grn.protocol.rows import read

FOLLOW_S = 0.5
TAIL_BYTES = 1 << 16  # the first look for the last lines


@command()
@click.argument("jobs", nargs=-1, required=True, metavar="ID...")
@flag("-f", "--follow", is_flag=True, help="Keep printing until the job has ended.")
@flag("-n", "--lines", "most", type=click.IntRange(0), metavar="N",
      help="Print only the last N lines.")  # fmt: skip
@flag("--since", metavar="TIME", help="Print only jobs that ran in the last 90s, 30m, 12h or 2d.")
@flag(
    "--stderr", is_flag=True, help="Print only standard error; needs --separate-stderr at submit."
)
@flag("--no-pager", is_flag=True, help="Print long output without a pager.")
@flag("--attempt", type=click.IntRange(1), metavar="N", help="Print an earlier attempt.")
def logs(
    jobs: tuple[str, ...], follow: bool, most: int | None, since: str | None, stderr: bool,
    no_pager: bool, attempt: int | None,
) -> int:  # fmt: skip
    """Print what jobs have printed; of several jobs, each below its id.

    On a terminal long output is shown in a pager: GRN_PAGER, PAGER, or less.
    """
    ids = _ids(jobs, since)
    if follow and len(ids) > 1:
        raise UsageError(f"--follow prints one job, and {len(ids)} are named.", "Name one of them.")
    parts: list[bytes] = []
    for place, job_id in enumerate(ids):
        if len(ids) > 1:
            parts.append(_line(f"{chr(10) if place else ''}==> job {job_id} <==", "header"))
        row = read(JobRow, queue.show(job_id))
        if stderr and (row.folder or follow):
            folder = row.folder_of(attempt or row.attempt) if row.folder else None
            job_logs.check_stderr(folder, job_id, row.environment)
        name = "err" if stderr else "log"
        if follow and attempt is None:
            return _followed(job_id, name, most)
        if len(ids) > 1 and not row.attempt:
            parts.append(_line("it has not run", "reason"))
            continue
        try:
            data = last_lines(_log(row, name, attempt), most)
        except UsageError:
            pager.write(b"".join(parts), is_paged=False)  # what came before the mistake
            raise
        parts.append(data)
    pager.write(b"".join(parts), is_paged=not no_pager)
    return 0


def _line(text: str, style: str) -> bytes:
    painted = paint(text, style) if has_colour(sys.stdout) else text
    return f"{painted}\n".encode()


def _ids(words: Sequence[str], since: str | None) -> list[int]:
    """Return the jobs that are named, and of these the ones that ran since."""
    ids, leases = selection.jobs_and_leases(words)
    if leases:
        row = leases[0]
        raise UsageError(
            f"{row.id} runs outside the queue: its output goes where pid {row.pid} prints."
        )
    if since is None:
        return ids
    after = time.time() - parse_time(since)
    rows = [read(JobRow, queue.show(job)) for job in ids]
    return [row.id for row in rows if row.attempt and (row.ended_at or time.time()) >= after]


def _log(row: JobRow, name: str, attempt: int | None) -> bytes:
    if row.log and row.attempt:
        return job_logs.read_from(wire.meant(row.log), 0)
    if row.folder is None:
        when = "never ran" if row.has_ended else "has not run yet"
        why = (row.why or row.reason or "").rstrip(".")
        raise UsageError(f"job {row.id} {when}: {why}.")
    if attempt is not None and attempt > row.attempt:
        raise UsageError(
            f"job {row.id} has {counted(row.attempt, 'attempt')}: {attempt} is none of them."
        )
    return job_logs.read_log(row.folder_of(attempt or row.attempt), name)


def last_lines(data: bytes, most: int | None) -> bytes:
    """Return the last lines of a log; all of it if no number is given."""
    if most is None:
        return data
    if most == 0:
        return b""
    at = len(data) - data.endswith(b"\n")
    for _ in range(most):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :]


def _followed(job_id: int, name: str, most: int | None) -> int:
    try:
        return _follow(job_id, name, most)
    except KeyboardInterrupt:
        sys.stdout.flush()
        if sys.stderr.isatty():
            echo(f"\njob {job_id} goes on; `grn cancel {job_id}` ends it", err=True)
        raise


def _follow(job_id: int, name: str, most: int | None) -> int:
    """Print a log as it grows, through attempts, until the job has ended."""
    shown: dict[str, int] = {}  # file -> how much of it was printed
    row: JobRow | None = None
    attempt = 0  # the one that is printed
    for ended in queue.ends_or_pauses([job_id], FOLLOW_S):
        if ended is not None or row is None or not row.attempt:
            row = read(JobRow, queue.show(job_id))
            attempt = attempt or row.attempt
        while row.attempt:
            own = [wire.meant(row.log)] if row.log else []
            for file in own or job_logs.parts(os.path.join(row.folder_of(attempt), name)):
                data = job_logs.read_from(file, shown.get(file, 0))
                is_first = file not in shown
                shown[file] = shown.get(file, 0) + len(data)
                sys.stdout.buffer.write(last_lines(data, most) if is_first else data)
            if attempt >= row.attempt and not os.path.isdir(row.folder_of(attempt + 1)):
                break
            attempt += 1
        sys.stdout.flush()
        if ended is not None:
            end = read(JobEnd, ended)
            return exit_code_of(end.reason, end.status, end.signal)
    raise AssertionError("the iterator ends with the end of the job")
