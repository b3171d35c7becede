"""What users ask of jobs that have not ended: cancel, hold, move, edit, and drain the queue."""

from __future__ import annotations

from collections.abc import Iterator

from grn.queue.events import (
    Action,
    CancelAsked,
    ContinueCancel,
    DrainAsked,
    Edited,
    HoldAsked,
    MoveAsked,
    SaveDrain,
    Stop,
)
from grn.queue.jobs.job import EndReason, JobState, Step
from grn.queue.jobs.job_table import JobTable, saved
from grn.queue.jobs.lease_window import LeaseWindow
from grn.queue.jobs.queued_job import QueuedJob
from grn.queue.jobs.start_windows import StartWindows

ENDED_AT_ONCE = 500  # cancelled members of arrays


class Steering:
    """The part of the engine that follows users' requests; each is one event."""

    def __init__(self, table: JobTable, window: LeaseWindow, starts: StartWindows) -> None:
        self._table = table
        self._window = window
        self._start_windows = starts

    def cancel(self, event: CancelAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self._table.jobs.get(job_id)
            if job is None:
                continue
            if job.state is JobState.QUEUED:
                yield from self._table.end(job, EndReason.CANCELLED, event.text, None)
                continue
            is_second = job.state is JobState.STOPPING
            self._table.step(job, Step.STOP)
            yield saved(job)
            yield Stop(job_id, job.attempt, event.is_now or is_second)
        self._table.arrays.cancel(event.jobs)
        yield from self.end_cancelled()

    def end_cancelled(self) -> Iterator[Action]:
        """End some of the cancelled members of arrays; the rest follows with the next event."""
        left = ENDED_AT_ONCE
        for array in self._table.arrays.cancelled:
            some = array.cancelled(left)
            left -= len(some)
            yield from self._table.unfold(array, some)
            if not left:
                break
        if self._table.arrays.cancelled:
            yield ContinueCancel()
        yield from self._window.more()

    def hold(self, event: HoldAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self._table.jobs.get(job_id)
            if job is None or job.state is not JobState.QUEUED or job.is_held == event.is_held:
                continue
            self._table.hold(job, is_held=event.is_held)
            yield from self._table.reorder(job)
            yield saved(job)
        yield from self._window.more()

    def move(self, event: MoveAsked) -> Iterator[Action]:
        first, last = self._table.places()
        moving = [self._table.jobs[job_id] for job_id in event.jobs if job_id in self._table.jobs]
        for step, job in enumerate(moving):
            if job.state is not JobState.QUEUED:
                continue
            yield from self._table.unask(job)
            if event.priority is not None:
                job.priority = event.priority
                job.spec = job.spec._replace(priority=event.priority)
            if event.to_front is not None:
                job.place = first - len(moving) + step if event.to_front else last + 1 + step
            self._table.ready.add(job)
            yield saved(job)
            yield from self._unask_followers(job)
        yield from self._window.more()

    def edit(self, event: Edited) -> Iterator[Action]:
        job = self._table.jobs.get(event.spec.id)
        if job is None or job.state is not JobState.QUEUED:
            return  # it began or ended first
        yield from self._table.unask(job)
        job.tries_left = max(0, job.tries_left + event.spec.retries - job.spec.retries)
        job.spec, job.priority, job.said = event.spec, event.spec.priority, ""
        yield from self._start_windows.enter(job)
        self._table.ready.add(job)
        yield saved(job)
        yield from self._unask_followers(job)
        yield from self._window.more()

    def _unask_followers(self, moved_job: QueuedJob) -> Iterator[Action]:
        """Request again for jobs behind a moved one: the negotiator goes by order of requests."""
        for job in self._table.ready.all_asked():
            if job.rank[:2] == moved_job.rank[:2] and job.rank > moved_job.rank:
                yield from self._table.reorder(job)

    def drain(self, event: DrainAsked) -> Iterator[Action]:
        self._window.is_drained = event.is_drained
        yield SaveDrain(event.is_drained)
        if event.is_drained:
            for job in self._table.ready.all_asked():
                yield from self._table.reorder(job)
        yield from self._window.more()
