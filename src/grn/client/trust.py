"""Who is at the other end of a socket, as the kernel says, and whether that is who should be.

In a folder where all users meet anybody can make a socket and give it any name. A user number alone
proves little: containers share it with their host.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct

from grn.errors import NotAllowed, NotTrusted
from grn.paths import user_name

SO_PEERPIDFD = 77
DYING_MS = 500
_CREDENTIALS = struct.Struct("3i")
_WORLD = ("ns/mnt", "ns/user", "root")  # of a process, in /proc
_UNMAPPED = 65534  # how a user shows who is not known in a container's user namespace


def user_of(sock: socket.socket) -> int:
    """Return whose process is at the other end."""
    return _credentials(sock)[1]


def apart(sock: socket.socket) -> NotAllowed | None:
    """Return an error unless the kernel shows the peer in our namespaces and under our root.

    For client and queue alike: a queue that ran commands for a confined client would free it.
    Raise ConnectionError when the peer has ended meanwhile.
    """
    if _shares_our_world(sock):
        return None
    return NotAllowed(
        "the queue and its client are in different containers, mount namespaces or roots,"
        " or the kernel does not show one to the other.",
        "Submit from where the queue runs, or use a queue of your own: set GRN_RUNTIME_DIR.",
    )


def _shares_our_world(sock: socket.socket) -> bool:
    if _credentials(sock)[0] <= 0:  # a process of a pid namespace that we cannot see
        return False
    pid, pidfd = peer(sock)
    try:
        try:
            is_shared = _world(str(pid)) == _world("self")
        except PermissionError:
            is_shared = False  # it lives, and is not shown to us
        except OSError:  # a process loses its namespaces a moment before it has ended
            has_ended(pidfd, DYING_MS)
            is_shared = False
        if has_ended(pidfd):  # after a look at what may be another process by then
            raise ConnectionResetError("the process at the other end has ended")
        return is_shared
    finally:
        os.close(pidfd)


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the pid and a pidfd of whoever connected; raise ConnectionError when it has ended."""
    pid = _credentials(sock)[0]
    return pid, _pidfd_of(sock, pid)


def _pidfd_of(sock: socket.socket, pid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise ConnectionResetError("the process at the other end has ended") from error
    try:
        return os.pidfd_open(pid)  # a kernel before 6.5: its number is all there is
    except OSError as error:
        raise ConnectionResetError("the process at the other end has ended") from error


def _world(process: str) -> list[tuple[int, int]]:
    """Return what a process takes for the machine; raise OSError where it is not shown to us."""
    found = [os.stat(f"/proc/{process}/{name}") for name in _WORLD]
    return [(one.st_dev, one.st_ino) for one in found]


def has_ended(pidfd: int, wait_ms: int = 0) -> bool:
    """True when a process is gone, or only its exit status is left."""
    ready = select.poll()
    ready.register(pidfd, select.POLLIN)
    return bool(ready.poll(wait_ms))


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return the process, user and group of whoever connected, or called listen."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(raw)
    return pid, user, group


def doubt(sock: socket.socket, path: str) -> NotTrusted | None:
    """Return what speaks against the one who answers at a path: a false name, or no trust."""
    user = user_of(sock)
    if user in (0, os.getuid()):
        return None
    trusted = os.environ.get("GRN_TRUSTED_USERS")
    if trusted is not None and not _is_among(user, trusted):
        return NotTrusted(path, user_name(user), "a user that GRN_TRUSTED_USERS names")
    named = os.path.basename(path).removesuffix(".sock")
    if named.isdecimal() and int(named) != user and not _is_hidden(user):
        return NotTrusted(path, user_name(user), f"{user_name(int(named))}, whom it is named after")
    return None


def _is_among(user: int, trusted: str) -> bool:
    words = {word.strip() for word in trusted.split(",")}
    return str(user) in words or user_name(user) in words


def _is_hidden(user: int) -> bool:
    """True when the kernel cannot tell us who it is: we are in a user namespace of our own."""
    if user != _UNMAPPED:
        return False
    with open("/proc/self/uid_map") as file:
        return file.read().split() != ["0", "0", "4294967295"]
