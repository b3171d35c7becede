"""One job that has not ended, as the engine changes it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from grn.model.windows import StartWindow
from grn.queue.events import LeaseGranted
from grn.queue.jobs.job import BUSY, JobSpec, JobState, Step, after

Rank = tuple[int, int, int]


@dataclass(slots=True)
class QueuedJob:
    """One job that has not ended; its state changes by `step` only."""

    spec: JobSpec
    _state: JobState
    priority: int
    place: int
    tries_left: int
    attempt: int = 0
    memory_attempt: int = 0
    spared: int = 0  # how often it ran out of memory because others took its room
    is_held: bool = False
    is_asked: bool = False  # a lease has been requested
    lease: str = ""
    grant: LeaseGranted | None = None  # how the lease came
    waits_for: AbstractSet[int] = frozenset()  # jobs that have not ended yet
    window: StartWindow | None = None  # when it may start; None: at any time
    opens_at: float | None = None  # it is outside its window until then, by the wall clock
    said: str = ""  # why it waits, by the negotiator's latest answer
    fault: str = ""  # its row is damaged: it is not run again
    is_yielding: bool = False  # its attempt was asked to end, and another follows
    idle_text: str = ""  # its attempt was asked to end since it is idle: why, in words
    past: str = ""  # why its latest attempt failed, where the job is not to blame

    @property
    def state(self) -> JobState:
        return self._state

    def step(self, step: Step) -> None:
        """Change the state by the lifecycle's table; a job that is not busy holds no lease."""
        self._state = after(self._state, step)
        if self._state not in BUSY:
            self.lease, self.grant, self.is_yielding, self.idle_text = "", None, False, ""

    @property
    def rank(self) -> Rank:
        """Return its place in the order: out-of-memory retries first, then priority, then age."""
        is_retry = bool(self.memory_attempt or self.spared)
        return (0 if is_retry else 1, -self.priority, self.place)

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what two jobs must share for a lease of one to serve the other."""
        spec = self.spec
        return (
            spec.job_type, spec.gpus, spec.mem_bytes, spec.is_exclusive, self.priority,
            self.memory_attempt, spec.at, spec.on, spec.without, spec.yields, spec.is_urgent,
            spec.cpus, spec.ram_bytes, spec.idle_limit_s, spec.time_limit_s,
        )  # fmt: skip

    def __lt__(self, other: QueuedJob) -> bool:
        return (self.rank, self.spec.id) < (other.rank, other.spec.id)

    @property
    def is_ready(self) -> bool:
        is_kept_back = self.is_held or self.waits_for or self.opens_at is not None
        return self._state is JobState.QUEUED and not is_kept_back
