"""A space of parameters and the points in it: lists, ranges, lists that go together, conditions.

A point maps each parameter's name to one value, in the order of the parameters. Randomness is
passed in, so that the same seed gives the same points, and a larger number only adds to them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from grn.errors import UsageError
from grn.sweep import grid
from grn.sweep.condition import Condition
from grn.sweep.values import number_or_text

Point = Mapping[str, object]
KINDS = ("log", "uniform", "int")
RESERVED = ("run_dir", "run", "index", "params")  # names for templates beside parameters
MAX_TRIES = 10_000  # draws in a row that give nothing new
MAX_LEFT_OUT = 300_000  # points in a row for which no condition holds
DIGITS = 6  # of a drawn number: more would be noise in names and tables

_NAME = re.compile(r"[A-Za-z_][\w.\-]*", re.ASCII)
_ENDS = re.compile(r"[-+]?[\d.]*\d(e[-+]?\d+)?\.\.[-+]?[\d.]*\d(e[-+]?\d+)?", re.I | re.A)
_RANGE = re.compile(r"([A-Za-z_]+):(\S+?)\.\.(\S+)")


class Randomness(Protocol):
    """Where random numbers come from; `random.Random` is one."""

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1."""

    def randrange(self, stop: int, /) -> int:
        """Return a whole number below `stop`."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A parameter with the values it takes, one after the other."""

    name: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A parameter whose values are drawn from a range, both ends included."""

    name: str
    kind: str  # one of KINDS
    low: float
    high: float
    is_text: bool = False  # True: values as they stand on a command line

    def draw(self, randomness: Randomness) -> object:
        """Draw one value."""
        share = randomness.random()
        value: float
        if self.kind == "int":
            value = int(self.low) + int(share * (int(self.high) - int(self.low) + 1))
        elif self.kind == "log":
            low, high = math.log(self.low), math.log(self.high)
            value = self._rounded(math.exp(low + share * (high - low)))
        else:
            value = self._rounded(self.low + share * (self.high - self.low))
        return self.spelled(value)

    def spelled(self, value: float) -> object:
        """Return a value of the range as commands or functions get it."""
        if self.kind == "int":
            return str(int(value)) if self.is_text else int(value)
        return f"{value:.{DIGITS}g}" if self.is_text else value

    def _rounded(self, value: float) -> float:
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


Parameter = Listed | Drawn


@dataclass(frozen=True, slots=True)
class Space:
    """All parameters of a sweep; `zipped` names lists that are walked through together."""

    parameters: tuple[Parameter, ...]
    zipped: tuple[tuple[str, ...], ...] = ()
    conditions: tuple[Condition, ...] = ()
    seeds: tuple[object, ...] = ()  # each point is run once with each, as the parameter `seed`

    def __post_init__(self) -> None:
        _check_names(self.names)
        _check_zipped(self)
        for condition in self.conditions:
            condition.check(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parameters, in order."""
        return (*(one.name for one in self.parameters), *(("seed",) if self.seeds else ()))

    @property
    def grid_size(self) -> int:
        """How many combinations the lists have, before conditions and seeds."""
        return grid.size(_axes(self))

    @property
    def has_ranges(self) -> bool:
        """True when values are drawn, so that the number of points must be given."""
        return any(isinstance(one, Drawn) for one in self.parameters)


def listed(name: str, values: Iterable[object]) -> Listed:
    """Make a parameter of a list; refuse empty lists and duplicate values."""
    found = tuple(values)
    if not found:
        raise UsageError(f"parameter '{name}' has no value.", f"Write -p {name} VALUE ...")
    seen: set[tuple[type, str]] = set()
    for value in found:
        mark = (type(value), repr(value))
        if mark in seen:
            raise UsageError(f"the value {value!r} stands twice for parameter '{name}'.")
        seen.add(mark)
    return Listed(name, found)


def from_words(name: str, words: Sequence[str]) -> Parameter:
    """Make a parameter of the words of a command line: values, or one range."""
    ranges = [word for word in words if (found := _RANGE.fullmatch(word)) and found[1] in KINDS]
    if ranges and len(words) > 1:
        raise UsageError(
            f"the range '{ranges[0]}' stands among other values of parameter '{name}'.",
            "A range stands alone.",
        )
    if len(words) == 1 and looks_like_range(words[0]):
        return drawn(name, words[0], is_text=True)
    if len(words) == 1 and _ENDS.fullmatch(words[0]):
        raise UsageError(
            f"the range '{words[0]}' of parameter '{name}' does not say how to sample.",
            f"Write uniform:{words[0]}, log:{words[0]} or int:{words[0]}.",
        )
    return listed(name, words)


def drawn(name: str, text: str, *, is_text: bool = False) -> Drawn:
    """Make a parameter of a range like `log:1e-5..1e-2`, `uniform:0..1` or `int:1..9`."""
    found = _RANGE.fullmatch(text)
    if found is None or found[1] not in KINDS:
        raise UsageError(
            f"'{text}' is not a range for parameter '{name}'.",
            "Write log:1e-5..1e-2, uniform:0..1 or int:1..9.",
        )
    kind, low, high = found[1], _bound(name, found[2]), _bound(name, found[3])
    if low >= high:
        raise UsageError(f"the range '{text}' of parameter '{name}' does not go up.")
    if kind == "log" and low <= 0:
        raise UsageError(f"the range '{text}' of parameter '{name}' must begin above 0.")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise UsageError(f"the range '{text}' of parameter '{name}' has ends that are not whole.")
    return Drawn(name, kind, low, high, is_text)


def points(
    space: Space,
    randomness: Randomness,
    *,
    is_shuffled: bool = False,
    most: int | None = None,
) -> Iterator[dict[str, object]]:
    """Yield the points, lazily: the last list varies fastest, each point with all seeds.

    With ranges, `most` draws are made; they go round the combinations of the lists.
    """
    if space.has_ranges:
        if most is None:
            name = next(one.name for one in space.parameters if isinstance(one, Drawn))
            text = f"`{name}` is a range: say how many values to sample."
            raise UsageError(text, "Use --n-samples N.")
        bare = _draws(space, randomness, is_shuffled, most)
    else:
        bare = itertools.islice(_grid(space, randomness, is_shuffled), most)
    for point in bare:
        if not space.seeds:
            yield point
        for seed in space.seeds:
            seeded = {**point, "seed": seed}
            if _stays(space, seeded):  # a condition may use the seed
                yield seeded


def _grid(space: Space, randomness: Randomness, is_shuffled: bool) -> Iterator[dict[str, object]]:
    axes, left_out = _axes(space), 0
    for number in _order(space.grid_size, randomness if is_shuffled else None):
        point = _in_order(space, _combination(axes, number))
        if _stays(space, point):
            left_out = 0
            yield point
            continue
        left_out += 1
        if left_out == MAX_LEFT_OUT:
            raise UsageError(f"the conditions leave out {left_out} points in a row.", "Relax them.")


def _draws(
    space: Space, randomness: Randomness, is_shuffled: bool, most: int
) -> Iterator[dict[str, object]]:
    ranges = [one for one in space.parameters if isinstance(one, Drawn)]
    rounds = _rounds(space.grid_size, randomness if is_shuffled else None)
    axes = _axes(space)
    seen: set[str] = set()
    for count in range(most):
        for _ in range(MAX_TRIES):
            number = next(rounds)
            drawn_values = {one.name: one.draw(randomness) for one in ranges}
            point = _in_order(space, {**_combination(axes, number), **drawn_values})
            mark = repr(point)
            if mark not in seen and _stays(space, point):
                break
        else:
            raise UsageError(
                f"only {count} of {most} points could be drawn.",
                "Ask for fewer, widen the ranges or relax the conditions.",
            )
        seen.add(mark)
        yield point


def _stays(space: Space, point: Point) -> bool:
    return all(condition.holds(point) for condition in space.conditions)


def _rounds(size: int, randomness: Randomness | None) -> Iterator[int]:
    """Repeat the combinations for ever, always in the same order."""
    taken: list[int] = []
    for number in _order(size, randomness):
        taken.append(number)
        yield number
    yield from itertools.cycle(taken)


def _order(size: int, randomness: Randomness | None) -> Iterator[int]:
    """Yield the numbers of the combinations, shuffled with randomness; memory grows with use."""
    moved: dict[int, int] = {}
    for place in range(size):
        other = place if randomness is None else place + randomness.randrange(size - place)
        chosen = moved.pop(other, other)
        if other != place:
            moved[other] = moved.pop(place, place)
        yield chosen


def _axes(space: Space) -> list[list[dict[str, object]]]:
    """List the steps of each axis: a list alone, or lists that go together."""
    lists = {one.name: one for one in space.parameters if isinstance(one, Listed)}
    together = {name: group for group in space.zipped for name in group}
    axes, done = [], set[str]()
    for name in lists:
        group = together.get(name, (name,))
        if name not in done:
            steps = zip(*(lists[one].values for one in group), strict=True)
            axes.append([dict(zip(group, step, strict=True)) for step in steps])
            done.update(group)
    return axes


def _combination(axes: Sequence[Sequence[Point]], number: int) -> dict[str, object]:
    """Return the n-th combination of the lists, the last axis going fastest."""
    return {name: value for step in grid.nth(axes, number) for name, value in step.items()}


def _in_order(space: Space, point: Mapping[str, object]) -> dict[str, object]:
    return {one.name: point[one.name] for one in space.parameters}


def looks_like_range(word: str) -> bool:
    """True for a range, and for a misspelt one."""
    found = _RANGE.fullmatch(word)
    if found is None:
        return False
    ends = (number_or_text(found[2]), number_or_text(found[3]))
    return found[1] in KINDS or not any(isinstance(end, str) for end in ends)


def _bound(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"'{text}' in the range of parameter '{name}' is not a number.")
    return value


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise UsageError("there is no parameter.", "Give one: -p lr 1e-3 1e-4.")
    for place, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"'{name}' is not a name for a parameter.", "Use letters, digits and _."
            )
        if name in RESERVED:
            raise UsageError(f"a parameter cannot be called '{name}'; it has a meaning of its own.")
        if name in names[:place]:
            raise UsageError(f"parameter '{name}' is given twice.", "Put all its values together.")


def _check_zipped(space: Space) -> None:
    lists = {one.name: one for one in space.parameters if isinstance(one, Listed)}
    seen: set[str] = set()
    for group in space.zipped:
        for name in group:
            if name not in lists:
                raise UsageError(f"'{name}' cannot be zipped: it is not a parameter with a list.")
            if name in seen:
                raise UsageError(f"parameter '{name}' is zipped twice.")
            seen.add(name)
        sizes = {len(lists[name].values) for name in group}
        if len(sizes) > 1 or len(group) < 2:
            counts = ", ".join(f"{name}: {len(lists[name].values)}" for name in group)
            raise UsageError(f"zipped lists must be two or more, of one length ({counts}).")
