"""What `grn submit` says to people: a program that is missing, what a new job waits for."""

from __future__ import annotations

import os
from collections.abc import Sequence

from grn.cli.output.style import paint
from grn.cli.output.terminal import echo
from grn.client import queue
from grn.client.negotiator import ask_once
from grn.errors import GrnError
from grn.model.text import harmless
from grn.model.units import show_expected
from grn.option_file import nearest
from grn.protocol.rows import JobRow, read


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
    """Say in one line on a terminal what becomes of a new job, and what to type next."""
    try:
        row = read(JobRow, queue.show(ids[0]))
        expected = _expected(row) if row.is_waiting else ""
    except GrnError:
        return  # the job is accepted, and its id is printed
    state = row.state if not row.has_ended else str(row.reason)
    reason = harmless(row.why) if row.is_waiting and row.why != row.state else ""
    parts = [f"{state}: {reason}" if reason else state, expected]
    follow = f"grn logs -f {ids[0]}" if len(ids) == 1 else "grn ls"
    echo(paint(" · ".join([*filter(None, parts), follow]), "reason"), err=True)


def _expected(row: JobRow) -> str:
    if not row.lease:
        return ""
    rows = ask_once({"op": "why", "name": row.lease})["why"]
    starts = rows[0].get("starts_in_s") if rows else None
    return show_expected("starts", (starts[0], starts[1])) if starts else ""
