"""A job and its attempts as values: states, specification, end, and view.

`NEXT` is the table of every step between the states. A job changes its state through `after` only:
a step that the table does not list is a bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from grn.model.outcome import Outcome

EndReason = Outcome  # how a job ended; see JOB_OUTCOMES


class JobState(Enum):
    """The state of a job."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"

    __hash__ = object.__hash__  # that of Enum is a function of Python, called for each lookup


class Step(Enum):
    """A change of state; the engine translates events into steps."""

    BEGIN = "begin"  # an attempt, under a granted lease or one that another job passed on
    RUN = "run"  # a shim has the attempt, or was found alive after a restart
    STOP = "stop"
    REQUEUE = "requeue"  # the attempt is over and another follows
    END = "end"


NEXT: Mapping[tuple[JobState, Step], JobState] = {
    (JobState.QUEUED, Step.BEGIN): JobState.STARTING,
    (JobState.QUEUED, Step.END): JobState.ENDED,
    (JobState.STARTING, Step.RUN): JobState.RUNNING,
    (JobState.STARTING, Step.STOP): JobState.STOPPING,
    (JobState.STARTING, Step.REQUEUE): JobState.QUEUED,
    (JobState.STARTING, Step.END): JobState.ENDED,  # over before it was seen to run
    (JobState.RUNNING, Step.RUN): JobState.RUNNING,  # its first shim died before its claim
    (JobState.RUNNING, Step.STOP): JobState.STOPPING,
    (JobState.RUNNING, Step.REQUEUE): JobState.QUEUED,
    (JobState.RUNNING, Step.END): JobState.ENDED,
    (JobState.STOPPING, Step.RUN): JobState.STOPPING,  # the cancel overtook the start
    (JobState.STOPPING, Step.STOP): JobState.STOPPING,  # asked twice: kill at once
    (JobState.STOPPING, Step.END): JobState.ENDED,
}
BUSY = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


def after(state: JobState, step: Step) -> JobState:
    """Return the state that a step leads to; raise KeyError for a step that does not exist."""
    return NEXT[state, step]


class After(Struct, frozen=True):
    """A job that must have ended first, and whether it must have ended well."""

    job: int
    must_be_ok: bool = True


class JobSpec(NamedTuple):
    """The part of a job that the engine needs; command and environment stay in the journal.

    A tuple: it is made ten times as fast as a frozen dataclass, and there may be 100,000.
    """

    id: int
    job_type: str
    label: str
    gpus: int = 1
    mem_bytes: int | None = None
    is_exclusive: bool = False
    priority: int = 0
    after: tuple[After, ...] = ()
    retries: int = 0
    may_requeue: bool = False
    group: str = ""  # the name of the batch or sweep it belongs to
    submitter: str = ""  # the process it is tied to: the job is cancelled when that ends
    is_fail_fast: bool = False  # its failure cancels the queued jobs of its group
    policy: str = ""  # how it is placed: "pack", or spread
    at: str = ""  # the site or node that it must run at, or "local"; empty: anywhere
    on: str = ""  # the GPUs it may use, as `--on` says it
    without: tuple[str, ...] = ()  # GPUs that it must not use
    tags: tuple[str, ...] = ()  # words to find it by
    array: int = 0  # the id of the first job of its array, 0 unless `array_limit` is set
    array_limit: int = 0  # how many jobs of its array run at once; 0: as GPUs allow
    begin_at: float = 0.0  # it starts no earlier, by the wall clock
    only: str = ""  # the daily hours in which it may start: `20:00-08:00`
    yields: bool = False  # it gives way to jobs that do not, and runs again
    at_least_s: float = 0.0  # but not before an attempt has run for so long
    is_urgent: bool = False  # jobs that yield give way to it at once
    cpus: float | None = None  # its stated need of cores,
    ram_bytes: int | None = None  # and of host memory
    idle_limit_s: float | None = None  # it is idle after so long; None: as set for the machine
    time_limit_s: float | None = None  # its attempts are ended after so long


OF_ONE = 3  # the first fields: id, type and label differ between the jobs of a submit


class Exit(Struct, frozen=True):
    """The exit record that a shim wrote for one attempt."""

    status: int | None  # exit status of the command, None when a signal ended it
    signal: int | None = None
    because: EndReason | None = None  # set when the shim itself knows: time limit, cancel, ...
    text: str = ""
    resident_bytes: int | None = None
    asked_bytes: int | None = None  # the GPU allocation that failed
    gpu_peak_bytes: int | None = None  # as a framework in the command reported it
    ran_s: float = 0.0
    ended_at: float = 0.0  # wall clock, for display
    note: str = ""  # what the queue itself has to tell of it: files that could not be fetched
    is_capped: bool = False  # it ran out of GPU memory at the cap that came with its lease
    is_killed: bool = False  # by a SIGKILL that none of ours sent, or one of its processes was


class Settlement(Struct, frozen=True):
    """The negotiator's answer to the end of a lease."""

    outcome: str | None = None
    was_alone: bool = True
    peak_bytes: int | None = None
    is_victim: bool = False  # it ran out of memory within its reservation
    because: str = ""  # the cause of that
    has_larger: bool = False  # it was alone, and a GPU with more memory is managed here


class AttemptFate(Enum):
    """What recovery finds of an attempt that was begun before a restart."""

    NOT_BEGUN = "not-begun"
    ALIVE = "alive"
    ENDED = "ended"
    LOST = "lost"
    INTERRUPTED = "interrupted"


class Kept(NamedTuple):
    """One job as the journal has it, with what was found of its attempt after a restart.

    A tuple: it is made ten times as fast as a frozen dataclass, and there may be 100,000.
    """

    spec: JobSpec
    state: JobState
    attempt: int = 0
    tries_left: int = 0
    memory_attempt: int = 0
    is_held: bool = False
    place: int = 0
    found: AttemptFate | None = None
    lease: str = ""  # of an attempt of this boot
    spared: int = 0
    fault: str = ""  # its row is damaged: a running attempt continues, no other begins
    is_same_boot: bool = True  # the attempt was begun since the machine started


class KeptArray(NamedTuple):
    """An array with the members that are not jobs of their own yet, as the journal has it."""

    spec: JobSpec  # of its first member
    left: tuple[tuple[int, int], ...]  # first and last id of each run of such members, ascending
    is_held: bool = False
    fault: str = ""  # its record is damaged: no more members are run


class JobView(Struct, frozen=True):
    """A job that has not ended, at one moment; later changes of the queue do not change it."""

    id: int
    state: JobState
    is_held: bool
    attempt: int
    priority: int
    place: int
    is_asked: bool
    tries_left: int
    memory_attempt: int
    spared: int
    waits_for: frozenset[int]
    why: str  # why it does not run yet, or its state
