"""Processes, and facts about the whole machine, as /proc shows them.

Each reader opens as few files as possible: the negotiator reads all processes several times a
second. A process that is gone, or hidden from this user, gives None or an empty result.
"""

from __future__ import annotations

import os

from grn.proc.tree import Process, below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 1 << 12
_STATUS_BYTES = 1 << 16  # a long list of groups precedes the wanted lines
_WORLD = ("ns/mnt", "ns/user", "root")
_DELETED = " (deleted)"


def look(pid: int) -> Process | None:
    """Return a process, also one of which only the exit status is left; None when it is gone."""
    text = _read(f"/proc/{pid}/stat", _STAT_BYTES)
    fields = text[text.rfind(b")") + 2 :].split(None, 22)  # a name of any kind comes before
    if len(fields) < 22:
        return None
    return Process(
        pid,
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        int(fields[19]),
        fields[0] in (b"Z", b"X"),
        int(fields[21]) * PAGE_BYTES,
        int(fields[11]) + int(fields[12]),
        int(fields[13]) + int(fields[14]),
    )


def living(pid: int) -> Process | None:
    """Return a process, None when it is gone or only its exit status is left."""
    found = look(pid)
    return None if found is None or found.is_over else found


def pids() -> Iterator[int]:
    """Yield the pids of all visible processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def everyone() -> list[Process]:
    """Return all visible processes."""
    return [found for pid in pids() if (found := look(pid)) is not None]


def all_below(root: int) -> list[Process]:
    """Return all processes below one, parents before children."""
    return below(everyone(), root)


def with_ancestors(some: Iterable[int]) -> dict[int, Process]:
    """Return living processes with all their ancestors: far fewer than all processes."""
    found: dict[int, Process] = {}
    for pid in some:
        while pid > 1 and pid not in found:
            process = living(pid)
            if process is None:
                break
            found[pid] = process
            pid = process.parent
    return found


def children() -> list[int]:
    """Return the pids of this process's children, much faster than `all_below`."""
    own = os.getpid()
    listed = listed_children(own)
    if listed is None:
        return [one.pid for one in everyone() if one.parent == own]
    return sorted(listed)


def listed_children(parent: int) -> set[int] | None:
    """Return the children of the first thread of a process; None if the kernel keeps no list."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return None


# --- fixed at the start of a process -------------------------------------------------------


def environment(pid: int) -> tuple[list[bytes], int]:
    """Return the variables a process was started with, as `NAME=value`, and its user or -1."""
    return _environment(f"/proc/{pid}/environ")


def has_variable(pid: int, assignment: bytes) -> bool:
    """True when a process, or a thread that outlives the first, was started with a variable."""
    entries, _ = environment(pid)
    if entries in ([], [b""]):
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return False
        return any(assignment in _environment(f"/proc/{pid}/task/{one}/environ")[0]
                   for one in threads)  # fmt: skip
    return assignment in entries


def words(pid: int) -> list[str]:
    """Return the command line of a process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


# --- present state of a process ----------------------------------------------------------------


def folder(pid: int) -> str | None:
    """Return the working directory of a process."""
    return _link(f"/proc/{pid}/cwd")


def program(pid: int) -> str | None:
    """Return the file of the program that a process runs."""
    return _link(f"/proc/{pid}/exe")


def file_status(pid: int, fd: int) -> os.stat_result | None:
    """Return the status of an open file of a process."""
    try:
        return os.stat(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None


def open_files(pid: int | str) -> Iterator[tuple[str, str]]:
    """Yield number and name of the open files of a process, also of removed ones."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # the process is gone, or another user's
        return
    for number in numbers:
        name = _link(f"/proc/{pid}/fd/{number}")
        if name is not None:
            yield number, name.removesuffix(_DELETED)


def has_locked(pid: int, number: str) -> bool:
    """True when a process holds an exclusive lock of one of its open files."""
    try:
        with open(f"/proc/{pid}/fdinfo/{number}") as file:
            return any("FLOCK" in line and "WRITE" in line for line in file)
    except OSError:
        return False


def open_again(fd: int) -> int:
    """Open an own file once more, for reading, and return the new descriptor."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def user(pid: int) -> int | None:
    """Return the user of a process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def inner_pids(pid: int) -> list[int]:
    """Return a process's pids in its pid namespaces, ours first; several mean a container."""
    text = _read(f"/proc/{pid}/status", _STATUS_BYTES)
    start = text.find(b"\nNSpid:")
    if start < 0:
        return [pid]
    start += len(b"\nNSpid:")
    return [int(word) for word in text[start : text.index(b"\n", start)].split()]


def pid_namespace() -> int:
    """Return the number of this process's pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def mount_namespace() -> str:
    """Return the name of this process's mount namespace."""
    return _link("/proc/self/ns/mnt") or ""


def world(pid: int | str) -> list[tuple[int, int]]:
    """Return the namespaces and the root of a process; raise OSError where they are not shown."""
    found = [os.stat(f"/proc/{pid}/{name}") for name in _WORLD]
    return [(one.st_dev, one.st_ino) for one in found]


def maps_all_users() -> bool:
    """True when the user namespace maps all users, as the initial one does."""
    return _read("/proc/self/uid_map", _STATUS_BYTES).split() == [b"0", b"0", b"4294967295"]


# --- the whole machine ----------------------------------------------------------------------


def boot_id() -> str:
    """Return the id of this boot: leases of another boot are over."""
    return _text("/proc/sys/kernel/random/boot_id").strip() or "unknown"


def mounts() -> str:
    """Return the mount table, a line per mount."""
    return _text("/proc/self/mounts")


def max_pids() -> int:
    """Return how many pids the kernel gives at most."""
    text = _text("/proc/sys/kernel/pid_max").strip()
    return int(text) if text.isdigit() else 1 << 22


# --- memory ---------------------------------------------------------------------------------


class MemoryFiles:
    """Memory sizes of processes that are read repeatedly.

    The files of a few processes stay open. An open file stays with its process and never shows
    another process of the same pid.
    """

    MAX_OPEN = 32

    def __init__(self) -> None:
        self._files: dict[tuple[int, int], int] = {}

    def resident_and_peak_bytes(self, pid: int, started_ticks: int) -> tuple[int, int] | None:
        """Return the present and the peak memory of a process, None when it is gone."""
        name = (pid, started_ticks)
        fd = self._files.get(name)
        if fd is None:
            fd = self._open(name)
        try:
            text = os.pread(fd, _STATUS_BYTES, 0) if fd is not None else b""
        except OSError:
            text = b""
        peak, resident = _size_in(text, b"\nVmHWM:"), _size_in(text, b"\nVmRSS:")
        if peak is None or resident is None:
            self._close(name)
            return None
        return resident, peak

    def _open(self, name: tuple[int, int]) -> int | None:
        pid, started_ticks = name
        try:
            fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if not is_running(pid, started_ticks):  # checked after opening: a reused pid shows
            os.close(fd)
            return None
        if len(self._files) >= self.MAX_OPEN:
            self._close(next(iter(self._files)))
        self._files[name] = fd
        return fd

    def _close(self, name: tuple[int, int]) -> None:
        fd = self._files.pop(name, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Close all files."""
        for name in list(self._files):
            self._close(name)


def is_running(pid: int, started_ticks: int) -> bool:
    """True while this process runs, not another with its pid."""
    found = living(pid)
    return found is not None and found.started_ticks == started_ticks


def _read(path: str, most: int) -> bytes:
    """Return a small file, empty when it cannot be read; in as few calls as possible."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, most)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _text(path: str) -> str:
    """Return a whole file as text, empty when it cannot be read."""
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _environment(path: str) -> tuple[list[bytes], int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return [], -1
    try:
        text = b""
        while more := os.read(fd, _STATUS_BYTES):
            text += more
        return text.split(b"\0"), os.fstat(fd).st_uid
    except OSError:
        return [], -1
    finally:
        os.close(fd)


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _size_in(status: bytes, name: bytes) -> int | None:
    """Return one size of a `status` file; parsed by hand, since every lease needs it."""
    start = status.find(name)
    if start < 0:
        return None
    start += len(name)
    return int(status[start : status.index(b" kB", start)]) * 1024
