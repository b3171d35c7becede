"""Decide whether an attempt without a record has begun, from other traces of the same boot.

A record can vanish although its attempt began: removed, emptied, or lost with an unsynced file
system. Such an attempt must not run twice. Each shim therefore adds a line to a file in the queue's
runtime folder, usually on another file system, before its command begins; its processes and its
output are evidence as well.
"""

from __future__ import annotations

import contextlib
import functools
import os

from grn.proc import processes, services

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.proc.tree import Process

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def path_beside(queue_lock: str) -> str:
    """Return the file in which shims note the attempts they begin."""
    return os.path.join(os.path.dirname(queue_lock), "begun")


def note(path: str, tag: str) -> None:
    """Note that an attempt begins; on a full disk the record is the only evidence."""
    with contextlib.suppress(OSError):
        os.write(_opened(path), f"{tag}\n".encode())


@functools.lru_cache(maxsize=1)
def _opened(path: str) -> int:
    return os.open(path, _FLAGS, 0o600)


def keep_only(path: str, tags: Iterable[str]) -> None:
    """Drop all attempts but these: the others' ends are in the journal."""
    with contextlib.suppress(OSError):
        fd = os.open(path, _FLAGS, 0o600)
        try:
            os.truncate(fd, 0)
            os.write(fd, "".join(f"{tag}\n" for tag in tags).encode())
        finally:
            os.close(fd)


class Evidence:
    """The evidence of attempts at one moment."""

    def __init__(self, path: str) -> None:
        self._noted = _lines(path)
        self._alive: set[bytes] = set()  # tags of living processes
        self._shims: dict[str, Process] = {}  # by the folder of the attempt
        for one in processes.everyone():
            self._alive |= services.tags_of(one.pid)
            for folder in services.attempts_of(one.pid):
                self._shims[folder] = one

    def shim_of(self, folder: str) -> Process | None:
        """Return the shim that holds the lock of a record, which may be removed."""
        return self._shims.get(os.path.realpath(folder))

    def has_begun(self, folder: str, tag: str) -> bool:
        """True when an attempt is known to have begun."""
        if tag in self._noted or f"{services.TAG}={tag}".encode() in self._alive:
            return True
        return any(os.path.exists(os.path.join(folder, name)) for name in ("log", "err"))


def _lines(path: str) -> set[str]:
    try:
        with open(path, errors="replace") as file:
            return set(file.read().splitlines())
    except OSError:
        return set()
