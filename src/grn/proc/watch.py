"""Watch processes from an asyncio loop: one pidfd each, one call when a process has ended.

Reports ends; draws no conclusions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from grn.model.job import Holder
from grn.proc import pidfd
from grn.proc.identity import is_alive

Key = TypeVar("Key")


class Watches(Generic[Key]):
    """The watched processes, each by a key of the caller's."""

    def __init__(self, on_gone: Callable[[Key], None]) -> None:
        self._on_gone = on_gone
        self._fds: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._fds)

    def __contains__(self, key: Key) -> bool:
        return key in self._fds

    def __iter__(self) -> Iterator[Key]:
        return iter(self._fds)

    def add(self, key: Key, fd: int) -> None:
        """Watch the process of a pidfd, which is ours to close; a key is watched once."""
        if key in self._fds:
            os.close(fd)
            return
        self._fds[key] = fd
        asyncio.get_running_loop().add_reader(fd, self._gone, key)

    def send(self, key: Key, signum: int) -> bool:
        """Signal a watched process; False when it is gone or is not watched."""
        return key in self._fds and pidfd.send_to(self._fds[key], signum)

    def remove(self, key: Key) -> None:
        """Stop watching a process."""
        fd = self._fds.pop(key)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)

    def close(self) -> None:
        """Stop watching all."""
        for key in list(self._fds):
            self.remove(key)

    def _gone(self, key: Key) -> None:
        self.remove(key)
        self._on_gone(key)


class Holders:
    """Watches processes until they end or every `watch` has its `unwatch`."""

    def __init__(self, on_gone: Callable[[Holder], None]) -> None:
        self._on_gone = on_gone
        self._watches = Watches(self._gone)
        self._references: dict[Holder, int] = {}

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, holder: Holder, fd: int | None = None) -> bool:
        """Watch a process, or count one more watch of it; False when it has ended."""
        if holder not in self._watches:
            if fd is None:
                fd = pidfd.open_pidfd(holder)
            if fd is None:
                return False
            if not is_alive(holder):  # checked after opening: a reused pid shows
                os.close(fd)
                return False
        self._references[holder] = self._references.get(holder, 0) + 1
        if fd is not None:
            self._watches.add(holder, fd)
        return True

    def unwatch(self, holder: Holder) -> None:
        """Undo one `watch`."""
        if holder not in self._references:
            return
        self._references[holder] -= 1
        if not self._references[holder]:
            del self._references[holder]
            self._watches.remove(holder)

    def close(self) -> None:
        """Stop watching all."""
        self._references.clear()
        self._watches.close()

    def _gone(self, holder: Holder) -> None:
        del self._references[holder]
        self._on_gone(holder)
