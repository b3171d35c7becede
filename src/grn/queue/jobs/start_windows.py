"""Decide which queued jobs may start at this time of day, and when to look again.

The engine's events carry a monotonic clock. Windows are of the wall clock, which the engine reads
through one event: it asks for it by `WakeAt`, and `ClockRead` answers. Without a job that has a
window neither occurs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from grn.model.windows import StartWindow, parse_hours, show_moment
from grn.queue.events import Action, WakeAt
from grn.queue.jobs.job import JobSpec
from grn.queue.jobs.job_table import JobTable, QueuedJob


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
