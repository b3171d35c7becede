"""The interface of a GPU backend: inventory and readings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grn.model.gpu import Gpu, Reading
from grn.model.job import Holder


@dataclass(frozen=True, slots=True)
class Placement:
    """A lease as the backends know it: its process and its GPUs."""

    lease: str
    holder: Holder | None
    gpus: tuple[str, ...]
    user: int | None = None  # only this user's processes count for it; None: any user's


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs, their readings, and notes for people."""

    gpus: tuple[Gpu, ...]
    readings: tuple[Reading, ...]
    notes: tuple[str, ...] = ()
    enumerated: frozenset[str] = frozenset()  # UUIDs of all the driver lists, usable or not


class GpuProbe(Protocol):
    """A source of GPUs. All methods keep a deadline; unknown is None, never 0."""

    async def start(self) -> Inventory:
        """Open the source and list all its GPUs; raise MachineError where there are none."""

    async def sample(self, placements: Sequence[Placement]) -> tuple[Reading, ...]:
        """Read every GPU once and attribute its processes to leases."""

    def begin(self, placement: Placement) -> None:
        """Note that a lease begins."""

    def peak_at_once(self, placement: Placement) -> int | None:
        """Return the peak of a lease that ends, where that needs no waiting."""

    @property
    def indices_hold(self) -> bool:
        """True while every GPU of the machine answers at the index it had at the start."""

    @property
    def keeps_peaks(self) -> bool:
        """True where `peak_in_time` is more exact than samples."""

    async def peak_in_time(self, placement: Placement) -> int | None:
        """Return the exact peak of a lease that ends, on its fullest GPU."""

    async def close(self) -> None:
        """Close the source."""
