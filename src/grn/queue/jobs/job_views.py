"""What is told of the jobs that have not ended, and why each of them waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from grn.model.text import counted, with_job_ids
from grn.queue.jobs.job import JobState, JobView
from grn.queue.jobs.job_table import JobTable
from grn.queue.jobs.lease_window import LeaseWindow
from grn.queue.jobs.queued_job import QueuedJob
from grn.queue.jobs.start_windows import StartWindows

NO_NEGOTIATOR = (
    "no negotiator answers: one is being started; without a GPU run `grn start --virtual 2x2GiB`"
)


class FoldedMembers(NamedTuple):
    """The members of one array that are not jobs of their own yet, at one moment."""

    array: int
    parts: tuple[tuple[int, int], ...]  # first and last id of each run of them, ascending
    priority: int

    @property
    def ids(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.parts)


class JobViews(Mapping[int, JobView]):
    """Read-only views of the jobs that have not ended, each made on access.

    Members of an array are among them, whether they are jobs of their own yet or not.
    """

    def __init__(self, table: JobTable, window: LeaseWindow, starts: StartWindows) -> None:
        self._table = table
        self._window = window
        self._start_windows = starts

    def __getitem__(self, job_id: int) -> JobView:
        array = self._table.arrays.of(job_id)
        job = self._table.jobs[job_id] if array is None else array.member(job_id)
        return JobView(
            job_id, job.state, job.is_held, job.attempt, job.priority, job.place, job.is_asked,
            job.tries_left, job.memory_attempt, job.spared, frozenset(job.waits_for),
            self._why(job),
        )  # fmt: skip

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._table.jobs or (isinstance(job_id, int) and self._is_folded(job_id))

    def __iter__(self) -> Iterator[int]:
        return chain(self._table.jobs, self._table.arrays.ids())

    def __len__(self) -> int:
        return len(self._table.jobs) + self._table.arrays.count

    def turn(self, job_id: int) -> tuple[int, int]:
        """Return what the journal's lists order a job by, also of one that has just ended."""
        job = self._table.jobs.get(job_id)
        if job is not None:
            return -job.priority, job.place
        array = self._table.arrays.of(job_id)
        return (0 if array is None else -array.spec.priority, job_id)

    # --- members of arrays that are not jobs of their own yet ----------------------------

    @property
    def folded(self) -> int:
        """Return the number of such members."""
        return self._table.arrays.count

    @property
    def is_cancelling(self) -> bool:
        """True while some of them are cancelled and have not ended yet."""
        return bool(self._table.arrays.cancelled)

    def folded_among(self, jobs: Iterable[int]) -> list[int]:
        """Return such members among jobs."""
        return [job_id for job_id in jobs if self._is_folded(job_id)] if self.folded else []

    def folded_between(self, first: int, last: int) -> list[int]:
        """Return such members in a range of ids."""
        return [job_id for job_id in self._table.arrays.ids() if first <= job_id <= last]

    def folded_in(self, job_id: int) -> int | None:
        """Return the array of such a member; None for another job."""
        array = self._table.arrays.of(job_id)
        return None if array is None else array.id

    def folded_arrays(self) -> list[FoldedMembers]:
        """Return the arrays that have such members, in the order of their turns."""
        return [FoldedMembers(one.id, one.left, one.spec.priority) for one in self._table.arrays]

    def _is_folded(self, job_id: int) -> bool:
        return self._table.arrays.of(job_id) is not None

    def _job_under(self, lease: str) -> int | None:
        job = self._table.under(lease)
        return None if job is None else job.spec.id

    def _why(self, job: QueuedJob) -> str:
        """Return why a job does not run yet, or its state."""
        window = self._window
        if job.state is not JobState.QUEUED:
            return str(job.state.value)
        if job.is_held:
            return "held: run `grn release` to let it start"
        if job.waits_for:
            waits_for = sorted(job.waits_for)
            plural = "s" * (len(waits_for) > 1)
            return f"waiting for job{plural} {', '.join(map(str, waits_for))} to finish"
        if job.opens_at is not None:
            return self._start_windows.why(job.opens_at)
        if window.is_drained:
            return "the queue is paused: run `grn drain --off` to resume"
        if not window.has_negotiator:
            return NO_NEGOTIATOR
        if job.is_asked:
            said = with_job_ids(job.said, self._job_under) or "asking for a GPU"
            return "; ".join(filter(None, (job.past, said)))
        if self._table.ready.is_full(job.spec):
            return f"its array runs at most {counted(job.spec.array_limit, 'job')} at a time"
        if window.is_full:
            return f"this queue runs at most {counted(window.limits.running, 'job')} at a time"
        return f"behind {counted(window.open, 'other job')} of yours"
