"""`grn batch`: lines become jobs on negotiated GPUs, with progress, resume and a report."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from grn.batch import file as batch_file
from grn.batch.journal import BatchJournal, Entry, finished, id_of
from grn.batch.line_reader import LineReader
from grn.batch.run import Batch, BatchOptions, RunsAgain
from grn.cli import options
from grn.cli.commands.run.detach import attach, run_detached
from grn.cli.help import command, flag
from grn.cli.output.progress import ProgressLine
from grn.cli.output.style import paint
from grn.cli.output.table import table
from grn.cli.output.terminal import echo, print_json, width
from grn.client.job_options import check_nodes
from grn.client.leasing.job_request import check_no_gpus
from grn.client.logs import last_line
from grn.errors import MachineError, UsageError
from grn.group.roles import Progress
from grn.group.task import Needs, read_needs
from grn.model.text import harmless
from grn.model.units import show_limit, show_size, show_time

FAILED, STOPPED = 1, 128
MAX_FAILURES = 20
MAX_QUOTED = 5
LONGEST_COMMAND = 60


@command()
@click.argument("file", default="-", metavar="[FILE]")
@options.needs(names={"job_type": "type", "without": "not"}, gpus="GPUs for each line.")
@options.place(at="Run the lines at this site or node, or `local`.")
@flag("--parallel", type=click.IntRange(1), metavar="N", help="Run at most N lines at once.")
@flag("--retry", type=click.IntRange(0), default=0, metavar="N",
              help="Retry a line up to N times on failure.")  # fmt: skip
@flag("--keep-going/--fail-fast", "keep_going", default=True,
              help="When a line fails, go on (default) or start no more.")  # fmt: skip
@flag("--resume", is_flag=True, help="Skip lines that finished in an earlier run.")
@flag("--out", metavar="DIR", help="Folder for journal, logs and report (default: FILE.grn).")
@flag("--dry-run", is_flag=True, help="Print what would run; run nothing.")
@flag("--detach", is_flag=True, help="Run in the background; survives the terminal.")
@flag("--attach", "attached", metavar="FILE", help="Show a batch that was detached.")
@flag("-q", "--quiet", is_flag=True, help="Show no progress.")
@flag("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def batch(
    file: str,
    parallel: int | None,
    retry: int,
    keep_going: bool,
    resume: bool,
    out: str | None,
    dry_run: bool,
    detach: bool,
    attached: str | None,
    quiet: bool,
    as_json: bool,
    **stated: Any,
) -> int:
    """Run each line of FILE, or of standard input, as a job on GPUs with room.

    The shell runs each line. A trailing backslash continues a line; blank lines and lines that
    begin with # are skipped. A line may begin with its own options:

    \b
    [mem=6GiB gpus=2] python train.py --model large

    Exit status: 0 if all lines succeeded, 1 if some failed, 2 for misuse.
    """
    if attached is not None:
        name = os.path.basename(attached).removesuffix(".grn")
        return attach(name, [f"{attached}.grn", attached])
    if file == "-" and detach:
        raise UsageError("standard input does not go to the background.", "Name a file.")
    if file == "-" and resume and out is None:
        raise UsageError(
            "lines from standard input have no place to resume from.", "Name it with --out DIR."
        )
    check_nodes(stated["nodes"])
    check_no_gpus(*(stated[name] for name in ("gpus", "mem", "exclusive", "on", "not")))
    needs = read_needs(stated)
    folder = out or (f"{file}.grn" if file != "-" else time.strftime("grn-batch-%Y%m%d-%H%M%S"))
    if dry_run:
        return _dry_run(_all_lines(file), needs, finished(folder) if resume else {})
    # A file is parsed before anything runs: an error at its end must not cost its beginning.
    total = None if file == "-" else len(list(batch_file.jobs(_all_lines(file), needs)))
    chosen = BatchOptions(needs, retry, not keep_going, parallel)

    def run() -> int:
        return _run(file, folder, chosen, total, is_resumed=resume, quiet=quiet, as_json=as_json)

    return run_detached(folder, f"grn batch --attach {out or file}", run) if detach else run()


def _all_lines(file: str) -> Sequence[bytes]:
    fd = _open(file)
    try:
        with open(fd, "rb", closefd=fd != 0) as opened:
            return opened.read().split(b"\n")
    except OSError as error:  # a folder is opened by the system and refused here
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error


def _open(file: str) -> int:
    if file == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed.", "Give the lines there, or name a file.")
        if sys.stdin.isatty():
            click.echo("reading commands from the terminal; Ctrl-D ends them", err=True)
        return 0
    try:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error


def _dry_run(lines: Sequence[bytes], needs: Needs, done: dict[str, Entry]) -> int:
    for job in batch_file.jobs(lines, needs):
        skipped = "  # finished before" if id_of(job) in done else ""
        click.echo(f"{job.line}: {_options(job.needs)}{harmless(os.fsdecode(job.text))}{skipped}")
    return 0


def _options(needs: Needs) -> str:
    said = [f"gpus={needs.gpus}"] if needs.gpus != 1 else []
    said += [f"mem={show_size(needs.mem_bytes).replace(' ', '')}"] if needs.mem_bytes else []
    said += [f"cpus={needs.cpus:g}"] if needs.cpus else []
    said += [f"ram={show_size(needs.ram_bytes).replace(' ', '')}"] if needs.ram_bytes else []
    said += ["exclusive"] if needs.is_exclusive else []
    said += [f"priority={needs.priority}"] if needs.priority else []
    said += [f"type={needs.job_type}"] if needs.job_type else []
    said += [f"at={needs.at}"] if needs.at else []
    said += [f"idle_limit={show_limit(needs.idle_limit_s)}"] if needs.idle_limit_s else []
    said += [f"on={shlex.quote(needs.on)}"] if needs.on else []
    said += [f"not={','.join(needs.without)}"] if needs.without else []
    return f"[{' '.join(said)}] " if said else ""


def _run(
    file: str,
    folder: str,
    options: BatchOptions,
    total: int | None,
    *,
    is_resumed: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    lines, journal = LineReader(_open(file)), BatchJournal(folder)
    before = journal.open(is_resumed=is_resumed)
    line = ProgressLine(sys.stderr, is_quiet=quiet)
    running = Batch(lines, journal, options, partial(_tell, line), total)
    try:
        running.run(os.path.basename(folder).removesuffix(".grn"), before, line.wait)
    finally:
        line.finish()
        report = _report(running, line.passed_s)
        path = journal.write_report(report)
        journal.close()
    if as_json:
        print_json(report)
    else:
        _summarise(running, line.passed_s, path, is_terse=quiet)
    if running.stopped_by:
        return STOPPED + running.stopped_by
    if lines.trouble:
        raise MachineError(lines.trouble, "What was read before has been run.")
    now = running.progress
    return FAILED if now.failed or now.total != now.done else 0


def _tell(line: ProgressLine, now: Progress, entry: Entry | RunsAgain | None) -> None:
    """Say how a job ended: all of them where there is no terminal, else what went wrong."""
    if isinstance(entry, RunsAgain):
        room = "with more room" if entry.has_more_room else "as it is"
        line.say(f"{_ended_line(now, entry.entry)}; runs again {room}")
    elif entry is not None and (not entry.is_ok or not line.is_terminal):
        line.say(_ended_line(now, entry))
    line.tell(now)


def _ended_line(now: Progress, entry: Entry) -> str:
    done = now.done + now.skipped
    count = f"[{done}/{now.total + now.skipped}]" if now.total is not None else f"[{done}]"
    if entry.trouble:
        return f"{count} line {entry.line}: {_how(entry)}"
    where = f" on GPU {entry.gpu}" if entry.gpu else ""
    why = f": {harmless(entry.because)}" if entry.because else ""
    return f"{count} line {entry.line}: {_how(entry)}, {show_time(entry.duration_s)}{where}{why}"


def _how(entry: Entry) -> str:
    if entry.trouble:
        return f"not run: {harmless(entry.trouble)}"
    if entry.outcome in ("ok", "interrupted", "requeued"):
        return entry.outcome
    text = f"exit status {entry.status}"
    if entry.status < 0:
        text = f"ended by {signal.Signals(-entry.status).name}"
    return text + (", out of GPU memory" if entry.outcome == "oom" else "")


def _report(running: Batch, passed_s: float) -> dict[str, object]:
    now = running.progress
    counts = dict.fromkeys(("ok", "failed", "oom", "interrupted"), 0)
    for entry in running.entries:
        counts[entry.outcome] += 1
    return {
        "schema": 1,
        "total": None if now.total is None else now.total + now.skipped,
        "skipped": now.skipped,
        "stopped_by": running.stopped_by or None,
        "passed_s": round(passed_s, 3),
        "counts": counts,
        "jobs": [entry.row() for entry in sorted(running.entries, key=lambda one: one.line)],
    }


def _summarise(running: Batch, passed_s: float, path: str, *, is_terse: bool) -> None:
    now = running.progress
    failed = [entry for entry in running.entries if not entry.is_ok]
    stopped = sum(entry.outcome == "interrupted" for entry in running.entries)
    left = 0 if now.total is None else now.total - now.done - stopped
    parts = [
        paint(f"{now.finished} ok", "good"),
        paint(f"{now.failed} failed", "failed" if now.failed else ""),
        *([paint(f"{stopped} interrupted", "attention")] if stopped else []),
        *([f"{left} not begun"] if left else []),
        *([f"{now.skipped} finished before"] if now.skipped else []),
    ]
    hint = "; add --resume to go on" if now.failed or stopped or left else ""
    if failed and not is_terse:
        rows = [_row(entry) for entry in failed[:MAX_FAILURES]]
        headers = ("LINE", "HOW", "TOOK", "PEAK", "LOG", "COMMAND")
        spare = ("PEAK", "TOOK", "LOG")
        echo(table(headers, rows, width(), elastic=("HOW", "COMMAND"), spare=spare))
        for entry in failed[:MAX_QUOTED]:
            if last := last_line(entry.log):
                echo(f"last output of line {entry.line}: {paint(harmless(last), 'reason')}")
        if len(failed) > MAX_FAILURES:
            click.echo(f"... and {len(failed) - MAX_FAILURES} more in {path}")
    echo(f"{', '.join(parts)} in {show_time(passed_s)}{hint}; report: {path}")


def _row(entry: Entry) -> tuple[str, ...]:
    command = harmless(entry.command)
    if len(command) > LONGEST_COMMAND:
        command = command[: LONGEST_COMMAND - 1] + "…"
    peak = show_size(entry.peak_bytes)
    return (str(entry.line), _how(entry), show_time(entry.duration_s), peak, entry.log, command)
