"""Rows of the queue's replies: jobs, their attempts and ends, nodes.

Standard library only: clients import it.
"""

from __future__ import annotations

from grn.model.record import Record
from grn.protocol.negotiator_rows import BookingRow, GpuRow, LeaseRow, WaitingRow


class AttemptRow(Record):
    """One attempt of a job, as `show` tells it."""

    attempt: int
    gpus: tuple[int, ...] = ()
    reason: str | None = None
    text: str | None = None
    ran_s: float | None = None
    peak_bytes: int | None = None
    lease: str | None = None
    reserved_bytes: int | None = None
    began_at: float | None = None
    ended_at: float | None = None
    status: int | None = None
    signal: int | None = None
    resident_bytes: int | None = None
    where: str = ""  # the node; empty for this machine


class JobRow(Record):
    """One job of a queue, as `list`, `show` and the change feed tell it."""

    id: int
    state: str
    argv: tuple[str, ...]
    name: str = ""
    cwd: str = ""
    label: str = ""
    job_type: str = ""
    why: str = ""
    reason: str | None = None  # how it ended
    text: str | None = None  # the same in words
    status: int | None = None
    signal: int | None = None
    gpus_asked: int = 1
    mem_bytes: int | None = None
    is_exclusive: bool = False
    is_held: bool = False
    priority: int = 0
    after: tuple[tuple[int, bool], ...] = ()  # job, and whether it must end well
    retries: int = 0
    may_requeue: bool = False
    time_limit_s: float | None = None
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float | None = None
    attempt: int = 0
    gpus: tuple[int, ...] = ()
    where: str = ""  # the node; empty for this machine
    lease: str | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    folder: str | None = None
    group: str = ""
    at: str = ""  # the site or node that it must run at, or "local"; empty: anywhere
    on: str = ""  # the GPUs it may use, as `--on` says it
    without: tuple[str, ...] = ()  # GPUs that it must not use
    notify: str = ""  # a command that is run when it has ended
    tags: tuple[str, ...] = ()
    array_limit: int = 0  # how many jobs of its array run at once; 0: as GPUs allow
    array_index: str = ""  # its number, if it belongs to an array
    # Of a row that stands for several members of an array:
    members: tuple[tuple[int, int], ...] = ()  # the first and last id of each run of them
    array: int = 0  # the id of the first job of the array,
    numbers: str = ""  # and the numbers of its jobs, as they were written
    begin_at: float = 0.0  # it starts no earlier
    only: str = ""  # the daily hours in which it may start
    yields: bool = False
    is_urgent: bool = False
    at_least_s: float = 0.0  # how long each attempt runs before it gives way
    cpus: float | None = None  # cores, as stated
    ram_bytes: int | None = None  # host memory, as stated
    stop_signal: str = ""  # asks it to end; empty: SIGTERM
    grace_s: float | None = None  # how long it may take to end; None: as set for all jobs
    again: bool = False  # at its time limit it is queued again
    sends: bool = False  # its folder is sent to a node
    fetch: tuple[str, ...] = ()  # files that come back from a node
    idle_limit_s: float | None = None
    log: str = ""
    place: int = 0
    tag: str | None = None
    attempts: tuple[AttemptRow, ...] = ()
    environment: tuple[str, ...] = ()  # names only

    @property
    def has_ended(self) -> bool:
        return self.state == "ended"

    @property
    def is_waiting(self) -> bool:
        return self.state in ("queued", "held")

    @property
    def ids(self) -> list[int]:
        """The jobs that the row stands for."""
        parts = self.members or ((self.id, self.id),)
        return [job for first, last in parts for job in range(first, last + 1)]

    @property
    def indices(self) -> list[int]:
        """The numbers of these jobs in their array."""
        if not self.members:
            return [int(self.array_index)]
        from grn.model.ranges import parse_ranges

        numbers = parse_ranges(self.numbers)
        return [numbers[job - self.array] for job in self.ids]

    def folder_of(self, attempt: int) -> str:
        """Return the folder of one attempt; only for a job that has begun."""
        assert self.folder is not None
        return f"{self.folder.rpartition('.')[0]}.{attempt}"


class JobEnd(Record):
    """How a job ended, as `wait` tells it."""

    id: int
    reason: str
    text: str | None = None
    status: int | None = None
    signal: int | None = None
    attempt: int = 0


class ProgressRow(Record):
    """The state of a watched job and the end of its latest attempt, as `watch` tells them."""

    id: int
    state: str
    is_held: bool = False
    attempt: int = 0
    tries_left: int = 0
    memory_attempt: int = 0
    reason: str | None = None
    text: str | None = None
    status: int | None = None
    signal: int | None = None
    gpus: str | None = None  # as CUDA_VISIBLE_DEVICES lists them
    where: str = ""  # the node that they are of; empty for this machine
    began_at: float | None = None
    ran_s: float | None = None
    peak_bytes: int | None = None
    attempt_reason: str | None = None
    attempt_text: str | None = None
    attempt_status: int | None = None
    attempt_signal: int | None = None


class NodeRow(Record):
    """One node of a site, as `sites` and the change feed tell it."""

    site: str
    node: str  # "-" for a site without any
    state: str
    gpu_bytes: tuple[int, ...] = ()  # memory of each GPU, largest first
    jobs: int = 0
    waiting: int = 0
    heard_at: float | None = None
    trouble: str = ""
    gpus: tuple[GpuRow, ...] = ()  # while it is up
    leases: tuple[LeaseRow, ...] = ()
    requests: tuple[WaitingRow, ...] = ()  # of all its users
    bookings: tuple[BookingRow, ...] = ()

    @property
    def key(self) -> str:
        """Return what tells it from the nodes of other sites."""
        return f"{self.site}/{self.node}"

    def lease_of(self, job: JobRow) -> LeaseRow | None:
        """Return the lease of a job that runs on this node."""
        name = (job.lease or "").rpartition("/")[2] if job.where == self.node else ""
        return next((lease for lease in self.leases if lease.id == name), None)


class FoldedRow(Record):
    """The members of one array that are not jobs of their own yet, without their rows."""

    array: int  # the id of its first job
    numbers: str  # of all its jobs, as they were written
    members: tuple[tuple[int, int], ...] = ()  # the first and last id of each run of them

    @property
    def ids(self) -> list[int]:
        """The jobs."""
        return [job for first, last in self.members for job in range(first, last + 1)]


class QueueFacts(Record):
    """What a queue says of itself."""

    version: str = ""
    pid: int = 0
    uid: int = 0
    trouble: str = ""
    drained: bool = False
    origin: str | None = None
    counts: dict[str, int] = {}  # noqa: RUF012 - made each time
    folded: tuple[FoldedRow, ...] = ()  # of a long queue: those whose jobs the feed leaves out
