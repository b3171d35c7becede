"""The use of the host: memory and cores of the whole machine and of each lease's process tree.

Memory is the proportional set size, which counts a page that several processes share once. It is
slow to read for a large process, so it is read again only when the process has grown or shrunk.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from grn.gpus.attribution import LeaseScan
from grn.gpus.probe import Placement
from grn.model.host import HostReading, HostShare
from grn.proc import host
from grn.proc.processes import TICKS_PER_S
from grn.proc.tree import Process

_CHANGED = 0.03  # of its resident memory: the proportional size is read again
_AGAIN_S = 30.0  # after this long it is read in any case
_LOST = 0.5  # of its time so far: processes have left the tree, and took their time along
_Name = tuple[int, int]  # pid and start time


class HostProbe:
    """Reads the host. One thread at a time."""

    def __init__(self) -> None:
        self._scan = LeaseScan()
        self._sizes: dict[_Name, tuple[int, int, float]] = {}  # resident, proportional, when
        self._cpu_s: dict[str, float] = {}  # of each lease, so far
        self._ticks = host.cpu_ticks()
        self._read_at = time.monotonic()

    def read(self, placements: Sequence[Placement]) -> HostReading:
        """Read the machine and the process trees of leases."""
        now, ticks = time.monotonic(), host.cpu_ticks()
        passed_s = now - self._read_at
        machine = host.use(self._ticks, ticks)
        self._ticks, self._read_at = ticks, now
        processes, members = self._scan.look(placements) if placements else ({}, {})
        ram, cpu_s = self._sums(processes, members, now)
        uses = []
        for placement in placements:
            before, spent = self._cpu_s.get(placement.lease), cpu_s.get(placement.lease, 0.0)
            cpus = None
            if before is not None and passed_s > 0:
                cpus = min(max(0.0, spent - before) / passed_s, float(machine.cpus))
                if spent < before and spent > _LOST * before:
                    cpu_s[placement.lease] = before  # a child that ended is not waited for yet
            uses.append(HostShare(placement.lease, ram.get(placement.lease, 0), cpus))
        self._cpu_s = {one.lease: cpu_s.get(one.lease, 0.0) for one in placements}
        busy = None if machine.cpu_pct is None else machine.cpu_pct / 100 * machine.cpus
        return HostReading(machine.used_bytes, busy, tuple(uses))

    def _sums(
        self,
        processes: Mapping[int, Process],
        members: Mapping[int, tuple[str, ...]],
        now: float,
    ) -> tuple[dict[str, int], dict[str, float]]:
        """Return memory and time of each lease; a process of several leases counts in parts."""
        ram: dict[str, int] = {}
        cpu_s: dict[str, float] = {}
        sizes: dict[_Name, tuple[int, int, float]] = {}
        for pid, leases in members.items():
            process = processes[pid]
            name = (pid, process.started_ticks)
            size = sizes[name] = self._size(name, process.resident_bytes, now)
            spent_s = (process.cpu_ticks + process.waited_ticks) / TICKS_PER_S
            for lease in leases:
                ram[lease] = ram.get(lease, 0) + size[1] // len(leases)
                cpu_s[lease] = cpu_s.get(lease, 0.0) + spent_s / len(leases)
        self._sizes = sizes
        return ram, cpu_s

    def _size(self, name: _Name, resident: int, now: float) -> tuple[int, int, float]:
        known = self._sizes.get(name)
        if known is not None:
            has_changed = abs(resident - known[0]) > _CHANGED * known[0]
            if not has_changed and now - known[2] < _AGAIN_S:
                return known
        found = host.proportional_bytes(name[0])
        return (resident, resident if found is None else found, now)
