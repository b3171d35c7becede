"""One line on a terminal that is written over and over, and lines above it that stay."""

from __future__ import annotations

import os
import time
from typing import TextIO

_REFRESH_S = 0.1


class ProgressLine:
    """Keeps the last line of a terminal; elsewhere only what stays is written."""

    def __init__(self, stream: TextIO, *, is_quiet: bool = False) -> None:
        self._stream = stream
        self._is_quiet = is_quiet
        self._is_drawn = False
        self._drawn_at = 0.0
        self.is_terminal = stream.isatty()

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if not self._is_quiet:
            self._clear()
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def draw(self, text: str, *, at_once: bool = False) -> None:
        """Write the last line anew, not too often."""
        now = time.monotonic()
        if self._is_quiet or not self.is_terminal:
            return
        if at_once or now - self._drawn_at >= _REFRESH_S:
            self._drawn_at = now
            self._clear()
            self._stream.write(text[: _columns() - 1])
            self._stream.flush()
            self._is_drawn = True

    def finish(self) -> None:
        """Leave the terminal clean."""
        self._clear()
        self._stream.flush()

    def _clear(self) -> None:
        if self._is_drawn:
            self._stream.write("\r\x1b[K")
            self._is_drawn = False


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80
    except OSError:
        return 80
