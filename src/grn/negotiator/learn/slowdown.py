"""How well GPU models do several jobs at once, learned from how long runs took beside others.

A run beside others takes longer than alone by U to some power, U being the summed loads on its GPU:
the power tells how well a model overlaps, and up to which load sharing pays.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from grn.model.job import Argument, Outcome
from grn.model.profile import Profile, Run
from grn.negotiator.learn.interference import Alike, Pairs, Shared

START_CAP = 1.8  # chosen by replay, as are the next: docs/decisions/0024
MIN_CAP, MAX_CAP = 0.8, 3.0
MIN_GAIN = 0.05  # of the speed of one job alone, by which a GPU must get faster
START_POWER = 1.0  # as if jobs took turns
MAX_GROUPS = 2000  # of runs alike, on one model
MAX_REMEMBERED = 5000  # runs that a new negotiator learns from again
_WEIGHT = 0.3  # of the first belief, in squares of ln U
_SWEEPS = 2
_STEP = 0.1  # a cap moves by more than this, so that noise does not move it
_NOT_TIME = re.compile(
    r"(.*_)?(seeds?|lr|learning_rate|out|output|outdir|log|logs|logdir|name|dir|path|file|run|id"
    r"|fold|momentum|decay|weight_decay|dropout|verbose|gpus?|device|port|tag|note|comment)",
    re.IGNORECASE,
)

_SAME_LENGTH = math.log(4)  # neighbours slow nobody more than that: it is another work
_MAX_LENGTHS = 4  # of runs with the same arguments that are told apart

# Type, arguments, and which of several lengths: runs that take equally long alone.
_Like = tuple[str, tuple[Argument, ...], int]


def slowdown(load: float, power: float) -> float:
    """Return how many times as long jobs take on a GPU with this summed load."""
    return 1.0 if load <= 1.0 else float(load**power)


def is_worth(load: float, more: float, slower: Sequence[float], power: float) -> bool:
    """True when one more job lets a GPU get more done than without it.

    `load` is what is there, `more` the newcomer's; `slower` tells for each job that is there how
    many times as long it and the newcomer take beside each other.
    """
    before = len(slower) / slowdown(load, power)
    speeds = sum(1 / each for each in slower) + 1 / math.prod(slower)
    return speeds / slowdown(load + more, power) >= before + MIN_GAIN


def cap_of(power: float) -> float:
    """Return the load up to which jobs share a GPU: the better it overlaps, the more."""
    return min(MAX_CAP, max(MIN_CAP, START_CAP / max(power, 0.1)))


class Model:
    """One GPU model: groups of runs alike, and what they tell together."""

    def __init__(self) -> None:
        self.cap = START_CAP
        self._squares = _WEIGHT
        self._products = _WEIGHT * START_POWER
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

    def find(self, job_type: str, given: tuple[Argument, ...]) -> Alike | None:
        """Return the runs of a type with these arguments of the usual length, None: no run."""
        found = self._lengths(job_type, given)
        return max(found, key=lambda alike: alike.count, default=None)

    def length_of(self, job_type: str, given: tuple[Argument, ...], time: float) -> int:
        """Return which length a run has, by ln of its time without the load around it.

        What sets runs apart may be in no argument that was seen: a smoke test and a long run of
        the same command are not compared, or the difference would be blamed on neighbours.
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
        """Take in one more run, and look again at an older group: beliefs have moved since."""
        run.alike.add(run)
        for pair, _ in run.pairs:
            pair.runs.append(run)
        for _ in range(_SWEEPS if run.pairs else 1):
            self._settle(run)
        self._round.rotate(-1)
        older = self._alike[self._round[0]]
        self._settle(older.runs[-1])
        cap = cap_of(self.power)
        if abs(cap - self.cap) > _STEP:
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
        alike.runs.clear()  # they point back at it: nobody should have to find that out
        self._squares -= alike.squares
        self._products -= alike.products


class Overlaps:
    """What is believed of all GPU models and of pairs of types."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.pairs = Pairs()

    def load(self, profiles: Iterable[Profile]) -> None:
        """Learn again from remembered runs, the latest of all, in their order."""
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

    def alone_s(self, job_type: str, model: str, given: Iterable[Argument]) -> float | None:
        """Return how long runs with these arguments take alone, None when nobody knows."""
        known = self.models.get(model)
        alike = known.find(job_type, _telling(given)) if known is not None else None
        return None if alike is None else math.exp(alike.alone)

    def because(self, model: str) -> str:
        """Say where the cap of a model comes from."""
        if self.cap(model) == START_CAP:
            return "until runs beside others show something else"
        return "as runs beside others have shown"

    def slower_beside(self, job_type: str, model: str) -> Mapping[str, float] | None:
        """Return how many times as long jobs take beside which types, None: beside none."""
        return self.pairs.slower_beside(job_type, model)

    def forget(self, job_type: str) -> None:
        """Forget all that runs of a type have shown."""
        self.pairs.forget(job_type)
        for model in self.models.values():
            model.forget(job_type)

    def learn(self, job_type: str, model: str, run: Run) -> None:
        """Learn from one run that ended well and was watched for all its time."""
        if run.crowd is None or run.outcome is not Outcome.OK or run.duration_s <= 0:
            return
        known = self.models.setdefault(model, Model())
        time, given = math.log(run.duration_s), _telling(run.arguments)
        length = known.length_of(job_type, given, time - known.power * run.crowd)
        alike = known.alike((job_type, given, length))
        pairs = [(self.pairs.pair(model, job_type, other), share) for other, share in run.beside]
        known.learn(Shared(time, run.crowd, pairs, alike))
        for other, _ in run.beside:
            self.pairs.judge(model, job_type, other)
        self.pairs.fade(job_type, model, known.power)


def _telling(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Leave out arguments whose names say that time does not depend on them."""
    return tuple(one for one in arguments if not _NOT_TIME.fullmatch(one[0]))
