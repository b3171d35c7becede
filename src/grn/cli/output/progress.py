"""Progress of many jobs: one line of a terminal, rewritten in place, below lines that stay."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from grn.cli.output import terminal
from grn.cli.output.style import paint, plain
from grn.group.roles import Progress
from grn.model.text import columns_of, cut, harmless
from grn.model.units import show_time

_REFRESH_S = 0.1
_PACE_S = 1.0  # between two drawings when nothing changes but the time
_BAR, _WIDE_BAR, _WIDE_FROM = 20, 32, 110
_GAP = "  "
_MIN_NAME = 12  # columns below which no name is begun


class ProgressLine:
    """Rewrites the last line of a terminal; elsewhere only lines that stay are written."""

    def __init__(self, stream: TextIO, *, is_quiet: bool = False) -> None:
        self._stream = stream
        self._is_quiet = is_quiet
        self._is_drawn = False
        self._drawn_at = 0.0
        self._began = time.monotonic()
        self._now = Progress(None)
        self._reason = ""  # why nothing runs
        self._lock = threading.RLock()  # the clock draws from a thread of its own
        self._finished = threading.Event()
        self._clock: threading.Thread | None = None
        self.best = ""  # the best result so far, in words
        self.is_terminal = stream.isatty()

    @property
    def passed_s(self) -> float:
        """How long the line has been shown."""
        return time.monotonic() - self._began

    def tell(self, now: Progress) -> None:
        """Draw the progress."""
        with self._lock:
            self._now = now
            if now.running:
                self._reason = ""
            self._draw(at_once=now.done == now.total)

    def wait(self, task: object, reason: str) -> None:
        """Say why a task waits, if no other runs; the reason of the first is the one to know."""
        with self._lock:
            if self._now.running or reason == self._reason:
                return
            self._reason = reason
            if not self.is_terminal:
                self.say(f"waiting: {harmless(reason)}")
            self._draw(at_once=True)

    def say(self, text: str) -> None:
        """Write a line that stays; it may be painted."""
        with self._lock:
            if not self._is_quiet:
                self._clear()
                self._stream.write(f"{self._shown(text)}\n")
                self._stream.flush()

    def finish(self) -> None:
        """Remove the line."""
        with self._lock:
            self._finished.set()
            self._clear()
            self._stream.flush()

    def _draw(self, *, at_once: bool) -> None:
        if self._is_quiet or not self.is_terminal or self._finished.is_set():
            return
        if self._clock is None:
            self._clock = threading.Thread(target=self._tick, daemon=True)
            self._clock.start()
        if at_once or time.monotonic() - self._drawn_at >= _REFRESH_S:
            self._drawn_at = time.monotonic()
            is_ascii = "utf" not in (self._stream.encoding or "").lower()
            text = line(self._now, self.passed_s, _columns() - 1,
                        best=self.best, reason=self._reason, is_ascii=is_ascii)  # fmt: skip
            self._clear()
            self._stream.write(self._shown(text))
            self._stream.flush()
            self._is_drawn = True

    def _tick(self) -> None:
        while not self._finished.wait(_PACE_S):
            with self._lock:
                self._draw(at_once=True)

    def _shown(self, text: str) -> str:
        return text if terminal.has_colour(self._stream) else plain(text)

    def _clear(self) -> None:
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._is_drawn = False


def line(
    now: Progress, passed_s: float, columns: int, *,
    best: str = "", reason: str = "", is_ascii: bool = False,
) -> str:  # fmt: skip
    """Draw progress in one line of `columns`; parts that do not fit are left out."""
    shown, used = "", 0
    for text, style in _pieces(now, passed_s, columns, best, is_ascii):
        gap = _GAP if shown else ""
        if used + len(gap) + columns_of(plain(text)) > columns:
            break
        shown += gap + paint(text, style)
        used += len(gap) + columns_of(plain(text))
    room = columns - used - len(_GAP)
    last, style = _names(now, room), "reason"
    if reason:
        last, style = cut(f"waiting: {harmless(reason)}", room), "waiting"
    return f"{shown}{_GAP}{paint(last, style)}" if last else shown


def bar(done: int, failed: int, total: int, size: int, *, is_ascii: bool = False) -> str:
    """Draw a bar: what is done, in red what failed, and what is left."""
    halves = 2 * size if not total else min(2 * size, 2 * size * done // total)
    if is_ascii:
        return f"[{'#' * (halves // 2)}{'.' * (size - halves // 2)}]"
    bad = -(-size * failed // total) if total else 0
    good = max(0, halves // 2 - bad)
    tip = "╸" if halves % 2 and good + bad < size else ""
    rest = size - good - bad - len(tip)
    return (
        paint("━" * good, "good") + paint("━" * bad, "failed") + paint(tip, "good")
        + paint("━" * rest, "free")
    )  # fmt: skip


def rate(done: int, passed_s: float) -> str:
    """Spell how many end in a second, a minute or an hour, whichever gives a plain number."""
    each = done / passed_s if passed_s > 0 else 0.0
    for seconds, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if each * seconds >= 1 or unit == "h":
            return f"{each * seconds:.1f}/{unit}"
    raise AssertionError("the last unit is for all that is slower")


def _pieces(
    now: Progress, passed_s: float, columns: int, best: str, is_ascii: bool
) -> Iterator[tuple[str, str]]:
    """Yield texts with their styles, the most important first."""
    total = now.total
    if total != 1:
        if total is not None:
            size = _WIDE_BAR if columns >= _WIDE_FROM else _BAR
            yield bar(now.done, now.failed, total, size, is_ascii=is_ascii), ""
        yield f"{now.done}/{total}" if total is not None else f"{now.done} done", "strong"
    if now.failed:
        yield f"{now.failed} failed", "failed"
    if now.done and total is not None and now.done < total:
        yield f"{show_time((total - now.done) * passed_s / now.done)} left", ""
    else:
        yield show_time(passed_s), ""
    if best:
        yield f"best {best}", "good"
    if now.running:
        yield f"{now.running} running", "running"
    if now.done and total != 1:
        yield rate(now.done, passed_s), "reason"


def _names(now: Progress, room: int) -> str:
    """Name what runs, as far as there is room."""
    shown = ""
    for count, name in enumerate(now.names):
        more = now.running - count - 1
        end = f" +{more}" if more > 0 else ""
        begun = f"{shown}, " if shown else ""
        left = room - columns_of(begun) - len(end)
        if left < _MIN_NAME:
            return f"{shown} +{more + 1}" if shown else ""
        shown = begun + cut(harmless(name), left)
    return shown


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
