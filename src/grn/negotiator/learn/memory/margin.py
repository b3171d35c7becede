"""The safety margin of estimates, learned from the runs of all job types together.

Two numbers: how much peaks of one type differ, and how often running out of memory is accepted.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

MIN_HEADROOM = 0.05
FIRST_SPREAD, MIN_SPREAD, MAX_SPREAD = 0.15, 0.03, 0.6
FIRST_CHANCE, MIN_CHANCE, MAX_CHANCE = 0.02, 0.005, 0.1
ENOUGH_RUNS = 5  # of a type, to compute the spread of its peaks
LAST_RUNS = 20  # the latest runs, for the same
_SPARE = 0.1  # added to the span: the largest may not have occurred yet
_ENOUGH_TYPES = 3  # before their spans count for others
_IMAGINED = 2  # imagined types with the prior spread, so that one type does not set the rule
_AIMED_AT = 0.005  # the share of runs that may run out of memory
_STEP = 0.3  # how much one such run changes the logarithm of the chance
_AFTER_SHORT, _AFTER_GOOD = (math.exp(-_STEP * (short - _AIMED_AT)) for short in (1, 0))
_WORTH_SAVING = 0.02  # of that logarithm: a restart forgets no more than a dozen good runs
_ALIKE = 1.1  # largest over smallest peak: below it arguments are not worth a thought
_MOVED = 1.1  # a smaller change does not renew estimates


class Margin(Struct, frozen=True):
    """The headroom above the largest peak, beside the spread of the type's own runs."""

    spread: float = FIRST_SPREAD  # standard deviation of the logarithms of a type's peaks
    chance: float = FIRST_CHANCE  # of a need above the estimate
    span: float = 0.0  # logarithm of largest over smallest peak of the middle type,
    max_span: float = math.inf  # and of the type where it is largest

    def headroom(self, logs: Sequence[float]) -> float:
        """Return the share to add to the largest peak, given the logarithms of all.

        It falls with the square of their number: the next peak lies above the largest of `count`
        once in `count + 1`, and then mostly finds free memory. While there are few, the peaks of a
        type are believed to lie as far apart as those of the middle type.
        """
        count, own_span = len(logs), max(logs) - min(logs)
        over = self._quantile() * self.spread / count**2
        if count < ENOUGH_RUNS:
            over = max(over, self.span - own_span)
        return _share(min(over, self.max_span + _SPARE - own_span))

    def for_spread(self, spread: float, count: int) -> float:
        """Return the share to add to the largest of `count` peaks with this spread."""
        return _share(self._quantile() * spread * min(1.0, 1 / (5 * self.chance * count)))

    def _quantile(self) -> float:
        return NormalDist().inv_cdf(1 - self.chance)

    @property
    def are_arguments_vain(self) -> bool:
        """True when runs with the same arguments differ: these tell little of a type's memory."""
        return self.spread > FIRST_SPREAD

    def is_near(self, other: Margin) -> bool:
        """True when another margin leads to nearly the same estimates."""
        pairs = (
            (math.log(self.spread), math.log(other.spread)),
            (math.log(self.chance), math.log(other.chance)),
            (self.span, other.span),
            (self.max_span, other.max_span),
        )
        return all(mine == its or abs(mine - its) < math.log(_MOVED) for mine, its in pairs)

    def sentences(self, runs: int) -> list[str]:
        """Explain the headroom after a number of runs, for people."""
        if not runs:
            return []
        alike = self.headroom([0.0] * runs)
        after = "one run" if runs == 1 else f"{runs} equal runs"
        return [
            f"headroom after {after} is {alike:.0%}: peaks of one type usually differ by "
            f"{self.spread:.0%}, and an estimate holds for {1 - self.chance:.1%} of runs; "
            "others mostly find free memory beyond it"
        ]


FIRST_MARGIN = Margin()


class _Ranked:
    """One number of each type, in order."""

    def __init__(self, imagined: Sequence[float] = ()) -> None:
        self.ranked = list(imagined)
        self._of: dict[Hashable, float] = {}

    def put(self, key: Hashable, number: float | None) -> None:
        """Replace the number of a type, None when it has none."""
        before = self._of.pop(key, None)
        if before is not None:
            del self.ranked[bisect_left(self.ranked, before)]
        if number is not None:
            self._of[key] = number
            insort(self.ranked, number)

    @property
    def middle(self) -> float:
        return self.ranked[len(self.ranked) // 2]


class Experience:
    """Keeps the margin up to date, run by run."""

    def __init__(self) -> None:
        self.margin = FIRST_MARGIN
        self._saved_chance = FIRST_CHANCE
        self._spreads = _Ranked([FIRST_SPREAD] * _IMAGINED)
        self._spans = _Ranked()  # of types with two runs or more,
        self._full_spans = _Ranked()  # and of those with enough

    def resume(self, chance: float) -> None:
        """Continue with a saved chance."""
        self._saved_chance = _clip(chance, MIN_CHANCE, MAX_CHANCE)
        self.margin = replace(self.margin, chance=self._saved_chance)

    def chance_to_save(self) -> float | None:
        """Return the chance if it has changed enough to be saved."""
        chance = self.margin.chance
        if abs(math.log(chance / self._saved_chance)) < _WORTH_SAVING:
            return None
        self._saved_chance = chance
        return chance

    def shown(self, key: Hashable, spread: float | None, span: float = 0.0, runs: int = 0) -> None:
        """Note how much the peaks of a type differ; it has no spread and no runs once forgotten."""
        self._spreads.put(key, spread)
        self._spans.put(key, span if runs > 1 else None)
        self._full_spans.put(key, span if runs >= ENOUGH_RUNS else None)
        are_many = len(self._spans.ranked) >= _ENOUGH_TYPES
        are_full = len(self._full_spans.ranked) >= _ENOUGH_TYPES
        self.margin = replace(
            self.margin,
            spread=_clip(self._spreads.middle, MIN_SPREAD, MAX_SPREAD),
            span=self._spans.middle if are_many else 0.0,
            max_span=self._full_spans.ranked[-1] if are_full else math.inf,
        )

    def ended(self, is_short: bool) -> None:
        """Note the end of a run under an estimate: one that was too small widens all others.

        One such run in two hundred, the target rate, leaves the margin unchanged in the long run.
        """
        before = self.margin
        step = _AFTER_SHORT if is_short else _AFTER_GOOD
        chance = _clip(before.chance * step, MIN_CHANCE, MAX_CHANCE)
        if chance != before.chance:
            self.margin = replace(before, chance=chance)


def spread_within(groups: Sequence[Sequence[float]]) -> float | None:
    """Return the spread of logarithms of peaks within groups, None when there are too few."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < ENOUGH_RUNS - 1:
        return None
    squares = 0.0
    for group in groups:
        squares += math.dist(group, [sum(group) / len(group)] * len(group)) ** 2
    return math.sqrt(squares / freedom)


def are_spread(peaks: Sequence[int]) -> bool:
    """True when peaks differ by more than chance."""
    return max(peaks) > _ALIKE * max(1, min(peaks))


def _share(over: float) -> float:
    return max(MIN_HEADROOM, math.exp(over) - 1)


def _clip(value: float, least: float, most: float) -> float:
    return min(most, max(least, value))
