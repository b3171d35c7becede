"""Let the processes of a relay send small pieces over TCP at once.

`srun` leaves Nagle's algorithm on, and has no option for it: a small piece waits until the one
before it is acknowledged, which the other side may do 40 ms later. The option belongs to the
socket, so whoever may trace the process can set it: a parent may. Where that is forbidden,
everything works as before, later.
"""

from __future__ import annotations

import ctypes
import os
import socket

from grn.proc import processes

_PIDFD_GETFD = 438  # the number is the same on all architectures; Python has no call for it


def below(root: int) -> int:
    """Set TCP_NODELAY on all connections of a process and of those below it; return how many."""
    return sum(_of(pid) for pid in (root, *(one.pid for one in processes.all_below(root))))


def _of(pid: int) -> int:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # it has ended
        return 0
    try:
        return sum(_set(pidfd, fd) for fd in _sockets(pid))
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


def _set(pidfd: int, number: int) -> bool:
    """Set the option on one socket; False for other kinds, and where it is forbidden."""
    fd = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, number, 0)
    if fd < 0:
        return False
    with socket.socket(fileno=fd) as sock:
        if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return False
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            return False
        return True
