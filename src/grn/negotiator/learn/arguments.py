"""The arguments of a job: which may matter, by their names, and how memory follows them.

The names are one list; lines and groups fitted to finished runs show which of the remaining
arguments do matter. `estimate.py` turns them into a need for the next run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from statistics import fmean, median

from msgspec import Struct
from msgspec.structs import replace

from grn.model.job import Argument, Run
from grn.negotiator.learn.least_squares import fit, rank_correlation
from grn.negotiator.learn.memory.margin import are_spread

ENOUGH_RUNS = 4  # for a line
ENOUGH_FOR_TWO = 6  # for a line over two numbers
MAX_PAIRED = 3  # of the numbers are combined in pairs
FEW_RUNS = 6  # below this, runs with the same arguments are assumed to be alike
MIN_RANK = 0.8  # of the rank correlation of a number that matters
MIN_FIT = 0.5  # R² of a line, and the share of variance that groups must explain
MAX_MISS = 0.15  # relative error of nine in ten runs, each predicted by all others
HEADROOM = 0.05
_ENOUGH_WORDS = 3  # seen, to guess by how much a new one differs

_UNITS_OF_WORK = r"epochs?|steps?|iters?|iterations"
_TIME_ONLY = rf"{_UNITS_OF_WORK}|patience|debug|resume|workers"
_NEITHER = (
    r"seeds?|lr|learning_rate|out|output|outdir|log|logs|logdir|name|dir|path|file|run|id|fold"
    r"|momentum|decay|weight_decay|dropout|verbose|gpus?|device|port|tag|note|comment"
)
_LIKELY = re.compile(
    r"batch|(^|[_-])bs|size|width|height|dim|hidden|layer|depth|length|(^|_)len|seq|resol|token"
    r"|model|arch|channel|heads|img|image|samples|points|^b$|^n$",
    re.IGNORECASE,
)


def _names(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(.*_)?({pattern})", re.IGNORECASE)


_NOT_MEMORY, _NOT_TIME = _names(f"{_NEITHER}|{_TIME_ONLY}"), _names(_NEITHER)
_WORK = _names(_UNITS_OF_WORK)


@lru_cache(maxsize=2048)  # calls of one type repeat the same arguments
def mattering(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Drop arguments that memory does not depend on."""
    found = [one for one in arguments if not _NOT_MEMORY.fullmatch(one[0])]
    return tuple(sorted(found, key=lambda one: one[0]))


@lru_cache(maxsize=2048)
def timing(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Drop arguments that duration does not depend on."""
    found = [one for one in arguments if not _NOT_TIME.fullmatch(one[0])]
    return tuple(sorted(found, key=lambda one: one[0]))


@lru_cache(maxsize=2048)
def lasting(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Return the numbers that duration grows with, rounded to factors of 2."""
    return tuple(
        sorted(
            (name, float(round(math.log2(value))))
            for name, value in arguments
            if not isinstance(value, str) and value > 0 and is_work(name)
        )
    )


def is_work(name: str) -> bool:
    """True for a number that duration is proportional to: epochs, steps."""
    return _WORK.fullmatch(name) is not None


def likely_matters(name: str) -> bool:
    """True when memory probably depends on an argument."""
    return _LIKELY.search(name) is not None and not _NOT_MEMORY.fullmatch(name)


# --- how memory follows them ----------------------------------------------------------------


class Beyond(Struct, frozen=True):
    """An argument outside the range of all runs, and how many times as large it is."""

    name: str
    times: float  # infinity for a word


def exceeds(
    arguments: Iterable[Argument], seen: Sequence[Mapping[str, float | str]]
) -> Beyond | None:
    """Return an argument that is likely to matter and exceeds all runs, else None."""
    for name, value in arguments:
        if not likely_matters(name):
            continue
        before = [run[name] for run in seen if name in run]
        if not before:
            continue
        numbers = [past for past in before if not isinstance(past, str)]
        if isinstance(value, str) or not numbers:
            if value not in before:
                return Beyond(name, math.inf)
        elif value > max(numbers):
            return Beyond(name, value / max(numbers) if max(numbers) > 0 else math.inf)
    return None


def less_beyond(beyond: Beyond, runs: Sequence[Run]) -> Beyond:
    """Return how many times as much memory such a run may need, by the values seen before.

    Memory grows at most in proportion to a number, and less where larger values seen before took
    less than that; a word may need as much more as words seen before differ, if they are three.
    """
    logs: dict[float | str, list[float]] = {}
    for run in runs:
        value = dict(run.arguments).get(beyond.name)
        if value is not None and run.peak_bytes > 0:
            logs.setdefault(value, []).append(math.log(run.peak_bytes))
    numbers = sorted(value for value in logs if not isinstance(value, str) and value > 0)
    if math.isinf(beyond.times):
        if len(logs) < _ENOUGH_WORDS:
            return beyond
        middles = [median(each) for each in logs.values()]
        return replace(beyond, times=math.exp(max(middles) - min(middles)))
    if len(numbers) < 2 or min(len(logs[numbers[0]]), len(logs[numbers[-1]])) < 2:
        return beyond
    least, most = logs[numbers[0]], logs[numbers[-1]]
    freedom = len(least) + len(most) - 2
    squares = sum((each - fmean(some)) ** 2 for some in (least, most) for each in some)
    doubt = math.sqrt(squares / freedom * (1 / len(least) + 1 / len(most)))
    apart = math.log(numbers[-1] / numbers[0])
    power = min(1.0, max(0.0, (median(most) - median(least) + doubt) / apart))
    return replace(beyond, times=beyond.times**power)


class FittedLine(Struct, frozen=True):
    """Memory as a line over a number, over two, or over their product, within the seen range.

    Each term is a number or a product of two; it has a slope and the range in which it was seen.
    """

    terms: tuple[tuple[str, ...], ...]
    base_bytes: float
    slopes_bytes: tuple[float, ...]
    miss_bytes: float  # the largest distance of a run above the line
    least: tuple[float, ...]
    most: tuple[float, ...]
    runs: int

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its arguments."""
        return tuple(dict.fromkeys(name for term in self.terms for name in term))

    @property
    def text(self) -> str:
        """Name the terms for people."""
        return " and ".join(" × ".join(term) for term in self.terms)

    def values(self, given: Mapping[str, float | str]) -> list[float] | None:
        """Return each term for these arguments, None when one is missing or no number."""
        if any(isinstance(given.get(name, ""), str) for name in self.names):
            return None
        return [math.prod(float(given[name]) for name in term) for term in self.terms]

    def bound_bytes(self, values: Sequence[float]) -> int:
        """Return the upper bound for a run with these terms."""
        pairs = zip(self.slopes_bytes, values, self.least, strict=True)
        at = self.base_bytes + sum(slope * max(value, least) for slope, value, least in pairs)
        return int((at + self.miss_bytes) * (1 + HEADROOM))

    def beyond(self, values: Sequence[float]) -> Beyond | None:
        """Return the term that is larger than in any run, None when all were seen."""
        for term, value, most in zip(self.terms, values, self.most, strict=True):
            if value > most:
                return Beyond(" × ".join(term), value / most if most > 0 else math.inf)
        return None


class Groups(Struct, frozen=True):
    """Memory by the value of one argument."""

    name: str
    largest_bytes: Mapping[float | str, int]
    counts: Mapping[float | str, int]
    spread: float  # of the logarithms within the groups


def line(runs: Sequence[Run]) -> FittedLine | None:
    """Return the best line over one or two numbers, None when none is good enough."""
    if len(runs) < ENOUGH_RUNS or not _is_spread(runs):
        return None
    peaks = [float(run.peak_bytes) for run in runs]
    given = [dict(run.arguments) for run in runs]
    columns = {
        name: [float(values[name]) for values in given] for name in _shared(runs, (float, int))
    }
    found = [good for name in columns if (good := _line(((name,),), columns, peaks))]
    best = min(found, key=lambda one: one.miss_bytes, default=None)
    if len(runs) < ENOUGH_FOR_TWO or len(columns) < 2:
        return best
    for terms in _pairs(columns, peaks):
        two = _line(terms, columns, peaks)
        # More numbers always fit better: require a clear improvement.
        if two is not None and (best is None or two.miss_bytes < best.miss_bytes / 2):
            best = two
    return best


def _pairs(
    columns: Mapping[str, Sequence[float]], peaks: Sequence[float]
) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield the combinations of two numbers, of the few that memory correlates with most."""
    ranked = sorted(columns, key=lambda name: -rank_correlation(columns[name], peaks))
    for first, second in combinations(sorted(ranked[:MAX_PAIRED]), 2):
        yield ((first, second),)
        yield ((first,), (second,))


def _line(
    terms: tuple[tuple[str, ...], ...],
    columns: Mapping[str, Sequence[float]],
    peaks: Sequence[float],
) -> FittedLine | None:
    """Return the line over these terms if it passes the test."""
    seen = [
        [math.prod(values) for values in zip(*(columns[name] for name in term), strict=True)]
        for term in terms
    ]
    found = fit(seen, peaks)
    if found is None or min(found.slopes) <= 0 or found.explained <= MIN_FIT:
        return None
    on_line = [peak - left for peak, left in zip(peaks, found.residuals, strict=True)]
    if rank_correlation(on_line, peaks) < MIN_RANK:
        return None
    misses = sorted(
        abs(miss) / peak if peak else math.inf
        for miss, peak in zip(found.predicted, peaks, strict=True)
        if miss != math.inf  # without it there would be no line
    )
    if not misses or misses[math.ceil(0.9 * len(misses)) - 1] >= MAX_MISS:
        return None
    least, most = tuple(map(min, seen)), tuple(map(max, seen))
    worst = max(found.residuals)
    return FittedLine(terms, found.base, found.slopes, worst, least, most, len(peaks))


def groups(runs: Sequence[Run]) -> Groups | None:
    """Return the argument whose values explain most, None when none explains half."""
    if len(runs) < 3 or not _is_spread(runs):
        return None
    best, most = None, MIN_FIT
    for name in _shared(runs, (float, int, str)):
        explained, found = _grouped(name, runs)
        if explained > most:
            best, most = found, explained
    return best


def is_open(runs: Sequence[Run]) -> bool:
    """True when runs differ and are too few to show whether their arguments are the reason."""
    return 1 < len(runs) < FEW_RUNS and _is_spread(runs)


def _is_spread(runs: Sequence[Run]) -> bool:
    return are_spread([run.peak_bytes for run in runs])


def _shared(runs: Sequence[Run], kinds: tuple[type, ...]) -> list[str]:
    """Return the names that all runs have, with values of these kinds, not all the same."""
    names = [name for name, value in mattering(runs[0].arguments) if isinstance(value, kinds)]
    values = {name: [dict(run.arguments).get(name) for run in runs] for name in names}
    return [
        name
        for name in names
        if all(isinstance(value, kinds) for value in values[name]) and len(set(values[name])) > 1
    ]


def _grouped(name: str, runs: Sequence[Run]) -> tuple[float, Groups]:
    """Return how much of the variance the values explain beyond chance, and the groups."""
    by_value: dict[float | str, list[int]] = {}
    for run in runs:
        by_value.setdefault(dict(run.arguments)[name], []).append(run.peak_bytes)
    logs = {value: [math.log(max(1, p)) for p in peaks] for value, peaks in by_value.items()}
    within = sum(_squares(each) for each in logs.values())
    total = _squares([log for each in logs.values() for log in each])
    left = len(runs) - len(by_value)
    explained = 1 - (within / left) / (total / (len(runs) - 1)) if left else 0.0
    largest = {value: max(peaks) for value, peaks in by_value.items()}
    counts = {value: len(peaks) for value, peaks in by_value.items()}
    return explained, Groups(name, largest, counts, math.sqrt(within / left) if left else 0.0)


def _squares(logs: Sequence[float]) -> float:
    mean = sum(logs) / len(logs)
    return sum((log - mean) ** 2 for log in logs)
