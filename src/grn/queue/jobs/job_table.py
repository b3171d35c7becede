"""All jobs that have not ended: dependencies, counts, how each one ends, and the ready queue.

The ready queue is the order of the jobs that could run, with whether a lease has been requested for
each. Which lease is requested, and when, is decided in lease_window.py.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Collection, Generator, Iterable, Iterator

from grn.queue.events import Action, DropAsk, SaveEnd, SaveMembers, SaveState, TellEnded
from grn.queue.jobs.arrays import FoldedArray, FoldedArrays
from grn.queue.jobs.job import BUSY, EndReason, Exit, JobSpec, JobState, Kept, Step
from grn.queue.jobs.queued_job import QueuedJob, Rank

Level = tuple[int, int]
_STALE = 64
Entry = tuple[Rank, int, int, QueuedJob]  # the third number is unique: jobs are never compared


class ReadyQueue:
    """The ready jobs, in order; jobs with an open request are kept apart."""

    def __init__(self) -> None:
        # Ready and not asked, by limited array (0: all other jobs); stale entries are skipped.
        self._heaps: dict[int, list[Entry]] = {0: []}
        self._taken: Counter[int] = Counter()  # jobs of limited arrays: asked, or busy
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
            heapq.heappush(self._heaps.setdefault(job.spec.array, []), self._entry(job))

    def first(self) -> QueuedJob | None:
        """Return the first job without a request whose array has not reached its limit."""
        if len(self._heaps) == 1:
            return _first_of(self._heaps[0], is_asked=False)
        best: QueuedJob | None = None
        for array, heap in list(self._heaps.items()):
            job = _first_of(heap, is_asked=False)
            if job is None and array:
                del self._heaps[array]
            elif job is not None and not self.is_full(job.spec) and (best is None or job < best):
                best = job
        return best

    def is_full(self, spec: JobSpec) -> bool:
        """True when as many jobs of a job's array as it allows are asked for or busy."""
        return bool(spec.array) and self._taken[spec.array] >= spec.array_limit

    def take(self, job: QueuedJob, change: int) -> None:
        """Count a job of a limited array that was asked for or began, or is so no more."""
        if job.spec.array and change:
            self._taken[job.spec.array] += change
            if not self._taken[job.spec.array]:
                del self._taken[job.spec.array]

    def ask(self, job: QueuedJob) -> None:
        """Note that a lease is requested; the job must be the first."""
        heapq.heappop(self._heaps[job.spec.array])
        job.is_asked = True
        self.take(job, 1)
        self._asked[job.spec.id] = job
        self._levels[job.rank[:2]] += 1
        heapq.heappush(self._asked_heap, self._entry(job))
        if len(self._asked_heap) > _STALE + 2 * len(self._asked):
            self._asked_heap = [self._entry(one) for one in self.all_asked()]

    def unask(self, job: QueuedJob) -> None:
        """Note that the request for a lease is over."""
        job.is_asked = False
        self.take(job, -1)
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
        ready = {job_id for heap in self._heaps.values() for _, job_id, _, _ in heap}
        known = {job.spec.id: job for job in jobs}
        assert self._asked.keys() <= known.keys()
        for job_id, job in known.items():
            assert job.is_asked == (job_id in self._asked)
            assert not job.is_asked or (job.rank, job_id) in waiting, "its rank has changed"
            assert not job.is_asked or job.is_ready, "asked for a job that is not ready"
            assert not job.is_ready or job.is_asked or job_id in ready, "a ready job is forgotten"
        taken = [job.spec for job in known.values() if job.is_asked or job.state in BUSY]
        assert self._taken == Counter(spec.array for spec in taken if spec.array)


def _first_of(heap: list[Entry], *, is_asked: bool) -> QueuedJob | None:
    while heap:
        rank, _, _, job = heap[0]
        if job.is_ready and job.is_asked == is_asked and job.rank == rank:
            return job
        heapq.heappop(heap)
    return None


class JobTable:
    """The jobs by their ids, the order of the ready ones, and arrays with folded members."""

    def __init__(self) -> None:
        self.jobs: dict[int, QueuedJob] = {}
        self.arrays = FoldedArrays()
        self.ready = ReadyQueue()
        self.busy = 0  # starting, running or stopping
        self.held = 0
        self._followers: dict[int, list[int]] = {}
        self._under: dict[str, QueuedJob] = {}  # by lease

    def add(self, job: QueuedJob) -> None:
        """Enter a job; `connect` then puts it into the ready queue."""
        self.jobs[job.spec.id] = job
        if job.lease:
            self._under[job.lease] = job
        self.busy += job.state in BUSY
        self.held += job.is_held
        self.ready.take(job, int(job.state in BUSY))

    def hold(self, job: QueuedJob, *, is_held: bool) -> None:
        """Hold or release a job, and count it; `reorder` then puts it into the ready queue."""
        self.held += is_held - job.is_held
        job.is_held = is_held

    def add_array(self, array: FoldedArray, ends: dict[int, bool]) -> Iterator[Action]:
        """Enter an array and note its dependencies; one that failed ends all its members."""
        self.arrays.add(array)
        for need in array.spec.after:
            if need.job in self.jobs:
                array.waits_for = array.waits_for | {need.job}
            elif need.must_be_ok and not ends.get(need.job, True):
                for job in (yield from self.unfold(array, list(array))):
                    yield from self.end(job, EndReason.SKIPPED, _skipped(need.job), None)
                return

    def unfold(
        self, array: FoldedArray, ids: Collection[int]
    ) -> Generator[Action, None, list[QueuedJob]]:
        """Make members of an array jobs of their own, and return these; end cancelled ones."""
        taken, cancelled = array.take(ids)
        members = [array.member(job_id) for job_id in taken]
        for job in members:
            self.add(job)
            for before in job.waits_for:
                self._followers.setdefault(before, []).append(job.spec.id)
            self.ready.add(job)
        if not array:
            self.arrays.forget(array)
        if members:
            yield SaveMembers(array.id, tuple(job.spec.id for job in members), array.left)
        for job_id in cancelled:
            yield from self.end(self.jobs[job_id], EndReason.CANCELLED, "", None)
        return [job for job in members if job.spec.id in self.jobs] if cancelled else members

    def connect(self, job: QueuedJob, ends: dict[int, bool]) -> Iterator[Action]:
        """Note the dependencies of a queued job; one that failed ends it."""
        if job.state is not JobState.QUEUED:
            return
        for need in job.spec.after:
            if need.job in self.jobs:
                job.waits_for = job.waits_for | {need.job}
                self._followers.setdefault(need.job, []).append(job.spec.id)
            elif need.must_be_ok and not ends.get(need.job, True):
                # One that is not known any more succeeded: else this job had ended with it.
                yield from self.end(job, EndReason.SKIPPED, _skipped(need.job), None)
                ends[job.spec.id] = False
                return
        self.ready.add(job)

    def step(self, job: QueuedJob, step: Step) -> None:
        """Change the state of a job, as the lifecycle allows, and the count of busy ones."""
        was_busy, lease = job.state in BUSY, job.lease
        job.step(step)
        if job.lease:
            self._under[job.lease] = job
        elif self._under.get(lease) is job:  # else it was passed on
            del self._under[lease]
        change = (job.state in BUSY) - was_busy
        self.busy += change
        self.ready.take(job, change)

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
            self.held -= job.is_held
            self.step(job, Step.END)
            yield SaveEnd(job_id, reason, text, exit)
            yield TellEnded(job_id, reason)
            for follower_id in self._followers.pop(job_id, []):
                follower = self.jobs.get(follower_id)
                if follower is None:
                    continue
                follower.waits_for = follower.waits_for - {job_id}
                if reason is not EndReason.OK and _needs(follower.spec, job_id):
                    todo.append((follower, EndReason.SKIPPED, _skipped(job_id), None))
                else:
                    self.ready.add(follower)
            for array in [one for one in self.arrays if job_id in one.waits_for]:
                array.waits_for = array.waits_for - {job_id}
                if reason is not EndReason.OK and _needs(array.spec, job_id):
                    members = yield from self.unfold(array, list(array))
                    todo += ((one, EndReason.SKIPPED, _skipped(job_id), None) for one in members)

    def unask(self, job: QueuedJob) -> Iterator[Action]:
        """Withdraw the request for a job's lease, if there is one."""
        if job.is_asked:
            self.ready.unask(job)
            yield DropAsk(job.spec.id)

    def reorder(self, job: QueuedJob) -> Iterator[Action]:
        """Withdraw the request for a job's lease, and move the job to its present place."""
        yield from self.unask(job)
        self.ready.add(job)

    def places(self) -> tuple[int, int]:
        """Return the first and the last place that a job has."""
        places = [job.place for job in self.jobs.values()]
        places += [one for array in self.arrays for one in (array.left[0][0], array.left[-1][1])]
        return min(places, default=0), max(places, default=0)

    def under(self, lease: str) -> QueuedJob | None:
        """Return the job whose attempt runs under a lease."""
        return self._under.get(lease)

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
        assert self.held == sum(job.is_held for job in self.jobs.values())
        assert all(self._under.get(job.lease) is job for job in self.jobs.values() if job.lease)
        assert all(job.lease == lease for lease, job in self._under.items())
        folded = list(self.arrays.ids())
        assert len(set(folded)) == len(folded) == self.arrays.count
        assert not self.jobs.keys() & set(folded), "folded, and a job of its own"
        assert all(array.waits_for <= self.jobs.keys() for array in self.arrays)
        assert all(array and self.arrays.of(array.left[-1][1]) is array for array in self.arrays)


def restored(kept: Kept) -> QueuedJob:
    """Return a job as the journal has it."""
    return QueuedJob(
        kept.spec, kept.state, kept.spec.priority, kept.place, kept.tries_left, kept.attempt,
        kept.memory_attempt, kept.spared, kept.is_held, lease=kept.lease, fault=kept.fault,
    )  # fmt: skip


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
    return f"it depends on job {before}, which did not succeed"
