"""Memory by the arguments of a job: lines and groups fitted to finished runs.

`ByArguments` turns them into a need and a sentence for the next run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from grn.model.job import Argument, Profile, Run
from grn.model.units import show_size
from grn.negotiator.learn.argument_names import likely_matters, mattering
from grn.negotiator.learn.least_squares import fit, rank_correlation
from grn.negotiator.learn.margin import FIRST_MARGIN, MIN_SPREAD, Margin, are_spread
from grn.negotiator.learn.profiling import Peaks, counts_in_full, pad_bytes, show_runs

ENOUGH_RUNS = 4  # for a line
ENOUGH_FOR_TWO = 6  # for a line over two numbers
MAX_PAIRED = 3  # of the numbers are combined in pairs
FEW_RUNS = 6  # below this, runs with the same arguments are assumed to be alike
MIN_RANK = 0.8  # of the rank correlation of a number that matters
MIN_FIT = 0.5  # R² of a line, and the share of variance that groups must explain
MAX_MISS = 0.15  # relative error of nine in ten runs, each predicted by all others
HEADROOM = 0.05


@dataclass(frozen=True, slots=True)
class Beyond:
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


@dataclass(frozen=True, slots=True)
class FittedLine:
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


@dataclass(frozen=True, slots=True)
class Groups:
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
        for miss, peak in zip(found.foretold, peaks, strict=True)
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


# --- as a need, and in words ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByArguments:
    """Memory of a type's next run, predicted by its arguments."""

    line: FittedLine | None
    groups: Groups | None
    seen: tuple[dict[str, float | str], ...]
    has_failed: bool
    same: dict[tuple[Argument, ...], Peaks]  # runs by all arguments that may matter

    @staticmethod
    def of(profile: Profile) -> ByArguments:
        """Fit a whole profile."""
        full = [run for run in profile.runs if counts_in_full(run) and run.peak_bytes]
        seen = tuple(map(dict, dict.fromkeys(run.arguments for run in full)))
        has_failed = len(full) < len(profile.runs)
        fitted, grouped = line(full), groups(full)
        same: dict[tuple[Argument, ...], Peaks] = {}
        if grouped is not None or is_open(full):
            for run in full:
                same.setdefault(mattering(run.arguments), Peaks()).add(run)
        return ByArguments(fitted, grouped, seen, has_failed, same)

    def stays(self, run: Run, dropped: Run | None, peaks: Peaks) -> bool:
        """True when one more run, and one fewer, change no fit.

        While peaks are alike, arguments explain nothing and there is nothing to fit.
        """
        if self.line is not None or self.groups is not None or self.same:
            return False
        if not (counts_in_full(run) and run.peak_bytes and dict(run.arguments) in self.seen):
            return False
        if dropped is not None and not (
            counts_in_full(dropped) and dropped.arguments == run.arguments
        ):
            return False
        return not are_spread(peaks.sizes)

    def covers(self, run: Run) -> bool:
        """True when a run is close to its prediction: it changes the fits little."""
        if not counts_in_full(run) or self.beyond(run.arguments) is not None:
            return False
        said = self.bound(run.arguments, 0, FIRST_MARGIN)
        return said is not None and 0.8 * said[0] <= run.peak_bytes <= said[0]

    def bound(
        self, given: tuple[Argument, ...], capacity_bytes: int, margin: Margin
    ) -> tuple[int, str] | None:
        """Return a need and the reason, None when the arguments explain nothing."""
        values = dict(given)
        found = [self._on_line(values), self._in_group(values, margin), self._alike(given, margin)]
        least = min((one for one in found if one is not None), default=None)
        return None if least is None else (least[0] + pad_bytes(capacity_bytes), least[1])

    def beyond(self, given: tuple[Argument, ...]) -> Beyond | None:
        """Return the argument that exceeds all runs, None when there is none."""
        found = exceeds(given, self.seen)
        if found is None and self.line is not None and len(self.line.names) > 1:
            values = self.line.values(dict(given))  # each was seen, but not together
            found = None if values is None else self.line.beyond(values)
        return found

    def _on_line(self, given: dict[str, float | str]) -> tuple[int, str] | None:
        values = None if self.line is None else self.line.values(given)
        if self.line is None or values is None:
            return None
        at = ", ".join(f"{name}={_spelled(given[name])}" for name in self.line.names)
        text = f"{at} on a line through {show_runs(self.line.runs)}"
        return self.line.bound_bytes(values), text

    def _in_group(self, given: dict[str, float | str], margin: Margin) -> tuple[int, str] | None:
        groups, line = self.groups, self.line
        if groups is None or given.get(groups.name) not in groups.largest_bytes:
            return None
        if line is not None and len(line.names) > 1:
            return None  # one number is not enough where the line is over two
        value = given[groups.name]
        largest, count = groups.largest_bytes[value], groups.counts[value]
        headroom = margin.for_spread(max(groups.spread, MIN_SPREAD), count)
        text = f"{show_size(largest)} at most in {show_runs(count)} with {groups.name}="
        text += f"{_spelled(value)}, {headroom:.0%} headroom"
        return int(largest * (1 + headroom)), text

    def _alike(self, given: tuple[Argument, ...], margin: Margin) -> tuple[int, str] | None:
        same = self.same.get(mattering(given))
        if same is None:
            return None
        largest, headroom = max(same.sizes), margin.headroom(same.logs)
        text = f"{show_size(largest)} at most in {show_runs(len(same.sizes))} like it"
        return int(largest * (1 + headroom)), f"{text}, {headroom:.0%} headroom"

    def sentences(self) -> list[str]:
        """Describe the fits for people."""
        found = []
        if self.line is not None:
            found.append(_spelled_line(self.line))
        if self.groups is not None:
            largest = self.groups.largest_bytes.items()
            sizes = ", ".join(f"{_spelled(v)}: {show_size(size)}" for v, size in list(largest)[:8])
            found.append(f"memory depends on {self.groups.name} ({sizes})")
        if not found and self.same:
            found.append("runs differ, too few to tell why: those with the same arguments count")
        return found


def _spelled_line(line: FittedLine) -> str:
    parts = [
        f"{show_size(int(slope))} for each {' × '.join(term)} (seen from {least:g} to {most:g})"
        for term, slope, least, most in zip(
            line.terms, line.slopes_bytes, line.least, line.most, strict=True
        )
    ]
    fixed = show_size(max(0, int(line.base_bytes)))
    return f"memory lies on a line over {line.text}: {fixed} and {', '.join(parts)}"


def _spelled(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
