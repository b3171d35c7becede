"""Events that the queue's engine receives, and actions that it returns.

Events are in the past tense and carry their time; actions are imperatives for the loop.
"""

from __future__ import annotations

from msgspec import Struct

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


class Recovered(Struct, frozen=True):
    """The queue started: all jobs that have not ended, and the ends of jobs they depend on."""

    at: float
    jobs: tuple[Kept, ...]
    ends: tuple[tuple[int, bool], ...] = ()
    is_drained: bool = False
    arrays: tuple[KeptArray, ...] = ()


class Submitted(Struct, frozen=True):
    at: float
    jobs: tuple[JobSpec, ...]
    ends: tuple[tuple[int, bool], ...] = ()  # jobs that have ended already: id, ended well
    is_held: bool = False


class ArraySubmitted(Struct, frozen=True):
    at: float
    array: KeptArray
    ends: tuple[tuple[int, bool], ...] = ()  # as of `Submitted`


class MembersNamed(Struct, frozen=True):
    """A request is about members of arrays: they must be jobs of their own first."""

    at: float
    jobs: tuple[int, ...]


class LeaseGranted(Struct, frozen=True):
    at: float
    job: int
    lease: str
    visible: str
    gpus: tuple[int, ...]
    reserved_bytes: int
    may_pass_on: bool = True  # False for the first run of a type: its end must be reported
    memory_cap: float | None = None  # the part of its GPUs that a job's framework may take


class LeaseAwaited(Struct, frozen=True):
    """The negotiator gave the reason why there is no GPU yet."""

    at: float
    job: int
    text: str


class LeaseRefused(Struct, frozen=True):
    """The negotiator refused the request for good."""

    at: float
    job: int
    text: str


class NegotiatorLost(Struct, frozen=True):
    at: float


class NegotiatorFound(Struct, frozen=True):
    at: float


class AttemptStarted(Struct, frozen=True):
    at: float
    job: int
    attempt: int


class Exited(Struct, frozen=True):
    """An attempt is over; sent again with the negotiator's answer after `SettleLease`."""

    at: float
    job: int
    attempt: int
    exit: Exit
    settled: Settlement | None = None


class ShimLost(Struct, frozen=True):
    """The shim is gone without an exit record; its leftover processes were ended."""

    at: float
    job: int
    attempt: int


class AttemptFound(Struct, frozen=True):
    """A node has told what became of an attempt that was out of sight."""

    at: float
    job: int
    attempt: int
    fate: AttemptFate
    text: str  # what happened there


class ActionFailed(Struct, frozen=True):
    """An action for one attempt of a job could not be carried out."""

    at: float
    job: int
    attempt: int
    text: str


class CancelAsked(Struct, frozen=True):
    at: float
    jobs: tuple[int, ...]
    is_now: bool = False
    text: str = ""  # the reason, where no client requested the cancel


class CancelContinued(Struct, frozen=True):
    """The next cancelled members of arrays can be ended, as `ContinueCancel` wanted."""

    at: float


class SubmitterGone(Struct, frozen=True):
    """A process that jobs are tied to has ended."""

    at: float
    submitter: str


class YieldAsked(Struct, frozen=True):
    """The negotiator asks for the end of the attempt under a lease, to make room."""

    at: float
    lease: str
    is_idle: bool = False  # whether the job was submitted as yielding or not


class IdleReported(Struct, frozen=True):
    """The negotiator says that the attempt under a lease holds GPUs and does not use them."""

    at: float
    lease: str
    idle_s: float
    held_bytes: int = 0
    is_to_end: bool = False  # the rule of the machine is to end such jobs


class HoldAsked(Struct, frozen=True):
    at: float
    jobs: tuple[int, ...]
    is_held: bool = True


class MoveAsked(Struct, frozen=True):
    """Give jobs another priority, or the first or last place of their priority."""

    at: float
    jobs: tuple[int, ...]
    priority: int | None = None
    to_front: bool | None = None


class Edited(Struct, frozen=True):
    """A queued job was given other options, which the journal has already."""

    at: float
    spec: JobSpec


class DrainAsked(Struct, frozen=True):
    at: float
    is_drained: bool = True


class ClockRead(Struct, frozen=True):
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


class SaveMembers(Struct, frozen=True):
    """Persist members of an array as jobs, and which members are left."""

    array: int
    jobs: tuple[int, ...]
    left: tuple[tuple[int, int], ...]


class SaveState(Struct, frozen=True):
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


class SaveBegin(Struct, frozen=True):
    """Persist that an attempt begins, before it does."""

    job: int
    attempt: int
    lease: str
    gpus: tuple[int, ...]
    reserved_bytes: int


class SaveAttemptEnd(Struct, frozen=True):
    """Persist how an attempt ended."""

    job: int
    attempt: int
    reason: EndReason
    exit: Exit
    peak_bytes: int | None
    text: str = ""  # the reason, where it is not obvious


class SaveEnd(Struct, frozen=True):
    """Persist how a job ended."""

    job: int
    reason: EndReason
    text: str
    exit: Exit | None


class SaveDrain(Struct, frozen=True):
    is_drained: bool


class AskLease(Struct, frozen=True):
    spec: JobSpec
    attempt: int
    memory_attempt: int
    is_spared: bool = False  # it ran out of memory before because others took its room


class DropAsk(Struct, frozen=True):
    """Withdraw a request for a lease."""

    job: int


class PassAsk(Struct, frozen=True):
    """Pass a lease request on to another job of the same kind; request again if it was granted."""

    job: int
    heir: AskLease


class ReturnLease(Struct, frozen=True):
    """Give back a lease."""

    lease: str
    exit: Exit | None = None  # of the last attempt under it, None without one


class SettleLease(Struct, frozen=True):
    """Report how an attempt ended, then send `Exited` again with the negotiator's answer."""

    job: int
    attempt: int
    lease: str
    exit: Exit


class Prepare(Struct, frozen=True):
    """Get ready for the attempt that is likely to start next; it may not."""

    job: int
    attempt: int


class WatchLease(Struct, frozen=True):
    """Register with the negotiator as the reporter of a lease's end."""

    lease: str


class Launch(Struct, frozen=True):
    job: int
    attempt: int
    lease: str
    visible: str
    memory_cap: float | None = None


class Stop(Struct, frozen=True):
    """Make a job's shim end its process tree."""

    job: int
    attempt: int
    is_now: bool
    is_yield: bool = False  # the job runs again


class TellEnded(Struct, frozen=True):
    """Notify the clients that wait for a job, and run its hooks."""

    job: int
    reason: EndReason


class RunIdleHook(Struct, frozen=True):
    """Run the user's hook for an idle job."""

    job: int
    idle_s: float
    held_bytes: int


class ContinueCancel(Struct, frozen=True):
    """Send `CancelContinued` in a later turn: others are answered in between."""


class WakeAt(Struct, frozen=True):
    """Send `ClockRead` at this time of the wall clock; replaces an earlier `WakeAt`."""

    clock: float


class TellEmpty(Struct, frozen=True):
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
