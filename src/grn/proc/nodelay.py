"""Let the connections of a relay carry small pieces at once, both ways.

`srun` leaves Nagle's algorithm on, and has no option for it: a small piece waits until the one
before it is acknowledged, which the other side may do 40 ms later. Whoever may trace a process can
reach its sockets, a parent for example: there it turns the algorithm off for what is sent, and
acknowledges what has come. Where that is forbidden, everything works as before, later.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable

from grn.proc import processes

_PIDFD_GETFD = 438  # the number is the same on all architectures; Python has no call for it


def below(root: int) -> list[socket.socket]:
    """Set TCP_NODELAY on the connections of a process and of those below it; return them."""
    pids = [root]
    for pid in pids:  # grows while it is walked
        pids += sorted(processes.listed_children(pid) or ())
    return [connection for pid in pids for connection in _of(pid)]


def acknowledge(connections: Iterable[socket.socket]) -> None:
    """Acknowledge what has come so far: the option does not last."""
    for one in connections:
        with contextlib.suppress(OSError):  # it was reset
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _of(pid: int) -> list[socket.socket]:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # it has ended
        return []
    try:
        return [found for fd in _sockets(pid) if (found := _connection(pidfd, fd)) is not None]
    finally:
        os.close(pidfd)


def _sockets(pid: int) -> list[int]:
    folder, found = f"/proc/{pid}/fd", []
    try:
        for name in os.listdir(folder):
            if os.readlink(f"{folder}/{name}").startswith("socket:"):
                found.append(int(name))
    except OSError:  # it has ended, or closed one meanwhile
        pass
    return found


def _connection(pidfd: int, number: int) -> socket.socket | None:
    """Return a connection that sends at once; None for other sockets, and where it is forbidden."""
    import ctypes  # not at the top: it is slow to import

    fd = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, number, 0)
    if fd < 0:
        return None
    sock = socket.socket(fileno=fd)
    if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.getpeername()  # it listens, or has ended
            return sock
    sock.close()
    return None
