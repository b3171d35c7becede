"""Which leases each process works for: decided by `Attribution`, looked up by `LeaseScan`.

The processes of all leases are read again and again; the many other ones only now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from grn.gpus.probe import Placement
from grn.model.job import Holder
from grn.proc import processes as procs
from grn.proc.identity import tag_of
from grn.proc.tree import Process

ALL_AGAIN_S = 10.0  # a pid may be reused


class Attribution:
    """Finds the leases of processes: by descent, by earlier answers, by the environment's tag."""

    def __init__(self, tag_of: Callable[[int], tuple[str, int] | None]) -> None:
        """Take the function that reads tag and user of a process; it returns None for a daemon."""
        self._tag_of = tag_of
        self._remembered: dict[Holder, tuple[str, ...]] = {}
        self._tags: dict[Holder, tuple[str, int] | None] = {}

    def members(
        self, processes: Mapping[int, Process], placements: Sequence[Placement]
    ) -> dict[int, tuple[str, ...]]:
        """Return pid -> leases for all of `processes` that work for a lease."""
        roots = _roots(processes, placements)
        live = {placement.lease: placement.user for placement in placements}
        answers: dict[int, tuple[str, ...]] = {}
        for pid in processes:
            self._answer(pid, processes, roots, live, answers)
        self._remember(processes, answers)
        return {pid: leases for pid, leases in answers.items() if leases}

    def _answer(
        self,
        pid: int,
        processes: Mapping[int, Process],
        roots: Mapping[int, tuple[str, ...]],
        live: Mapping[str, int | None],
        answers: dict[int, tuple[str, ...]],
    ) -> tuple[str, ...]:
        """Walk up from a process to the nearest holder; an orphan keeps its earlier answer."""
        path: list[int] = []
        leases: tuple[str, ...] | None = None
        while leases is None:
            if pid in answers:
                leases = answers[pid]
            elif pid in roots:
                leases = roots[pid]
                path.append(pid)
            elif pid not in processes or pid in path:
                leases = ()
            else:
                path.append(pid)
                leases = self._known(processes[pid], live)
                pid = processes[pid].parent
        for member in path:
            answers[member] = leases
        return leases

    def _known(self, process: Process, live: Mapping[str, int | None]) -> tuple[str, ...] | None:
        """Return the leases of a process, none for a daemon, None when its parent decides."""
        holder = Holder(process.pid, process.started_ticks)
        kept = tuple(lease for lease in self._remembered.get(holder, ()) if lease in live)
        if kept or not live:
            return kept or None
        if holder not in self._tags:
            self._tags[holder] = self._tag_of(process.pid)
        found = self._tags[holder]
        if found is None:
            return ()  # it may have been started inside a job, and serves others as well
        tag, user = found
        # Any process can have any lease in its environment; only that of the lease's user counts.
        return (tag,) if tag in live and live[tag] in (None, user) else None

    def _remember(
        self, processes: Mapping[int, Process], answers: Mapping[int, tuple[str, ...]]
    ) -> None:
        present = {Holder(process.pid, process.started_ticks) for process in processes.values()}
        self._tags = {holder: tag for holder, tag in self._tags.items() if holder in present}
        self._remembered = {
            holder: leases for holder in present if (leases := answers.get(holder.pid))
        }


def _roots(
    processes: Mapping[int, Process], placements: Sequence[Placement]
) -> dict[int, tuple[str, ...]]:
    roots: dict[int, tuple[str, ...]] = {}
    for placement in placements:
        holder = placement.holder
        process = processes.get(holder.pid) if holder else None
        if holder and process and process.started_ticks == holder.started_ticks:
            roots[holder.pid] = (*roots.get(holder.pid, ()), placement.lease)
    return roots


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
