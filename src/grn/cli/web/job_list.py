"""The jobs of the page as one list: leases, requests and the user's jobs, each job once.

Pure: a snapshot in, rows out. Which job belongs to which lease and request is decided in
`grn.cli.top.rows`; here rows are named, and the waiting jobs of an array are folded into one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from grn.cli.output.job_text import shown_name, spelled, spelled_command
from grn.cli.top import rows as top_rows
from grn.cli.top.board import folded
from grn.cli.top.rows import Row
from grn.model.ranges import show_ranges
from grn.paths import user_name
from grn.protocol.queue_rows import FoldedRow, JobRow
from grn.protocol.snapshot import NEGOTIATOR, Snapshot

MAX_ROWS = 200
MAX_PARTS = 400  # of the ids of a folded row


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One row of the job table: a job, a lease of another program, or a folded array."""

    id: str
    name: str
    command: str
    group: str  # the sweep or batch it belongs to
    state: str
    user: str
    job: int | None = None  # the first job of an array
    count: int = 1
    ids: str = ""  # of one's own jobs, as ranges; empty for others
    lease: str | None = None
    where: str = ""
    gpus: tuple[int, ...] = ()
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    mem_bytes: int | None = None
    since_at: float = 0.0
    started_at: float | None = None
    expected_at: tuple[float, float] | None = None  # its end or start: earliest, latest
    why: str = ""
    priority: int = 0
    is_held: bool = False
    idle_since_at: float | None = None


@dataclass(frozen=True, slots=True)
class JobList:
    """The first rows, and how many jobs there are in all."""

    rows: tuple[ListedJob, ...]
    running: int
    waiting: int
    shown: int  # jobs, not rows
    next_start_at: tuple[float, float] | None


def listed(
    picture: Snapshot, own_uid: int, wanted: str = "", most: int = MAX_ROWS,
    members: Sequence[FoldedRow] = (),
) -> JobList:  # fmt: skip
    """Return the jobs that run and wait; each word of `wanted` must be found in a row.

    `members` are jobs of arrays of which at most the first ones are in the snapshot.
    """
    running = sorted(top_rows.running(picture, own_uid), key=_by_gpu)
    waiting = top_rows.waiting(picture, own_uid)
    if picture.trouble[NEGOTIATOR]:  # what it told last is out of date
        running = [row for row in running if row.job is not None]
        waiting = [row for row in waiting if row.job is not None]
    words = wanted.lower().split()
    if words:
        running = [row for row in running if _has(row, words)]
        waiting = [row for row in waiting if _has(row, words)]
    rows = folded([*running, *waiting], picture.jobs, members)
    found = sum(len(row.members) or 1 for row in rows if row.part is top_rows.Section.WAITING)
    rows = rows[:most]
    shown = [_of(row, picture.jobs) for row in rows]
    starts = [row.expected_at for row in waiting if row.expected_at is not None]
    return JobList(
        tuple(shown),
        len(running),
        found if words else len(waiting) + top_rows.unlisted(picture),
        sum(row.count for row in shown),
        min(starts, key=sum, default=None),
    )


def lease_names(picture: Snapshot) -> dict[str, str]:
    """Return the names of the user's jobs by their leases."""
    jobs = picture.jobs.values()
    return {job.lease: job_name(job) for job in jobs if job.lease}


def job_name(job: JobRow) -> str:
    """Return what people call a job: the run of a sweep, its name, or its command."""
    name = shown_name(job).removeprefix(f"{job.group}/" if job.group else "")
    is_own = name and name != job.group  # lines of a batch are named after the batch only
    return name if is_own else spelled(job)


_spelled_ids = lru_cache(maxsize=64)(show_ranges)


def _by_gpu(row: Row) -> tuple[bool, tuple[int, ...], float]:
    return (bool(row.where), row.gpus, row.since_at)


def _has(row: Row, words: Sequence[str]) -> bool:
    text = " ".join((row.id, row.what, row.state, user_name(row.user), row.where)).lower()
    return all(word in text for word in words)


def _array(row: Row, member: JobRow, first: ListedJob) -> ListedJob:
    return replace(
        first,
        id=_spelled_ids(row.members, 3),
        ids=_spelled_ids(row.members, MAX_PARTS),
        name=row.name,
        command=spelled_command(member.argv),
        count=len(row.members),
    )


def _of(row: Row, jobs: Mapping[int, JobRow]) -> ListedJob:
    job = jobs.get(row.job) if row.job is not None else None
    state = job.state if job is not None and job.is_waiting else row.state
    name = job_name(job) if job is not None else row.what
    command = spelled(job) if job is not None else ""
    one = ListedJob(
        id=row.id,
        name=name,
        command="" if command == name else command,
        group=job.group if job is not None else "",
        state=state,
        user=user_name(row.user),
        job=row.job,
        ids=str(row.job) if row.job is not None else "",
        lease=row.lease,
        where=row.where,
        gpus=row.gpus,
        used_bytes=row.used_bytes,
        reserved_bytes=row.reserved_bytes,
        mem_bytes=job.mem_bytes if job is not None else None,
        since_at=row.since_at,
        started_at=job.started_at if job is not None else None,
        expected_at=row.expected_at,
        why="" if row.why == row.state or row.part is top_rows.Section.RUNNING else row.why,
        priority=job.priority if job is not None else 0,
        is_held=job is not None and job.is_held,
        idle_since_at=row.idle_since_at,
    )
    return _array(row, job, one) if row.members and job is not None else one
