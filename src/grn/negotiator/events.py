"""Events that the negotiator's engine receives, and actions that it returns.

Events are in the past tense and carry their time; actions are imperatives for the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from grn.model.gpu import Gpu, Reading
from grn.model.job import Holder, Outcome, Request
from grn.model.profile import Profile, Run

# --- the words both sides share ------------------------------------------------------------


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
    YIELDS_TO_OLDER = "yields-to-older"
    RESTARTING = "restarting"


@dataclass(frozen=True, slots=True)
class Wait:
    """A `not yet`, with its reason for programs and its sentence for people."""

    reason: WaitReason
    text: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted right, as it is saved and shown."""

    request: Request
    gpus: tuple[str, ...]  # uuids
    reserved: tuple[int, ...]  # bytes on each of them, in the same order
    is_probe: bool  # the first run of its type: nobody knows yet what it needs
    granted_at: float
    state: LeaseState = LeaseState.HELD
    outcome: Outcome = Outcome.KILLED  # what a draining lease ended with

    @property
    def id(self) -> str:
        return self.request.lease

    @property
    def reserved_bytes(self) -> int:
        """Return the largest reservation on any one GPU."""
        return max(self.reserved, default=0)

    def reserved_on(self, uuid: str) -> int:
        """Return what is reserved on one GPU."""
        return self.reserved[self.gpus.index(uuid)] if uuid in self.gpus else 0


# --- events --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The negotiator came up: the GPUs it manages and what it remembers."""

    at: float
    gpus: tuple[Gpu, ...]
    readings: tuple[Reading, ...] = ()
    leases: tuple[Lease, ...] = ()
    waiting: tuple[tuple[str, int], ...] = ()  # requests that may come back: key, place
    profiles: tuple[Profile, ...] = ()
    wall_offset_s: float = 0.0  # wall clock minus the clock of events
    uses: tuple[SaveUse, ...] = ()  # what users had before
    numbers: tuple[tuple[str, float], ...] = ()  # what was learned of all jobs together, by name


@dataclass(frozen=True, slots=True)
class Requested:
    at: float
    request: Request


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A waiting client is gone."""

    at: float
    key: str


@dataclass(frozen=True, slots=True)
class HolderChanged:
    """The process that runs the job took its lease over from the one that asked."""

    at: float
    lease: str
    holder: Holder


@dataclass(frozen=True, slots=True)
class Released:
    """The holder let go. `peak_bytes` is what a framework or the system says it used at most."""

    at: float
    lease: str
    outcome: Outcome
    peak_bytes: int | None = None
    asked_bytes: int | None = None  # the allocation that failed, where a message tells


@dataclass(frozen=True, slots=True)
class HolderGone:
    """The holder's process ended without a word."""

    at: float
    lease: str
    outcome: Outcome = Outcome.KILLED
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    at: float
    readings: tuple[Reading, ...]
    survived: frozenset[str] = frozenset()  # leases whose holder is gone and left processes behind


@dataclass(frozen=True, slots=True)
class ProfileForgotten:
    at: float
    job_type: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The negotiator is about to end; leases go on."""

    at: float


Event = (
    JobStarted
    | Requested
    | Withdrawn
    | HolderChanged
    | Released
    | HolderGone
    | Sampled
    | ProfileForgotten
    | Stopping
)

# --- actions -------------------------------------------------------------------------------


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
class SaveUse:
    """What a user has had of the GPUs, in hours of a whole one; 0 when that has faded away."""

    user: int
    used_h: float
    at: float  # by the clock on the wall: it is read again after a reboot


@dataclass(frozen=True, slots=True)
class SaveNumber:
    """Remember something that was learned of all jobs together."""

    name: str
    value: float


@dataclass(frozen=True, slots=True)
class SaveGpu:
    """Remember that a GPU was enumerated in this boot."""

    uuid: str


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
class LookSoon:
    """Read the GPUs again now: somebody waits for memory that may be gone already."""


Action = (
    SaveLease
    | DropLease
    | SaveWaiting
    | DropWaiting
    | SaveRun
    | SaveUse
    | SaveNumber
    | SaveGpu
    | DropProfile
    | Grant
    | Refuse
    | TellWaiting
    | LookSoon
)
