"""Actions that the negotiator's engine returns: imperatives for the loop."""

from __future__ import annotations

from msgspec import Struct

from grn.model.gpu import Gpu
from grn.model.job import Holder, Outcome, Run
from grn.negotiator.events import Booking, Lease, LeaseSettled, SaveUse, Wait


class SaveLease(Struct, frozen=True):
    lease: Lease


class DropLease(Struct, frozen=True):
    lease: str


class SaveWaiting(Struct, frozen=True):
    key: str
    sequence: int
    holder: Holder | None = None


class DropWaiting(Struct, frozen=True):
    key: str


class SaveRun(Struct, frozen=True):
    job_type: str
    model: str
    label: str
    owner: int
    run: Run


class SaveNumber(Struct, frozen=True):
    """Save a number that was learned from all jobs together."""

    name: str
    value: float


class SaveStart(Struct, frozen=True):
    """Remember a start, to compare it with what was forecast, in seconds from the forecast."""

    earliest_s: float  # as played
    latest_s: float
    low_s: float  # as told
    high_s: float
    waited_s: float


class SaveGpu(Struct, frozen=True):
    """Remember that a GPU was enumerated in this boot."""

    uuid: str


class SaveBooking(Struct, frozen=True):
    booking: Booking


class DropBooking(Struct, frozen=True):
    booking: int
    because: str = ""  # for the log


class DropProfile(Struct, frozen=True):
    job_type: str


class Grant(Struct, frozen=True):
    """Tell the client with this key that it has the lease."""

    key: str
    lease: Lease
    gpus: tuple[Gpu, ...]


class Refuse(Struct, frozen=True):
    """Tell the client that its request can never be granted."""

    key: str
    message: str
    hint: str = ""
    code: str = "NeverFits"


class TellWaiting(Struct, frozen=True):
    key: str
    wait: Wait


class Settle(Struct, frozen=True):
    """Answer the clients that ended a lease, and keep its end in the history."""

    lease: Lease
    at: float
    settled: LeaseSettled
    shown: Outcome  # in the history: a command lease that no command used was not started
    is_lost: bool = False  # its process ended without a report


class AskYield(Struct, frozen=True):
    """Ask the holder of a lease to end its job soon and to run it again later."""

    lease: Lease
    key: str = ""  # of the request that needs the room; empty where a booking does


class TellIdle(Struct, frozen=True):
    """Tell the owner of a lease that it is idle; its queue may have to end the job."""

    lease: Lease
    idle_s: float
    held_bytes: int  # on all its GPUs
    gpus: tuple[int, ...]  # indices
    is_to_end: bool = False


class TellIdleStranger(Struct, frozen=True):
    """Tell the owner of a process without a lease that it is idle."""

    pid: int
    user: int
    gpu: int  # index
    idle_s: float
    held_bytes: int | None


class KillProcesses(Struct, frozen=True):
    """Kill the processes of a lease that overflowed a virtual GPU."""

    lease: str
    gpu: int  # index
    pids: tuple[int, ...]


class SetTimer(Struct, frozen=True):
    """Send `TimerFired` at this time."""

    at: float


class Defer(Struct, frozen=True):
    """Send `Resumed` a moment later: there is more to do."""

    is_soon: bool = False  # as soon as the messages that have arrived are answered


class LookSoon(Struct, frozen=True):
    """Read the GPUs again now: a request waits for memory that may be free already."""


Action = (
    SaveLease
    | DropLease
    | SaveWaiting
    | DropWaiting
    | SaveRun
    | SaveUse
    | SaveNumber
    | SaveStart
    | SaveGpu
    | SaveBooking
    | DropBooking
    | DropProfile
    | Grant
    | Refuse
    | TellWaiting
    | Settle
    | AskYield
    | TellIdle
    | TellIdleStranger
    | KillProcesses
    | SetTimer
    | Defer
    | LookSoon
)
