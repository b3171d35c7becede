"""Plain text for people out of the queue's answers: pure, so it can be tested as text."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence

from grn.cli.output.style import paint, state_style
from grn.cli.output.table import labelled, table
from grn.model.text import counted, harmless
from grn.model.units import show_size, show_time
from grn.protocol.rows import AttemptRow, JobRow

MAX_NAMES = 240


def jobs(rows: Sequence[JobRow], now: float, width: int = 0, *, has_sites: bool = False) -> str:
    """List jobs of the queue; with sites, or with jobs that ran elsewhere, tell where."""
    if not rows:
        return "no jobs"
    has_where = has_sites or any(row.where for row in rows)
    lines = [
        [
            str(row.id),
            shown_state(row),
            *([shown_where(row)] if has_where else []),
            ",".join(map(str, row.gpus)) if not row.is_waiting else "",
            _job_memory(row),
            show_time(now - _since(row)),
            shown_command(row),
            "" if row.why in ("running", "starting") else harmless(row.why),
        ]
        for row in rows
    ]
    where = ["WHERE"] if has_where else []
    headers = ["ID", "STATE", *where, "GPU", "USED/RESERVED", "FOR", "COMMAND", "WHY"]
    return table(headers, lines, width, elastic=("COMMAND", "WHY"), spare=("USED/RESERVED",))


def history(rows: Sequence[JobRow], now: float, width: int = 0, *, has_sites: bool = False) -> str:
    """List jobs that have ended."""
    if not rows:
        return "nothing has ended yet"
    has_where = has_sites or any(row.where for row in rows)
    lines = [
        [
            str(row.id),
            row.reason or "",
            _exit_text(row),
            show_time(row.ran_s),
            show_size(row.peak_bytes),
            *([shown_where(row)] if has_where else []),
            ",".join(map(str, row.gpus)),
            str(row.attempt),
            show_time(now - _since(row)) + " ago",
            shown_command(row),
        ]
        for row in rows
    ]
    where = ["WHERE"] if has_where else []
    headers = ["ID", "ENDED", "EXIT", "RAN", "PEAK", *where, "GPU", "TRIES", "WHEN", "COMMAND"]
    spare = ("TRIES", "PEAK", "EXIT")
    return table(headers, lines, width, elastic=("COMMAND",), spare=spare)


def job(row: JobRow, now: float, width: int = 0) -> str:
    """Show all of one job."""
    why = harmless(row.why) if row.why != row.state else ""
    asked = f"{counted(row.gpus_asked, 'GPU')}, {_asked_memory(row)}"
    asked += ", to itself" if row.is_exclusive else ""
    asked += f", at {harmless(row.at)}" if row.at else ""
    after = ", ".join(f"{one}{'' if must else ':any'}" for one, must in row.after)
    lines = [
        ("state", _painted_state(row) + (f": {why}" if why else "")),
        ("command", spelled_command(row.argv)),
        ("folder", harmless(row.cwd)),
        ("type", harmless(row.label)),
        ("asks for", asked),
        ("memory", _memory_now(row)),
        ("submitted", f"{show_time(now - row.submitted_at)} ago, priority {row.priority}"),
        ("after", after),
        ("files", row.folder or ""),
        *(line for one in row.attempts for line in _attempt(one, row, now)),
        ("variables", _names(row.environment)),
    ]
    head = paint(f"job {row.id}  {harmless(row.name)}".rstrip(), "id")
    return "\n".join([head, *(labelled(label, text, width) for label, text in lines if text)])


def explained(row: JobRow, now: float) -> str:
    """Say in a line or two what a job waits for, or that it does not wait."""
    head = f"{paint(f'job {row.id}', 'id')}  {shown_command(row)}"
    state, since = _painted_state(row), show_time(now - _since(row))
    if row.has_ended:
        why = f": {harmless(row.why)}" if row.why else ""
        return f"{head}\n  ended {since} ago, {state}{why}"
    why = harmless(row.why) if row.why != row.state else ""
    return f"{head}\n  {state} for {since}{f': {why}' if why else ''}"


def _attempt(one: AttemptRow, row: JobRow, now: float) -> Iterator[tuple[str, str]]:
    """Describe where an attempt ran and how it ended, where known."""
    ran_s = one.ran_s
    if not one.reason and row.started_at:
        ran_s = now - row.started_at
    text = one.reason or "under way"
    if ran_s is not None:
        text += f" {'after' if one.reason else 'for'} {show_time(ran_s)}"
    if one.peak_bytes is not None:
        text += f", peak {show_size(one.peak_bytes)}"
    where = f"GPU {','.join(map(str, one.gpus))}" if one.gpus else "no GPU"
    where += f" of {harmless(one.where)}" if one.where else ""
    yield "attempt", f"{one.attempt} on {where}: {text}"
    yield "", harmless(one.text or "")


def _memory_now(row: JobRow) -> str:
    if not row.used_bytes:  # known of running jobs only
        return ""
    return f"{show_size(row.used_bytes)} used of {show_size(row.reserved_bytes)} reserved"


def _names(names: Sequence[str]) -> str:
    """List the first few names."""
    listed = textwrap.shorten(harmless(", ".join(names)), MAX_NAMES, placeholder="").rstrip(",")
    left = len(names) - len(listed.split(", "))
    return listed + (f" and {left} more: --json tells all" if left > 0 else "")


def counts(numbers: dict[str, int]) -> str:
    """Say how many jobs are in each state."""
    parts = [
        (numbers["running"], "running", "running"),
        (numbers["queued"], "queued", "waiting"),
        (numbers["ended"], "ended", "ended"),
    ]
    return ", ".join(paint(f"{count} {word}", style) for count, word, style in parts)


def shown_state(row: JobRow) -> str:
    """Name the state of a job, or how it ended."""
    return str(row.reason) if row.has_ended else row.state


def _painted_state(row: JobRow) -> str:
    state = shown_state(row)
    return paint(state, state_style(state))


def shown_where(row: JobRow) -> str:
    """Name the machine of a job that has begun."""
    if row.is_waiting or not row.attempt:
        return ""
    return harmless(row.where) or "local"


def shown_command(row: JobRow) -> str:
    """Spell the command of a job, after its name if it has one."""
    return named_command(row.name, row.argv)


def named_command(name: str, argv: Sequence[str]) -> str:
    """Spell a command, after the name of its job if it has one."""
    text = spelled_command(argv)
    return f"{harmless(name)}: {text}" if name else text


def spelled_command(argv: Sequence[str]) -> str:
    """Spell a command as one would type it."""
    is_line = tuple(argv[:2]) == ("/bin/sh", "-c") and len(argv) == 3
    return harmless(argv[2] if is_line else shlex.join(argv))


def going_on(running: int) -> str:
    """State that running jobs continue, if there are any."""
    verb = "goes" if running == 1 else "go"
    return f"; {counted(running, 'running job')} {verb} on" if running else ""


def _since(row: JobRow) -> float:
    """Return when a job entered its state."""
    if row.has_ended:
        return row.ended_at or row.submitted_at
    return row.submitted_at if row.is_waiting else row.started_at or row.submitted_at


def _job_memory(row: JobRow) -> str:
    if row.is_waiting or row.reserved_bytes is None:
        return ""
    used = row.peak_bytes if row.has_ended else row.used_bytes
    return f"{show_size(used)}/{show_size(row.reserved_bytes)}"


def _asked_memory(row: JobRow) -> str:
    return show_size(row.mem_bytes) if row.mem_bytes else "memory as learned"


def _exit_text(row: JobRow) -> str:
    if row.signal:
        return f"signal {row.signal}"
    return "" if row.status is None else str(row.status)
