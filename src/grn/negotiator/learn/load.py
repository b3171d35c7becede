"""The load of each job type, learned from the utilisation of whole GPUs.

A driver reports utilisation per GPU, not per process. A job alone shows its own load; beside
others it is assigned the rest. Nothing is granted or refused here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from msgspec.structs import replace

from grn.model.job import Argument, Outcome, Profile, Request, Run
from grn.negotiator.events import Lease, LeaseState
from grn.negotiator.learn.arguments import mattering
from grn.negotiator.learn.interference import Overlaps
from grn.negotiator.schedule.room.ledger import MIN_LOAD, Book

GUESS = 0.7  # of a type without runs
FULL = 0.95  # a GPU this busy does not show further demand
ENOUGH_S = 20.0  # of readings before a load counts
RUNS = 10  # the latest runs count
MAX_ALIKE = 100  # distinct sets of arguments of one type
_LONGEST_S = 60.0  # between two readings that belong together
_WATCHED = 0.8  # of its time, before a run shows how its neighbours slowed it
_MANY = 8  # jobs on one GPU: with more, slowdown cannot be attributed
_STEP = 0.005  # a smaller change of the load of a running job is ignored
_MIN_BESIDE = 0.2  # of its time, before a neighbour counts

Key = tuple[str, str]  # job type, GPU model


@dataclass(slots=True)
class Seen:
    """The load of one running job: what it showed alone, and what was inferred beside others."""

    alone_s: float = 0.0
    alone_sum: float = 0.0
    beside_s: float = 0.0
    beside_sum: float = 0.0
    crowd_sum: float = 0.0  # of ln U over time
    with_s: dict[str, float] = field(default_factory=dict)  # types beside it, and for how long

    @property
    def load(self) -> float | None:
        """Return the mean load, None while there are too few readings."""
        if self.alone_s >= ENOUGH_S:
            return self.alone_sum / self.alone_s
        if self.alone_s + self.beside_s >= ENOUGH_S:
            return (self.alone_sum + self.beside_sum) / (self.alone_s + self.beside_s)
        return None

    def add(self, load: float, passed_s: float, is_alone: bool) -> None:
        if is_alone:
            self.alone_s += passed_s
            self.alone_sum += load * passed_s
        else:
            self.beside_s += passed_s
            self.beside_sum += load * passed_s

    def put_on(self, run: Run, gpus: int) -> Run:
        """Return a run with the measured load and neighbours."""
        seen_s = self.alone_s + self.beside_s
        if gpus > 1 or seen_s < max(ENOUGH_S, _WATCHED * run.duration_s):
            return replace(run, load=self.load)
        shares = ((other, round(with_s / seen_s, 3)) for other, with_s in self.with_s.items())
        beside = tuple((other, share) for other, share in shares if share >= _MIN_BESIDE)
        return replace(run, load=self.load, crowd=self.crowd_sum / seen_s, beside=beside)


class Loads:
    """The estimated load of job types, and the measured load of running jobs."""

    def __init__(self) -> None:
        self._runs: dict[Key, list[float]] = {}
        self._alike: dict[Key, dict[tuple[Argument, ...], list[float]]] = {}
        self._seen: dict[str, Seen] = {}  # by lease
        self._read_at: dict[str, float] = {}  # by GPU
        self._believed: dict[Key, float] = {}  # by finished runs, else by a running one
        self._changed: set[str] = set()  # types whose estimates have changed
        self.overlaps = Overlaps()

    def load(self, profiles: Iterable[Profile]) -> None:
        """Load saved profiles."""
        known = list(profiles)
        for profile in known:
            for run in profile.runs:
                if run.load is not None:
                    self._believe((profile.job_type, profile.model), run.arguments, run.load)
        self.overlaps.load(known)

    def forget(self, job_type: str) -> None:
        """Forget a type on all models."""
        for key in [key for key in self._believed if key[0] == job_type]:
            del self._believed[key]
            self._changed.add(job_type)
            self._runs.pop(key, None)
            self._alike.pop(key, None)
        self.overlaps.forget(job_type)

    def of(self, job_type: str, model: str, arguments: tuple[Argument, ...] = ()) -> float | None:
        """Return the estimated load of a type, None when unknown.

        Runs with the same arguments are preferred, where there are any.
        """
        if arguments:
            alike = self._alike.get((job_type, model))
            loads = alike.get(mattering(arguments)) if alike else None
            if loads:
                return median(loads)
        return self._believed.get((job_type, model))

    def take_changed(self) -> set[str]:
        """Return the types whose estimates have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def of_lease(self, lease: Lease, model: str) -> float | None:
        """Return the estimated load of a running job."""
        return self.of(lease.request.job_type, model, lease.request.arguments)

    def crowd_of(self, lease_id: str) -> float:
        """Return the mean of ln U that a running job has had so far; 0 while unknown."""
        seen = self._seen.get(lease_id)
        seen_s = seen.alone_s + seen.beside_s if seen is not None else 0.0
        return seen.crowd_sum / seen_s if seen is not None and seen_s > 0 else 0.0

    def cap(self, model: str) -> float:
        """Return the load up to which jobs share a GPU of this model."""
        return self.overlaps.cap(model)

    def power(self, model: str) -> float:
        """Return how fast time grows with load on this model."""
        return self.overlaps.power(model)

    def slower_beside(self, job_type: str, model: str) -> Mapping[str, float] | None:
        """Return the slowdown beside each interfering type, None when there is none."""
        return self.overlaps.slower_beside(job_type, model)

    def look(self, book: Book, at: float) -> None:
        """Split the measured load of a GPU among the jobs on it."""
        uuid, shown = book.gpu.uuid, book.reading.load_pct
        passed_s = at - self._read_at.get(uuid, at)
        self._read_at[uuid] = at
        if shown is None or not 0 < passed_s <= _LONGEST_S or not book.is_read:
            return
        total, model = shown / 100, book.gpu.model
        held = [
            lease
            for lease in book.leases.values()
            if lease.state is LeaseState.HELD and lease.granted_at <= at
        ]
        if len(held) == 1:  # as on most GPUs: a shortcut
            seen_s = min(passed_s, at - held[0].granted_at)
            if seen_s > 0:
                self._note(held[0], model, min(1.0, max(MIN_LOAD, total)), seen_s, is_alone=True)
            return
        loads = [self.of_lease(lease, model) for lease in held]
        known, unknown = sum(load for load in loads if load is not None), loads.count(None)
        crowd = 0.0
        if total >= FULL:
            crowd = math.log(max(1.0, known + GUESS * unknown))
        for lease, load in zip(held, loads, strict=True):
            seen_s = min(passed_s, at - lease.granted_at)  # GPUs without leases are not sampled
            if seen_s <= 0:
                continue
            rest = total - known + (load or 0.0)
            rest /= unknown + (load is not None)
            if total >= FULL:
                rest = max(rest, load or GUESS)
            seen = self._note(lease, model, min(1.0, max(MIN_LOAD, rest)), seen_s, is_alone=False)
            seen.crowd_sum += crowd * seen_s
            if len(held) <= _MANY:
                _note_neighbours(seen, lease, held, seen_s)

    def _note(self, lease: Lease, model: str, load: float, seen_s: float, is_alone: bool) -> Seen:
        """Add a load to those of a running job; it is the estimate while no run has ended."""
        seen = self._seen.get(lease.id)
        if seen is None:
            seen = self._seen[lease.id] = Seen()
        seen.add(load, seen_s, is_alone)
        key = (lease.request.job_type, model)
        shown = None if key in self._runs else seen.load
        if shown is not None and abs(shown - self._believed.get(key, math.inf)) >= _STEP:
            self._believed[key] = shown
            self._changed.add(key[0])
        return seen

    def ended(self, request: Request, model: str, run: Run | None) -> Run | None:
        """Return an ended run with its measured load, and learn from it if it succeeded."""
        seen = self._seen.pop(request.lease, None)
        if seen is None or run is None:
            return run
        run = seen.put_on(run, request.gpus)
        if run.load is not None and run.outcome is Outcome.OK:
            self._believe((request.job_type, model), run.arguments, run.load)
        self.overlaps.learn(request.job_type, model, run)
        return run

    def _believe(self, key: Key, arguments: tuple[Argument, ...], load: float) -> None:
        self._changed.add(key[0])
        loads = self._runs.setdefault(key, [])
        loads.append(load)
        del loads[:-RUNS]
        self._believed[key] = median(loads)
        if arguments:
            alike = self._alike.setdefault(key, {})
            if len(alike) >= MAX_ALIKE and mattering(arguments) not in alike:
                del alike[next(iter(alike))]
            same = alike.setdefault(mattering(arguments), [])
            same.append(load)
            del same[:-RUNS]


def _note_neighbours(seen: Seen, lease: Lease, held: Iterable[Lease], passed_s: float) -> None:
    for other in held:
        if other is not lease:
            job_type = other.request.job_type
            seen.with_s[job_type] = seen.with_s.get(job_type, 0.0) + passed_s
