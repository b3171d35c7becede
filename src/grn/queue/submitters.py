"""The processes that jobs are tied to: their jobs are cancelled when they end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from grn.model.job import Holder
from grn.proc import pidfd, processes
from grn.proc.watch import Watches


class Submitters:
    """The processes that jobs are tied to: known by pid and start time, watched by pidfd.

    Their connection is no evidence: a forked child may keep it open for ever.
    """

    def __init__(self, boot: str, on_gone: Callable[[str], None]) -> None:
        self._boot = boot
        self._on_gone = on_gone
        self._watches = Watches(on_gone)

    def watch_peer(self, connection: socket.socket) -> str:
        """Watch the process that opened a connection; return its name.

        Raise ConnectionError when it has ended.
        """
        pid, _ = pidfd.credentials(connection)
        fd = pidfd.of_peer(connection, pid)
        found = processes.look(pid)
        if found is None or pidfd.has_ended(fd):  # checked last: the pid was this process's
            os.close(fd)
            raise ConnectionResetError("the process at the other end has ended")
        name = f"{self._boot} {pid} {found.started_ticks}"
        self._watches.add(name, fd)
        return name

    def watch(self, name: str) -> None:
        """Watch a process from before a restart of the queue; report at once if it is gone."""
        boot, pid, ticks = name.split(" ")
        fd = pidfd.open_pidfd(Holder(int(pid), int(ticks))) if boot == self._boot else None
        if fd is None:
            self._on_gone(name)
        else:
            self._watches.add(name, fd)

    def close(self) -> None:
        """Stop watching all."""
        self._watches.close()
