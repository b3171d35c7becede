"""Events that the queue's engine receives, and actions that it returns.

Events are in the past tense and carry their time; actions are imperatives for the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from grn.queue.job import EndReason, Exit, JobSpec, Kept, Settled
from grn.queue.lifecycle import JobState

# --- events --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """The queue came up: all jobs that have not ended, and how those ended they come after."""

    at: float
    jobs: tuple[Kept, ...]
    ends: tuple[tuple[int, bool], ...] = ()
    is_drained: bool = False


@dataclass(frozen=True, slots=True)
class Submitted:
    at: float
    jobs: tuple[JobSpec, ...]
    ends: tuple[tuple[int, bool], ...] = ()  # jobs that have ended already: id, ended well
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    at: float
    job: int
    lease: str
    visible: str
    gpus: tuple[int, ...]
    reserved_bytes: int
    may_pass_on: bool = True  # False for the first run of a type: its end must be told


@dataclass(frozen=True, slots=True)
class LeaseAwaited:
    """The negotiator says why there is no GPU yet."""

    at: float
    job: int
    text: str


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """The negotiator says that there never will be one."""

    at: float
    job: int
    text: str


@dataclass(frozen=True, slots=True)
class NegotiatorLost:
    at: float


@dataclass(frozen=True, slots=True)
class NegotiatorFound:
    at: float


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    at: float
    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Exited:
    """An attempt is over; told again with the negotiator's word after `SettleLease`."""

    at: float
    job: int
    attempt: int
    exit: Exit
    settled: Settled | None = None


@dataclass(frozen=True, slots=True)
class ShimLost:
    """The shim is gone without an exit record; what it left was ended."""

    at: float
    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ActionFailed:
    """An action for one attempt of a job could not be carried out."""

    at: float
    job: int
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class CancelAsked:
    at: float
    jobs: tuple[int, ...]
    is_now: bool = False
    text: str = ""  # why, where nobody has asked for it


@dataclass(frozen=True, slots=True)
class SubmitterGone:
    """A process that jobs are tied to has ended."""

    at: float
    submitter: str


@dataclass(frozen=True, slots=True)
class HoldAsked:
    at: float
    jobs: tuple[int, ...]
    is_held: bool = True


@dataclass(frozen=True, slots=True)
class MoveAsked:
    """Give jobs another priority, or the first or last place among their like."""

    at: float
    jobs: tuple[int, ...]
    priority: int | None = None
    to_front: bool | None = None


@dataclass(frozen=True, slots=True)
class DrainAsked:
    at: float
    is_drained: bool = True


Event = (
    Recovered
    | Submitted
    | LeaseGranted
    | LeaseAwaited
    | LeaseRefused
    | NegotiatorLost
    | NegotiatorFound
    | AttemptStarted
    | Exited
    | ShimLost
    | ActionFailed
    | CancelAsked
    | SubmitterGone
    | HoldAsked
    | MoveAsked
    | DrainAsked
)

# --- actions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveState:
    """Write down where a job is now."""

    job: int
    state: JobState
    attempt: int
    tries_left: int
    memory_attempt: int
    is_held: bool
    priority: int
    place: int
    spared: int = 0


@dataclass(frozen=True, slots=True)
class SaveBegin:
    """Write down that an attempt begins, before it does."""

    job: int
    attempt: int
    lease: str
    gpus: tuple[int, ...]
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class SaveAttemptEnd:
    """Write down how one attempt ended."""

    job: int
    attempt: int
    reason: EndReason
    exit: Exit
    peak_bytes: int | None
    text: str = ""  # why, where that is not plain


@dataclass(frozen=True, slots=True)
class SaveEnd:
    """Write down how a job ended, for good."""

    job: int
    reason: EndReason
    text: str
    exit: Exit | None


@dataclass(frozen=True, slots=True)
class SaveDrain:
    is_drained: bool


@dataclass(frozen=True, slots=True)
class AskLease:
    spec: JobSpec
    attempt: int
    memory_attempt: int
    is_spared: bool = False  # it ran out of memory before by no fault of its own


@dataclass(frozen=True, slots=True)
class DropAsk:
    """Take back a request for a lease."""

    job: int


@dataclass(frozen=True, slots=True)
class PassAsk:
    """Let another job of the same kind have what was asked for; ask anew if that was granted."""

    job: int
    heir: AskLease


@dataclass(frozen=True, slots=True)
class ReturnLease:
    """Give back a lease."""

    lease: str
    exit: Exit | None = None  # of the last that ran under it, None when nothing did


@dataclass(frozen=True, slots=True)
class SettleLease:
    """Say how an attempt ended, then tell `Exited` again with what the negotiator answers."""

    job: int
    attempt: int
    lease: str
    exit: Exit


@dataclass(frozen=True, slots=True)
class WatchLease:
    """Promise the negotiator to say how a lease ends."""

    lease: str


@dataclass(frozen=True, slots=True)
class Launch:
    job: int
    attempt: int
    lease: str
    visible: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask a job's shim to end its process tree."""

    job: int
    attempt: int
    is_now: bool


@dataclass(frozen=True, slots=True)
class TellEnded:
    """Tell the clients that wait for a job, and run its hooks."""

    job: int
    reason: EndReason


@dataclass(frozen=True, slots=True)
class TellEmpty:
    """The last job has ended."""


Action = (
    SaveState
    | SaveBegin
    | SaveAttemptEnd
    | SaveEnd
    | SaveDrain
    | AskLease
    | DropAsk
    | PassAsk
    | ReturnLease
    | SettleLease
    | WatchLease
    | Launch
    | Stop
    | TellEnded
    | TellEmpty
)
