"""The role of a source of GPUs: what there is, and one reading of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from grn.model.gpu import Gpu, Reading
from grn.model.job import Holder


@dataclass(frozen=True, slots=True)
class Placement:
    """A lease as the hardware side sees it: who uses which GPUs."""

    lease: str
    holder: Holder | None
    gpus: tuple[str, ...]
    user: int | None = None  # whose processes may work for it; None for anybody's


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs there are, their readings, and what is worth telling a person."""

    gpus: tuple[Gpu, ...]
    readings: tuple[Reading, ...]
    notes: tuple[str, ...] = ()
    enumerated: frozenset[str] = frozenset()  # UUIDs of all the driver lists, usable or not


class GpuProbe(Protocol):
    """A source of GPUs. All methods keep a deadline; unknown is None, never 0."""

    async def start(self) -> Inventory:
        """Open the source and list all its GPUs; raise MachineError where there are none."""

    async def sample(self, placements: Sequence[Placement]) -> tuple[Reading, ...]:
        """Read every GPU once and say which processes work for which lease."""

    def begin(self, placement: Placement) -> None:
        """Learn that a lease begins."""

    def peak_at_once(self, placement: Placement) -> int | None:
        """Return the peak of a lease that ends, where it can be had without waiting."""

    @property
    def indices_hold(self) -> bool:
        """True while every GPU of the machine answers at the index it had at the start."""

    @property
    def keeps_peaks(self) -> bool:
        """True where `peak_in_time` knows more than samples do."""

    async def peak_in_time(self, placement: Placement) -> int | None:
        """Return the exact peak of a lease that ends, on its fullest GPU."""

    async def close(self) -> None:
        """Let go of the source."""
