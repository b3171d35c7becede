"""What the arguments of a job tell of its memory: which of them matter, and how.

A batch size does, a seed does not; runs show which. All arithmetic is on finished runs; what is
made of the answer is decided elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grn.model.job import Argument
from grn.model.profile import Run

ENOUGH_RUNS = 4  # for a line
FEW_RUNS = 6  # below this, runs with the same arguments are believed to be alike
LEAST_SPREAD = 1.1  # largest over smallest peak: below it arguments are not worth a thought
LEAST_RANK = 0.8  # of the rank correlation of a number that matters
LEAST_FIT = 0.5  # R² of a line, and the share of variance that groups must explain
MOST_MISS = 0.15  # of nine in ten runs, each foretold by all others
HEADROOM = 0.05

_NEVER_MATTERS = re.compile(
    r"(.*_)?(seeds?|lr|learning_rate|epochs?|steps?|iters?|iterations|out|output|outdir|log|logs"
    r"|logdir|name|dir|path|file|run|id|fold|momentum|decay|weight_decay|dropout|patience|verbose"
    r"|debug|resume|gpus?|device|port|workers|tag|note|comment)",
    re.IGNORECASE,
)
_LIKELY_MATTERS = re.compile(
    r"batch|(^|[_-])bs|size|width|height|dim|hidden|layer|depth|length|(^|_)len|seq|resol|token"
    r"|model|arch|channel|heads|img|image|samples|points|^b$|^n$",
    re.IGNORECASE,
)


def mattering(arguments: Iterable[Argument]) -> tuple[Argument, ...]:
    """Leave out arguments whose names say that memory does not depend on them."""
    found = [one for one in arguments if not _NEVER_MATTERS.fullmatch(one[0])]
    return tuple(sorted(found, key=lambda one: one[0]))


@dataclass(frozen=True, slots=True)
class Beyond:
    """An argument that no run has shown the like of, and how many times as large it is."""

    name: str
    times: float  # infinity for a word


def exceeds(
    arguments: Iterable[Argument], seen: Sequence[Mapping[str, float | str]]
) -> Beyond | None:
    """Return an argument that is likely to matter and goes beyond all runs, else None."""
    for name, value in arguments:
        if not _LIKELY_MATTERS.search(name) or _NEVER_MATTERS.fullmatch(name):
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


@dataclass(frozen=True, slots=True)
class Line:
    """Memory as a line over one number: good within what was seen."""

    name: str
    base_bytes: float
    slope_bytes: float
    miss_bytes: float  # how far the worst run lay above it
    least: float
    most: float
    runs: int

    def bound_bytes(self, value: float) -> int:
        """Return what a run with this value needs at most."""
        at = self.base_bytes + self.slope_bytes * max(value, self.least)
        return int((at + self.miss_bytes) * (1 + HEADROOM))


@dataclass(frozen=True, slots=True)
class Groups:
    """Memory by the value of one argument."""

    name: str
    largest_bytes: Mapping[float | str, int]
    counts: Mapping[float | str, int]
    spread: float  # of the logarithms within the groups


def line(runs: Sequence[Run]) -> Line | None:
    """Return the best line over one number, None when none is good enough."""
    if len(runs) < ENOUGH_RUNS or not _is_spread(runs):
        return None
    found = [fit for name in _shared(runs, (float, int)) if (fit := _line(name, runs))]
    return min(found, key=lambda fit: fit.miss_bytes, default=None)


def groups(runs: Sequence[Run]) -> Groups | None:
    """Return the argument whose values explain most, None when none explains half."""
    if len(runs) < 3 or not _is_spread(runs):
        return None
    best, most = None, LEAST_FIT
    for name in _shared(runs, (float, int, str)):
        explained, found = _grouped(name, runs)
        if explained > most:
            best, most = found, explained
    return best


def is_open(runs: Sequence[Run]) -> bool:
    """True when runs differ and are too few to tell whether their arguments are the reason."""
    return 1 < len(runs) < FEW_RUNS and _is_spread(runs)


def are_spread(peaks: Sequence[int]) -> bool:
    """True when peaks differ by more than chance."""
    return max(peaks) > LEAST_SPREAD * max(1, min(peaks))


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


def _line(name: str, runs: Sequence[Run]) -> Line | None:
    points = [(float(dict(run.arguments)[name]), float(run.peak_bytes)) for run in runs]
    if abs(_rank_correlation(points)) < LEAST_RANK:
        return None
    base, slope = _least_squares(points)
    residuals = [y - base - slope * x for x, y in points]
    mean = sum(y for _, y in points) / len(points)
    total = sum((y - mean) ** 2 for _, y in points)
    if slope <= 0 or 1 - sum(r * r for r in residuals) / total <= LEAST_FIT:
        return None
    misses = sorted(_misses(points))
    if misses[math.ceil(0.9 * len(misses)) - 1] >= MOST_MISS:
        return None
    xs = [x for x, _ in points]
    return Line(name, base, slope, max(residuals), min(xs), max(xs), len(points))


def _misses(points: Sequence[tuple[float, float]]) -> list[float]:
    """Foretell each run by all others and return how far off that is."""
    found = []
    for place, (x, y) in enumerate(points):
        others = [*points[:place], *points[place + 1 :]]
        if len({other for other, _ in others}) < 2:
            continue
        base, slope = _least_squares(others)
        found.append(abs(base + slope * x - y) / y)
    return found or [math.inf]


def _least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    across = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / across if across else 0.0
    return mean_y - slope * mean_x, slope


def _rank_correlation(points: Sequence[tuple[float, float]]) -> float:
    first, second = _ranks([x for x, _ in points]), _ranks([y for _, y in points])
    middle = (len(points) - 1) / 2
    over = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    under = sum((a - middle) ** 2 for a in first) * sum((b - middle) ** 2 for b in second)
    return over / math.sqrt(under) if under else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first: dict[float, int] = {}
    count: dict[float, int] = {}
    for place, value in enumerate(ordered):
        first.setdefault(value, place)
        count[value] = count.get(value, 0) + 1
    return [first[value] + (count[value] - 1) / 2 for value in values]


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
