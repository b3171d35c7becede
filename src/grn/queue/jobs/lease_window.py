"""Decide which jobs request a lease, and which job begins under a granted one.

Only a window at the head of the ready queue is requested, so the negotiator's work does not grow
with the length of the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grn.queue.events import (
    Action,
    AskLease,
    DropAsk,
    Exited,
    Launch,
    LeaseGranted,
    PassAsk,
    Prepare,
    ReturnLease,
    SaveBegin,
)
from grn.queue.jobs.arrays import FoldedArray
from grn.queue.jobs.job import Step
from grn.queue.jobs.job_table import JobTable, saved
from grn.queue.jobs.queued_job import QueuedJob
from grn.queue.jobs.start_windows import StartWindows

PASS_ON_S = 0.5
UNFOLDED = 128  # members of an array that become jobs together


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """How many leases are requested at once, and how many jobs run at once (0: as GPUs allow)."""

    window: int = 64
    running: int = 0


class LeaseWindow:
    """The open lease requests."""

    def __init__(self, limits: WindowLimits, table: JobTable, starts: StartWindows) -> None:
        self.limits = limits
        self.is_drained = False
        self.has_negotiator = False
        self._table = table
        self._ready = table.ready
        self._starts = starts

    def more(self) -> Iterator[Action]:
        """Request leases for the jobs at the head of the ready queue.

        When the window is full, a better ranked job replaces the last requested one.
        """
        while not self.is_drained and self.has_negotiator:
            yield from self._unfold_next()
            if not self._may_ask_more():
                last = self._ready.outranked()
                if last is None:
                    return
                yield from self._table.reorder(last)
            job = self._ready.first()
            if job is None:
                return
            self._ready.ask(job)
            yield _ask(job)

    def _unfold_next(self) -> Iterator[Action]:
        """Make sure that the first ready job is no folded member of an array."""
        for array in self._table.arrays:
            if array.is_ready and not self._ready.is_full(array.spec):
                best = self._ready.first()
                if best is None or array.rank < best.rank:
                    yield from self.unfold(array, array.first(UNFOLDED))
                return

    def unfold(self, array: FoldedArray, ids: Sequence[int]) -> Iterator[Action]:
        """Make members of an array jobs of their own."""
        for job in (yield from self._table.unfold(array, ids)):
            self._starts.inherit(job)

    @property
    def open(self) -> int:
        """Return the number of open requests."""
        return self._ready.asked

    @property
    def is_full(self) -> bool:
        """True when the limit of running jobs is reached."""
        return bool(self.limits.running) and self._table.busy >= self.limits.running

    def _may_ask_more(self) -> bool:
        asked = self._ready.asked
        if asked >= self.limits.window:
            return False
        return not self.limits.running or self._table.busy + asked < self.limits.running

    def prepare(self) -> Iterator[Action]:
        """Get the first requested job ready: the next grant is probably for it."""
        first = self._ready.first_asked()
        if first is not None:
            yield Prepare(first.spec.id, first.attempt + 1)

    def begin(self, job: QueuedJob, grant: LeaseGranted) -> Iterator[Action]:
        """Begin the next attempt of a job under a lease."""
        job.attempt += 1
        job.lease, job.grant = grant.lease, grant
        job.said = job.past = ""
        self._table.step(job, Step.BEGIN)
        job_id = job.spec.id
        yield saved(job)
        yield SaveBegin(job_id, job.attempt, grant.lease, grant.gpus, grant.reserved_bytes)
        yield Launch(job_id, job.attempt, grant.lease, grant.visible, grant.memory_cap)

    def pass_on(self, job: QueuedJob, event: Exited) -> Iterator[Action]:
        """Start the next job under the lease of a short one, if it is of the same kind.

        Saves a round trip to the negotiator between short jobs. For fairness a lease is passed on
        only for a moment, and only to the next job in order.
        """
        yield from self._unfold_next()
        heir = self._heir(job, event.at)
        if heir is None or job.grant is None:
            yield ReturnLease(job.lease, event.exit)
            return
        self._ready.unask(heir)
        yield from self._unfold_next()
        following = self._ready.first()
        if following is not None and following.kind == heir.kind:
            self._ready.ask(following)
            yield PassAsk(heir.spec.id, _ask(following))
        else:
            yield DropAsk(heir.spec.id)
        yield from self.begin(heir, job.grant)

    def _heir(self, job: QueuedJob, at: float) -> QueuedJob | None:
        grant = job.grant
        if grant is None or not grant.may_pass_on or at - grant.at > PASS_ON_S:
            return None
        best = self._ready.first_asked()
        if self.is_drained or best is None or best.kind != job.kind:
            return None
        following = self._ready.first()
        return None if following is not None and following.rank < best.rank else best


def _ask(job: QueuedJob) -> AskLease:
    return AskLease(job.spec, job.attempt + 1, job.memory_attempt, bool(job.spared))
