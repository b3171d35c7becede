"""All jobs that have not ended: dependencies between them, counts, and how each one ends.

Keeps the ready queue consistent. Does not decide for which job a lease is requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from grn.queue.events import (
    Action,
    DropAsk,
    SaveEnd,
    SaveState,
    TellEnded,
)
from grn.queue.job import EndReason, Exit, JobSpec, Kept
from grn.queue.lifecycle import BUSY, JobState, Step
from grn.queue.ready_queue import QueuedJob, ReadyQueue


class JobTable:
    """The jobs by their ids, and the order of the ready ones."""

    def __init__(self) -> None:
        self.jobs: dict[int, QueuedJob] = {}
        self.ready = ReadyQueue()
        self.busy = 0  # starting, running or stopping
        self._followers: dict[int, list[int]] = {}

    def add(self, kept: Kept) -> QueuedJob:
        """Enter a job; `connect` then puts it into the ready queue."""
        job = QueuedJob(
            kept.spec,
            kept.state,
            kept.spec.priority,
            kept.place,
            kept.tries_left,
            kept.attempt,
            kept.memory_attempt,
            kept.spared,
            kept.is_held,
            lease=kept.lease,
            fault=kept.fault,
        )
        self.jobs[kept.spec.id] = job
        self.busy += kept.state in BUSY
        return job

    def connect(self, job: QueuedJob, ends: dict[int, bool]) -> Iterator[Action]:
        """Note the dependencies of a queued job; one that failed ends it."""
        if job.state is not JobState.QUEUED:
            return
        for after in job.spec.after:
            if after.job in self.jobs:
                job.waits_for.add(after.job)
                self._followers.setdefault(after.job, []).append(job.spec.id)
            elif after.must_be_ok and not ends.get(after.job, True):
                # One that is not known any more succeeded: else this job had ended with it.
                yield from self.end(job, EndReason.SKIPPED, _skipped(after.job), None)
                ends[job.spec.id] = False
                return
        self.ready.add(job)

    def step(self, job: QueuedJob, step: Step) -> None:
        """Change the state of a job, as the lifecycle allows, and the count of busy ones."""
        self.busy -= job.state in BUSY
        job.step(step)
        self.busy += job.state in BUSY

    def end(
        self, job: QueuedJob, reason: EndReason, text: str, exit: Exit | None
    ) -> Iterator[Action]:
        """End a job and its dependents; chains of them may be long."""
        todo = deque([(job, reason, text, exit)])
        while todo:
            job, reason, text, exit = todo.popleft()
            job_id = job.spec.id
            if self.jobs.pop(job_id, None) is None:
                continue  # it depends on two of them
            yield from self.unask(job)
            self.step(job, Step.END)
            yield SaveEnd(job_id, reason, text, exit)
            yield TellEnded(job_id, reason)
            for follower_id in self._followers.pop(job_id, []):
                follower = self.jobs.get(follower_id)
                if follower is None:
                    continue
                follower.waits_for.discard(job_id)
                if reason is not EndReason.OK and _needs(follower.spec, job_id):
                    todo.append((follower, EndReason.SKIPPED, _skipped(job_id), None))
                else:
                    self.ready.add(follower)

    def unask(self, job: QueuedJob) -> Iterator[Action]:
        """Withdraw the request for a job's lease, if there is one."""
        if job.is_asked:
            self.ready.unask(job)
            yield DropAsk(job.spec.id)

    def reorder(self, job: QueuedJob) -> Iterator[Action]:
        """Withdraw the request for a job's lease, and move the job to its present place."""
        yield from self.unask(job)
        self.ready.add(job)

    def at(self, job_id: int, attempt: int) -> QueuedJob | None:
        """Return a job while this attempt of it is under way, else None."""
        job = self.jobs.get(job_id)
        is_it = job is not None and job.attempt == attempt and job.state in BUSY
        return job if is_it else None

    def check(self) -> None:
        """Raise AssertionError when the state contradicts itself."""
        self.ready.check(self.jobs.values())
        for job_id, job in self.jobs.items():
            assert job.spec.id == job_id
            assert job.state is not JobState.ENDED, "an ended job is kept"
            assert not (job.lease and job.state is JobState.QUEUED), "queued with a lease"
        assert self.busy == sum(job.state in BUSY for job in self.jobs.values())


def saved(job: QueuedJob) -> SaveState:
    """Return the action that persists a job's state."""
    return SaveState(
        job.spec.id, job.state, job.attempt, job.tries_left, job.memory_attempt, job.is_held,
        job.priority, job.place, job.spared,
    )  # fmt: skip


def _needs(spec: JobSpec, before: int) -> bool:
    """True when a job must not run unless the one before has ended well."""
    return any(one.job == before and one.must_be_ok for one in spec.after)


def _skipped(before: int) -> str:
    return f"job {before}, which it comes after, did not end well"
