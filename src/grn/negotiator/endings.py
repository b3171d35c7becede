"""How leases end: when the end of a process ends its lease, and with which outcome.

A lease whose process is gone is kept for a moment where another process may bind it or report its
end. On virtual GPUs this file also names the leases that a driver would have refused memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from grn.model.gpu import Gpu, GpuKind, Reading
from grn.model.job import Outcome
from grn.negotiator.actions import KillProcesses, SetTimer
from grn.negotiator.events import Lease, LeaseSettled, LeaseState
from grn.negotiator.schedule.room.allocations import Holdings

REPORT_S = 0.5  # the reporter learns of the end at the same moment and knows the exit status
COMMAND_S = 2.0  # the command may be about to bind the lease
KERNEL_S = 30.0  # a kill by the kernel explains a death that is told within this time
_MAX_KILLS = 1000


class Endings:
    """Leases with a reporter, leases that overflowed, and leases whose process is gone."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._reported: set[str] = set()  # leases whose end a connected process will report
        self._overflowed: set[str] = set()
        self._gone: dict[str, float] = {}  # lease without a process -> when it is concluded
        self._kernel_kills: list[float] = []  # times of kills by the kernel that explain no death

    def expect_report(self, lease_id: str) -> None:
        """Note that a connected process will report the end of a lease."""
        self._reported.add(lease_id)

    def bound(self, lease_id: str) -> None:
        """Note that a lease has a living process again."""
        self._gone.pop(lease_id, None)

    def forget(self, lease_id: str) -> None:
        """Drop all records of a lease."""
        self._reported.discard(lease_id)
        self._overflowed.discard(lease_id)
        self._gone.pop(lease_id, None)

    def killed_by_kernel(self, at: float, count: int) -> None:
        """Note that the kernel has ended processes since the host's memory was full.

        Without a lease none of them was of a job; a job that starts next must not be blamed.
        """
        if not self._holdings.leases:
            return
        self._kernel_kills = [*self._kernel_kills, *[at] * min(count, _MAX_KILLS)][-_MAX_KILLS:]

    def outcome_of(self, lease: Lease, said: Outcome, at: float) -> Outcome:
        """Return the outcome of a lease: a job killed for its memory ran out of memory.

        Each kill by the kernel explains one death, whose victim is not known.
        """
        is_vague = said in (Outcome.FAILED, Outcome.KILLED)
        if is_vague and lease.id in self._overflowed:
            return Outcome.OUT_OF_MEMORY
        if said is Outcome.KILLED:
            self._kernel_kills = [when for when in self._kernel_kills if when >= at - KERNEL_S]
            if self._kernel_kills:
                self._kernel_kills.pop(0)
                return Outcome.OUT_OF_RAM
        return said

    def holder_gone(self, lease: Lease, at: float) -> Iterator[Lease | SetTimer]:
        """Return the lease if it ends now, or the timer that ends it later."""
        if lease.request.is_command:
            yield self._later(lease.id, at + COMMAND_S)
        elif lease.id in self._reported:
            yield self._later(lease.id, at + REPORT_S)
        else:
            yield lease

    def reporter_lost(self, lease_id: str) -> Iterator[Lease | SetTimer]:
        """Return a lease that waited only for the report that will not come."""
        if lease_id in self._reported:
            self._reported.discard(lease_id)
            if self._gone.pop(lease_id, None) is not None:
                yield self._holdings.leases[lease_id]

    def due(self, at: float) -> Iterator[Lease | SetTimer]:
        """Return the leases that end now."""
        for lease_id in [one for one, when in self._gone.items() if when <= at]:
            del self._gone[lease_id]
            lease = self._holdings.leases[lease_id]
            is_left = any(lease_id in book.measured for book in self._holdings.books_of(lease))
            if lease_id in self._reported and is_left:
                # The reporter is ending the processes that the job left behind.
                yield self._later(lease_id, at + REPORT_S)
            else:
                yield lease

    def overflow(self, reading: Reading) -> Iterator[KillProcesses]:
        """Return what to kill on a virtual GPU; call it before the reading is applied."""
        book = self._holdings.books[reading.uuid]
        for lease_id in overflowing(book.gpu, reading, book.reading, self._overflowed):
            self._overflowed.add(lease_id)
            pids = tuple(use.pid for use in reading.uses if lease_id in use.leases)
            yield KillProcesses(lease_id, book.gpu.index, pids)

    def check(self) -> None:
        """Raise AssertionError when a lease waits for its end that is not held."""
        for lease_id in self._gone:
            assert self._holdings.leases[lease_id].state is LeaseState.HELD

    def _later(self, lease_id: str, at: float) -> SetTimer:
        self._gone[lease_id] = at
        return SetTimer(at)


def told_late(concluded: LeaseSettled, said: Outcome) -> LeaseSettled:
    """Return how a lease ended, when its reporter says it after the end was concluded.

    A holder that vanished may have been taken for one that the kernel killed; its reporter knows.
    """
    is_taken_for_killed = concluded.outcome is Outcome.OUT_OF_RAM
    if not is_taken_for_killed or said in (Outcome.KILLED, Outcome.OUT_OF_RAM):
        return concluded
    return LeaseSettled(said, concluded.was_alone, concluded.peak_bytes)


def overflowing(
    gpu: Gpu, reading: Reading, before: Reading | None, named: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the leases whose growth overflowed a virtual GPU: a driver would have refused it.

    `named` are leases found before. While one of them still has memory here, no other is named.
    """
    if gpu.kind is not GpuKind.VIRTUAL or (reading.used_bytes or 0) <= gpu.total_bytes:
        return ()
    if any(lease in named for use in reading.uses for lease in use.leases):
        return ()
    grown = _by_lease(reading)
    for leases, used in _by_lease(before).items() if before else ():
        if leases in grown:
            grown[leases] -= used
    return max(grown, key=lambda leases: grown[leases], default=())


def _by_lease(reading: Reading) -> dict[tuple[str, ...], int]:
    sums: dict[tuple[str, ...], int] = {}
    for use in reading.uses:
        sums[use.leases] = sums.get(use.leases, 0) + (use.used_bytes or 0)
    return sums
