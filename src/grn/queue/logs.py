"""What a command prints, in files that never grow past a cap: the head and the tail are kept.

The head is one file; past half the cap, two tail files of a quarter each are filled in turn.
"""

from __future__ import annotations

import os

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class CappedLog:
    """One log being written."""

    def __init__(self, path: str, cap_bytes: int) -> None:
        self._path = path
        self._head_left = max(1, cap_bytes // 2)
        self._tail_bytes = max(1, cap_bytes // 4)
        self._fd = -1  # opened when there is something to write
        self._tail_left = 0
        self._tail = 1  # the tail file last begun: 0 or 1
        self.dropped_bytes = 0

    def write(self, data: bytes) -> None:
        """Add output; a disk that is full loses it rather than blocks the command."""
        view = memoryview(data)
        while view:
            room = self._room()
            part = view[:room]
            try:
                written = os.write(self._fd, part)
            except OSError:
                self.dropped_bytes += len(view)
                return
            self._took(written)
            view = view[written:]

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room(self) -> int:
        if self._head_left > 0:
            if self._fd < 0:
                self._fd = os.open(self._path, _FLAGS, 0o600)
            return self._head_left
        if self._tail_left <= 0:
            self.close()
            self._tail = 1 - self._tail
            self._fd = os.open(f"{self._path}.tail{self._tail}", _FLAGS | os.O_TRUNC, 0o600)
            self._tail_left = self._tail_bytes
        return self._tail_left

    def _took(self, count: int) -> None:
        if self._head_left > 0:
            self._head_left -= count
        else:
            self._tail_left -= count
