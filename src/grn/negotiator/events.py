"""Events that the negotiator's engine receives, in the past tense, with their time.

The values that they share with the actions of `actions.py` are here, too.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from grn.model.gpu import Gpu, Reading
from grn.model.host import HostReading, HostSize
from grn.model.job import Holder, Outcome, Profile, Request, Run

# --- shared by events and actions ------------------------------------------------------------


class LeaseState(Enum):
    """HELD while the job runs; DRAINING when its process is gone but its memory may not be."""

    HELD = "held"
    DRAINING = "draining"


class WaitReason(Enum):
    """Why a request is not granted yet. Each is documented in docs/waiting.md."""

    NO_ROOM = "no-room"
    FIRST_RUN_ELSEWHERE = "first-run-elsewhere"
    NO_ROOM_FOR_FIRST_RUN = "no-room-for-first-run"
    NO_EMPTY_GPU = "no-empty-gpu"
    STAYS_ON_ITS_GPU = "stays-on-its-gpu"
    GPUS_BUSY = "gpus-busy"
    NOT_ENOUGH_GPUS = "not-enough-gpus"
    GPU_SILENT = "gpu-silent"
    NO_RAM = "no-ram"
    CPUS_BUSY = "cpus-busy"
    YIELDS_TO_OLDER = "yields-to-older"
    BOOKED = "booked"
    PREEMPTING = "preempting"
    RESTARTING = "restarting"


class Wait(Struct, frozen=True):
    """A request has to wait: the reason for programs and the sentence for people."""

    reason: WaitReason
    text: str
    lacks: float = 0.0  # what the host has too little of: bytes of memory, or cores


class Lease(Struct, frozen=True):
    """A granted right, as it is saved and shown."""

    request: Request
    gpus: tuple[str, ...]  # uuids
    reserved: tuple[int, ...]  # bytes on each of them, in the same order
    is_probe: bool  # the first run of its type: its need is unknown
    granted_at: float
    state: LeaseState = LeaseState.HELD
    outcome: Outcome = Outcome.KILLED  # what a draining lease ended with
    ram_bytes: int = 0  # reserved in the host's memory,
    cpus: float = 0.0  # and of its cores
    idle_since: float | None = None  # it is idle since then; None: it is not
    idled_s: float = 0.0  # how long it was idle before

    @property
    def id(self) -> str:
        return self.request.lease

    @property
    def reserved_bytes(self) -> int:
        """Return the largest reservation on any one GPU."""
        return max(self.reserved, default=0)

    def reserved_on(self, uuid: str) -> int:
        """Return the reservation on one GPU."""
        return self.reserved[self.gpus.index(uuid)] if uuid in self.gpus else 0

    def idle_s(self, at: float) -> float:
        """Return for how long it has been idle in all."""
        return self.idled_s + (0.0 if self.idle_since is None else max(0.0, at - self.idle_since))


class Booking(Struct, frozen=True):
    """GPUs kept for one user for a while, as it is saved and shown. Times are of the wall clock."""

    id: int
    user: int
    user_name: str
    count: int  # of GPUs
    start_at: float
    end_at: float
    able: tuple[str, ...] = ()  # the GPUs that it may be given, by uuid; empty: any
    gpus: tuple[str, ...] = ()  # those chosen at present
    is_used: bool = False  # a job of its user has been on them since its start

    def overlaps(self, start_at: float, end_at: float) -> bool:
        """True when part of a time is booked."""
        return self.start_at < end_at and start_at < self.end_at


class LeaseSettled(Struct, frozen=True):
    """How a lease ended; without an outcome there is no such lease."""

    outcome: Outcome | None
    was_alone: bool = True
    peak_bytes: int | None = None
    is_victim: bool = False  # it ran out of memory because others took its room
    because: str = ""  # the cause of running out of memory
    has_larger: bool = False  # it was alone, and a GPU with more memory is managed here


class SaveUse(Struct, frozen=True):
    """A user's usage, in hours of a whole GPU; 0 when it has decayed."""

    user: int
    used_h: float
    at: float  # wall-clock time: it is read again after a reboot


# --- events --------------------------------------------------------------------------------


class JobStarted(Struct, frozen=True):
    """The negotiator started: its GPUs and its saved state."""

    at: float
    gpus: tuple[Gpu, ...]
    readings: tuple[Reading, ...] = ()
    leases: tuple[Lease, ...] = ()
    waiting: tuple[tuple[str, int], ...] = ()  # requests that may come back: key, place
    profiles: tuple[Profile, ...] = ()
    wall_offset_s: float = 0.0  # wall clock minus the clock of events
    uses: tuple[SaveUse, ...] = ()  # saved usage of users
    numbers: tuple[tuple[str, float], ...] = ()  # learned from all jobs together, by name
    host: HostSize | None = None  # None: host memory and cores are not limited
    bookings: tuple[Booking, ...] = ()


class Requested(Struct, frozen=True):
    at: float
    request: Request


class Withdrawn(Struct, frozen=True):
    """A waiting client is gone."""

    at: float
    key: str


class HolderChanged(Struct, frozen=True):
    """The process that runs the job took its lease over from the requesting process."""

    at: float
    lease: str
    holder: Holder
    is_reported: bool = False  # a connected process will report the end


class ReporterJoined(Struct, frozen=True):
    """A connected process will report how the job of a lease ends."""

    at: float
    lease: str


class ReporterLost(Struct, frozen=True):
    """The connection of that process is closed."""

    at: float
    lease: str


class Released(Struct, frozen=True):
    """A client says that a lease has ended."""

    at: float
    lease: str
    outcome: Outcome
    peak_bytes: int | None = None  # measured by the driver or the system
    asked_bytes: int | None = None  # the allocation that failed, where a message names it
    gpu_peak_bytes: int | None = None  # reported by a framework
    resident_bytes: int | None = None  # of the command in main memory: the peak on a virtual GPU
    is_limit: bool = False  # out of memory at a limit of its own, not of the GPU or the machine
    is_awaited: bool = True  # else a request that has arrived goes before learning from the run


class KernelKilled(Struct, frozen=True):
    """The kernel ended processes, of jobs or others, since the host's memory was full."""

    at: float
    count: int


class HolderGone(Struct, frozen=True):
    """The process that holds a lease has ended, and no client has released the lease."""

    at: float
    lease: str


class TimerFired(Struct, frozen=True):
    """The time of a `SetTimer` has come."""

    at: float


class Resumed(Struct, frozen=True):
    """The actions before a `Defer` are carried out."""

    at: float


class Sampled(Struct, frozen=True):
    at: float
    readings: tuple[Reading, ...]
    survived: frozenset[str] = frozenset()  # leases whose holder is gone and left processes behind
    host: HostReading | None = None  # None: not read this time
    wall_offset_s: float | None = None  # as of `JobStarted`; None: unchanged
    owners: tuple[tuple[int, int], ...] = ()  # processes without a lease, and their users


class ProfileForgotten(Struct, frozen=True):
    at: float
    job_type: str


class RunsImported(Struct, frozen=True):
    """A user's own runs of a job type, measured by the negotiator of another machine."""

    at: float
    user: int
    job_type: str
    label: str
    model: str
    runs: tuple[Run, ...]


class BookingMade(Struct, frozen=True):
    """A user has booked GPUs: the booking, and others that have other GPUs since."""

    at: float
    bookings: tuple[Booking, ...]


class BookingRemoved(Struct, frozen=True):
    at: float
    booking: int


class Stopping(Struct, frozen=True):
    """The negotiator is about to end; leases go on."""

    at: float


Event = (
    JobStarted
    | Requested
    | Withdrawn
    | HolderChanged
    | ReporterJoined
    | ReporterLost
    | Released
    | KernelKilled
    | HolderGone
    | TimerFired
    | Resumed
    | Sampled
    | ProfileForgotten
    | RunsImported
    | BookingMade
    | BookingRemoved
    | Stopping
)
