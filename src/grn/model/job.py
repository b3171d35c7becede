"""What a job asks for."""

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
    """The process that holds or asks for a lease, named so that a reused pid is told apart."""

    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class Request:
    """A wish for GPUs. `key` is made by the client and survives a reconnect."""

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
    is_command: bool = False  # asked for by a parent: the process that will hold it is to come
    has_parent: bool = False  # the process that asked for it will say how it ended
    attempt: int = 0  # how often this job has run out of memory before
    is_spared: bool = False  # it ran out of memory before by no fault of its own
    code: str = ""  # fingerprint of what will run; empty when nobody knows
