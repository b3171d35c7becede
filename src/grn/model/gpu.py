"""A GPU as values: its fixed facts, and one reading of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from msgspec import Struct


class GpuKind(Enum):
    """Where the memory of a GPU comes from."""

    CARD = "card"
    MIG = "mig"
    VIRTUAL = "virtual"


class GpuHealth(Enum):
    """Whether the driver answers for a GPU."""

    OK = "ok"
    UNKNOWN = "unknown"  # no answer in time, or an error: no new job, running ones left alone
    LOST = "lost"  # the driver says it is gone


class ComputeMode(Enum):
    """Which processes the driver lets in. An administrator may change it at any time."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"  # one process at a time
    PROHIBITED = "prohibited"  # none


class LinkKind(Enum):
    """How two GPUs are linked, the fastest first. Other links are slow or unknown."""

    NVLINK = "nvlink"
    SWITCH = "switch"  # PCIe, without a way through the processor
    SOCKET = "socket"  # at the same processor


@dataclass(frozen=True, slots=True)
class Link:
    """A link from one GPU to another."""

    to: str  # uuid
    kind: LinkKind
    lanes: int = 0  # of NVLink; 0 when unknown


@dataclass(frozen=True, slots=True)
class Gpu:
    """The fixed facts of one GPU. `uuid` is its name everywhere inside grn."""

    uuid: str
    index: int
    model: str
    total_bytes: int
    kind: GpuKind = GpuKind.CARD
    is_exclusive: bool = False  # compute mode at the start lets only one process in
    links: tuple[Link, ...] = ()  # to GPUs near it

    @property
    def shown_name(self) -> str:
        """Return the name that people use: MIG slices have no index of their own."""
        return self.uuid if self.kind is GpuKind.MIG else str(self.index)


class ProcessUse(Struct, frozen=True):
    """Memory of one process on one GPU. `leases` are those its process tree holds."""

    pid: int
    used_bytes: int | None
    leases: tuple[str, ...] = ()


class Reading(Struct, frozen=True):
    """One GPU at one moment. None means that the driver did not report it."""

    uuid: str
    health: GpuHealth = GpuHealth.OK
    used_bytes: int | None = None
    load_pct: float | None = None
    uses: tuple[ProcessUse, ...] = ()
    mode: ComputeMode | None = None
    lists_processes: bool = True  # False: `uses` is empty because the driver has no list
    temperature_c: int | None = None
    power_w: int | None = None
    clock_mhz: int | None = None  # of its cores
    process_loads: tuple[tuple[int, float], ...] = ()  # pid, percent; without those not known


def no_process_list(gpus: Sequence[Gpu]) -> str:
    """Explain the effect of a driver that does not list the processes on some GPUs."""
    names = ", ".join(gpu.shown_name for gpu in gpus)
    return (
        f"the driver does not list the processes on GPU {names}, so the memory of a job there is "
        "not known: say it (--mem), or update the driver to R450 or later"
    )
