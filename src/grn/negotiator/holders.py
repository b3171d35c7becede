"""Process liveness: one pidfd for each process that holds a lease or is connected.

Reports when a process has ended; draws no conclusions.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from grn.model.job import Holder
from grn.proc import pidfd
from grn.proc.identity import holder_of, is_alive
from grn.proc.watch import Watches


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


def peer_of(connection: socket.socket) -> tuple[Holder | None, int, int | None]:
    """Return process, user and pidfd of the peer, as the kernel reports them.

    No process when it has ended, or is in a pid namespace that is not visible here.
    """
    pid, uid = pidfd.credentials(connection)
    try:
        fd = pidfd.of_peer(connection, pid)
    except ConnectionError:
        return None, uid, None
    holder = holder_of(pid) if pid > 0 else None
    if holder is None or pidfd.has_ended(fd):  # checked last: the pid was this process's
        os.close(fd)
        return None, uid, None
    return holder, uid, fd
