"""Arrays whose members are not jobs of their own yet.

An array is accepted as one record, however long it is. Its members become jobs in order, shortly
before their turn, or when a request names them (docs/decisions/0056-arrays-are-one-record.md).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice

from grn.model.windows import StartWindow
from grn.queue.jobs.job import JobSpec, JobState, KeptArray
from grn.queue.jobs.queued_job import QueuedJob, Rank

Part = tuple[int, int]


class IdRanges:
    """Ids of jobs, ascending, as runs of consecutive ones."""

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._parts = list(parts)

    @property
    def parts(self) -> Sequence[Part]:
        """The first and the last id of each run."""
        return self._parts

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self._parts)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self._parts)

    def __contains__(self, job_id: int) -> bool:
        position = bisect_right(self._parts, (job_id, job_id)) - 1
        candidates = self._parts[max(0, position) : position + 2]
        return any(first <= job_id <= last for first, last in candidates)

    def add(self, ids: Iterable[int]) -> None:
        """Enter ids, ascending, none of which is here."""
        new: list[Part] = []
        for one in ids:
            if new and new[-1][1] == one - 1:
                new[-1] = (new[-1][0], one)
            else:
                new.append((one, one))
        self._parts = sorted([*self._parts, *new])

    def take(self, ids: Iterable[int]) -> list[int]:
        """Remove ids; return those that were here, ascending."""
        taken = sorted({job_id for job_id in ids if job_id in self})
        left: list[Part] = []
        following = iter([*taken, 0])
        cut = next(following)
        for first, last in self._parts:
            while first <= cut <= last:
                if first < cut:
                    left.append((first, cut - 1))
                first, cut = cut + 1, next(following)
            if first <= last:
                left.append((first, last))
        self._parts = left
        return taken


class FoldedArray:
    """The members of one array that are not jobs yet: all alike but for their numbers.

    A cancelled one never has a turn: it becomes a job to be ended at once.
    """

    def __init__(self, kept: KeptArray) -> None:
        self.spec: JobSpec = kept.spec  # of its first member
        self.is_held = kept.is_held
        self.waits_for: AbstractSet[int] = frozenset()  # jobs that have not ended yet
        self.window: StartWindow | None = None
        self.opens_at: float | None = None
        self._waiting = IdRanges(kept.left)
        self._cancelled = IdRanges(())

    @property
    def id(self) -> int:
        """The id of its first member, whether that is still folded or not."""
        return self.spec.id

    @property
    def left(self) -> tuple[Part, ...]:
        """The folded members, as runs of consecutive ids, ascending."""
        return tuple(sorted([*self._waiting.parts, *self._cancelled.parts]))

    @property
    def rank(self) -> Rank:
        """Return the rank of the next member."""
        return (1, -self.spec.priority, self._waiting.parts[0][0])

    @property
    def is_ready(self) -> bool:
        is_kept_back = self.is_held or self.waits_for or self.opens_at is not None
        return bool(self._waiting) and not is_kept_back

    def __len__(self) -> int:
        return len(self._waiting) + len(self._cancelled)

    def __iter__(self) -> Iterator[int]:
        return iter(IdRanges(self.left))

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._waiting or job_id in self._cancelled

    def first(self, count: int) -> list[int]:
        """Return the next members."""
        return list(islice(self._waiting, count))

    def member(self, job_id: int) -> QueuedJob:
        """Return a member as a job."""
        spec = self.spec._replace(id=job_id)
        job = QueuedJob(spec, JobState.QUEUED, spec.priority, job_id, spec.retries)
        job.is_held, job.waits_for = self.is_held, self.waits_for
        job.window, job.opens_at = self.window, self.opens_at
        return job

    def take(self, ids: Collection[int]) -> tuple[list[int], list[int]]:
        """Remove members; return those that were folded, ascending, and the cancelled of them."""
        cancelled = self._cancelled.take(ids)
        return sorted([*self._waiting.take(ids), *cancelled]), cancelled

    def cancel(self, ids: Collection[int]) -> None:
        """Let members have no turn any more."""
        self._cancelled.add(self._waiting.take(ids))

    def cancelled(self, count: int) -> list[int]:
        """Return the first members that are cancelled."""
        return list(islice(self._cancelled, count))


class FoldedArrays:
    """All arrays with folded members, by the order of their turns and by id."""

    def __init__(self) -> None:
        self._by_id: list[tuple[int, FoldedArray]] = []  # ids of one array are consecutive
        self._in_order: list[tuple[int, int, FoldedArray]] = []

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[FoldedArray]:
        """Yield the arrays in the order of their turns, which never changes."""
        return (array for _, _, array in self._in_order)

    def add(self, array: FoldedArray) -> None:
        """Enter an array."""
        insort(self._by_id, (array.id, array))
        insort(self._in_order, (-array.spec.priority, array.id, array))

    def forget(self, array: FoldedArray) -> None:
        """Remove an array without folded members."""
        self._by_id.remove((array.id, array))
        self._in_order.remove((-array.spec.priority, array.id, array))

    def cancel(self, ids: Iterable[int]) -> None:
        """Let those of the jobs that are members have no turn any more."""
        by_array: dict[int, list[int]] = {}
        for job_id in ids if self else ():
            array = self.of(job_id)
            if array is not None:
                by_array.setdefault(array.id, []).append(job_id)
        for array in self:
            if array.id in by_array:
                array.cancel(by_array[array.id])

    @property
    def cancelled(self) -> list[FoldedArray]:
        """The arrays with cancelled members."""
        return [array for array in self if array.cancelled(1)]

    @property
    def count(self) -> int:
        """Return the number of folded members of all arrays."""
        return sum(map(len, self))

    @property
    def held(self) -> int:
        """Return the number of those that are held."""
        return sum(len(array) for array in self if array.is_held)

    def of(self, job_id: int) -> FoldedArray | None:
        """Return the array in which a member is folded, None when it is not."""
        position = bisect_right(self._by_id, job_id, key=lambda entry: entry[0]) - 1
        array = self._by_id[position][1] if position >= 0 else None
        return array if array is not None and job_id in array else None

    def ids(self) -> Iterator[int]:
        """Yield all folded members, in the order of their turns."""
        return chain.from_iterable(self)
