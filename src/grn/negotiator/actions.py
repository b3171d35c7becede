"""Actions that the negotiator's engine returns: imperatives for the loop."""

from __future__ import annotations

from grn.model.gpu import Gpu
from grn.model.job import Holder, Outcome, Run
from grn.model.value import value
from grn.negotiator.events import Booking, Lease, LeaseSettled, SaveUse, Wait


@value
class SaveLease:
    lease: Lease


@value
class DropLease:
    lease: str


@value
class SaveWaiting:
    key: str
    sequence: int
    holder: Holder | None = None


@value
class DropWaiting:
    key: str


@value
class SaveRun:
    job_type: str
    model: str
    label: str
    owner: int
    run: Run


@value
class SaveNumber:
    """Save a number that was learned from all jobs together."""

    name: str
    value: float


@value
class SaveStart:
    """Remember a start, to compare it with what was forecast, in seconds from the forecast."""

    earliest_s: float  # as played
    latest_s: float
    low_s: float  # as told
    high_s: float
    waited_s: float


@value
class SaveGpu:
    """Remember that a GPU was enumerated in this boot."""

    uuid: str


@value
class SaveBooking:
    booking: Booking


@value
class DropBooking:
    booking: int
    because: str = ""  # for the log


@value
class DropProfile:
    job_type: str


@value
class Grant:
    """Tell the client with this key that it has the lease."""

    key: str
    lease: Lease
    gpus: tuple[Gpu, ...]


@value
class Refuse:
    """Tell the client that its request can never be granted."""

    key: str
    message: str
    hint: str = ""
    code: str = "NeverFits"


@value
class TellWaiting:
    key: str
    wait: Wait


@value
class Settle:
    """Answer the clients that ended a lease, and keep its end in the history."""

    lease: Lease
    at: float
    settled: LeaseSettled
    shown: Outcome  # in the history: a command lease that no command used was not started
    is_lost: bool = False  # its process ended without a report


@value
class AskYield:
    """Ask the holder of a lease to end its job soon and to run it again later."""

    lease: Lease
    key: str = ""  # of the request that needs the room; empty where a booking does


@value
class TellIdle:
    """Tell the owner of a lease that it is idle; its queue may have to end the job."""

    lease: Lease
    idle_s: float
    held_bytes: int  # on all its GPUs
    gpus: tuple[int, ...]  # indices
    is_to_end: bool = False


@value
class TellIdleStranger:
    """Tell the owner of a process without a lease that it is idle."""

    pid: int
    user: int
    gpu: int  # index
    idle_s: float
    held_bytes: int | None


@value
class KillProcesses:
    """Kill the processes of a lease that overflowed a virtual GPU."""

    lease: str
    gpu: int  # index
    pids: tuple[int, ...]


@value
class SetTimer:
    """Send `TimerFired` at this time."""

    at: float


@value
class Defer:
    """Send `Resumed` a moment later: there is more to do."""

    is_soon: bool = False  # as soon as the messages that have arrived are answered


@value
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
