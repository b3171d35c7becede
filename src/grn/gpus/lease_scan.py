"""The processes of all leases, read again and again; the many other ones only now and then."""

from __future__ import annotations

import time
from collections.abc import Sequence

from grn.gpus.attribution import Attribution
from grn.gpus.probe import Placement
from grn.proc import processes as procs
from grn.proc.identity import tag_of
from grn.proc.tree import Process

ALL_AGAIN_S = 10.0  # a pid may be reused


class LeaseScan:
    """Finds the processes that work for leases."""

    def __init__(self) -> None:
        self._attribution = Attribution(tag_of)
        self._strangers: dict[int, Process] = {}
        self._read_all_at = time.monotonic()

    def look(
        self, placements: Sequence[Placement]
    ) -> tuple[dict[int, Process], dict[int, tuple[str, ...]]]:
        """Return all processes, and the leases of those that work for one, by pid."""
        now = time.monotonic()
        if now - self._read_all_at >= ALL_AGAIN_S:
            self._read_all_at, self._strangers = now, {}
        for placement in placements:
            if placement.holder is not None:
                self._strangers.pop(placement.holder.pid, None)
        known = self._strangers
        looked = ((pid, known.get(pid) or procs.living(pid)) for pid in procs.pids())
        processes = {pid: found for pid, found in looked if found is not None}
        members = self._attribution.members(processes, placements)
        for pid in members.keys() & self._strangers.keys():  # it works for a lease now
            processes[pid] = procs.living(pid) or processes[pid]
        self._strangers = {pid: who for pid, who in processes.items() if pid not in members}
        return processes, members
