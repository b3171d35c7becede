"""How much jobs slow each other on one GPU: by their load, and in pairs of types beyond it.

A run beside others takes longer than alone by U to some power, U being the summed load of its GPU.
The power tells how well a GPU model overlaps jobs, and up to which load sharing pays. Runs alike
are compared; the estimate of a pair shrinks towards zero while evidence is scarce or old, because
types that are kept apart could never show that they have changed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grn.model.job import Argument, Outcome, Profile, Run
from grn.negotiator.learn.arguments import timing

START_CAP = 1.8  # chosen by replay, as are the next: docs/decisions/0024
MIN_CAP, MAX_CAP = 0.8, 3.0
MIN_GAIN = 0.05  # required gain in throughput, as a share of one job's speed alone
START_POWER = 1.0  # as if jobs took turns
MAX_GROUPS = 2000  # of runs alike, on one model
MAX_REMEMBERED = 5000  # runs that a new negotiator replays
MAX_PAIRS = 400
_FIRST_WEIGHT = 0.3  # weight of the prior, in squares of ln U
_SWEEPS = 2
_CAP_STEP = 0.1  # a cap moves by more than this, so that noise does not move it
_SAME_LENGTH = math.log(4)  # neighbours slow no job more than that: it is other work
_MAX_LENGTHS = 4  # distinct lengths of runs with the same arguments
_LAST = 10  # runs that count, of those alike and of those of a pair
_NOISE = 0.15**2  # of ln of time between runs alike
_SPREAD = 0.3**2  # of ln of what pairs add, before any was seen
_PRIOR = _NOISE / _SPREAD
_OUTLIER = 0.6  # in ln of time: residuals are clipped to this
_HALF = 20  # newer runs like it after which a run counts half for its pairs
_SURE = 0.1  # the least slowdown of a pair, less its standard error, that counts

PairKey = tuple[str, str, str]  # GPU model, and two types in order
# Type, arguments, and which of several lengths: runs that take equally long alone.
_Like = tuple[str, tuple[Argument, ...], int]


@dataclass(slots=True)
class Pair:
    """The slowdown of two types beside each other beyond that of their load, as a logarithm."""

    more: float = 0.0
    weight: float = 0.0  # squares of the shares of time of the runs that tell, the fresher the more
    runs: deque[Shared] = field(default_factory=lambda: deque(maxlen=_LAST))

    @property
    def doubt(self) -> float:
        """Return the standard error of the estimate."""
        return math.sqrt(_NOISE / (self.weight + _PRIOR))

    def settle(self, power: float) -> None:
        """Estimate again, given the other estimates for its runs."""
        total = self.weight = 0.0
        for run in self.runs:
            if len(run.alike.runs) > 1:  # a run unlike any other shows nothing
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
        """Return the weight of this run, from 1 down as newer runs like it arrive."""
        return float(0.5 ** ((self.alike.count - self.number) / _HALF))

    def added(self) -> float:
        """Return what its neighbours are estimated to have added to ln of its time."""
        added = 0.0
        for pair, share in self.pairs:
            added += pair.more * share
        return added

    def share_of(self, pair: Pair) -> float:
        """Return for which part of its time it was one of a pair."""
        return next(share for each, share in self.pairs if each is pair)

    def miss(self, power: float) -> float:
        """Return how much longer it took than predicted."""
        return _clipped(self.time - power * self.crowd - self.added() - self.alike.alone)


@dataclass(slots=True)
class Alike:
    """Runs of one type with the same arguments, and ln of the time they would take alone.

    Also their sums for fitting the power: squares of their ln of load, and its products with
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
        """Recompute all factors from the current estimates."""
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
        """Return the slowdown beside each interfering type, None when there is none."""
        return self._beside.get((model, job_type))

    def pair(self, model: str, one: str, other: str) -> Pair:
        """Return a pair; the least recently used is forgotten first."""
        key = _key(model, one, other)
        pair = self._pairs.pop(key, None) or Pair()
        self._pairs[key] = pair
        if len(self._pairs) > MAX_PAIRS:
            self._drop(next(iter(self._pairs)))
        return pair

    def judge(self, model: str, one: str, other: str) -> None:
        """Record the mutual slowdown of two types, for the next decision."""
        more = self._pairs[_key(model, one, other)].more
        if more < _SURE:
            self._clear(model, one, other)
            return
        for a, b in {(one, other), (other, one)}:
            self._beside.setdefault((model, a), {})[b] = math.exp(more)

    def fade(self, job_type: str, model: str, power: float) -> None:
        """Estimate again the pairs of a type: another run of it has ended."""
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


# --- GPU models ---------------------------------------------------------------------------


def slowdown(load: float, power: float) -> float:
    """Return how many times as long jobs take on a GPU with this summed load."""
    return 1.0 if load <= 1.0 else float(load**power)


def is_worth(load: float, more: float, slower: Sequence[float], power: float) -> bool:
    """True when one more job raises the throughput of a GPU.

    `load` is what is there, `more` the newcomer's; `slower` tells for each job that is there how
    many times as long it and the newcomer take beside each other.
    """
    before = len(slower) / slowdown(load, power)
    speeds = sum(1 / each for each in slower) + 1 / math.prod(slower)
    return speeds / slowdown(load + more, power) >= before + MIN_GAIN


def cap_of(power: float) -> float:
    """Return the load up to which jobs share a GPU: higher where a GPU overlaps jobs well."""
    return min(MAX_CAP, max(MIN_CAP, START_CAP / max(power, 0.1)))


class Model:
    """One GPU model: groups of runs alike, and the power fitted to them."""

    def __init__(self) -> None:
        self.cap = START_CAP
        self._squares = _FIRST_WEIGHT
        self._products = _FIRST_WEIGHT * START_POWER
        self._alike: dict[_Like, Alike] = {}
        self._round: deque[_Like] = deque()

    @property
    def power(self) -> float:
        """Return how fast time grows with load: 0 not at all, 1 as if jobs took turns."""
        return min(2.0, max(0.0, self._products / self._squares))

    def alike(self, like: _Like) -> Alike:
        """Return the runs like one; of too many groups the oldest is forgotten."""
        alike = self._alike.get(like)
        if alike is None:
            if len(self._alike) >= MAX_GROUPS:
                self._drop(self._round.popleft())
            alike = self._alike[like] = Alike()
            self._round.append(like)
        return alike

    def length_of(self, job_type: str, given: tuple[Argument, ...], time: float) -> int:
        """Return which length a run has, by ln of its time without the load around it.

        Runs may differ for reasons that no argument shows: a smoke test and a long run of the same
        command are not compared, or the difference would be attributed to neighbours.
        """
        known = self._lengths(job_type, given)
        near = [abs(alike.alone - time) for alike in known]
        if near and (min(near) <= _SAME_LENGTH or len(near) >= _MAX_LENGTHS):
            return near.index(min(near))
        return len(near)

    def _lengths(self, job_type: str, given: tuple[Argument, ...]) -> list[Alike]:
        likes = ((job_type, given, length) for length in range(_MAX_LENGTHS))
        return [self._alike[like] for like in likes if like in self._alike]

    def learn(self, run: Shared) -> None:
        """Add a run, and refit an older group: estimates have moved since."""
        run.alike.add(run)
        for pair, _ in run.pairs:
            pair.runs.append(run)
        for _ in range(_SWEEPS if run.pairs else 1):
            self._settle(run)
        self._round.rotate(-1)
        older = self._alike[self._round[0]]
        self._settle(older.runs[-1])
        cap = cap_of(self.power)
        if abs(cap - self.cap) > _CAP_STEP:
            self.cap = round(cap, 1)

    def forget(self, job_type: str) -> None:
        """Forget the runs of a type."""
        for like in [like for like in self._alike if like[0] == job_type]:
            self._round.remove(like)
            self._drop(like)

    def _settle(self, run: Shared) -> None:
        alike, power = run.alike, self.power
        self._squares -= alike.squares
        self._products -= alike.products
        alike.settle(power)
        self._squares += alike.squares
        self._products += alike.products
        for pair, _ in run.pairs:
            pair.settle(power)

    def _drop(self, like: _Like) -> None:
        alike = self._alike.pop(like)
        alike.runs.clear()  # break the cycle, so that the garbage collector need not
        self._squares -= alike.squares
        self._products -= alike.products


class Overlaps:
    """The interference estimates of all GPU models and of pairs of types."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.pairs = Pairs()

    def load(self, profiles: Iterable[Profile]) -> None:
        """Replay the latest remembered runs, in their order."""
        runs = [
            (run.ended_at, profile.job_type, profile.model, run)
            for profile in profiles
            for run in profile.runs
            if run.crowd is not None
        ]
        runs.sort(key=lambda one: one[0])
        for _, job_type, model, run in runs[-MAX_REMEMBERED:]:
            self.learn(job_type, model, run)

    def cap(self, model: str) -> float:
        """Return the load up to which jobs share a GPU of this model."""
        known = self.models.get(model)
        return START_CAP if known is None else known.cap

    def power(self, model: str) -> float:
        """Return how fast time grows with load on this model."""
        known = self.models.get(model)
        return START_POWER if known is None else known.power

    def because(self, model: str) -> str:
        """Explain the load cap of a model."""
        if self.cap(model) == START_CAP:
            return "until runs beside others show something else"
        return "as runs beside others have shown"

    def slower_beside(self, job_type: str, model: str) -> Mapping[str, float] | None:
        """Return the slowdown beside each interfering type, None when there is none."""
        return self.pairs.slower_beside(job_type, model)

    def forget(self, job_type: str) -> None:
        """Forget all runs of a type."""
        self.pairs.forget(job_type)
        for model in self.models.values():
            model.forget(job_type)

    def learn(self, job_type: str, model: str, run: Run) -> None:
        """Learn from one run that ended well and was watched for all its time."""
        if run.crowd is None or run.outcome is not Outcome.OK or run.duration_s <= 0:
            return
        known = self.models.setdefault(model, Model())
        time, given = math.log(run.duration_s), timing(run.arguments)
        length = known.length_of(job_type, given, time - known.power * run.crowd)
        alike = known.alike((job_type, given, length))
        pairs = [(self.pairs.pair(model, job_type, other), share) for other, share in run.beside]
        known.learn(Shared(time, run.crowd, pairs, alike))
        for other, _ in run.beside:
            self.pairs.judge(model, job_type, other)
        self.pairs.fade(job_type, model, known.power)
