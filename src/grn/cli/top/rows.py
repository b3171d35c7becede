"""What `grn top` shows, as rows: leases, requests and one's own jobs brought together.

A job of the queue and its lease are one row; so are a queued job and its request. Pure: a picture
in, rows out; how they are drawn is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from grn.cli.output.job_text import called_function, shown_command
from grn.model.text import harmless
from grn.model.units import short_size, show_cores
from grn.protocol.negotiator_rows import EndRow, GpuRow, LeaseRow, WaitingRow
from grn.protocol.queue_rows import JobRow
from grn.protocol.snapshot import QUEUE, Snapshot

MAX_ENDED = 200


class Section(Enum):
    """The section of a row."""

    RUNNING = "running"
    WAITING = "waiting"
    ENDED = "ended"


class Row(NamedTuple):
    """One job, wherever it comes from. A tuple: a thousand of them are made twice a second."""

    part: Section
    id: str  # of the job, else of the lease
    state: str
    what: str
    user: int
    name: str = ""  # as its owner calls it
    job: int | None = None  # of one's own queue
    lease: str | None = None
    where: str = ""  # the node that it runs or ran on; empty for this machine
    gpus: tuple[int, ...] = ()
    seats: str = ""  # its GPUs and its letter on each: 0A,1C
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    on_host: str = ""  # its memory and cores there, used of reserved
    since_at: float = 0.0
    ended_at: float = 0.0
    why: str = ""
    folder: str | None = None  # of its latest attempt, with the log
    expected_at: tuple[float, float] | None = None  # its end or start: earliest, latest
    members: tuple[int, ...] = ()  # the jobs of an array that are shown as this row
    idle_since_at: float | None = None  # it holds GPUs and does not use them

    @property
    def key(self) -> str:
        """What the row is selected by: of an array a job that waits for long."""
        return str(self.members[-1]) if self.members else self.id

    def has(self, key: str) -> bool:
        """True when the row is, or contains, what was selected by a key."""
        return key == self.id or (key.isdecimal() and int(key) in self.members)


def letters(gpu: GpuRow) -> dict[str, str]:
    """Return the letter of each lease on one GPU, by the order in which they came."""
    return {lease: _LETTERS[place % len(_LETTERS)] for place, lease in enumerate(gpu.leases)}


def running(picture: Snapshot, own_uid: int) -> list[Row]:
    """Return what runs: all leases, and own jobs whose lease is not in the snapshot."""
    own = {job.lease: job for job in picture.jobs.values() if job.lease}
    seats = {gpu.index: letters(gpu) for gpu in picture.gpus.values()}
    rows = [
        _of_lease(lease, own.get(lease.id), seats)._replace(
            expected_at=picture.expected_at.get(lease.id)
        )
        for lease in picture.leases.values()
    ]
    for job in picture.jobs.values():
        if job.state in _BUSY and job.lease not in picture.leases:
            row = _of_job(job, Section.RUNNING, own_uid, since=job.started_at)
            rows.append(row if not job.where else _on_node(row, job, picture))
    return rows


def _on_node(row: Row, job: JobRow, picture: Snapshot) -> Row:
    """Add what the node shows of a job's lease, or why nothing is known of it."""
    node = next((one for one in picture.nodes.values() if one.node == job.where), None)
    lease = node.lease_of(job) if node is not None else None
    if node is not None and lease is not None:
        seats = {gpu.index: letters(gpu) for gpu in node.gpus}
        places = [f"{index}{seats.get(index, {}).get(lease.id, '')}" for index in lease.gpus]
        row = row._replace(
            seats=",".join(places), used_bytes=lease.used_bytes,
            reserved_bytes=lease.reserved_bytes,
        )  # fmt: skip
    is_unheard = job.why not in _BUSY
    return row._replace(state=harmless(job.why)) if is_unheard else row


def waiting(picture: Snapshot, own_uid: int) -> list[Row]:
    """Return what waits: requests in turn, then own jobs that have not asked yet."""
    queued = [job for job in picture.jobs.values() if job.state not in _BUSY]
    by_tag = {job.tag: job for job in queued if job.tag}
    rows, asked = [], set()
    for request in picture.in_turn():
        job = by_tag.get(request.tag or "")
        if job is not None:
            asked.add(job.id)
        elif _is_of_own_queue(request, picture, own_uid) and not picture.trouble[QUEUE]:
            continue  # its feed is a moment ahead or behind: the job is a row below, or runs
        expected_at = picture.expected_at.get(request.id)
        rows.append(_of_request(request, job)._replace(expected_at=expected_at))
    rest = sorted(
        (job for job in queued if job.id not in asked),
        key=lambda job: (job.is_held, -job.priority, job.place),
    )
    return rows + [_of_job(job, Section.WAITING, own_uid, since=job.submitted_at) for job in rest]


def ended(picture: Snapshot, own_uid: int) -> list[Row]:
    """Return recently ended jobs and leases, the latest first."""
    rows = [_of_ended_job(job, own_uid) for job in picture.ended.values()]
    own = {row.lease for row in rows if row.lease}
    own |= {job.lease for job in picture.jobs.values() if job.lease}  # their ends may be on the way
    rows += [
        _of_end(end)
        for end in picture.ends
        if end.id not in own and not _is_of_own_queue(end, picture, own_uid)
    ]
    rows.sort(key=lambda row: -row.ended_at)
    return rows[:MAX_ENDED]


def unlisted(picture: Snapshot) -> int:
    """Return how many jobs of a long queue its feed leaves out."""
    listed = sum(job.is_waiting for job in picture.jobs.values())
    counts = picture.queue.counts
    return max(0, counts.get("queued", 0) + counts.get("held", 0) - listed)


def _is_of_own_queue(row: EndRow | WaitingRow, picture: Snapshot, own_uid: int) -> bool:
    """True for a lease of the user's queue, whose jobs are rows of their own."""
    origin = picture.queue.origin
    return origin is not None and row.user == own_uid and row.origin == origin


# --- one row -------------------------------------------------------------------------------


def _of_lease(lease: LeaseRow, job: JobRow | None, seats: Mapping[int, Mapping[str, str]]) -> Row:
    is_idle = lease.idle_since_at is not None
    state = "first run" if lease.first_run else "idle" if is_idle else lease.state
    if job is not None and job.state in ("starting", "stopping"):
        state = job.state
    places = [f"{index}{seats.get(index, {}).get(lease.id, '')}" for index in lease.gpus]
    return Row(
        Section.RUNNING,
        id=str(job.id) if job is not None else lease.id,
        state=state,
        what=_what(job) if job is not None else lease.label,
        user=lease.user,
        name=_name(job) if job is not None else "",
        job=job.id if job is not None else None,
        lease=lease.id,
        gpus=lease.gpus,
        seats=",".join(places),
        used_bytes=lease.used_bytes,
        reserved_bytes=lease.reserved_bytes,
        on_host=_on_host(lease),
        since_at=lease.since_at,
        idle_since_at=lease.idle_since_at,
        why=lease.why,
        folder=job.folder if job is not None else None,
    )


def _on_host(lease: LeaseRow) -> str:
    """Tell a lease's memory and cores of the host, empty where they are not limited."""
    if not lease.reserved_ram_bytes and lease.used_ram_bytes is None:
        return ""
    ram = f"{short_size(lease.used_ram_bytes)}, {short_size(lease.reserved_ram_bytes)} reserved"
    cores = "?" if lease.used_cpus is None else show_cores(lease.used_cpus)
    if lease.reserved_cpus:
        cores += f" of {show_cores(lease.reserved_cpus)}"
    return f"host RAM {ram}; {cores} cores"


def _of_request(request: WaitingRow, job: JobRow | None) -> Row:
    return Row(
        Section.WAITING,
        id=str(job.id) if job is not None else request.id,
        state="waiting",
        what=_what(job) if job is not None else request.label,
        user=request.user,
        name=_name(job) if job is not None else "",
        job=job.id if job is not None else None,
        lease=request.id,
        since_at=job.submitted_at if job is not None else request.since_at,
        why=request.why,
    )


def _of_job(job: JobRow, part: Section, own_uid: int, since: float | None) -> Row:
    return Row(
        part,
        id=str(job.id),
        state=job.state,
        what=_what(job),
        user=own_uid,
        name=_name(job),
        job=job.id,
        lease=job.lease,
        where=job.where,
        gpus=job.gpus if part is Section.RUNNING else (),
        seats=",".join(map(str, job.gpus)) if part is Section.RUNNING else "",
        reserved_bytes=job.reserved_bytes if part is Section.RUNNING else None,
        since_at=since or job.submitted_at,
        why=harmless(job.why),
        folder=job.folder,
    )


def _of_ended_job(job: JobRow, own_uid: int) -> Row:
    return Row(
        Section.ENDED,
        id=str(job.id),
        state=job.reason or "",
        what=_what(job),
        user=own_uid,
        name=_name(job),
        job=job.id,
        lease=job.lease,
        where=job.where,
        gpus=job.gpus,
        used_bytes=job.peak_bytes,
        since_at=(job.ended_at or 0.0) - (job.ran_s or 0.0),
        ended_at=job.ended_at or 0.0,
        why=harmless(job.text or ""),
        folder=job.folder,
    )


def _of_end(end: EndRow) -> Row:
    return Row(
        Section.ENDED,
        id=end.id,
        state=end.outcome,
        what=end.label,
        user=end.user,
        lease=end.id,
        gpus=end.gpus,
        used_bytes=end.peak_bytes,
        since_at=end.since_at,
        ended_at=end.ended_at,
    )


def _what(job: JobRow) -> str:
    if called_function(job):
        return shown_command(job)
    return _spelled(_own_name(job), job.label, job.array_index, job.argv)


def _name(job: JobRow) -> str:
    """Return what the owner calls a job: its name, parameters, function or place in an array."""
    if called_function(job):
        return shown_command(job)
    name = harmless(_own_name(job))
    return f"{name or harmless(job.label)}[{job.array_index}]" if job.array_index else name


def _own_name(job: JobRow) -> str:
    """Return the name without that of the sweep it belongs to."""
    return job.name.removeprefix(f"{job.group}/") if job.group else job.name


@lru_cache(maxsize=8192)
def _spelled(name: str, label: str, array_index: str, argv: tuple[str, ...]) -> str:
    return shown_command(JobRow(0, "", argv, name, label=label, array_index=array_index))


_BUSY = ("starting", "running", "stopping")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
