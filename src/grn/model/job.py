"""The request of a job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from grn.model.outcome import Outcome as Outcome

Argument = tuple[str, float | str]


class Policy(Enum):
    """How a job is placed among GPUs that fit."""

    SPREAD = "spread"
    PACK = "pack"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds or requests a lease; the start time detects a reused pid."""

    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request for GPUs. `key` is made by the client and survives a reconnect."""

    key: str
    lease: str  # the id the lease will have, drawn before the engine sees the request
    job_type: str
    label: str
    user: int
    gpus: int = 1
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
    code: str = ""  # fingerprint of the code; empty when unknown
