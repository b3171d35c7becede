"""The line on standard error that says why a call waits for a GPU, and for how long.

Only where a person looks: on a terminal and in a notebook, unless `GRN_QUIET` is set. One call of
a process speaks at a time. Starts no thread: the waiting call draws the line when it wakes up.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from grn.model.text import columns_of, cut, harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

PACE_S = 1.0  # between two drawings
REASON_S = 5.0  # between two questions for the reason
_UNKNOWN_COLUMNS = 100  # of notebooks, for example
_ADVICE = {
    "no-room": "`grn gpus` shows the jobs there",
    "first-run-elsewhere": "a stated need (mem) starts at once where it fits",
    "no-room-for-first-run": "a stated need (mem) may fit beside others",
    "no-empty-gpu": "`grn ps` shows the jobs there",
    "not-enough-gpus": "`grn ps` shows the jobs there",
    "stays-on-its-gpu": "a process of its own could use another GPU",
    "gpu-silent": "see `grn doctor`",
    "no-ram": "`grn ps` shows the jobs there",
    "cpus-busy": "`grn ps` shows the jobs there",
}
_speaking = threading.Lock()


class WaitLine:
    """One line that is rewritten in place while a call waits."""

    def __init__(self, stream: TextIO, passed_s: float = 0.0) -> None:
        self._stream = stream
        self._began = time.monotonic() - passed_s
        self._asked_at = 0.0
        self._columns = 0  # of what is drawn
        self._is_speaking = False
        self._reason = ""
        self._word = ""

    def tell(self, reason: str | None, word: str | None = None) -> None:
        """Take in why the call waits, as a sentence and as a word; draw it if it is another."""
        if reason and (reason, word) != (self._reason, self._word):
            self._reason, self._word = reason, word or ""
            if self._is_speaking:
                self.draw()

    def is_reason_due(self) -> bool:
        """True when the reason is to be asked for again; then it counts as asked."""
        now = time.monotonic()
        if now - self._asked_at < REASON_S:
            return False
        self._asked_at = now
        return True

    def draw(self) -> None:
        """Draw the line, unless another call of this process has one."""
        self._is_speaking = self._is_speaking or _speaking.acquire(blocking=False)
        if self._is_speaking:
            text = line(time.monotonic() - self._began, self._reason, self._word, self._width())
            self._write(text)

    def clear(self) -> None:
        """Remove the line."""
        if self._is_speaking:
            self._write("")
            self._is_speaking = False
            _speaking.release()

    def _write(self, text: str) -> None:
        """Write over the line before; blanks instead of an escape sequence serve notebooks too."""
        columns = columns_of(text)
        blanks = " " * (self._columns - columns)
        try:
            self._stream.write(f"\r{text}{blanks}" + ("" if text else "\r"))
            self._stream.flush()
        except (OSError, ValueError):
            return  # standard error is closed: the call itself goes on
        self._columns = columns

    def _width(self) -> int:
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 0
        return (columns or _UNKNOWN_COLUMNS) - 1  # a terminal may not know its size


def open_line(passed_s: float) -> WaitLine | None:
    """Return the line of a call that has waited for some seconds; None where it is not shown."""
    stream = sys.stderr
    if is_quiet() or not is_seen(stream):
        return None
    return WaitLine(stream, passed_s)


def is_quiet() -> bool:
    """True when waits are to be silent, by `GRN_QUIET`."""
    return os.environ.get("GRN_QUIET", "0") not in ("", "0")


def is_seen(stream: TextIO | None) -> bool:
    """True for a terminal and for the output of a notebook."""
    try:
        return stream is not None and (
            stream.isatty() or type(stream).__module__.partition(".")[0] == "ipykernel"
        )
    except ValueError:  # it is closed
        return False


def line(passed_s: float, reason: str, word: str, columns: int) -> str:
    """Spell how long a call has waited, why, and what can be done, as far as there is room."""
    minutes, seconds = divmod(int(passed_s), 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
    text = f"grn: waiting {clock}: {harmless(reason or 'for an answer of the negotiator')}"
    advice = f"; {_ADVICE[word]}" if word in _ADVICE else ""
    if columns_of(text + advice) <= columns:
        return text + advice
    return cut(text, columns)
