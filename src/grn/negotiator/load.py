"""How busy a job keeps a GPU, learned from the load of whole GPUs.

A driver tells how much of its time a GPU works, not for whom. A job alone shows its own load;
beside others it has what theirs leave. Nothing is granted or refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from grn.model.profile import Profile
from grn.negotiator.events import LeaseState
from grn.negotiator.ledger import LEAST_LOAD, Book

GUESS = 0.7  # of a job nobody has seen
FULL = 0.95  # a GPU this busy does not show what more would be asked of it
ENOUGH_S = 20.0  # of readings before a load is believed
RUNS = 10  # the last that count
_LONGEST_S = 30.0  # between two readings that belong together

Key = tuple[str, str]  # job type, GPU model


@dataclass(slots=True)
class Seen:
    """The load of one running job: what it showed alone, and what was inferred beside others."""

    alone_s: float = 0.0
    alone_sum: float = 0.0
    beside_s: float = 0.0
    beside_sum: float = 0.0

    @property
    def load(self) -> float | None:
        """Return its mean, None while too little was seen."""
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


class Loads:
    """What is believed of the load of job types, and what running jobs show."""

    def __init__(self) -> None:
        self._runs: dict[Key, list[float]] = {}
        self._seen: dict[str, Seen] = {}  # by lease
        self._read_at: dict[str, float] = {}  # by GPU
        self._believed: dict[Key, float] = {}  # by finished runs, else by one that is still going

    def load(self, profiles: Iterable[Profile]) -> None:
        """Take in what was saved."""
        for profile in profiles:
            loads = [run.load for run in profile.runs if run.load is not None]
            if loads:
                self._believe((profile.job_type, profile.model), loads)

    def forget(self, job_type: str) -> None:
        """Forget a type on all models."""
        for key in [key for key in self._believed if key[0] == job_type]:
            del self._believed[key]
            self._runs.pop(key, None)

    def of(self, job_type: str, model: str) -> float | None:
        """Return the believed load of a type, None when nobody knows."""
        return self._believed.get((job_type, model))

    def look(self, book: Book, at: float) -> None:
        """Share the load that a GPU shows among the jobs on it."""
        uuid, shown = book.gpu.uuid, book.reading.load_pct
        passed_s = at - self._read_at.get(uuid, at)
        self._read_at[uuid] = at
        if shown is None or not 0 < passed_s <= _LONGEST_S or not book.is_usable:
            return
        total = shown / 100
        held = [lease for lease in book.leases.values() if lease.state is LeaseState.HELD]
        keys = {lease.id: (lease.request.job_type, book.gpu.model) for lease in held}
        for lease in held:
            others = [self.of(*keys[other.id]) for other in held if other is not lease]
            rest = total - sum(load for load in others if load is not None)
            rest /= 1 + sum(load is None for load in others)
            if others and total >= FULL:
                rest = max(rest, self.of(*keys[lease.id]) or GUESS)
            seen = self._seen.setdefault(lease.id, Seen())
            seen.add(min(1.0, max(LEAST_LOAD, rest)), passed_s, not others)
            if seen.load is not None and keys[lease.id] not in self._runs:
                self._believed[keys[lease.id]] = seen.load

    def ended(self, lease_id: str, key: Key, is_good: bool) -> float | None:
        """Return what a run that has ended showed, and believe it when it ended well."""
        seen = self._seen.pop(lease_id, None)
        shown = seen.load if seen else None
        if shown is not None and is_good:
            self._believe(key, [*self._runs.get(key, ()), shown])
        return shown

    def _believe(self, key: Key, loads: list[float]) -> None:
        self._runs[key] = loads[-RUNS:]
        self._believed[key] = median(self._runs[key])
