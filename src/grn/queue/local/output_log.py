"""Output of a command in files of limited size: the head and the tail are kept.

The head is one file; past half the limit follow tail files of a quarter each, of which the last two
are kept. They are numbered, so a missing first one shows that output was dropped after the head.
"""

from __future__ import annotations

import contextlib
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
        self._tails = 0  # tail files begun
        self.dropped_bytes = 0

    def write(self, data: bytes) -> None:
        """Append output; on a full disk it is lost, so that the command is not blocked."""
        view = memoryview(data)
        while view:
            try:
                room = self._room()
                written = os.write(self._fd, view[:room])
            except OSError:
                self.dropped_bytes += len(view)
                return
            self._took(written)
            view = view[written:]

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room(self) -> int:
        if self._head_left > 0:
            if self._fd < 0:
                self._fd = _open(self._path)
            return self._head_left
        if self._tail_left <= 0:
            self._begin_tail()
        return self._tail_left

    def _begin_tail(self) -> None:
        self.close()
        if self._tails >= 2:
            with contextlib.suppress(FileNotFoundError):  # where the disk was full after this
                os.unlink(f"{self._path}.tail{self._tails - 2}")
        self._fd = _open(f"{self._path}.tail{self._tails}")
        self._tails += 1
        self._tail_left = self._tail_bytes

    def _took(self, count: int) -> None:
        if self._head_left > 0:
            self._head_left -= count
        else:
            self._tail_left -= count


def _open(path: str) -> int:
    """Open a file for appending; the first one creates the folder."""
    try:
        return os.open(path, _FLAGS, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return os.open(path, _FLAGS, 0o600)
