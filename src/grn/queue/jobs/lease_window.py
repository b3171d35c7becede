"""Decide which jobs request a lease, and which job begins under a granted one.

Only a window at the head of the ready queue is requested, so the negotiator's work does not grow
with the length of the queue.

`StartWindows` keeps jobs out of the ready queue until their time of day. The engine's events carry
a monotonic clock; windows are of the wall clock, which the engine reads through one event: it asks
for it by `WakeAt`, and `ClockRead` answers. Without a job that has a window neither occurs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from grn.model.windows import StartWindow, parse_hours, show_moment
from grn.queue.events import (
    Action,
    AskLease,
    DropAsk,
    Exited,
    Launch,
    LeaseGranted,
    PassAsk,
    ReturnLease,
    SaveBegin,
    WakeAt,
)
from grn.queue.jobs.job import JobSpec, Step
from grn.queue.jobs.job_table import JobTable, QueuedJob, saved

PASS_ON_S = 0.5


@dataclass(frozen=True, slots=True)
class WindowLimits:
    """How many leases are requested at once, and how many jobs run at once (0: as GPUs allow)."""

    window: int = 64
    running: int = 0


class LeaseWindow:
    """The open lease requests."""

    def __init__(self, limits: WindowLimits, table: JobTable) -> None:
        self.limits = limits
        self.is_drained = False
        self.has_negotiator = False
        self._table = table
        self._ready = table.ready

    def more(self) -> Iterator[Action]:
        """Request leases for the jobs at the head of the ready queue.

        When the window is full, a better ranked job replaces the last requested one.
        """
        while not self.is_drained and self.has_negotiator:
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
        heir = self._heir(job, event.at)
        if heir is None or job.grant is None:
            yield ReturnLease(job.lease, event.exit)
            return
        self._ready.unask(heir)
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


# --- start windows -------------------------------------------------------------------------


class StartWindows:
    """The windows of all jobs that have one, by the time at which each opens or closes next."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self._changes: list[tuple[float, int, StartWindow]] = []  # a heap; stale ones are skipped
        self._clock = 0.0  # as of the latest `ClockRead`
        self._wakes_at: float | None = None  # the latest `WakeAt`, None when it was answered

    def enter(self, job: QueuedJob) -> Iterator[Action]:
        """Close a new or edited job that has a window until the clock is read."""
        job.window = window_of(job.spec)
        if job.window is None:
            job.opens_at = None
            return
        job.opens_at = job.window.begin_at
        heapq.heappush(self._changes, (0.0, job.spec.id, job.window))
        yield from self._wake(0.0)

    def read_clock(self, clock: float) -> Iterator[Action]:
        """Open and close windows by the present time."""
        self._clock, self._wakes_at = clock, None
        while self._changes and self._changes[0][0] <= clock:
            _, job_id, window = heapq.heappop(self._changes)
            job = self._table.jobs.get(job_id)
            if job is None or job.window is not window:
                continue
            job.opens_at = None if window.is_open(clock) else window.next_open(clock)
            yield from self._table.reorder(job)
            change_at = window.next_change(clock)
            if change_at is not None:
                heapq.heappush(self._changes, (change_at, job_id, window))
        if self._changes:
            yield from self._wake(self._changes[0][0])

    def why(self, opens_at: float) -> str:
        """Return why a job outside its window waits."""
        return f"starts at {show_moment(opens_at, self._clock or opens_at)} (as stated)"

    def _wake(self, at: float) -> Iterator[Action]:
        if self._wakes_at is None or at < self._wakes_at:
            self._wakes_at = at
            yield WakeAt(at)


def window_of(spec: JobSpec) -> StartWindow | None:
    """Return the times at which a job may start; None for any time."""
    if not spec.begin_at and not spec.only:
        return None
    return StartWindow(spec.begin_at, parse_hours(spec.only) if spec.only else None)
