"""Pack the working folder of a job that may run where the folder is not: `--send`.

A pack is a tar file named after its SHA-256, in the state folder: the files that git sees, or all
files of a folder without git. Equal contents make one pack. All its files have the same time, so a
node can tell which of them a job has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import subprocess
import time

from grn import paths, wire
from grn.errors import MachineError, UsageError
from grn.model.units import show_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator

    from grn.wire import Message

MAX_BYTES = 512 << 20
MAX_FILES = 50_000
MAX_MARKED = 16
PACK_TIME = 1_000_000_000
KEEP_S = 30 * 86400.0
MAX_KEPT_BYTES, MIN_KEEP_S = 10 << 30, 7 * 86400.0


def pack(folder: str) -> Message:
    """Pack a folder; return what the queue is told of it."""
    if not os.path.isdir(folder):
        text = f"the folder {folder} cannot be sent: it does not exist here."
        raise UsageError(text, "Name another with --cwd, or one of the node without --send.")
    kept = os.path.join(paths.state_dir(), "sent")
    names = sorted(set(_names(folder)))
    files = [(name, found) for name in names if (found := _look(folder, name)) is not None]
    _check_size(folder, files)
    part = os.path.join(kept, f"part-{os.getpid()}-{time.monotonic_ns()}")
    try:
        os.makedirs(kept, mode=0o700, exist_ok=True)
        _drop_old(kept)
        try:
            digest, size = _write(part, folder, files)
            path = os.path.join(kept, f"{digest}.tar")
            os.rename(part, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
    except OSError as error:
        raise MachineError(f"the folder {folder} cannot be packed: {error}.") from error
    return {
        "pack": wire.spelled(path), "digest": digest, "bytes": size,
        "inode": os.stat(folder).st_ino,
        "files": [[wire.spelled(name), one.st_ino, one.st_mtime_ns] for name, one in _some(files)],
    }  # fmt: skip


def is_same_folder(folder: str, inode: int, files: list[tuple[str, int, int]]) -> bool:
    """True when a folder is the packed one, seen through a shared file system."""
    try:
        return bool(files) and os.stat(folder).st_ino == inode and all(
            (found.st_ino, found.st_mtime_ns) == (its_inode, mtime_ns)
            for name, its_inode, mtime_ns in files
            for found in [os.lstat(os.path.join(folder, wire.meant(name)))]
        )  # fmt: skip
    except OSError:
        return False


def _some(files: list[tuple[str, os.stat_result]]) -> list[tuple[str, os.stat_result]]:
    return files[:: max(1, -(-len(files) // MAX_MARKED))]


def _names(folder: str) -> Iterator[str]:
    """Yield the files to send, relative to the folder."""
    try:
        listed = subprocess.run(
            ["git", "-C", folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        yield from _all_files(folder)
        return
    if listed.returncode:
        yield from _all_files(folder)
        return
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        inner = os.path.join(folder, name)
        if not os.path.isdir(inner) or os.path.islink(inner):
            yield name
        elif os.path.exists(os.path.join(inner, ".git")):  # a repository of its own
            yield from (os.path.join(name, below) for below in _names(inner))


def _all_files(folder: str) -> Iterator[str]:
    count = 0
    for where, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        folders[:] = [name for name in folders if name not in (*links, ".git")]
        for name in (*files, *links):
            count += 1
            if count > MAX_FILES:
                raise _too_large(folder, f"more than {MAX_FILES} files")
            yield os.path.relpath(os.path.join(where, name), folder)


def _look(folder: str, name: str) -> os.stat_result | None:
    """Return what a name is; None for one that was deleted, a socket and the like."""
    try:
        found = os.lstat(os.path.join(folder, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) else None


def _check_size(folder: str, files: list[tuple[str, os.stat_result]]) -> None:
    if len(files) > MAX_FILES:
        raise _too_large(folder, f"{len(files)} files")
    total = sum(found.st_size for _, found in files)
    if total > MAX_BYTES:
        name, largest = max(files, key=lambda one: one[1].st_size)
        about = f"the largest is {name}, {show_size(largest.st_size)}"
        raise _too_large(folder, f"files of {show_size(total)} ({about})")


def _too_large(folder: str, what: str) -> UsageError:
    return UsageError(
        f"the folder {folder} is too large to send: it has {what}, and at most"
        f" {show_size(MAX_BYTES)} in {MAX_FILES} files are sent.",
        "Name large data in .gitignore (after `git init`), and keep it where each node has it.",
    )


class _Hashing(io.RawIOBase):
    """A file that is hashed while it is written."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "wb")
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _write(part: str, folder: str, files: list[tuple[str, os.stat_result]]) -> tuple[str, int]:
    """Write the tar file; return its digest and size."""
    import tarfile

    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with (
        contextlib.closing(_Hashing(fd)) as out,
        tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, found in files:
            _add(tar, os.path.join(folder, name), name, found)
    return out.digest.hexdigest(), out.size


def _add(tar: tarfile.TarFile, path: str, name: str, found: os.stat_result) -> None:
    import tarfile

    entry = tarfile.TarInfo(name)
    entry.mtime = PACK_TIME
    if stat.S_ISLNK(found.st_mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        tar.addfile(entry)
        return
    entry.mode = 0o700 if found.st_mode & 0o100 else 0o600
    with open(path, "rb") as file:
        entry.size = os.fstat(file.fileno()).st_size
        tar.addfile(entry, file)


def _drop_old(kept: str) -> None:
    """Delete packs that were last used long ago, and the oldest where all are too large."""
    now = time.time()
    found = []
    for one in os.scandir(kept):
        with contextlib.suppress(FileNotFoundError):  # another submit has deleted it
            found.append((one.stat().st_mtime, one.stat().st_size, one.path))
    total = sum(size for _, size, _ in found)
    for used_at, size, path in sorted(found):
        age_s = now - used_at
        if age_s > KEEP_S or (total > MAX_KEPT_BYTES and age_s > MIN_KEEP_S):
            total -= size
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
