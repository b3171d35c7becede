"""Rows of the daemons' replies as values, read from the JSON that docs/json.md describes.

Standard library only: clients import it. A field that the sender leaves out has its default, so
rows of older daemons can be read, and an unknown field of a newer one is ignored; a field of the
wrong type is an error of the sender. The change feed sends `since_at` where `status` has `for_s`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from grn.errors import ProtocolError
from grn.protocol.record import Record, names_of

Kind = TypeVar("Kind")
Reader = Callable[[Any], Any]
_known_readers: dict[type[Any], dict[str, Reader]] = {}


class BadRow(ProtocolError, ValueError):
    """A row has a field of the wrong type."""


# --- the negotiator ------------------------------------------------------------------------


class LinkRow(Record):
    """A GPU near another one."""

    to: str
    by: str
    lanes: int | None = None


class StrangerRow(Record):
    """A process without a lease that holds memory of a GPU and does not use it."""

    pid: int
    user: int | None
    used_bytes: int | None
    idle_for_s: float | None = None
    idle_since_at: float | None = None


class GpuRow(Record):
    """One GPU."""

    index: int
    uuid: str
    model: str
    health: str
    total_bytes: int
    guard_bytes: int
    used_bytes: int | None
    reserved_bytes: int
    strangers_bytes: int
    unexplained_bytes: int
    free_bytes: int | None
    load_pct: float | None
    leases: tuple[str, ...]
    kind: str = ""
    load_cap: float | None = None
    links: tuple[LinkRow, ...] = ()
    temperature_c: int | None = None
    power_w: int | None = None
    idle_bytes: int = 0  # held by idle leases and strangers
    idle_leases: tuple[str, ...] = ()
    idle_strangers: tuple[StrangerRow, ...] = ()


class LeaseRow(Record):
    """A lease: one job that runs."""

    id: str
    state: str
    label: str
    user: int
    gpus: tuple[int, ...]
    reserved_bytes: int
    why: str
    used_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_ram_bytes: int = 0
    reserved_cpus: float = 0.0
    used_ram_bytes: int | None = None
    used_cpus: float | None = None
    reason: str | None = None
    first_run: bool = False
    type: str = ""
    pid: int | None = None
    gpus_asked: int = 1
    mem_bytes: int | None = None
    cpus: float | None = None
    ram_bytes: int | None = None
    exclusive: bool = False
    priority: int = 0
    policy: str = ""
    attempt: int = 0
    for_s: float | None = None
    ends_in_s: tuple[float, float] | None = None  # the expected end: earliest, latest
    idled_s: float = 0.0  # how long it was idle before
    idle_for_s: float | None = None  # it is idle now, for so long
    idle_since_at: float | None = None
    since_at: float = 0.0
    tag: str | None = None
    origin: str | None = None


class IdleRow(Record):
    """A lease, or a process without one, that holds memory of GPUs and does not use them."""

    idle_for_s: float
    gpus: tuple[int, ...]
    held_bytes: int | None  # on all its GPUs together
    user: int | None
    pid: int | None
    lease: str | None = None
    label: str = ""
    type: str = ""


class WaitingRow(Record):
    """A request that waits for GPUs."""

    id: str
    state: str
    label: str
    user: int
    why: str
    reason: str | None = None
    type: str = ""
    pid: int | None = None
    gpus_asked: int = 1
    mem_bytes: int | None = None
    cpus: float | None = None
    ram_bytes: int | None = None
    exclusive: bool = False
    priority: int = 0
    policy: str = ""
    attempt: int = 0
    place: int = 0
    for_s: float | None = None
    starts_in_s: tuple[float, float] | None = None  # the expected start: earliest, latest
    had_gpu_h: float = 0.0
    users_before: int = 0
    since_at: float = 0.0
    turn: tuple[float, ...] = ()
    tag: str | None = None
    origin: str | None = None


class EndRow(Record):
    """How a lease ended."""

    id: str
    label: str
    user: int
    gpus: tuple[int, ...]
    outcome: str
    reserved_bytes: int
    peak_bytes: int | None
    since_at: float
    ended_at: float
    type: str = ""
    pid: int | None = None
    first_run: bool = False
    idled_s: float = 0.0  # how long it was idle in all
    tag: str | None = None
    origin: str | None = None


class ShareRow(Record):
    """What one user has had of the GPUs lately."""

    user: int
    weight: float
    had_gpu_h: float
    gpus_now: float
    waits: int


class RunRow(Record):
    """One run in the history of a profile."""

    outcome: str
    peak_bytes: int
    duration_s: float | None
    counts: bool
    args: dict[str, float | str] = {}  # noqa: RUF012 - made each time
    reserved_bytes: int | None = None
    ended_at: float = 0.0
    load: float | None = None
    ram_bytes: int | None = None
    cpus: float | None = None
    peak_cpus: float | None = None
    code: str | None = None
    outdated: bool = False
    note: str = ""


class ProfileRow(Record):
    """What was learned of one job type on one GPU model."""

    type: str
    label: str
    model: str
    runs: int
    largest_bytes: int | None
    estimate_bytes: int | None
    because: str
    usual_duration_s: float | None
    history: tuple[RunRow, ...]
    owner: int | None = None
    known: bool = False
    by_arguments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    load: float | None = None
    load_cap: float | None = None
    load_cap_because: str = ""
    ram_bytes: int | None = None
    ram_because: str = ""
    cpus: float | None = None
    peak_cpus: float | None = None
    slower_beside: dict[str, float] = {}  # noqa: RUF012 - made each time


class AuditRow(Record):
    """One line of the audit log."""

    at: float
    uid: int
    pid: int | None
    verb: str
    object: str
    result: str


class SamplesRow(Record):
    """The last samples of one GPU, at an even pace."""

    uuid: str
    step_s: float
    until_at: float
    used_bytes: tuple[int | None, ...] = ()
    load_pct: tuple[float | None, ...] = ()
    index: int | None = None


class CurveRow(Record):
    """The memory of one lease from its grant on."""

    since_at: float
    step_s: float
    used_bytes: tuple[int | None, ...]
    id: str = ""


class HostRow(Record):
    """The memory and the cores of the machine, and who has them."""

    cpus: float = 0.0
    ram_bytes: int = 0
    guard_bytes: int = 0
    used_bytes: int | None = None
    reserved_bytes: int = 0
    strangers_bytes: int = 0
    free_bytes: int = 0
    reserved_cpus: float = 0.0
    strangers_cpus: float = 0.0
    free_cpus: float = 0.0


class NegotiatorFacts(Record):
    """What a negotiator says of itself."""

    version: str = ""
    pid: int = 0
    uid: int = 0
    trouble: str | None = None
    host: HostRow | None = None  # None where it is not limited
    types_dropped: int = 0
    starts_told: int = 0  # the last starts for which a range was told,
    starts_inside: int = 0  # and how many of them were within it
    started_at: float | None = None
    outcomes: dict[str, int] = {}  # noqa: RUF012 - made each time


class Status(Record):
    """The negotiator, its GPUs, what runs and what waits."""

    version: str
    pid: int
    trouble: str | None
    gpus: tuple[GpuRow, ...]
    leases: tuple[LeaseRow, ...]
    waiting: tuple[WaitingRow, ...]
    shares: tuple[ShareRow, ...] = ()
    types_dropped: int = 0
    starts_told: int = 0
    starts_inside: int = 0
    host: HostRow | None = None


class BookingRow(Record):
    """GPUs that are kept for one user for a while."""

    id: int
    user: int
    user_name: str
    gpus_asked: int
    gpus: tuple[int, ...]  # those chosen at present
    from_at: float
    until_at: float
    state: str  # "ahead" or "active"
    used: bool = False


class When(Record):
    """The expected start of a request that is not made."""

    starts_in_s: tuple[float, float] | None = None  # earliest, latest


# --- the queue -----------------------------------------------------------------------------


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

    @property
    def key(self) -> str:
        """Return what tells it from the nodes of other sites."""
        return f"{self.site}/{self.node}"

    def lease_of(self, job: JobRow) -> LeaseRow | None:
        """Return the lease of a job that runs on this node."""
        name = (job.lease or "").rpartition("/")[2] if job.where == self.node else ""
        return next((lease for lease in self.leases if lease.id == name), None)


class QueueFacts(Record):
    """What a queue says of itself."""

    version: str = ""
    pid: int = 0
    uid: int = 0
    trouble: str = ""
    drained: bool = False
    origin: str | None = None
    counts: dict[str, int] = {}  # noqa: RUF012 - made each time


# --- reading -------------------------------------------------------------------------------


def read(kind: type[Kind], row: Mapping[str, Any]) -> Kind:
    """Build a value from a JSON object."""
    return kind(**_known(kind, row))


def read_all(kind: type[Kind], rows: Any) -> list[Kind]:
    """Build a value from each JSON object of a list."""
    return [read(kind, row) for row in rows]


def lease_or_request(row: Mapping[str, Any]) -> LeaseRow | WaitingRow:
    """Build a job of `status` or `why`, which runs or waits."""
    return read(WaitingRow, row) if row["state"] == "waiting" else read(LeaseRow, row)


def updated(row: Kind, changes: Mapping[str, Any]) -> Kind:
    """Return a row with the fields that a JSON object has."""
    return type(row)(**{**_fields(row), **_known(type(row), changes)})


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names_of(row)}


def as_json(row: Any) -> dict[str, Any]:
    """Return a row as a JSON object with all its fields."""
    return {name: _plain(value) for name, value in _fields(row).items()}


def _plain(value: Any) -> Any:
    if type(value) in _LEAVES:  # most values: quicker than asking whether it is a row
        return value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return as_json(value) if isinstance(value, Record) else value


def _known(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Take the known fields of a row, each checked."""
    found: dict[str, Any] = {}
    for name, reader in _readers(kind).items():
        if name in row:
            try:
                found[name] = reader(row[name])
            except _Unfit as error:
                raise BadRow(f"the field '{name}' of a {_name(kind)} is {row[name]!r}") from error
    return found


class _Unfit(Exception):
    """A value has another type than its field."""


def _name(kind: type[Any]) -> str:
    return kind.__name__.removesuffix("Row").lower()


def _readers(kind: type[Any]) -> dict[str, Reader]:
    """Return what reads each field of a row; worked out once for each kind of row."""
    if kind not in _known_readers:
        hints = get_type_hints(kind)
        _known_readers[kind] = {name: _reader(hints[name]) for name in names_of(kind)}
    return _known_readers[kind]


def _reader(hint: Any) -> Reader:
    """Return what reads a value of a type: scalars, unions of them, tuples, tables, rows."""
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return lambda value: read(hint, _fit(value, (dict,)))
    if origin is tuple and inner[-1] is Ellipsis:
        each = _reader(inner[0])
        return lambda value: tuple(map(each, _fit(value, (list, tuple, types.NoneType)) or ()))
    if origin is tuple:
        parts = [_reader(one) for one in inner]
        return lambda value: _fixed(parts, _fit(value, (list, tuple)))
    if origin is dict:
        each = _reader(inner[1])
        return lambda value: {k: each(v) for k, v in _fit(value, (dict,)).items()}
    union = inner if origin in (Union, types.UnionType) else (hint,)
    is_row = isinstance(union[0], type) and issubclass(union[0], Record)
    is_whole = is_row or get_origin(union[0]) is tuple
    if len(union) == 2 and is_whole and union[1] is types.NoneType:
        known = _reader(union[0])
        return lambda value: None if value is None else known(value)
    kinds = tuple(kind for one in union for kind in _SCALARS[one])
    return lambda value: _fit(value, kinds)


_SCALARS: Mapping[Any, tuple[type, ...]] = {
    int: (int,),
    str: (str,),
    bool: (bool, int),
    float: (int, float),
    types.NoneType: (types.NoneType,),
}


_LEAVES = (int, str, float, bool, types.NoneType)


def _fit(value: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds):
        raise _Unfit
    return value


def _fixed(parts: list[Reader], values: Any) -> tuple[Any, ...]:
    if len(values) != len(parts):
        raise _Unfit
    return tuple(reader(value) for reader, value in zip(parts, values, strict=True))
