"""Read lines of bytes without blocking, and turn a line of any length into a shell command.

Reads only when data is there, so that a pipe or a FIFO never blocks the loop, and keeps the mode of
the file: other processes may share it.
"""

from __future__ import annotations

import os

CHUNK_BYTES = 1 << 16
# The kernel takes no single word of 128 KiB or more. A longer line is cut, and joined again by the
# shell, which unsets the variables before the line runs.
LONGEST_WORD_BYTES = (128 << 10) - 1
_PIECE_BYTES = 100_000
_PUT_TOGETHER = (
    'grn_line=; for grn_piece; do grn_line="$grn_line$grn_piece"; done; set --; '
    'eval "unset grn_line grn_piece\n$grn_line"'
)


class LineReader:
    """The lines of an open file, without their ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._start = 0  # of the next line
        self._seen = 0  # no line ends between start and here
        self._is_at_end = False
        self.trouble = ""  # why reading failed; lines read before are still returned

    @property
    def is_over(self) -> bool:
        """True when the last line has been taken."""
        return self._is_at_end and self._start == len(self._buffer)

    def next_line(self) -> bytes | None:
        """Return the next line, None if it is not complete yet; the last needs no end."""
        buffer, start = self._buffer, self._start
        end = buffer.find(b"\n", self._seen)
        if end < 0:
            self._seen = len(buffer)
            if not self._is_at_end or start == len(buffer):
                return None
            end = len(buffer)
        self._start = self._seen = min(end + 1, len(buffer))
        return bytes(buffer[start:end])

    def fileno(self) -> int | None:
        """Return the file to listen to."""
        return None if self._is_at_end else self._fd

    def hear(self) -> None:
        """Read the available bytes."""
        try:
            data = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return  # another reader of the file took the data
        except OSError as error:
            self.trouble = f"the commands cannot be read: {error.strerror}."
            data = b""
        self._is_at_end = not data
        del self._buffer[: self._start]
        self._seen -= self._start
        self._start = 0
        self._buffer += data


def shell_argv(line: bytes) -> tuple[str, ...]:
    """Return the words that make the shell run a line."""
    if len(line) <= LONGEST_WORD_BYTES:
        return ("/bin/sh", "-c", os.fsdecode(line))
    starts = range(0, len(line), _PIECE_BYTES)
    pieces = (os.fsdecode(line[start : start + _PIECE_BYTES]) for start in starts)
    return ("/bin/sh", "-c", _PUT_TOGETHER, "/bin/sh", *pieces)
