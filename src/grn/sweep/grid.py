"""The cross product of lists of values, one combination at a time: the last list turns fastest."""

from __future__ import annotations

import itertools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeVar

    Value = TypeVar("Value")


def size(axes: Sequence[Sequence[object]]) -> int:
    """Return the number of combinations; 1, the empty one, without lists."""
    product = 1
    for axis in axes:
        product *= len(axis)
    return product


def product(axes: Sequence[Sequence[Value]]) -> Iterator[tuple[Value, ...]]:
    """Yield all combinations in order, in no more memory than the lists take."""
    return itertools.product(*axes)


def nth(axes: Sequence[Sequence[Value]], index: int) -> tuple[Value, ...]:
    """Return the combination at an index, without making those before it."""
    chosen = []
    for axis in reversed(axes):
        index, place = divmod(index, len(axis))
        chosen.append(axis[place])
    return tuple(reversed(chosen))
