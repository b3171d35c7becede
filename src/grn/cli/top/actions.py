"""What `grn top` does when it is told to: steer a job, read its log, explain it.

Every function here may wait for an answer, so it is called beside the screen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from grn.cli.output import job_text, render
from grn.cli.output.style import plain
from grn.cli.top import draw, screen
from grn.cli.top.detail import Detail, memory
from grn.cli.top.draw import Line, Marks
from grn.cli.top.rows import Row, Section
from grn.cli.top.screen import Look
from grn.cli.top.state import KeyAction
from grn.client import logs, queue
from grn.client.negotiator import ask_once
from grn.errors import GrnError
from grn.model import ansi
from grn.model.text import harmless
from grn.paths import user_name
from grn.protocol.negotiator_rows import CurveRow, lease_or_request
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import read

MAX_LOG_BYTES = 256 << 10
EXPLAINED_CHART = (76, 8)  # columns and lines of the memory of an explained job
MAX_TAIL_BYTES = 16 << 10  # for the pane, which is read again every second


class LogPage:
    """Lines that fill the terminal until a key closes them; each drawing reads them again."""

    def __init__(self, title: str, read: Callable[[], list[Line]], *, is_followed: bool) -> None:
        self._title = title
        self._read = read
        self._is_followed = is_followed  # the end is kept in sight
        self._texts: list[Line] = []
        self._first = 0

    def lines(self, look: Look) -> list[Line]:
        """Draw it."""
        self._texts = self._read()
        room = look.height - 2
        last = max(0, len(self._texts) - room)
        self._first = last if self._is_followed else min(self._first, last)
        shown: list[Line] = [[(draw.cut(f" {self._title}", look.width, look.marks), "title")]]
        shown += self._texts[self._first :][:room]
        shown += [[("", "plain")]] * (look.height - 1 - len(shown))
        keys = " q back   Up, Down, PgUp, PgDn, Home, End" + ("  (following)" * self._is_followed)
        return screen.full([*shown, [(keys, "keys")]], look)

    def press(self, key: str, height: int) -> bool:
        """Move in it; False when it is to be closed."""
        step = {"up": -1, "down": 1, "k": -1, "j": 1, "pageup": 2 - height, "pagedown": height - 2}
        if key in step:
            self._first = max(0, self._first + step[key])
            self._is_followed = False
        elif key == "home":
            self._first, self._is_followed = 0, False
        elif key == "end":
            self._is_followed = True
        return key in step or key in ("home", "end")


@dataclass(frozen=True, slots=True)
class Done:
    """What came of an order: a sentence, or a page to show."""

    said: str = ""
    page: LogPage | None = None


def carry_out(order: KeyAction, marks: Marks) -> Done:
    """Do it; an error of grn's is for the caller to show."""
    row = order.row
    if row is None:
        return Done()
    if order.verb in ("log", "follow"):
        return _log(row)
    if order.verb == "explain":
        lines = _explanation(row, marks)
        return Done(page=LogPage(f"{row.id}  {row.what}", lambda: lines, is_followed=False))
    assert row.job is not None
    jobs = list(row.members or (row.job,))
    what = f"{len(jobs):,} jobs are" if row.members else f"job {row.job} is"
    if order.verb == "retry":
        first = queue.submit({"op": "retry", "jobs": jobs})["first"]
        return Done(f"submitted once more as job {first}{' and following' * (len(jobs) > 1)}")
    if order.verb == "cancel":
        queue.ask({"op": "cancel", "jobs": jobs}, may_start=False)
        return Done(f"{what} being cancelled")
    is_held = order.verb == "hold"
    queue.ask({"op": "hold", "jobs": jobs, "held": is_held}, may_start=False)
    return Done(f"{what} held" if is_held else f"{what} released")


def _log(row: Row) -> Done:
    assert row.job is not None
    job = read(JobRow, queue.show(row.job, may_start=False))
    folder = job.folder
    if folder is None:
        return Done(f"job {row.id} has not run yet: {harmless(job.why)}")
    title = f"log of job {row.id}  {row.what}"
    return Done(page=LogPage(title, lambda: log_lines(folder), is_followed=True))


def read_detail(row: Row) -> Detail:
    """Read the memory of a job over time and the end of its log, as far as they are kept."""
    used, step_s = _curve(row)
    log = None if row.folder is None else tuple(log_lines(row.folder, MAX_TAIL_BYTES))
    return Detail((row.part, row.id), used, step_s, log)


def log_lines(folder: str, most_bytes: int = MAX_LOG_BYTES) -> list[Line]:
    """Return the end of a log with its colours; what CR wrote over shows as it was at last."""
    data = b""
    for path in reversed(logs.parts(os.path.join(folder, "log"))):
        size = os.path.getsize(path) if os.path.exists(path) else 0
        data = logs.read_from(path, max(0, size - most_bytes)) + data
        if len(data) >= most_bytes:
            break
    if not data:
        return [[("nothing was printed yet", "plain")]]
    lines, _ = ansi.styled_lines(data[-most_bytes:].decode("utf-8", "replace"))
    return [[(text, f"sgr:{ansi.sgr(style)}") for text, style in line] for line in lines]


def _explanation(row: Row, marks: Marks) -> list[Line]:
    texts: list[str] = []
    if row.job is not None:
        job = read(JobRow, queue.show(row.job, may_start=False))
        texts += plain(job_text.job(job, time.time())).splitlines()
    if row.lease is not None and row.part is not Section.ENDED:
        texts += ["", *_negotiators_word(row.lease)]
    texts = texts or [f"{row.id}: {row.state} {row.why}"]
    lines: list[Line] = [[(text, "plain")] for text in texts]
    if row.lease is not None and row.part is not Section.WAITING:
        used, step_s = _curve(row)
        known = Detail((row.part, row.id), used, step_s)
        lines += [[("", "plain")], *memory(row, known, EXPLAINED_CHART, marks)]
    return lines


def _negotiators_word(lease: str) -> list[str]:
    try:
        rows = ask_once({"op": "why", "name": lease})["why"]
    except GrnError as error:
        return [error.message]
    return plain(render.why([*map(lease_or_request, rows)], user_name)).splitlines()


def _curve(row: Row) -> tuple[tuple[int | None, ...], float]:
    """Return the memory of a job over time and the step between two samples; empty if not kept."""
    if row.lease is None or row.part is Section.WAITING or row.where:
        return (), 0.0
    try:
        curve = read(CurveRow, ask_once({"op": "samples", "lease": row.lease})["curve"])
    except GrnError:
        return (), 0.0  # the reader is told that no samples are kept
    return curve.used_bytes, curve.step_s
