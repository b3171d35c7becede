"""Who answers at a negotiator's socket, as the kernel says, and whether that is who should.

In a folder where all users meet anybody can make a socket and give it any name.
"""

from __future__ import annotations

import os
import socket
import struct

from grn.errors import NotTrusted

_CREDENTIALS = struct.Struct("3i")
_UNMAPPED = 65534  # how a user shows who is not known in a container's user namespace


def user_of(sock: socket.socket) -> int:
    """Return whose process listens at the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user


def doubt(sock: socket.socket, path: str) -> NotTrusted | None:
    """Return what speaks against the one who answers at a path: a false name, or no trust."""
    user = user_of(sock)
    if user in (0, os.getuid()):
        return None
    trusted = os.environ.get("GRN_TRUSTED_USERS")
    if trusted is not None and not _is_among(user, trusted):
        return NotTrusted(path, _name(user), "a user that GRN_TRUSTED_USERS names")
    named = os.path.basename(path).removesuffix(".sock")
    if named.isdecimal() and int(named) != user and not _is_hidden(user):
        return NotTrusted(path, _name(user), f"{_name(int(named))}, whom it is named after")
    return None


def _is_among(user: int, trusted: str) -> bool:
    words = {word.strip() for word in trusted.split(",")}
    return str(user) in words or _name(user) in words


def _is_hidden(user: int) -> bool:
    """True when the kernel cannot tell us who it is: we are in a user namespace of our own."""
    if user != _UNMAPPED:
        return False
    with open("/proc/self/uid_map") as file:
        return file.read().split() != ["0", "0", "4294967295"]


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
