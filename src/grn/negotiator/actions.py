"""Actions that the negotiator's engine returns: imperatives for the loop."""

from __future__ import annotations

from dataclasses import dataclass

from grn.model.gpu import Gpu
from grn.model.job import Holder, Outcome, Run
from grn.negotiator.events import Booking, Lease, LeaseSettled, SaveUse, Wait


@dataclass(frozen=True, slots=True)
class SaveLease:
    lease: Lease


@dataclass(frozen=True, slots=True)
class DropLease:
    lease: str


@dataclass(frozen=True, slots=True)
class SaveWaiting:
    key: str
    sequence: int
    holder: Holder | None = None


@dataclass(frozen=True, slots=True)
class DropWaiting:
    key: str


@dataclass(frozen=True, slots=True)
class SaveRun:
    job_type: str
    model: str
    label: str
    owner: int
    run: Run


@dataclass(frozen=True, slots=True)
class SaveNumber:
    """Save a number that was learned from all jobs together."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class SaveStart:
    """Remember a start, to compare it with what was forecast, in seconds from the forecast."""

    earliest_s: float  # as played
    latest_s: float
    low_s: float  # as told
    high_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class SaveGpu:
    """Remember that a GPU was enumerated in this boot."""

    uuid: str


@dataclass(frozen=True, slots=True)
class SaveBooking:
    booking: Booking


@dataclass(frozen=True, slots=True)
class DropBooking:
    booking: int
    because: str = ""  # for the log


@dataclass(frozen=True, slots=True)
class DropProfile:
    job_type: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell the client with this key that it has the lease."""

    key: str
    lease: Lease
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Tell the client that its request can never be granted."""

    key: str
    message: str
    hint: str = ""
    code: str = "NeverFits"


@dataclass(frozen=True, slots=True)
class TellWaiting:
    key: str
    wait: Wait


@dataclass(frozen=True, slots=True)
class Settle:
    """Answer the clients that ended a lease, and keep its end in the history."""

    lease: Lease
    at: float
    settled: LeaseSettled
    shown: Outcome  # in the history: a command lease that no command used was not started
    is_lost: bool = False  # its process ended without a report


@dataclass(frozen=True, slots=True)
class AskYield:
    """Ask the holder of a lease to end its job soon and to run it again later."""

    lease: Lease
    key: str = ""  # of the request that needs the room; empty where a booking does


@dataclass(frozen=True, slots=True)
class TellIdle:
    """Tell the owner of a lease that it is idle; its queue may have to end the job."""

    lease: Lease
    idle_s: float
    held_bytes: int  # on all its GPUs
    gpus: tuple[int, ...]  # indices
    is_to_end: bool = False


@dataclass(frozen=True, slots=True)
class TellIdleStranger:
    """Tell the owner of a process without a lease that it is idle."""

    pid: int
    user: int
    gpu: int  # index
    idle_s: float
    held_bytes: int | None


@dataclass(frozen=True, slots=True)
class KillProcesses:
    """Kill the processes of a lease that overflowed a virtual GPU."""

    lease: str
    gpu: int  # index
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired` at this time."""

    at: float


@dataclass(frozen=True, slots=True)
class Defer:
    """Send `Resumed` a moment later: there is more to do."""

    is_soon: bool = False  # as soon as the messages that have arrived are answered


@dataclass(frozen=True, slots=True)
class LookSoon:
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
