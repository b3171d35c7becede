"""A job as values: its request, its finished runs, and the estimate for the next one."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2s

from msgspec import Struct

from grn.model.outcome import Outcome as Outcome

Argument = tuple[str, float | str]


class Policy(Enum):
    """How a job is placed among GPUs that fit."""

    SPREAD = "spread"
    PACK = "pack"


class IdleRule(Enum):
    """What follows when a lease or a stranger is idle; each also does what those before it do."""

    SHOW = "show"  # nothing: lists, metrics and the report have it
    TELL = "tell"  # the hook of the owner's queue, and the owner's terminal
    YIELD = "yield"  # a job of a queue gives way when another has no room
    END = "end"  # a job of a queue is ended


class Holder(Struct, frozen=True):
    """The process that holds or requests a lease; the start time detects a reused pid."""

    pid: int
    started_ticks: int


class Request(Struct, frozen=True):
    """A request for GPUs. `key` is made by the client and survives a reconnect."""

    key: str
    lease: str  # the id the lease will have, drawn before the engine sees the request
    job_type: str
    label: str
    user: int
    gpus: int = 1  # 0 for a job that uses none
    mem_bytes: int | None = None
    is_exclusive: bool = False
    priority: int = 0
    policy: Policy = Policy.SPREAD
    holder: Holder | None = None
    arguments: tuple[Argument, ...] = ()
    slots: tuple[str, ...] = ()  # only these GPUs, by index or uuid; empty means any
    stay: tuple[str, ...] = ()  # the process cannot leave these GPUs any more
    is_command: bool = False  # requested by a parent: its holder does not exist yet
    has_parent: bool = False  # the requesting process will report how it ended
    attempt: int = 0  # how often this job has run out of memory before
    is_spared: bool = False  # it ran out of memory before because others took its room
    yields: bool = False  # its lease may be asked to give way
    at_least_s: float = 0.0  # but not before it has run for so long
    is_urgent: bool = False  # yielding leases are asked at once
    code: str = ""  # fingerprint of the code; empty when unknown
    cpus: float | None = None  # the stated need of cores,
    ram_bytes: int | None = None  # and of host memory
    idle_limit_s: float | None = None  # idle after so long; None: as set for all
    time_limit_s: float | None = None  # its queue ends it when it has run for so long
    is_queued: bool = False  # a queue asked for it, which can end the job and run it again


def tag_of(key: str) -> str:
    """Return the public name of a request, or of a queue, which does not give its key away."""
    return blake2s(key.encode(), digest_size=8).hexdigest()


class Run(Struct, frozen=True):
    """One finished run: its highest memory on any one of its GPUs."""

    outcome: Outcome
    peak_bytes: int
    duration_s: float
    ended_at: float
    reserved_bytes: int = 0
    arguments: tuple[Argument, ...] = ()
    is_full: bool = False  # a failed run that was flat long enough to count like a good one
    note: str = ""  # the cause of running out of memory, as text
    load: float | None = None  # the share of a GPU's time it used, None when unknown
    crowd: float | None = None  # the mean of ln U, U being all loads on its GPU, at least 1
    beside: tuple[tuple[str, float], ...] = ()  # types it shared with, for which part of its time
    code: str = ""  # fingerprint of the code; empty when unknown
    ran_out_alone: bool = False  # memory ran out though it had its GPUs to itself
    grown: float | None = None  # the share of its time after which it had 95 % of its peak
    ram_bytes: int | None = None  # its highest host memory, None when unknown
    cpus: float | None = None  # the cores it used on average,
    peak_cpus: float | None = None  # and at most, over some seconds


class Profile(Struct, frozen=True):
    """All remembered runs of one job type on one GPU model, oldest first."""

    job_type: str
    model: str
    label: str
    owner: int
    runs: tuple[Run, ...] = ()


class Estimate(Struct, frozen=True):
    """The estimated need of the next run on each GPU, and the reason."""

    need_bytes: int
    runs: int
    largest_bytes: int
    because: str
