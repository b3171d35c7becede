"""What `grn submit` says to people: a program that is missing, what a new job waits for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from grn.cli.output import job_text
from grn.cli.output.style import paint
from grn.cli.output.terminal import echo, has_colour, width
from grn.client import queue
from grn.client.negotiator import ask_once
from grn.errors import GrnError
from grn.model.ranges import show_ranges
from grn.model.text import columns_of, cut, harmless
from grn.model.units import show_expected
from grn.option_file import nearest
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import read

MIN_STATE = 20  # columns that a state has at least


def warn_of_missing(program: str, path: str | None) -> None:
    """Warn that a program is not there, with the name of one that is."""
    if os.sep in program:
        text = f"{program}: no such program"
    else:
        near = nearest(program, _programs(os.environ.get("PATH", "") if path is None else path))
        text = f"{program}: not found on PATH" + (f"; did you mean {near}?" if near else "")
    echo(f"{paint('warning: ', 'attention')}{harmless(text)}", err=True)


def _programs(path: str) -> list[str]:
    found: set[str] = set()
    for folder in path.split(os.pathsep):
        try:
            found.update(os.listdir(folder or "."))
        except OSError:
            continue  # a folder of PATH need not be there
    return sorted(found)


def say(ids: Sequence[int]) -> None:
    """Print ids, and in the same line of a terminal what becomes of the jobs and what to type."""
    shown = show_ranges(ids)
    sys.stdout.write(paint(shown, "id") if has_colour(sys.stdout) else shown)
    sys.stdout.flush()  # the jobs are accepted: an id must not wait for the answer below
    follow = f"grn logs -f {ids[0]}" if len(ids) == 1 else "grn ls"
    echo("  " + paint(line(_state(ids), follow, width() - columns_of(shown) - 2), "reason"))


def line(state: tuple[str, str], follow: str, columns: int) -> str:
    """Join a state, the expected start and a command to fit the width; the state is cut."""
    text, expected = state
    rest = "".join(f" · {part}" for part in (expected, follow) if part)
    return cut(text, max(MIN_STATE, columns - columns_of(rest))) + rest


def _state(ids: Sequence[int]) -> tuple[str, str]:
    """Return the state of the first job with its reason, and when it is expected to start."""
    many = f"{len(ids)} jobs, " if len(ids) > 1 else ""
    try:
        row = read(JobRow, queue.show(ids[0]))
        expected = _expected(row) if row.is_waiting else ""
    except GrnError:
        return f"{many}submitted", ""
    if row.has_ended:
        return f"{many}{row.reason}: {harmless(row.text or '')}".removesuffix(": "), ""
    reason = job_text.reason(row) if row.is_waiting else ""
    return f"{many}{row.state}: {reason}" if reason else f"{many}{row.state}", expected


def _expected(row: JobRow) -> str:
    if not row.lease:
        return ""
    rows = ask_once({"op": "why", "name": row.lease})["why"]
    starts = rows[0].get("starts_in_s") if rows else None
    return show_expected("starts", (starts[0], starts[1])).partition(" (")[0] if starts else ""
