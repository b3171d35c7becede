"""Predict how long a run takes alone from its numeric arguments: epochs, batch size.

Fitted in logarithms, since durations differ by factors. Uses finished runs only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from grn.model.job import Argument, Outcome, Run
from grn.negotiator.learn.arguments import is_work, timing
from grn.negotiator.learn.least_squares import slopes

RUNS = 30  # the latest runs count
MAX_COLUMNS = 3  # numbers in one fit
_PULL = 0.1  # weight of the prior, in squares of a logarithm
PRIOR_SPREAD = 0.3  # of the logarithm of a duration, until runs show another,
_PRIOR_RUNS = 1.0  # and its weight in runs
_OWN = 0.5  # the weight, in runs, of the fit against runs with the same arguments


_Groups = dict[tuple[Argument, ...], list[float]]  # timing arguments -> logarithms of durations


class Times:
    """Predicted durations of one type."""

    __slots__ = ("_base", "_left", "_said", "_slopes", "spread")

    def __init__(self, runs: Sequence[Run], power: float) -> None:
        seen: _Groups = {}
        for run in _good(runs):
            telling = timing(run.arguments) if run.arguments else ()
            seen.setdefault(telling, []).append(_alone_log(run, power))
        self._said: dict[tuple[Argument, ...], float] = {}
        self._slopes = _slopes(seen)
        rests = {telling: _less(logs, self._on_line(telling)) for telling, logs in seen.items()}
        every = [rest for each in rests.values() for rest in each]
        self._base = median(every) if every else None  # robust against runs that ended at once
        self._left: _Groups = {}
        if len(rests) > 1:  # with one group there is nothing to fit beyond the median
            for telling, each in rests.items():
                left = _less(each, self._base or 0.0)
                for key in dict.fromkeys((telling, _words(telling))):
                    self._left.setdefault(key, []).extend(left)
        self.spread = self._spread(seen)

    def _spread(self, seen: _Groups) -> float:
        """Return the standard deviation of the logarithm of a duration around its prediction."""
        squares = 0.0
        for telling, logs in seen.items():
            predicted = math.log(self.alone_s(telling) or 1.0)
            squares += sum((log - predicted) ** 2 for log in logs)
        count = sum(map(len, seen.values()))
        return math.sqrt((_PRIOR_RUNS * PRIOR_SPREAD**2 + squares) / (_PRIOR_RUNS + count))

    def alone_s(self, arguments: tuple[Argument, ...]) -> float | None:
        """Return how long a run with these arguments takes alone, None when unknown."""
        if self._base is None:
            return None
        telling = timing(arguments)
        found = self._said.get(telling)
        if found is None:
            left = self._left.get(telling) or self._left.get(_words(telling)) or []
            own = median(left) * len(left) / (len(left) + _OWN) if left else 0.0
            found = self._said[telling] = math.exp(self._base + self._on_line(telling) + own)
        return found

    def _on_line(self, telling: Iterable[Argument]) -> float:
        values = dict(telling)
        return sum(
            slope * math.log(value)
            for name, slope in self._slopes.items()
            if (value := _number(values.get(name))) is not None
        )


def _good(runs: Sequence[Run]) -> list[Run]:
    """Return the latest successful runs, the latest first."""
    good: list[Run] = []
    for run in reversed(runs):
        if run.outcome is Outcome.OK and run.duration_s > 0:
            good.append(run)
            if len(good) == RUNS:
                break
    return good


def _alone_log(run: Run, power: float) -> float:
    alone = math.log(run.duration_s)
    return alone - power * run.crowd if run.crowd else alone


def _number(value: float | str | None) -> float | None:
    return None if value is None or isinstance(value, str) or value <= 0 else float(value)


def _words(telling: Iterable[Argument]) -> tuple[Argument, ...]:
    return tuple(one for one in telling if isinstance(one[1], str))


def _less(values: Sequence[float], by: float) -> list[float]:
    return [value - by for value in values]


def _slopes(seen: _Groups) -> dict[str, float]:
    """Return the slope of each number: the prior by its name until runs show another."""
    if not any(seen):
        return {}  # no runs, or none with arguments
    given = [dict(telling) for telling, logs in seen.items() for _ in logs]
    names = [
        name for name in given[0] if all(_number(values.get(name)) is not None for values in given)
    ]
    first = {name: 1.0 if is_work(name) else 0.0 for name in names}
    columns = {name: _away([math.log(float(values[name])) for values in given]) for name in names}
    varying = sorted(
        (name for name in names if any(columns[name])),
        key=lambda name: not is_work(name),
    )[:MAX_COLUMNS]
    ys = _away([log for logs in seen.values() for log in logs])
    for name in varying:
        ys = [y - first[name] * x for y, x in zip(ys, columns[name], strict=True)]
    more = slopes([columns[name] for name in varying], ys, _PULL) or []
    return first | {name: first[name] + each for name, each in zip(varying, more, strict=True)}


def _away(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean if abs(value - mean) > 1e-9 else 0.0 for value in values]
