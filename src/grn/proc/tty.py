"""Write one line to the terminal of a process, if it is its user's and lets others write.

As `write(1)` does: a terminal with `mesg n` is left alone. Never blocks.
"""

from __future__ import annotations

import os
import stat

from grn.model.text import harmless

_PTS_MAJORS = range(136, 144)
_CONSOLE_MAJOR, _MAX_CONSOLES = 4, 64
_MINORS = 256


def write_line(pid: int, user: int, text: str) -> None:
    """Write a line to the terminal of a user's process; raise OSError when that is not possible."""
    device = _device(pid)
    path = _path(device)
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags)
    try:
        found = os.fstat(fd)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != device:
            raise OSError(f"{path} is another device")
        if found.st_uid != user:
            raise PermissionError(f"{path} is not a terminal of user {user}")
        if not found.st_mode & stat.S_IWGRP:
            raise PermissionError(f"{path} takes no messages")
        os.write(fd, f"\r\n{harmless(text)}\r\n".encode())
    finally:
        os.close(fd)


def _device(pid: int) -> int:
    """Return the number of the terminal that a process is on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    number = int(fields[4])
    if not number:
        raise OSError(f"process {pid} has no terminal")
    return os.makedev((number >> 8) & 0xFFF, (number & 0xFF) | ((number >> 12) & 0xFFF00))


def _path(device: int) -> str:
    major, minor = os.major(device), os.minor(device)
    if major in _PTS_MAJORS:
        return f"/dev/pts/{(major - _PTS_MAJORS[0]) * _MINORS + minor}"
    if major == _CONSOLE_MAJOR and 0 < minor < _MAX_CONSOLES:
        return f"/dev/tty{minor}"
    raise OSError(f"{major}:{minor} is no terminal of a person")
