"""Slowdown of pairs of job types on one GPU beyond what their loads explain.

Compares runs that are alike. Each estimate shrinks towards zero while evidence is scarce or old,
because types that are kept apart could never show that they have changed. Grants nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MAX_PAIRS = 400
_LAST = 10  # runs that count, of those alike and of those of a pair
_NOISE = 0.15**2  # of ln of time between runs alike
_SPREAD = 0.3**2  # of ln of what pairs add, before any was seen
_PRIOR = _NOISE / _SPREAD
_OUTLIER = 0.6  # in ln of time: further off says nothing more
_HALF = 20  # newer runs like it after which a run tells half as much of its pairs
_SURE = 0.1  # a pair slows at least by this, less its doubt, before that counts

PairKey = tuple[str, str, str]  # GPU model, and two types in order


@dataclass(slots=True)
class Pair:
    """What two types take longer beside each other than their load tells, as a logarithm."""

    more: float = 0.0
    weight: float = 0.0  # squares of the shares of time of the runs that tell, the fresher the more
    runs: deque[Shared] = field(default_factory=lambda: deque(maxlen=_LAST))

    @property
    def doubt(self) -> float:
        """Return how far off that may be."""
        return math.sqrt(_NOISE / (self.weight + _PRIOR))

    def settle(self, power: float) -> None:
        """Work it out anew, given all else that is believed of its runs."""
        total = self.weight = 0.0
        for run in self.runs:
            if len(run.alike.runs) > 1:  # a run unlike any other tells nothing
                share, fresh = run.share_of(self), run.freshness()
                total += fresh * share * (run.miss(power) + share * self.more)
                self.weight += fresh * share * share
        self.more = max(0.0, total / (self.weight + _PRIOR) - self.doubt)


@dataclass(slots=True)
class Shared:
    """One run: ln of its time, the mean ln of the load around it, and its neighbours by share."""

    time: float
    crowd: float
    pairs: list[tuple[Pair, float]]
    alike: Alike
    number: int = 0  # of the runs like it

    def freshness(self) -> float:
        """Return how much it still tells, from 1 down: runs like it have come since."""
        return float(0.5 ** ((self.alike.count - self.number) / _HALF))

    def added(self) -> float:
        """Return what its neighbours are believed to have added to ln of its time."""
        added = 0.0
        for pair, share in self.pairs:
            added += pair.more * share
        return added

    def share_of(self, pair: Pair) -> float:
        """Return for which part of its time it was one of a pair."""
        return next(share for each, share in self.pairs if each is pair)

    def miss(self, power: float) -> float:
        """Return how much longer it took than believed."""
        return _clipped(self.time - power * self.crowd - self.added() - self.alike.alone)


@dataclass(slots=True)
class Alike:
    """Runs of one type with the same arguments, and ln of the time they would take alone.

    Also what they tell of the power: sums of squares of their ln of load, and of its products with
    ln of their time, each against their mean.
    """

    alone: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    runs: deque[Shared] = field(default_factory=lambda: deque(maxlen=_LAST))
    count: int = 0  # of all there ever were

    def add(self, run: Shared) -> None:
        """Take in one more."""
        self.count += 1
        run.number = self.count
        self.runs.append(run)

    def settle(self, power: float) -> None:
        """Work all that out anew from what is believed now."""
        rests = [run.time - power * run.crowd - run.added() for run in self.runs]
        crowd = sum(run.crowd for run in self.runs) / len(rests)
        self.alone = sum(rests) / len(rests)
        self.squares = self.products = 0.0
        for run, rest in zip(self.runs, rests, strict=True):
            more = run.crowd - crowd
            self.squares += more * more
            self.products += more * (power * more + _clipped(rest - self.alone))


class Pairs:
    """All pairs of types that shared a GPU lately, on all models."""

    def __init__(self) -> None:
        self._pairs: dict[PairKey, Pair] = {}
        self._beside: dict[tuple[str, str], dict[str, float]] = {}  # by model and type

    def __iter__(self) -> Iterator[PairKey]:
        return iter(self._pairs)

    def slower_beside(self, job_type: str, model: str) -> Mapping[str, float] | None:
        """Return how many times as long jobs take beside which types, None: beside none."""
        return self._beside.get((model, job_type))

    def pair(self, model: str, one: str, other: str) -> Pair:
        """Return a pair; the last used are the last forgotten."""
        key = _key(model, one, other)
        pair = self._pairs.pop(key, None) or Pair()
        self._pairs[key] = pair
        if len(self._pairs) > MAX_PAIRS:
            self._drop(next(iter(self._pairs)))
        return pair

    def judge(self, model: str, one: str, other: str) -> None:
        """Write down what two types do to each other, for the next decision."""
        more = self._pairs[_key(model, one, other)].more
        if more < _SURE:
            self._clear(model, one, other)
            return
        for a, b in {(one, other), (other, one)}:
            self._beside.setdefault((model, a), {})[b] = math.exp(more)

    def fade(self, job_type: str, model: str, power: float) -> None:
        """Look again at what a type is believed to clash with: one more run of it has ended."""
        for other in tuple(self._beside.get((model, job_type), ())):
            self._pairs[_key(model, job_type, other)].settle(power)
            self.judge(model, job_type, other)

    def forget(self, job_type: str) -> None:
        """Forget all pairs of a type."""
        for key in [key for key in self._pairs if job_type in key[1:]]:
            self._drop(key)

    def _drop(self, key: PairKey) -> None:
        self._pairs.pop(key).runs.clear()  # they point back at it
        self._clear(*key)

    def _clear(self, model: str, one: str, other: str) -> None:
        for a, b in {(one, other), (other, one)}:
            beside = self._beside.get((model, a), {})
            beside.pop(b, None)
            if not beside:
                self._beside.pop((model, a), None)


def _key(model: str, one: str, other: str) -> PairKey:
    return (model, one, other) if one <= other else (model, other, one)


def _clipped(miss: float) -> float:
    return min(_OUTLIER, max(-_OUTLIER, miss))
