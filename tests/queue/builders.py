"""Makers of values for tests of the queue, and `Line`: an engine that is told one fact at a time.

A line keeps what the engine has said: who is asked for, what was launched, how jobs ended.
"""

from __future__ import annotations

from typing import Any, TypeVar

from grn.queue.engine import QueueEngine
from grn.queue.events import (
    Action,
    ArraySubmitted,
    AskLease,
    AttemptStarted,
    CancelAsked,
    CancelContinued,
    ClockRead,
    DrainAsked,
    DropAsk,
    Event,
    Exited,
    HoldAsked,
    IdleReported,
    Launch,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MembersNamed,
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    PassAsk,
    Recovered,
    SaveEnd,
    SaveState,
    ShimLost,
    Submitted,
    YieldAsked,
)
from grn.queue.jobs.job import (
    After,
    EndReason,
    Exit,
    JobSpec,
    JobState,
    Kept,
    KeptArray,
    Settlement,
)
from grn.queue.jobs.lease_window import WindowLimits

Kind = TypeVar("Kind")
OK = Exit(0)
FAILED = Exit(1)
YIELDED = Exit(0, because=EndReason.YIELDED)
CANCELLED = Exit(None, signal=15, because=EndReason.CANCELLED)
OUT_OF_MEMORY = Exit(1, because=EndReason.OUT_OF_MEMORY)
SETTLED = Settlement()
ALONE, SHARING = Settlement("oom", was_alone=True), Settlement("oom", was_alone=False)


def a_spec(job: int = 1, **changes: Any) -> JobSpec:
    """Return what the engine knows of a job; `after` may name jobs by their numbers alone."""
    after = tuple(one if isinstance(one, After) else After(one) for one in changes.pop("after", ()))
    values = {"id": job, "job_type": "train.py", "label": "train.py", "after": after}
    return JobSpec(**values | changes)


def kept(job: int = 1, state: JobState = JobState.QUEUED, **changes: Any) -> Kept:
    """Return a job as a journal has it; words that are not of `Kept` are for its spec."""
    own = {name: changes.pop(name) for name in tuple(changes) if name in Kept._fields}
    return Kept(**{"spec": a_spec(job, **changes), "state": state, "place": job} | own)


class Line:
    """A queue's engine, its clock and what it has said; the books are checked after each step."""

    def __init__(self, *jobs: Kept, limits: WindowLimits | None = None, **recovered: Any) -> None:
        self.engine = QueueEngine(limits)
        self.at = 0.0
        self.asked: list[int] = []  # jobs the negotiator is asked for, in that order
        self.launched: list[tuple[int, int]] = []
        self.ends: dict[int, EndReason] = {}
        self.texts: dict[int, str] = {}
        self.saved: dict[int, SaveState] = {}
        self.actions: list[Action] = []  # of the latest step
        ends = tuple(recovered.pop("ends", {}).items())
        self.begun = self.tell(Recovered(0.0, jobs, ends, **recovered))
        self.begun += self.tell(NegotiatorFound(0.0))

    def tell(self, event: Event) -> list[Action]:
        """Tell one fact, check the books and keep what the engine says."""
        self.at = max(self.at, event.at)
        self.actions = self.engine.handle(event)
        self.engine.check()
        for action in self.actions:
            self._note(action)
        return self.actions

    def _note(self, action: Action) -> None:
        if isinstance(action, AskLease):
            if action.spec.id not in self.asked:
                self.asked.append(action.spec.id)
        elif isinstance(action, DropAsk):
            self.asked.remove(action.job)
        elif isinstance(action, PassAsk):
            self.asked[self.asked.index(action.job)] = action.heir.spec.id
        elif isinstance(action, Launch):
            self.launched.append((action.job, action.attempt))
        elif isinstance(action, SaveEnd):
            assert action.job not in self.ends, "ended twice"
            self.ends[action.job], self.texts[action.job] = action.reason, action.text
        elif isinstance(action, SaveState):
            self.saved[action.job] = action

    def said(self, kind: type[Kind]) -> list[Kind]:
        """Return the actions of one kind of the latest step."""
        return [action for action in self.actions if isinstance(action, kind)]

    # --- steps ---------------------------------------------------------------------------

    def submits(self, *jobs: int | JobSpec, is_held: bool = False, **changes: Any) -> list[Action]:
        """Submit jobs, given by their numbers or their specs, in one go."""
        ends = tuple(changes.pop("ends", {}).items())
        specs = tuple(a_spec(job, **changes) if isinstance(job, int) else job for job in jobs)
        return self.tell(Submitted(self.at, specs, ends, is_held))

    def submits_array(
        self, first: int, last: int, is_held: bool = False, **changes: Any
    ) -> list[Action]:
        """Submit an array as one record."""
        ends = tuple(changes.pop("ends", {}).items())
        array = KeptArray(a_spec(first, **changes), ((first, last),), is_held)
        return self.tell(ArraySubmitted(self.at, array, ends))

    def names(self, *jobs: int) -> list[Action]:
        """A request is about jobs."""
        return self.tell(MembersNamed(self.at, jobs))

    def grants(self, job: int, lease: str = "", **changes: Any) -> list[Action]:
        """The negotiator grants what it was asked."""
        if job in self.asked:
            self.asked.remove(job)
        values = {"visible": "0", "gpus": (0,), "reserved_bytes": 1 << 30} | changes
        return self.tell(LeaseGranted(self.at, job, lease or f"lease-{job}", **values))

    def refuses(self, job: int, text: str = "it is too large") -> list[Action]:
        self.asked = [one for one in self.asked if one != job]
        return self.tell(LeaseRefused(self.at, job, text))

    def awaits(self, job: int, text: str) -> list[Action]:
        return self.tell(LeaseAwaited(self.at, job, text))

    def starts(self, job: int) -> list[Action]:
        return self.tell(AttemptStarted(self.at, job, self.attempt(job)))

    def runs(self, *jobs: int) -> None:
        """Bring jobs from the queue to their first instruction."""
        for job in jobs:
            self.grants(job)
            self.starts(job)

    def exits(
        self, job: int, exit: Exit = OK, settled: Settlement | None = SETTLED, after_s: float = 1.0
    ) -> list[Action]:
        """The attempt of a job is over."""
        return self.tell(Exited(self.at + after_s, job, self.attempt(job), exit, settled))

    def loses(self, job: int) -> list[Action]:
        """The shim of a job is killed."""
        return self.tell(ShimLost(self.at, job, self.attempt(job)))

    def cancels(self, *jobs: int, is_now: bool = False) -> list[Action]:
        return self.tell(CancelAsked(self.at, jobs, is_now))

    def continues(self) -> list[Action]:
        """The turn after one that has ended some members of cancelled arrays."""
        return self.tell(CancelContinued(self.at))

    def is_asked_to_yield(self, job: int, *, is_idle: bool = False) -> list[Action]:
        """The negotiator asks the lease of a job to give way."""
        return self.tell(YieldAsked(self.at, f"lease-{job}", is_idle))

    def is_idle(self, job: int, *, is_to_end: bool = False) -> list[Action]:
        """The negotiator says that a job holds its GPU and does not use it."""
        return self.tell(IdleReported(self.at, f"lease-{job}", 1800.0, 4096, is_to_end))

    def holds(self, *jobs: int) -> list[Action]:
        return self.tell(HoldAsked(self.at, jobs))

    def releases(self, *jobs: int) -> list[Action]:
        return self.tell(HoldAsked(self.at, jobs, is_held=False))

    def moves(self, *jobs: int, **where: Any) -> list[Action]:
        return self.tell(MoveAsked(self.at, jobs, **where))

    def reads_clock(self, clock: float) -> list[Action]:
        return self.tell(ClockRead(self.at, clock))

    def drains(self, is_drained: bool = True) -> list[Action]:
        return self.tell(DrainAsked(self.at, is_drained))

    def loses_negotiator(self) -> list[Action]:
        return self.tell(NegotiatorLost(self.at))

    def finds_negotiator(self) -> list[Action]:
        return self.tell(NegotiatorFound(self.at))

    # --- what is so ----------------------------------------------------------------------

    def attempt(self, job: int) -> int:
        return self.engine.jobs[job].attempt if job in self.engine.jobs else 1

    def state(self, job: int) -> JobState:
        """Return where a job is in its life."""
        return JobState.ENDED if job in self.ends else self.engine.jobs[job].state

    def why(self, job: int) -> str:
        return self.engine.jobs[job].why
