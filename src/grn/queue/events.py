"""Events that the queue's engine receives, and actions that it returns.

Events are in the past tense and carry their time; actions are imperatives for the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from grn.queue.jobs.job import (
    AttemptFate,
    EndReason,
    Exit,
    JobSpec,
    JobState,
    Kept,
    KeptArray,
    Settlement,
)

# --- events --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recovered:
    """The queue started: all jobs that have not ended, and the ends of jobs they depend on."""

    at: float
    jobs: tuple[Kept, ...]
    ends: tuple[tuple[int, bool], ...] = ()
    is_drained: bool = False
    arrays: tuple[KeptArray, ...] = ()


@dataclass(frozen=True, slots=True)
class Submitted:
    at: float
    jobs: tuple[JobSpec, ...]
    ends: tuple[tuple[int, bool], ...] = ()  # jobs that have ended already: id, ended well
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class ArraySubmitted:
    at: float
    array: KeptArray
    ends: tuple[tuple[int, bool], ...] = ()  # as of `Submitted`


@dataclass(frozen=True, slots=True)
class MembersNamed:
    """A request is about members of arrays: they must be jobs of their own first."""

    at: float
    jobs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    at: float
    job: int
    lease: str
    visible: str
    gpus: tuple[int, ...]
    reserved_bytes: int
    may_pass_on: bool = True  # False for the first run of a type: its end must be reported
    memory_cap: float | None = None  # the part of its GPUs that a job's framework may take


@dataclass(frozen=True, slots=True)
class LeaseAwaited:
    """The negotiator gave the reason why there is no GPU yet."""

    at: float
    job: int
    text: str


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """The negotiator refused the request for good."""

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
    """An attempt is over; sent again with the negotiator's answer after `SettleLease`."""

    at: float
    job: int
    attempt: int
    exit: Exit
    settled: Settlement | None = None


@dataclass(frozen=True, slots=True)
class ShimLost:
    """The shim is gone without an exit record; its leftover processes were ended."""

    at: float
    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class AttemptFound:
    """A node has told what became of an attempt that was out of sight."""

    at: float
    job: int
    attempt: int
    fate: AttemptFate
    text: str  # what happened there


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
    text: str = ""  # the reason, where no client requested the cancel


@dataclass(frozen=True, slots=True)
class CancelContinued:
    """The next cancelled members of arrays can be ended, as `ContinueCancel` wanted."""

    at: float


@dataclass(frozen=True, slots=True)
class SubmitterGone:
    """A process that jobs are tied to has ended."""

    at: float
    submitter: str


@dataclass(frozen=True, slots=True)
class YieldAsked:
    """The negotiator asks for the end of the attempt under a lease, to make room."""

    at: float
    lease: str
    is_idle: bool = False  # whether the job was submitted as yielding or not


@dataclass(frozen=True, slots=True)
class IdleReported:
    """The negotiator says that the attempt under a lease holds GPUs and does not use them."""

    at: float
    lease: str
    idle_s: float
    held_bytes: int = 0
    is_to_end: bool = False  # the rule of the machine is to end such jobs


@dataclass(frozen=True, slots=True)
class HoldAsked:
    at: float
    jobs: tuple[int, ...]
    is_held: bool = True


@dataclass(frozen=True, slots=True)
class MoveAsked:
    """Give jobs another priority, or the first or last place of their priority."""

    at: float
    jobs: tuple[int, ...]
    priority: int | None = None
    to_front: bool | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """A queued job was given other options, which the journal has already."""

    at: float
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class DrainAsked:
    at: float
    is_drained: bool = True


@dataclass(frozen=True, slots=True)
class ClockRead:
    """The wall clock, at the time that `WakeAt` named or before."""

    at: float
    clock: float


Event = (
    Recovered
    | Submitted
    | ArraySubmitted
    | MembersNamed
    | LeaseGranted
    | LeaseAwaited
    | LeaseRefused
    | NegotiatorLost
    | NegotiatorFound
    | AttemptStarted
    | Exited
    | ShimLost
    | AttemptFound
    | ActionFailed
    | CancelAsked
    | CancelContinued
    | YieldAsked
    | IdleReported
    | SubmitterGone
    | HoldAsked
    | MoveAsked
    | Edited
    | DrainAsked
    | ClockRead
)

# --- actions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SaveMembers:
    """Persist members of an array as jobs, and which members are left."""

    array: int
    jobs: tuple[int, ...]
    left: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SaveState:
    """Persist the state of a job."""

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
    """Persist that an attempt begins, before it does."""

    job: int
    attempt: int
    lease: str
    gpus: tuple[int, ...]
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class SaveAttemptEnd:
    """Persist how an attempt ended."""

    job: int
    attempt: int
    reason: EndReason
    exit: Exit
    peak_bytes: int | None
    text: str = ""  # the reason, where it is not obvious


@dataclass(frozen=True, slots=True)
class SaveEnd:
    """Persist how a job ended."""

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
    is_spared: bool = False  # it ran out of memory before because others took its room


@dataclass(frozen=True, slots=True)
class DropAsk:
    """Withdraw a request for a lease."""

    job: int


@dataclass(frozen=True, slots=True)
class PassAsk:
    """Pass a lease request on to another job of the same kind; request again if it was granted."""

    job: int
    heir: AskLease


@dataclass(frozen=True, slots=True)
class ReturnLease:
    """Give back a lease."""

    lease: str
    exit: Exit | None = None  # of the last attempt under it, None without one


@dataclass(frozen=True, slots=True)
class SettleLease:
    """Report how an attempt ended, then send `Exited` again with the negotiator's answer."""

    job: int
    attempt: int
    lease: str
    exit: Exit


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get ready for the attempt that is likely to start next; it may not."""

    job: int
    attempt: int


@dataclass(frozen=True, slots=True)
class WatchLease:
    """Register with the negotiator as the reporter of a lease's end."""

    lease: str


@dataclass(frozen=True, slots=True)
class Launch:
    job: int
    attempt: int
    lease: str
    visible: str
    memory_cap: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Make a job's shim end its process tree."""

    job: int
    attempt: int
    is_now: bool
    is_yield: bool = False  # the job runs again


@dataclass(frozen=True, slots=True)
class TellEnded:
    """Notify the clients that wait for a job, and run its hooks."""

    job: int
    reason: EndReason


@dataclass(frozen=True, slots=True)
class RunIdleHook:
    """Run the user's hook for an idle job."""

    job: int
    idle_s: float
    held_bytes: int


@dataclass(frozen=True, slots=True)
class ContinueCancel:
    """Send `CancelContinued` in a later turn: others are answered in between."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send `ClockRead` at this time of the wall clock; replaces an earlier `WakeAt`."""

    clock: float


@dataclass(frozen=True, slots=True)
class TellEmpty:
    """The last job has ended."""


Action = (
    SaveMembers
    | SaveState
    | SaveBegin
    | SaveAttemptEnd
    | SaveEnd
    | SaveDrain
    | AskLease
    | DropAsk
    | PassAsk
    | ReturnLease
    | SettleLease
    | Prepare
    | WatchLease
    | Launch
    | Stop
    | TellEnded
    | RunIdleHook
    | WakeAt
    | ContinueCancel
    | TellEmpty
)
