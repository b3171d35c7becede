"""`grn wait`: wait until jobs have ended, with one progress line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from grn.cli.help import command, flag
from grn.cli.output import job_text
from grn.cli.output.style import paint, state_style
from grn.cli.selection import jobs_and_leases
from grn.client import queue
from grn.client.state_mirror import StateMirror
from grn.client.submit import exit_code_of
from grn.errors import GrnError, UnknownJob, UsageError
from grn.model.ranges import show_ranges
from grn.model.text import counted, harmless
from grn.model.units import show_time
from grn.protocol.negotiator_rows import LeaseRow, WaitingRow
from grn.protocol.queue_rows import JobEnd, JobRow
from grn.protocol.rows import read, read_all

if TYPE_CHECKING:
    from grn.cli.output.progress import ProgressLine
    from grn.group.roles import Progress

NEVER_RAN = 125  # exit status, as of a job that ended without having run
WAIT_S = 1.0
MAX_NAMED = 200  # jobs that are asked for to name what runs


@command()
@click.argument("jobs", nargs=-1, metavar="[ID...]")
@flag("--all", "everything", is_flag=True, help="Wait for all jobs that have not ended.")
@flag("-q", "--quiet", is_flag=True, help="Show no progress; print the ids of jobs as they end.")
def wait(jobs: tuple[str, ...], everything: bool, quiet: bool) -> int:
    """Wait until jobs have ended; exit with the status of the first that failed.

    Held jobs are skipped and named; the exit status is then 125, except with --all.
    """
    if everything:
        ids = queue.ids(which="alive")
    elif jobs:
        try:
            ids, leases = jobs_and_leases(jobs)
        except UnknownJob:
            left = _without_ended_leases(jobs)
            if len(left) == len(jobs):
                raise
            ids, leases = jobs_and_leases(left)
        _wait_outside(leases)
    else:
        raise UsageError("there is nothing to wait for.", "Name jobs, or use --all.")
    ids, are_held = _without_held(ids)
    from grn.cli.output.progress import ProgressLine
    from grn.group.roles import Progress

    failed: list[JobEnd] = []
    line = ProgressLine(sys.stderr, is_quiet=quiet)
    now = Progress(len(ids))
    try:
        for row in queue.ends_or_pauses(ids, WAIT_S if line.is_terminal and not quiet else None):
            if row is None:
                now = _at_work(now, line, set(ids))
                continue
            ended = read(JobEnd, row)
            now = now.plus(finished=ended.reason == "ok", failed=ended.reason != "ok")
            names = tuple(name for name in now.names if name.partition(" ")[0] != str(ended.id))
            now = replace(now, running=len(names), names=names)
            if ended.reason != "ok":
                failed.append(ended)
                text = f" ({harmless(ended.text)})" if ended.text else ""
                how = paint(ended.reason, state_style(ended.reason))
                line.say(f"job {ended.id}: {how}{text}")
            if quiet:
                click.echo(ended.id)
            line.tell(now)
        if line.is_terminal and len(ids) > 1:
            bad = paint(f"{now.failed} failed", "failed" if now.failed else "")
            line.say(f"{counted(now.done, 'job')} ended, {bad}, in {show_time(line.passed_s)}")
    finally:
        line.finish()
    if failed:
        return exit_code_of(failed[0].reason, failed[0].status, failed[0].signal)
    return NEVER_RAN if are_held and not everything else 0


def _wait_outside(leases: Sequence[LeaseRow | WaitingRow]) -> None:
    """Wait until calls and commands outside the queue have given their GPUs back."""
    left = {row.id for row in leases}
    if left:
        with StateMirror(with_queue=False) as watch:
            picture = watch.look()
            while left & (picture.leases.keys() | picture.waiting.keys()):
                watch.wait(None)
                picture = watch.picture


def _without_ended_leases(names: Sequence[str]) -> list[str]:
    """Leave out the ids of calls and commands outside the queue that have ended lately."""
    with StateMirror(with_queue=False) as watch:
        ended = {row.id for row in watch.look().ends if row.user == os.getuid()}
    return [name for name in names if name not in ended]


def _without_held(ids: list[int]) -> tuple[list[int], bool]:
    """Leave out jobs that nothing will start, and say how to release them."""
    asked = {"op": "list", "which": "alive", "most": 1_000_000}
    # A job of a running batch is held only until its process has read how it ended.
    held = {row["id"] for row in queue.look(asked | {"states": ["held"]})["jobs"]
            if not row["group"]}  # fmt: skip
    if not held:
        return ids, False
    blocked = set(held)
    rows = sorted(queue.look(asked)["jobs"], key=lambda row: int(row["id"]))
    for row in rows:  # a job comes after earlier ones only
        if any(job in blocked for job, _ in row["after"]):
            blocked.add(row["id"])
    skipped = blocked.intersection(ids)
    if skipped:
        named = sorted(skipped & held) or sorted(held)
        verb = "job is" if len(named) == 1 else "jobs are"
        shown = show_ranges(named, MAX_NAMED).replace(",", " ")
        text = f"{len(named)} {verb} held: run `grn release {shown}`"
        others = len(skipped - held)
        follow = f"; {counted(others, 'job')} wait{'s' * (others == 1)} for that" if others else ""
        click.echo(text + follow, err=True)
    return [job for job in ids if job not in skipped], bool(skipped)


def _at_work(now: Progress, line: ProgressLine, ids: set[int]) -> Progress:
    """Show which of the jobs run, or why the first of them waits."""
    if not line.is_terminal:
        return now
    try:
        alive = queue.look({"op": "list", "which": "alive", "most": MAX_NAMED})["jobs"]
    except GrnError:
        return now  # the queue restarts: the next pause asks again
    rows = [job for job in read_all(JobRow, map(queue.typed, alive)) if job.id in ids]
    names = [
        f"{job.id} {job.name or job_text.spelled_command(job.argv)}"
        for job in rows
        if not job.is_waiting
    ]
    now = replace(now, running=len(names), names=tuple(names))
    line.tell(now)
    waiting = next((job for job in rows if job.is_waiting), None)
    if waiting is not None:
        line.wait(waiting, f"job {waiting.id}: {waiting.why}")
    return now
