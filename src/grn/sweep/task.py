"""The nouns of running many commands: what is to run, what it needs, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Needs:
    """What a task asks the negotiator for; fixed slots know nothing of it."""

    gpus: int = 1
    mem_bytes: int | None = None
    is_exclusive: bool = False
    priority: int = 0
    job_type: str | None = None  # None: the program, as `grn exec` names it


@dataclass(frozen=True, slots=True)
class Task:
    """One command to run. The environment is put on top of ours, the slot's on top of both."""

    number: int  # from 1, in the order of the input
    argv: tuple[str, ...]
    label: str  # what people see of it
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None  # None: where we are
    log_path: str | None = None  # both outputs go there; None: to ours
    needs: Needs = Needs()


@dataclass(frozen=True, slots=True)
class Slot:
    """A place on which one task runs at a time: fixed GPUs, or a lease."""

    name: str  # what people see: "2", "0,1"
    environment: Mapping[str, str]  # CUDA_VISIBLE_DEVICES, and what a lease adds
    lease: str = ""  # its id, when it is one


@dataclass(frozen=True, slots=True)
class Ended:
    """How a task ended. A command that could not be started has the status 126 or 127."""

    task: Task
    slot: Slot
    status: int  # exit status, or minus the signal
    started_at: float  # both by time.time()
    duration_s: float
    is_out_of_memory: bool = False
    peak_bytes: int | None = None
    trouble: str = ""  # why it could not be started
