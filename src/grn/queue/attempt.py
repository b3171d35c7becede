"""The folder of one attempt: what a shim writes and what a queue reads, across restarts.

lock    held by the shim for its whole life: proof that it lives
claim   made once, by the shim that begins (or by a queue that forbids it to begin)
log     what the command printed; err its standard error alone; *.tail the end of a long one
exit    how it ended, complete or not there
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os

FORMAT = 1
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def folder_of(root: str, job: int, attempt: int) -> str:
    """Return the folder of one attempt."""
    return os.path.join(root, str(job // 1000), f"{job}.{attempt}")


def take_lock(folder: str) -> int | None:
    """Take the lock and return it, None when somebody holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(os.path.join(folder, "lock"), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_locked(folder: str) -> bool:
    """True while a shim lives for this attempt."""
    try:
        fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def claim(folder: str, text: str) -> bool:
    """Make the claim; False when it was made already. Whoever makes it decides the attempt."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(os.path.join(folder, "claim"), flags, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        os.unlink(os.path.join(folder, "claim"))  # the disk is full: nothing has begun
        raise
    finally:
        os.close(fd)
    return True


def read_claim(folder: str) -> str | None:
    """Return who made the claim, None when nobody has."""
    try:
        with open(os.path.join(folder, "claim")) as file:
            return file.read()
    except FileNotFoundError:
        return None


def write_exit(folder: str, record: dict[str, Any], *, is_synced: bool) -> None:
    """Write the exit record, whole or not at all; synced when nobody else will keep it."""
    temporary, final = os.path.join(folder, "exit.tmp"), os.path.join(folder, "exit")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(temporary, flags, 0o600)
    try:
        os.write(fd, json.dumps({"format": FORMAT, **record}).encode())
        if is_synced:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, final)
    if is_synced:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):
            os.fsync(directory)
        os.close(directory)


def read_exit(folder: str) -> dict[str, Any] | None:
    """Return the exit record, None when there is none that can be read."""
    try:
        with open(os.path.join(folder, "exit"), "rb") as file:
            record = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
