"""How busy the processors and the memory of this machine are, as /proc shows it.

In a container with a limit of its own, the machine is what the container may use of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_STAT, _MEMINFO, _VMSTAT = "/proc/stat", "/proc/meminfo", "/proc/vmstat"
_GROUPS = "/sys/fs/cgroup"  # of a container: on the machine itself the files below are missing
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Time of all processors since the machine started, in ticks."""

    busy: int
    total: int


@dataclass(frozen=True, slots=True)
class HostUse:
    """The load of this machine beside its GPUs. None means that it is not known."""

    cpus: int
    cpu_pct: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None


def cpu_ticks(path: str = _STAT) -> CpuTicks | None:
    """Read the time of all processors; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            words = file.readline().split()
    except OSError:
        return None
    if len(words) < 6 or words[0] != b"cpu":
        return None
    numbers = [int(word) for word in words[1:9]]  # the time of guests is in that of users
    return CpuTicks(sum(numbers) - numbers[3] - numbers[4], sum(numbers))


def use(before: CpuTicks | None, now: CpuTicks | None, path: str = _MEMINFO) -> HostUse:
    """Return the load between two readings, and the memory in use."""
    cpu_pct = None
    if before is not None and now is not None and now.total > before.total:
        cpu_pct = 100.0 * max(0, now.busy - before.busy) / (now.total - before.total)
    sizes = _sizes(path)
    total, available = sizes.get(b"MemTotal:"), sizes.get(b"MemAvailable:")
    used = total - available if total is not None and available is not None else None
    limit = container_limit()
    if limit is not None and total is not None and limit.total_bytes < total:
        used, total = limit.used_bytes, limit.total_bytes
    return HostUse(os.cpu_count() or 1, cpu_pct, used, total)


@dataclass(frozen=True, slots=True)
class ContainerLimit:
    """The memory that a container may use, and uses without what can be dropped."""

    total_bytes: int
    used_bytes: int


def container_limit(folder: str = _GROUPS) -> ContainerLimit | None:
    """Return the memory limit of the container around us, None without one; cgroup v2 and v1."""
    for limit, used, stat, dropped in (
        ("memory.max", "memory.current", "memory.stat", b"inactive_file"),
        (
            "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
            b"total_inactive_file",
        ),
    ):  # fmt: skip
        total, taken = _number(f"{folder}/{limit}"), _number(f"{folder}/{used}")
        if total is not None and taken is not None and total < 1 << 60:
            return ContainerLimit(total, max(0, taken - _field(f"{folder}/{stat}", dropped)))
    return None


def usable_cpus() -> int:
    """Return how many processors this process may run on."""
    return len(os.sched_getaffinity(0))


def total_bytes(path: str = _MEMINFO) -> int | None:
    """Return the memory of this machine, None where it cannot be read."""
    return use(None, None, path).total_bytes


def oom_kills(path: str = _VMSTAT, folder: str = _GROUPS) -> int | None:
    """Return how many processes the kernel has killed for memory, None on an old kernel.

    In a container these are its own, where the kernel counts them.
    """
    of_container = _counted(f"{folder}/memory.events")
    return _counted(path) if of_container is None else of_container


def proportional_bytes(pid: int, folder: str = "/proc") -> int | None:
    """Return the memory of a process, a page of n processes counted as 1/n of a page.

    Where the kernel does not show that, it is the resident memory without shared pages; None when
    the process is gone.
    """
    try:
        with open(f"{folder}/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    try:
        with open(f"{folder}/{pid}/statm", "rb") as file:
            words = file.read().split()
        return (int(words[1]) - int(words[2])) * _PAGE_BYTES
    except (OSError, IndexError):
        return None


def _number(path: str) -> int | None:
    """Return the number in a file, None where there is none."""
    try:
        with open(path, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):  # it says "max"
        return None


def _counted(path: str) -> int | None:
    """Return the number of kills in a file of counters, None where it has none."""
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        return None
    return None


def _field(path: str, name: bytes) -> int:
    try:
        with open(path, "rb") as file:
            found = [line.split() for line in file]
    except OSError:
        return 0
    return next((int(words[1]) for words in found if words[:1] == [name]), 0)


def _sizes(path: str) -> dict[bytes, int]:
    try:
        with open(path, "rb") as file:
            lines = [line.split() for line in file]
    except OSError:
        return {}
    return {words[0]: int(words[1]) << 10 for words in lines if len(words) == 3}
