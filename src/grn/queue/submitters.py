"""The processes that jobs are tied to: known by pid and start time, watched by pidfd.

Not by their connection: a child that was forked from one may keep that open for ever.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from grn.client import trust
from grn.proc import processes


class Submitters:
    """One pidfd for each living process that jobs are tied to."""

    def __init__(self, boot: str, on_gone: Callable[[str], None]) -> None:
        self._boot = boot
        self._on_gone = on_gone
        self._pidfds: dict[str, int] = {}

    def watch_peer(self, connection: socket.socket) -> str:
        """Watch the process that has made a connection; return its name.

        Raise ConnectionError when it has ended.
        """
        pid, pidfd = trust.peer(connection)
        found = processes.look(pid)
        if found is None or trust.has_ended(pidfd):  # asked after looking: it is that process
            os.close(pidfd)
            raise ConnectionResetError("the process at the other end has ended")
        name = f"{self._boot} {pid} {found.started_ticks}"
        self._add(name, pidfd)
        return name

    def watch(self, name: str) -> None:
        """Watch a process of before a restart of ours; tell at once if it is gone."""
        pidfd = self._open(name)
        if pidfd is None:
            self._on_gone(name)
        else:
            self._add(name, pidfd)

    def close(self) -> None:
        """Watch no more."""
        for name in list(self._pidfds):
            self._remove(name)

    def _open(self, name: str) -> int | None:
        boot, pid, ticks = name.split(" ")
        if boot != self._boot:
            return None
        try:
            pidfd = os.pidfd_open(int(pid))
        except OSError:
            return None
        found = processes.look(int(pid))
        if found is None or found.started_ticks != int(ticks):
            os.close(pidfd)
            return None
        return pidfd

    def _add(self, name: str, pidfd: int) -> None:
        if name in self._pidfds:
            os.close(pidfd)
            return
        self._pidfds[name] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._gone, name)

    def _gone(self, name: str) -> None:
        self._remove(name)
        self._on_gone(name)

    def _remove(self, name: str) -> None:
        pidfd = self._pidfds.pop(name)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
