"""How busy the processors and the memory of this machine are, as /proc shows it."""

from __future__ import annotations

import os
from dataclasses import dataclass

_STAT, _MEMINFO = "/proc/stat", "/proc/meminfo"


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
    return HostUse(os.cpu_count() or 1, cpu_pct, used, total)


def _sizes(path: str) -> dict[bytes, int]:
    try:
        with open(path, "rb") as file:
            lines = [line.split() for line in file]
    except OSError:
        return {}
    return {words[0]: int(words[1]) << 10 for words in lines if len(words) == 3}
