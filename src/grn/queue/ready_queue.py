"""Jobs that could run, in order, and whether a lease has been requested for each.

Keeps the order only; the engine decides what is requested and when.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from grn.queue.events import JobSpec, JobState, LeaseGranted

Rank = tuple[int, int, int]
Level = tuple[int, int]
_STALE = 64


@dataclass(slots=True)
class QueuedJob:
    """One job that has not ended."""

    spec: JobSpec
    priority: int
    place: int
    tries_left: int
    state: JobState = JobState.QUEUED
    attempt: int = 0
    memory_attempt: int = 0
    spared: int = 0  # how often it ran out of memory by no fault of its own
    is_held: bool = False
    is_asked: bool = False  # the negotiator has been asked for a lease
    lease: str = ""
    grant: LeaseGranted | None = None  # how the lease came
    waits_for: set[int] = field(default_factory=set)  # jobs that have not ended yet
    why: str = ""  # what the negotiator said last; asked for anew whenever jobs are shown
    fault: str = ""  # its row is damaged: it is not run again
    past: str = ""  # why its latest attempt was not enough, where that was not its own doing

    @property
    def rank(self) -> Rank:
        """Return its place in the line: out-of-memory retries first, then priority, then age."""
        is_retry = bool(self.memory_attempt or self.spared)
        return (0 if is_retry else 1, -self.priority, self.place)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what two jobs must share for a lease of one to serve the other."""
        spec = self.spec
        return (
            spec.job_type, spec.gpus, spec.mem_bytes, spec.is_exclusive, self.priority,
            self.memory_attempt,
        )  # fmt: skip

    @property
    def is_ready(self) -> bool:
        return self.state is JobState.QUEUED and not self.is_held and not self.waits_for


class ReadyQueue:
    """The ready jobs, in their order; those asked for stand apart."""

    def __init__(self, jobs: Mapping[int, QueuedJob]) -> None:
        self._jobs = jobs
        self._heap: list[tuple[Rank, int]] = []  # ready and not asked; stale entries are skipped
        self._asked: set[int] = set()
        self._asked_heap: list[tuple[Rank, int]] = []  # likewise
        self._levels: Counter[Level] = Counter()  # of those asked

    @property
    def asked(self) -> int:
        """Return for how many jobs a lease has been asked."""
        return len(self._asked)

    def add(self, job: QueuedJob) -> None:
        """Put a job into its place, if it is ready and not asked for."""
        if job.is_ready and not job.is_asked:
            heapq.heappush(self._heap, (job.rank, job.spec.id))

    def first(self) -> QueuedJob | None:
        """Return the first that is not asked for."""
        return self._first_of(self._heap, is_asked=False)

    def ask(self, job: QueuedJob) -> None:
        """Note that a lease is asked for; the job must be the first."""
        heapq.heappop(self._heap)
        job.is_asked = True
        self._asked.add(job.spec.id)
        self._levels[job.rank[:2]] += 1
        heapq.heappush(self._asked_heap, (job.rank, job.spec.id))
        if len(self._asked_heap) > _STALE + 2 * len(self._asked):
            self._asked_heap = [(one.rank, one.spec.id) for one in self.all_asked()]

    def unask(self, job: QueuedJob) -> None:
        """Note that no lease is asked for any more."""
        job.is_asked = False
        self._asked.discard(job.spec.id)
        level = job.rank[:2]
        self._levels[level] -= 1
        if not self._levels[level]:
            del self._levels[level]

    def all_asked(self) -> list[QueuedJob]:
        """Return the jobs asked for, in their order."""
        return sorted((self._jobs[job_id] for job_id in self._asked), key=lambda job: job.rank)

    def first_asked(self) -> QueuedJob | None:
        """Return the first of those asked for."""
        return self._first_of(self._asked_heap, is_asked=True)

    def outranked(self) -> QueuedJob | None:
        """Return the last asked for, when one that is not asked has a better level than it."""
        best = self.first() if self._asked else None
        if best is None or best.rank[:2] >= max(self._levels):
            return None
        return max((self._jobs[job_id] for job_id in self._asked), key=lambda job: job.rank)

    def _first_of(self, heap: list[tuple[Rank, int]], *, is_asked: bool) -> QueuedJob | None:
        while heap:
            rank, job_id = heap[0]
            job = self._jobs.get(job_id)
            if job is not None and job.is_ready and job.is_asked == is_asked and job.rank == rank:
                return job
            heapq.heappop(heap)
        return None

    def check(self) -> None:
        """Raise AssertionError when a ready job is forgotten or an asked one is not ready."""
        lined = {job_id for _, job_id in self._heap}
        waiting = set(self._asked_heap)
        assert self._asked <= self._jobs.keys()
        for job_id, job in self._jobs.items():
            assert job.is_asked == (job_id in self._asked)
            assert not job.is_asked or (job.rank, job_id) in waiting, "its rank has changed"
            assert not job.is_asked or job.is_ready, "asked for a job that is not ready"
            assert not job.is_ready or job.is_asked or job_id in lined, "a ready job is forgotten"
