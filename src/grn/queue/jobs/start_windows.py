"""Decide which queued jobs may start at this time of day, and when to look again.

The engine's events carry a monotonic clock. Windows are of the wall clock, which the engine reads
through one event: it asks for it by `WakeAt`, and `ClockRead` answers. Without a job that has a
window neither occurs.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from grn.model.windows import StartWindow, parse_hours, show_moment
from grn.queue.events import Action, WakeAt
from grn.queue.jobs.arrays import FoldedArray
from grn.queue.jobs.job import JobSpec
from grn.queue.jobs.job_table import JobTable
from grn.queue.jobs.queued_job import QueuedJob


class StartWindows:
    """The windows of all jobs and arrays that have one, by when each opens or closes next."""

    def __init__(self, table: JobTable) -> None:
        self._table = table
        # A heap; stale entries are skipped.
        self._changes: list[tuple[float, int, StartWindow, QueuedJob | FoldedArray]] = []
        self._serial = itertools.count()  # jobs are never compared
        self._clock = 0.0  # as of the latest `ClockRead`
        self._wakes_at: float | None = None  # the latest `WakeAt`, None when it was answered

    def enter(self, job: QueuedJob | FoldedArray) -> Iterator[Action]:
        """Close a new or edited job, or an array, that has a window until the clock is read."""
        job.window = window_of(job.spec)
        if job.window is None:
            job.opens_at = None
            return
        job.opens_at = job.window.begin_at
        self._change_at(0.0, job.window, job)
        yield from self._wake(0.0)

    def inherit(self, member: QueuedJob) -> None:
        """Note the window of a member of an array, which is as open as that of the array."""
        if member.window is not None:
            self._change_at(member.window.next_change(self._clock), member.window, member)

    def _change_at(
        self, at: float | None, window: StartWindow, job: QueuedJob | FoldedArray
    ) -> None:
        if at is not None:
            heapq.heappush(self._changes, (at, next(self._serial), window, job))

    def read_clock(self, clock: float) -> Iterator[Action]:
        """Open and close windows by the present time."""
        self._clock, self._wakes_at = clock, None
        while self._changes and self._changes[0][0] <= clock:
            _, _, window, job = heapq.heappop(self._changes)
            if not self._waits(job) or job.window is not window:
                continue
            job.opens_at = None if window.is_open(clock) else window.next_open(clock)
            if isinstance(job, QueuedJob):
                yield from self._table.reorder(job)
            self._change_at(window.next_change(clock), window, job)
        if self._changes:
            yield from self._wake(self._changes[0][0])

    def _waits(self, job: QueuedJob | FoldedArray) -> bool:
        is_job = isinstance(job, QueuedJob)
        return self._table.jobs.get(job.spec.id) is job if is_job else bool(job)

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
