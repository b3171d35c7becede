"""Signals and liveness by pidfd: never of a later process with the same pid."""

from __future__ import annotations

import errno
import os
import select
import signal

from grn.proc import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Protocol

    class Named(Protocol):
        """A process by pid and start time."""

        @property
        def pid(self) -> int:
            """Return its pid."""

        @property
        def started_ticks(self) -> int:
            """Return when it was started, in ticks since the boot."""


SO_PEERPIDFD = 77
_SOL_SOCKET, _SO_PEERCRED = 1, 17  # as in `socket`, which is slow to import
_INT_BYTES = 4


def open_pidfd(process: Named) -> int | None:
    """Return a pidfd of a process, None when it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return None
    found = processes.look(process.pid)  # after opening: the pidfd cannot change its process
    if found is None or found.started_ticks != process.started_ticks:
        os.close(fd)
        return None
    return fd


def open_child(pid: int) -> int:
    """Return a pidfd of a child, whose pid is not reused until it is waited for."""
    return os.pidfd_open(pid)


def of_parent(pid: int) -> int | None:
    """Return a pidfd of the parent, None when that is not the parent any more."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    if os.getppid() != pid:  # after opening: it lived then
        os.close(fd)
        return None
    return fd


def send(process: Named, *signums: int) -> bool:
    """Signal a process if it is still the same; False when it is gone or not permitted."""
    fd = open_pidfd(process)
    if fd is None:
        return False
    try:
        return all(send_to(fd, signum) for signum in signums)
    finally:
        os.close(fd)


def send_to(pidfd: int, signum: int) -> bool:
    """Signal the process of a pidfd; False when it is gone or not permitted."""
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except OSError:
        return False
    return True


def has_ended(pidfd: int, wait_ms: int = 0) -> bool:
    """True when a process is gone, or only its exit status is left."""
    ready = select.poll()
    ready.register(pidfd, select.POLLIN)
    return bool(ready.poll(wait_ms))


def credentials(sock: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process that connected, or called listen; 0 for a hidden pid."""
    raw = sock.getsockopt(_SOL_SOCKET, _SO_PEERCRED, 3 * _INT_BYTES)
    pid, uid = memoryview(raw).cast("i")[:2]
    return pid, uid


def of_peer(sock: socket.socket, pid: int) -> int:
    """Return a pidfd of the process that connected as this pid; ConnectionError when it ended."""
    try:
        return sock.getsockopt(_SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise ConnectionResetError("the process at the other end has ended") from error
    try:
        return os.pidfd_open(pid)  # a kernel before 6.5 offers only the pid
    except OSError as error:
        raise ConnectionResetError("the process at the other end has ended") from error


def why_unusable() -> str:
    """Return what this system lacks to watch processes by pidfd; empty where it can."""
    if not hasattr(os, "pidfd_open"):
        return "there is no pidfd_open"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"pidfd_open fails ({error.strerror})"
    return ""
