"""Proof of life: one pidfd for each process that holds a lease or is connected.

Reports when a process has ended; draws no conclusions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable

from grn.gpus.trees import holder_of, is_alive
from grn.model.job import Holder

SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("3i")


class Holders:
    """Watches processes until they end or nobody asks for them any more."""

    def __init__(self, on_gone: Callable[[Holder], None]) -> None:
        self._on_gone = on_gone
        self._pidfds: dict[Holder, int] = {}
        self._references: dict[Holder, int] = {}

    def __len__(self) -> int:
        return len(self._pidfds)

    def watch(self, holder: Holder, pidfd: int | None = None) -> bool:
        """Begin to watch a process, or do so once more; False when it is gone already."""
        if holder in self._pidfds:
            self._references[holder] += 1
            if pidfd is not None:
                os.close(pidfd)
            return True
        try:
            fd = os.pidfd_open(holder.pid) if pidfd is None else pidfd
        except OSError:
            return False
        if not is_alive(holder):  # looked at after opening: a reused pid is found out
            os.close(fd)
            return False
        self._pidfds[holder], self._references[holder] = fd, 1
        asyncio.get_running_loop().add_reader(fd, self._gone, holder)
        return True

    def unwatch(self, holder: Holder) -> None:
        """Take back one `watch`."""
        if holder not in self._pidfds:
            return
        self._references[holder] -= 1
        if not self._references[holder]:
            self._close(holder)

    def close(self) -> None:
        """Stop watching all."""
        for holder in list(self._pidfds):
            self._close(holder)

    def _gone(self, holder: Holder) -> None:
        self._close(holder)
        self._on_gone(holder)

    def _close(self, holder: Holder) -> None:
        fd = self._pidfds.pop(holder)
        del self._references[holder]
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)


def peer_of(connection: socket.socket) -> tuple[Holder | None, int, int | None]:
    """Return the peer as the kernel reports it: process, user, and a pidfd if available."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    pidfd: int | None = None
    with contextlib.suppress(OSError):  # kernels before 6.5 do not know it
        pidfd = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        os.set_inheritable(pidfd, False)
    holder = holder_of(pid) if pid > 0 else None  # 0: a process of a namespace we cannot see
    if pidfd is not None and (holder is None or _has_ended(pidfd)):
        os.close(pidfd)  # looked at after its number: that may be another's by now
        return None, uid, None
    return holder, uid, pidfd


def _has_ended(pidfd: int) -> bool:
    ready = select.poll()
    ready.register(pidfd, select.POLLIN)
    return bool(ready.poll(0))
