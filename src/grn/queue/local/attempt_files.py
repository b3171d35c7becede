"""The files of one attempt: written by a shim, read by any later queue.

41.2.run    made once, whole, by the shim that begins, which holds its lock for as long as it lives:
            a line that names the shim, then one with the end. Made by a queue, with one
            word, to forbid the attempt to begin.
41.2.peak   GPU memory that processes of the command report, a number a line; moved to the end
41.2/log    what the command printed; err its standard error alone; *.tail the end of a long one
41.2/answer what a submitted call returned or raised

Creating files is the most expensive part of a short job: a folder is made only for output, and the
record of a short attempt whose end is in the journal is reused for another.

A record can vanish although its attempt began. Each shim therefore also adds a line to the file
`begun` of the queue, usually on another file system, before its command begins.

The end carries the number of its form. Shims of an older grn outlive an update, so all forms
are read:
1   files `lock`, `claim` and `exit` in the folder of the attempt; the only one still written is a
    claim that forbids a shim of this form to begin
2   as now, but some records do not name their attempt (`of`), and a forbidden one is empty
3   as now, but no end has `gpu_peak`
4   as now, but no end has `killed`
5   as now
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil

FORMAT = 5
MAX_PEAK, MAX_PEAK_FILE = 1 << 50, 1 << 20
FORBIDDEN = "forbidden"  # the claim of a queue
_FORBIDDEN_1 = "queue"  # the same in form 1
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def folder_of(root: str, job: int, attempt: int) -> str:
    """Return the folder of an attempt's output; its record is beside it."""
    return f"{root}/{job // 1000}/{job}.{attempt}"


def record_of(folder: str) -> str:
    """Return the record of an attempt."""
    return f"{folder}.run"


def begin(folder: str, claim: str, spare: str = "") -> int | None:
    """Make the record with a claim and its lock; None when there is one already.

    It gets its name when it is complete and locked, so a reader can trust it. `spare` names an
    attempt whose record can be reused.
    """
    unfinished = f"{folder}.new"
    fd = _reuse(spare, unfinished) if spare else None
    if fd is None:
        fd = _create(unfinished)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write_only(fd, f"{claim}\n".encode())
        os.link(unfinished, record_of(folder))
    except FileExistsError:
        os.close(fd)
        return None
    except OSError:  # the disk is full: nothing has begun
        os.close(fd)
        raise
    finally:
        os.unlink(unfinished)
    return fd


def why_not_begun(folder: str) -> str:
    """Return why no attempt can begin here, such as a full disk; empty if one can."""
    probe = f"{folder}.probe"
    try:
        fd = _create(probe)
        try:
            _write_only(fd, b"\n" * 512)
        finally:
            os.close(fd)
            os.unlink(probe)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def forbid(folder: str) -> bool:
    """Forbid an attempt to begin, to shims of any version; False when it has begun."""
    if not _forbid_1(folder):
        return False
    try:
        fd = os.open(record_of(folder), _CREATE, 0o600)
    except FileExistsError:
        return False
    try:
        _write_whole(fd, f"{FORBIDDEN}\n".encode())
    finally:
        os.close(fd)
    return True


def is_locked(folder: str) -> bool:
    """True while the shim of this attempt lives."""
    return is_file_locked(record_of(folder)) or is_file_locked(os.path.join(folder, "lock"))


def is_file_locked(path: str) -> bool:
    """True while a process holds the lock of a file; a shared lock lets many ask at once."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_claim(folder: str) -> str | None:
    """Return the shim that began the attempt, FORBIDDEN, or None when it has not begun.

    It is empty where a queue of form 2 forbade the attempt, or where the file was damaged.
    """
    try:
        with open(record_of(folder), "rb") as file:
            return file.readline().decode(errors="replace").rstrip("\n")
    except FileNotFoundError:
        older = _read_claim_1(folder)
        return FORBIDDEN if older == _FORBIDDEN_1 else older


def write_exit(fd: int, folder: str, record: dict[str, Any], *, is_synced: bool) -> bytes:
    """Append the end, atomically, and return the line as written.

    It is synced when no queue will persist it.
    """
    whole = {"format": FORMAT, "of": os.path.basename(folder), **record}
    line = f"{json.dumps(whole)}\n".encode()
    _write_whole(fd, line)
    if os.fstat(fd).st_nlink == 0:  # the record was removed
        fd = _restore(fd, record_of(folder))
    if is_synced:
        os.fsync(fd)
        directory = os.open(os.path.dirname(folder), os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):
            os.fsync(directory)
        os.close(directory)
    return line


def read_exit(folder: str, *, is_same_boot: bool = True) -> dict[str, Any] | None:
    """Return how it ended, None when that is missing, incomplete, or of another attempt.

    A power cut may restore the old content of a reused file; an end of form 2 that does not name
    its attempt counts only without one.
    """
    try:
        with open(record_of(folder), "rb") as file:
            last = b"".join(file.readlines()[-1:])
            found = exit_in(last[last.find(b"{") :])  # the claim before it may be damaged
    except FileNotFoundError:
        return _read_exit_1(folder)
    except OSError:
        return None
    if found and "of" not in found and found.get("format") == 2:
        return found if is_same_boot else None
    return found if found and found.get("of") == os.path.basename(folder) else None


def exit_in(line: bytes) -> dict[str, Any] | None:
    """Parse the line of an end, None when it is incomplete."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def note_begun(path: str, tag: str) -> None:
    """Note that an attempt begins; on a full disk the record is the only evidence."""
    with contextlib.suppress(OSError):
        os.write(_opened(path), f"{tag}\n".encode())


@functools.lru_cache(maxsize=1)
def _opened(path: str) -> int:
    return os.open(path, _APPEND, 0o600)


def keep_begun(path: str, tags: Iterable[str]) -> None:
    """Drop the notes of all attempts but these: the others' ends are in the journal."""
    with contextlib.suppress(OSError):
        fd = os.open(path, _APPEND, 0o600)
        try:
            os.truncate(fd, 0)
            os.write(fd, "".join(f"{tag}\n" for tag in tags).encode())
        finally:
            os.close(fd)


def read_begun(path: str) -> set[str]:
    """Return the attempts that are noted; none where the file cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return set(file.read().splitlines())
    except OSError:
        return set()


def peak_file_of(folder: str) -> str:
    """Return the file in which processes of an attempt report their peak of GPU memory."""
    return f"{folder}.peak"


def take_peak(folder: str) -> int | None:
    """Return the largest peak that was reported, and remove the file; None: not known."""
    path = peak_file_of(folder)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        lines = os.read(fd, MAX_PEAK_FILE).split()
        os.unlink(path)
    except OSError:
        return None
    finally:
        os.close(fd)
    if not all(line.isdigit() and len(line) <= len(str(MAX_PEAK)) for line in lines):
        return None
    peak = max(map(int, lines), default=MAX_PEAK + 1)
    return peak if peak <= MAX_PEAK else None


def remove(folder: str) -> None:
    """Delete all files of an attempt."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in (record_of(folder), f"{folder}.new", trouble_of(folder), peak_file_of(folder)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def trouble_of(folder: str) -> str:
    """Return the file in which a failed shim leaves its traceback."""
    return f"{folder}.trouble"


def _restore(fd: int, path: str) -> int:
    """Restore a removed record from its open file; return the new descriptor, or the given one."""
    with contextlib.suppress(OSError):
        restored = os.open(path, _CREATE, 0o600)
        fcntl.flock(restored, fcntl.LOCK_EX)
        _write_whole(restored, os.pread(fd, os.fstat(fd).st_size, 0))
        os.dup2(restored, fd, inheritable=False)  # the lock stays held
        os.close(restored)
    return fd


def _reuse(spare: str, path: str) -> int | None:
    """Reuse the record of another attempt; None when that is not possible."""
    try:
        os.rename(record_of(spare), path)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None


def _create(path: str) -> int:
    """Create a file, replacing one that a killed shim left."""
    try:
        return os.open(path, _CREATE, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except FileExistsError:
        os.unlink(path)
    return os.open(path, _CREATE, 0o600)


def _write_only(fd: int, data: bytes) -> None:
    """Write data in the place of all that a file holds, into the same block of the disk.

    Emptying the file first would free that block, and ext4 writes a file out when one that was
    emptied is closed.
    """
    if os.pwrite(fd, data, 0) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(fd, len(data))


def _write_whole(fd: int, data: bytes) -> None:
    """Append all of the data, or nothing."""
    size = os.fstat(fd).st_size
    try:
        if os.pwrite(fd, data, size) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(fd, size)
        raise


# --- form 1 -------------------------------------------------------------------------------


def _forbid_1(folder: str) -> bool:
    """Forbid a shim of form 1 to begin; False when it has begun."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    try:
        fd = os.open(os.path.join(folder, "claim"), _CREATE, 0o600)
    except FileExistsError:
        return _read_claim_1(folder) == _FORBIDDEN_1
    try:
        os.write(fd, _FORBIDDEN_1.encode())
    finally:
        os.close(fd)
    return True


def _read_claim_1(folder: str) -> str | None:
    """Return the process that made the claim, None when there is none."""
    try:
        with open(os.path.join(folder, "claim"), errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _read_exit_1(folder: str) -> dict[str, Any] | None:
    """Return how it ended, None when there is no end that can be read."""
    try:
        with open(os.path.join(folder, "exit"), "rb") as file:
            record = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == 1 else None
