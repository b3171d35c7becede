"""Virtual GPUs made of host memory: a job uses the resident memory of its process tree.

For machines without a GPU, examples and tests.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from grn.errors import BadSetting
from grn.gpus.attribution import LeaseScan
from grn.gpus.probe import Inventory, Placement
from grn.model.gpu import Gpu, GpuKind, Link, LinkKind, ProcessUse, Reading
from grn.model.job import Holder
from grn.model.units import parse_memory
from grn.proc import processes as procs
from grn.proc.tree import Process

_SPEC = re.compile(r"\s*(\d{1,4})\s*x\s*([^/]+)(?:/nvlink=(\d{1,4}))?\s*", re.IGNORECASE)
MAX_GPUS = 1024
FRESH_S = 0.001  # the peak at the end of a lease serves one that begins so soon


def parse_virtual(spec: str) -> list[Gpu]:
    """Read `4x8GiB`, or `2x8GiB+1x4GiB` for GPUs of different sizes.

    `4x8GiB/nvlink=2` links each two in a row, to try the placement of gangs.
    """
    gpus: list[Gpu] = []
    for part in spec.split("+"):
        found = _SPEC.fullmatch(part)
        if not found or not 1 <= int(found[1]) <= MAX_GPUS - len(gpus):
            raise BadSetting(
                f"'{spec}' does not describe virtual GPUs.", "Write it like 4x8GiB or 2x512MiB."
            )
        total_bytes = parse_memory(found[2])
        model = f"virtual {found[2].strip()}"
        first, count, joined = len(gpus), int(found[1]), int(found[3] or 1)
        for index in range(first, first + count):
            links = _joined(index, first, count, max(1, joined))
            gpus.append(Gpu(_name(index), index, model, total_bytes, GpuKind.VIRTUAL, links=links))
    return gpus


def _name(index: int) -> str:
    return f"VIRTUAL-{index}"


def _joined(index: int, first: int, count: int, by: int) -> tuple[Link, ...]:
    begin = index - (index - first) % by
    others = range(begin, min(begin + by, first + count))
    return tuple(Link(_name(other), LinkKind.NVLINK) for other in others if other != index)


class VirtualProbe:
    """A source of virtual GPUs."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = tuple(gpus)
        self._scan = LeaseScan()
        self._memory = procs.MemoryFiles()
        self._cpu_ticks: dict[Holder, int] = {}
        self._looked_at = time.monotonic()
        self._baseline: dict[str, int] = {}
        self._last_peak: tuple[Holder | None, int, float] = (None, 0, 0.0)  # and when it was read

    async def start(self) -> Inventory:
        """List the GPUs; they are empty."""
        empty = tuple(Reading(gpu.uuid, used_bytes=0, load_pct=0.0) for gpu in self._gpus)
        return Inventory(self._gpus, empty)

    async def close(self) -> None:
        """Close open files."""
        self._memory.close()

    def begin(self, placement: Placement) -> None:
        """Note the peak memory before a job starts, to separate its own peak."""
        if placement.holder is None:
            return
        holder, peak, at = self._last_peak
        if holder != placement.holder or time.monotonic() - at > FRESH_S:
            found = self._resident_and_peak_bytes(placement.holder)
            peak = found[1] if found else 0
        self._baseline[placement.lease] = peak

    @property
    def indices_hold(self) -> bool:
        """True: virtual GPUs keep their indices."""
        return True

    @property
    def has_strangers(self) -> bool:
        """False: a virtual GPU has no memory outside leases."""
        return False

    @property
    def keeps_peaks(self) -> bool:
        """False: `peak_at_once` returns all."""
        return False

    async def peak_in_time(self, placement: Placement) -> int | None:
        """Return the result of `peak_at_once`."""
        return self.peak_at_once(placement)

    def peak_at_once(self, placement: Placement) -> int | None:
        """Return the holder's peak if it was reached under this lease, else its present memory."""
        before = self._baseline.pop(placement.lease, None)
        if placement.holder is None or before is None:
            return None
        found = self._resident_and_peak_bytes(placement.holder)
        if found is None:
            return None
        resident, peak = found
        self._last_peak = placement.holder, peak, time.monotonic()
        return (peak if peak > before else resident) // len(placement.gpus)

    def _resident_and_peak_bytes(self, holder: Holder) -> tuple[int, int] | None:
        return self._memory.resident_and_peak_bytes(holder.pid, holder.started_ticks)

    async def sample(self, placements: Sequence[Placement]) -> tuple[Reading, ...]:
        """Sum the memory and the CPU time of each lease's process tree."""
        live = {placement.lease for placement in placements}
        self._baseline = {name: peak for name, peak in self._baseline.items() if name in live}
        processes, members = self._scan.look(placements) if placements else ({}, {})
        loads = self._loads(processes, members)
        homes = {placement.lease: placement.gpus for placement in placements}
        for lease in self._baseline.keys() - homes.keys():
            del self._baseline[lease]  # its holder ended without a release
        return tuple(self._read(gpu, processes, members, homes, loads) for gpu in self._gpus)

    def _read(
        self,
        gpu: Gpu,
        processes: Mapping[int, Process],
        members: Mapping[int, tuple[str, ...]],
        homes: Mapping[str, tuple[str, ...]],
        loads: Mapping[int, float],
    ) -> Reading:
        uses, known = [], []
        load_pct = 0.0
        for pid, leases in members.items():
            here = tuple(lease for lease in leases if gpu.uuid in homes[lease])
            if here:
                spread = max(len(homes[lease]) for lease in here)
                uses.append(ProcessUse(pid, processes[pid].resident_bytes // spread, here))
                load_pct += loads.get(pid, 0.0) / spread
                if pid in loads:
                    known.append((pid, loads[pid] / spread))
        used = sum(use.used_bytes or 0 for use in uses)
        return Reading(
            gpu.uuid, used_bytes=used, load_pct=min(100.0, load_pct), uses=tuple(uses),
            process_loads=tuple(known),
        )  # fmt: skip

    def _loads(
        self, processes: Mapping[int, Process], members: Mapping[int, tuple[str, ...]]
    ) -> dict[int, float]:
        now = time.monotonic()
        passed_s = max(now - self._looked_at, 0.001)
        ticks = {
            Holder(pid, processes[pid].started_ticks): processes[pid].cpu_ticks for pid in members
        }
        loads = {
            holder.pid: 100.0 * (spent - self._cpu_ticks[holder]) / procs.TICKS_PER_S / passed_s
            for holder, spent in ticks.items()
            if holder in self._cpu_ticks
        }
        self._cpu_ticks, self._looked_at = ticks, now
        return loads
