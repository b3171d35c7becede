"""The machine beside its GPUs: its cores and its memory, and what jobs use of them."""

from __future__ import annotations

from dataclasses import dataclass

HOST_MODEL = "host"  # in the place of a GPU model, for jobs that use no GPU


@dataclass(frozen=True, slots=True)
class HostSize:
    """The cores and the memory that the jobs and all other processes share."""

    cpus: float
    ram_bytes: int


@dataclass(frozen=True, slots=True)
class HostShare:
    """What one lease uses: the memory of its process tree, and cores. None: not known."""

    lease: str
    ram_bytes: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """The use of the whole machine and of each lease at one time. None: not known."""

    used_bytes: int | None = None
    busy_cpus: float | None = None
    uses: tuple[HostShare, ...] = ()
