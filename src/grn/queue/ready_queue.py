"""Jobs that could run, in order, and whether a lease has been requested for each.

Keeps the order only; the engine decides what is requested and when.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from grn.queue import lifecycle
from grn.queue.events import LeaseGranted
from grn.queue.job import JobSpec
from grn.queue.lifecycle import BUSY, JobState, Step

Rank = tuple[int, int, int]
Level = tuple[int, int]
_STALE = 64


@dataclass(slots=True)
class QueuedJob:
    """One job that has not ended; its state changes by `step` only."""

    spec: JobSpec
    _state: JobState
    priority: int
    place: int
    tries_left: int
    attempt: int = 0
    memory_attempt: int = 0
    spared: int = 0  # how often it ran out of memory because others took its room
    is_held: bool = False
    is_asked: bool = False  # a lease has been requested
    lease: str = ""
    grant: LeaseGranted | None = None  # how the lease came
    waits_for: set[int] = field(default_factory=set)  # jobs that have not ended yet
    said: str = ""  # why it waits, by the negotiator's latest answer
    fault: str = ""  # its row is damaged: it is not run again
    past: str = ""  # why its latest attempt failed, where the job is not to blame

    @property
    def state(self) -> JobState:
        return self._state

    def step(self, step: Step) -> None:
        """Change the state by the lifecycle's table; a job that is not busy holds no lease."""
        self._state = lifecycle.after(self._state, step)
        if self._state not in BUSY:
            self.lease, self.grant = "", None

    @property
    def rank(self) -> Rank:
        """Return its place in the order: out-of-memory retries first, then priority, then age."""
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
        return self._state is JobState.QUEUED and not self.is_held and not self.waits_for


Entry = tuple[Rank, int, int, QueuedJob]  # the third number is unique: jobs are never compared


class ReadyQueue:
    """The ready jobs, in order; jobs with an open request are kept apart."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []  # ready and not asked; stale entries are skipped
        self._asked: dict[int, QueuedJob] = {}
        self._asked_heap: list[Entry] = []  # likewise
        self._levels: Counter[Level] = Counter()  # of the requested jobs
        self._serial = itertools.count()

    @property
    def asked(self) -> int:
        """Return for how many jobs a lease is requested."""
        return len(self._asked)

    def add(self, job: QueuedJob) -> None:
        """Insert a job, if it is ready and not requested."""
        if job.is_ready and not job.is_asked:
            heapq.heappush(self._heap, self._entry(job))

    def first(self) -> QueuedJob | None:
        """Return the first job without a request."""
        return _first_of(self._heap, is_asked=False)

    def ask(self, job: QueuedJob) -> None:
        """Note that a lease is requested; the job must be the first."""
        heapq.heappop(self._heap)
        job.is_asked = True
        self._asked[job.spec.id] = job
        self._levels[job.rank[:2]] += 1
        heapq.heappush(self._asked_heap, self._entry(job))
        if len(self._asked_heap) > _STALE + 2 * len(self._asked):
            self._asked_heap = [self._entry(one) for one in self.all_asked()]

    def unask(self, job: QueuedJob) -> None:
        """Note that the request for a lease is over."""
        job.is_asked = False
        self._asked.pop(job.spec.id, None)
        level = job.rank[:2]
        self._levels[level] -= 1
        if not self._levels[level]:
            del self._levels[level]

    def all_asked(self) -> list[QueuedJob]:
        """Return the requested jobs, in order."""
        return sorted(self._asked.values(), key=lambda job: job.rank)

    def first_asked(self) -> QueuedJob | None:
        """Return the first requested job."""
        return _first_of(self._asked_heap, is_asked=True)

    def outranked(self) -> QueuedJob | None:
        """Return the last requested job, when a job without a request has a better level."""
        best = self.first() if self._asked else None
        if best is None or best.rank[:2] >= max(self._levels):
            return None
        return max(self._asked.values(), key=lambda job: job.rank)

    def _entry(self, job: QueuedJob) -> Entry:
        return job.rank, job.spec.id, next(self._serial), job

    def check(self, jobs: Iterable[QueuedJob]) -> None:
        """Raise AssertionError when a ready job is forgotten or an asked one is not ready."""
        waiting = {(rank, job_id) for rank, job_id, _, _ in self._asked_heap}
        ready = {job_id for _, job_id, _, _ in self._heap}
        known = {job.spec.id: job for job in jobs}
        assert self._asked.keys() <= known.keys()
        for job_id, job in known.items():
            assert job.is_asked == (job_id in self._asked)
            assert not job.is_asked or (job.rank, job_id) in waiting, "its rank has changed"
            assert not job.is_asked or job.is_ready, "asked for a job that is not ready"
            assert not job.is_ready or job.is_asked or job_id in ready, "a ready job is forgotten"


def _first_of(heap: list[Entry], *, is_asked: bool) -> QueuedJob | None:
    while heap:
        rank, _, _, job = heap[0]
        if job.is_ready and job.is_asked == is_asked and job.rank == rank:
            return job
        heapq.heappop(heap)
    return None
