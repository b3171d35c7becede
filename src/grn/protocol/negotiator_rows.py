"""Rows of the negotiator's replies: GPUs, leases, waiting requests, profiles, bookings.

Standard library only: clients import it. The change feed sends `since_at` where `status` has
`for_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grn.model.record import Record
from grn.protocol.rows import read


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
    clock_mhz: int | None = None
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
    where: str = ""  # the node of a site; empty for this machine


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
    where: str = ""  # the node of a site; empty for this machine


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
    bookings: tuple[BookingRow, ...] = ()


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


class When(Record):
    """The expected start of a request that is not made."""

    starts_in_s: tuple[float, float] | None = None  # earliest, latest


def lease_or_request(row: Mapping[str, Any]) -> LeaseRow | WaitingRow:
    """Build a job of `status` or `why`, which runs or waits."""
    return read(WaitingRow, row) if row["state"] == "waiting" else read(LeaseRow, row)
