"""The pictures of a sweep in numbers: axes, ticks, places and colours for page and PNG."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from grn.cli.output.sweep_text import column
from grn.model.units import show_time
from grn.sweep.manifest import About, RunState
from grn.sweep.results import Ranking, Table
from grn.sweep.values import is_number, number_or_text, spelled

LEVELS = 8  # of colour, from worst to best
MAX_DRAWN = 1500  # runs; more make a page slow and a picture black
MAX_DOTS = 15_000  # in all charts together
ALWAYS_DRAWN = 200  # of the best
MAX_TABLED = 25
MAX_AXES = 24
MAX_TICKS = 12
_LOG_FROM = 30.0  # a ratio of largest to smallest from which an axis is logarithmic
_MARGIN = 0.05  # of an axis, left free at both ends
_SPREAD = 0.045  # of an axis, to both sides
_GOLDEN = 0.618034  # multiples of it fall evenly between whole numbers


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float  # from 0 to 1
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter, or the metric, with the place of each drawn run on it."""

    name: str
    ticks: tuple[Tick, ...]
    places: tuple[float | None, ...]  # from 0 to 1, None for a run without a value
    is_log: bool = False
    is_grouped: bool = False  # words, each with a place of its own

    @property
    def title(self) -> str:
        return f"{self.name} (log)" if self.is_log else self.name

    @property
    def spread(self) -> tuple[float | None, ...]:
        """The places, moved a little where many runs have the same one, so that all are seen."""
        kinds = sorted({place for place in self.places if place is not None})
        if not kinds or len(self.places) < 2 * len(kinds):
            return self.places
        gaps = [later - earlier for earlier, later in itertools.pairwise(kinds)]
        room = min([_SPREAD, *(gap / 4 for gap in gaps)])
        return tuple(
            None
            if place is None
            else min(1.0, max(0.0, place + room * (2 * (number * _GOLDEN % 1.0) - 1)))
            for number, place in enumerate(self.places)
        )


@dataclass(frozen=True, slots=True)
class ChartData:
    """All that is drawn of a sweep."""

    about: About
    metric: str
    is_maximized: bool
    rows: tuple[dict[str, Any], ...]  # those drawn, worst first, so that the best lie on top
    levels: tuple[int, ...]  # from 0, worst, to LEVELS - 1
    value_axis: Axis
    axes: tuple[Axis, ...]  # parameters that vary
    fixed: tuple[tuple[str, str], ...]  # those that do not
    best: tuple[dict[str, Any], ...]  # for the table, best first
    columns: tuple[str, ...]  # of the table
    counts: tuple[tuple[str, int], ...]  # how many runs are in each state
    is_partial: bool  # not all runs are drawn
    failed: tuple[tuple[str, str], ...]  # runs and why, the first of them

    @property
    def uprights(self) -> tuple[Axis, ...]:
        """The axes of the parallel coordinates; the metric is the last."""
        return (*self.axes, self.value_axis)

    def lines(self) -> list[list[tuple[int, float]]]:
        """Return for each run the uprights on which it has a value, and its place there."""
        spread = [*(one.spread for one in self.axes), self.value_axis.places]
        return [
            [(x, place) for x, places in enumerate(spread) if (place := places[number]) is not None]
            for number in range(len(self.rows))
        ]

    def dots(self, one: Axis) -> list[tuple[int, float, float]]:
        """Return the runs that have a value on an axis: number, place there and on the metric."""
        pairs = enumerate(zip(one.spread, self.value_axis.places, strict=True))
        return [(n, x, y) for n, (x, y) in pairs if x is not None and y is not None]


def draw(about: About, table: Table, ranking: Ranking) -> ChartData:
    """Work out what is drawn."""
    varying = [name for name in table.parameters if _varies(ranking.rows, name)]
    dots = 1 + min(len(varying), MAX_AXES)
    drawn = _chosen(ranking.rows, min(MAX_DRAWN, MAX_DOTS // dots))
    rows = tuple(reversed(drawn))
    fixed = [
        (name, spelled(ranking.rows[0][name])) for name in table.parameters if name not in varying
    ]
    states = [row["state"] for row in table]
    others = [name for name in table.metrics if name != ranking.metric]
    return ChartData(
        about=about,
        metric=ranking.metric,
        is_maximized=ranking.is_maximized,
        rows=rows,
        levels=_levels(len(rows)),
        value_axis=axis(ranking.metric, [row[ranking.metric] for row in rows], can_group=False),
        axes=tuple(axis(name, [row[name] for row in rows]) for name in varying[:MAX_AXES]),
        fixed=tuple(fixed),
        best=ranking.rows[:MAX_TABLED],
        columns=(ranking.metric, *varying, *others[:6], "duration_s", "gpu"),
        counts=tuple((one.value, states.count(one.value)) for one in RunState),
        is_partial=len(drawn) < len(ranking.rows),
        failed=tuple(
            (row["run"], row["trouble"]) for row in table if row["state"] == RunState.FAILED.value
        )[:MAX_TABLED],
    )


def axis(name: str, values: Sequence[Any], *, can_group: bool = True) -> Axis:
    """Lay values out on an axis: by magnitude, evenly, or each with a place of its own."""
    read = [number_or_text(value) for value in values]
    numbers = [value for value in read if _is_finite(value)]
    if len(numbers) < sum(value is not None for value in read):
        return _grouped(name, [None if value is None else spelled(value) for value in values])
    if not numbers:
        return Axis(name, (), tuple(None for _ in values))
    low, high = min(numbers), max(numbers)
    kinds = sorted(set(numbers))
    is_log = low > 0 and (high / low >= _LOG_FROM or _is_geometric(kinds))
    scale = math.log10 if is_log else float
    start, end = _widened(scale(low), scale(high))
    places = tuple(
        (scale(value) - start) / (end - start) if _is_finite(value) else None for value in read
    )
    if can_group and len(kinds) <= 6:
        marks = [(value, number_text(value)) for value in kinds]
    else:
        marks = [(value, number_text(value)) for value in _round_numbers(low, high, is_log)]
    ticks = [Tick((scale(value) - start) / (end - start), text) for value, text in marks]
    return Axis(name, _apart(ticks), places, is_log)


def number_text(value: float) -> str:
    """Spell a number shortly."""
    text = f"{value:.4g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else text


def column_name(name: str) -> str:
    """Return the heading of a column of the table."""
    return {"duration_s": "time", "gpu": "GPU"}.get(name, name)


def column_texts(name: str, values: Sequence[Any], most: int) -> list[str]:
    """Return the values of a column as the table of the best runs shows them, cut to `most`."""
    if name == "duration_s":
        shown = ["–" if value is None else show_time(value) for value in values]
    else:
        shown = ["–" if text == "-" else text for text in column(values)]
    return [text if len(text) <= most else text[: most - 1] + "…" for text in shown]


def _is_finite(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)


def _widened(start: float, end: float) -> tuple[float, float]:
    if start == end:
        return start - (abs(start) or 1.0) / 2, end + (abs(end) or 1.0) / 2
    margin = (end - start) * _MARGIN
    return start - margin, end + margin


def _grouped(name: str, values: Sequence[str | None]) -> Axis:
    kinds = list(dict.fromkeys(sorted(value for value in values if value is not None)))
    place = {kind: (number + 0.5) / len(kinds) for number, kind in enumerate(kinds)}
    shown = kinds if len(kinds) <= MAX_TICKS else kinds[:: math.ceil(len(kinds) / MAX_TICKS)]
    ticks = tuple(Tick(place[kind], kind if len(kind) <= 14 else kind[:13] + "…") for kind in shown)
    places = tuple(None if value is None else place[value] for value in values)
    return Axis(name, ticks, places, is_grouped=True)


def _round_numbers(low: float, high: float, is_log: bool) -> list[float]:
    """Return round numbers between two others."""
    if is_log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        steps = (1.0, 2.0, 5.0) if last - first <= 2 else (1.0,)
        powers = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        return [power for power in powers if low * 0.999 <= power <= high * 1.001] or [low, high]
    if low == high:
        return [low]
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.7)
    count = math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1
    first = math.ceil(low / step - 1e-9)
    return [float(f"{(first + number) * step:.12g}") for number in range(min(count, 20))]


def _is_geometric(kinds: Sequence[float]) -> bool:
    """True for numbers like 16, 32, 64: a geometric series."""
    ratios = [later / earlier for earlier, later in itertools.pairwise(kinds)]
    return 2 <= len(ratios) <= 12 and min(ratios) >= 1.9 and max(ratios) <= 1.01 * min(ratios)


def _apart(ticks: Sequence[Tick]) -> tuple[Tick, ...]:
    """Leave out ticks that would lie on top of each other."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick.at - kept[-1].at >= 0.08:
            kept.append(tick)
    return tuple(kept)


def _chosen(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Take all rows, or the best and some of the rest, evenly."""
    if len(rows) <= most:
        return list(rows)
    rest, room = rows[ALWAYS_DRAWN:], most - ALWAYS_DRAWN
    return [
        *rows[:ALWAYS_DRAWN],
        *(rest[number * len(rest) // room] for number in range(room)),
    ]


def _levels(count: int) -> tuple[int, ...]:
    """Colour by rank, not by value, so that one wild run does not make all others look alike."""
    if count == 1:
        return (LEVELS - 1,)
    return tuple(round(place * (LEVELS - 1) / (count - 1)) for place in range(count))


def _varies(rows: Sequence[dict[str, Any]], name: str) -> bool:
    return len({spelled(row[name]) for row in rows}) > 1 or len(rows) == 1
