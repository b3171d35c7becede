"""Progress on a terminal: one line that is rewritten in place, and lines above it that stay."""

from __future__ import annotations

import os
import time
from typing import TextIO

from grn.group.roles import Progress
from grn.model.text import harmless
from grn.model.units import show_time

_REFRESH_S = 0.1
_BAR = 24


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
        self.is_terminal = stream.isatty()

    @property
    def passed_s(self) -> float:
        """How long the line has been shown."""
        return time.monotonic() - self._began

    def tell(self, now: Progress) -> None:
        """Draw the progress."""
        self._now = now
        if now.running:
            self._reason = ""
        self._draw(at_once=now.done == now.total)

    def wait(self, task: object, reason: str) -> None:
        """Say why a task waits, if no other runs; the reason of the first is the one to know."""
        if self._now.running or reason == self._reason:
            return
        self._reason = reason
        if not self.is_terminal:
            self.say(f"waiting: {harmless(reason)}")
        self._draw(at_once=True)

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if not self._is_quiet:
            self._clear()
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def finish(self) -> None:
        """Remove the line."""
        self._clear()
        self._stream.flush()

    def _draw(self, *, at_once: bool) -> None:
        if self._is_quiet or not self.is_terminal:
            return
        if at_once or time.monotonic() - self._drawn_at >= _REFRESH_S:
            self._drawn_at = time.monotonic()
            self._clear()
            self._stream.write(self._text()[: _columns() - 1])
            self._stream.flush()
            self._is_drawn = True

    def _text(self) -> str:
        now, text = self._now, f"{self._now.running} running"
        if now.total is not None:
            text = f"{bar(now.done, now.total, now.failed, self.passed_s)}  {text}"
        else:
            text = f"{now.done} done, {now.failed} failed, {text}"
        return text + (f"  waiting: {harmless(self._reason)}" if self._reason else "")

    def _clear(self) -> None:
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._is_drawn = False


def bar(done: int, total: int, failed: int, passed_s: float, size: int = _BAR) -> str:
    """Draw one line: how many are done, how many failed, the rate and the time left."""
    filled = round(size * done / total) if total else size
    rate = done / passed_s if passed_s > 0 else 0.0
    left = show_time((total - done) / rate) if rate else "?"
    bad = f", {failed} failed" if failed else ""
    drawn = "#" * filled + "." * (size - filled)
    return f"[{drawn}] {done}/{total}{bad}  {rate:.1f}/s  {left} left"


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
