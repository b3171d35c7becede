"""The identity of a socket's peer, as the kernel reports it, and whether it is trusted.

In a shared folder any user can make a socket of any name. A user number alone proves little:
containers share it with their host.
"""

from __future__ import annotations

import os
import socket

from grn.errors import NotAllowed, NotTrusted
from grn.paths import user_name
from grn.proc import pidfd, processes

DYING_MS = 500
_UNMAPPED = 65534  # shown for a user outside the user namespace


def user_of(sock: socket.socket) -> int:
    """Return the user of the peer."""
    return pidfd.credentials(sock)[1]


def apart(sock: socket.socket) -> NotAllowed | None:
    """Return an error unless the peer shares this process's namespaces and root.

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
    pid, _ = pidfd.credentials(sock)
    if pid <= 0:  # a process of a hidden pid namespace
        return False
    fd = pidfd.of_peer(sock, pid)
    try:
        try:
            is_shared = processes.world(pid) == processes.world("self")
        except PermissionError:
            is_shared = False  # it lives, and is hidden
        except OSError:  # a process loses its namespaces a moment before it has ended
            pidfd.has_ended(fd, DYING_MS)
            is_shared = False
        if pidfd.has_ended(fd):  # checked last: the pid was this process's
            raise ConnectionResetError("the process at the other end has ended")
        return is_shared
    finally:
        os.close(fd)


def doubt(sock: socket.socket, path: str) -> NotTrusted | None:
    """Return why the process that answers at a path is not trusted: its name or its user."""
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
    """True when a user namespace hides the peer's user."""
    return user == _UNMAPPED and not processes.maps_all_users()
