"""Waiting requests that were refused for want of memory, indexed by need.

Finds what may fit next at the heads of a few lists, without asking every waiting request.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

from grn.negotiator.schedule.order import Group, Refused, Turn

Entry = tuple[Turn, Group]
Line = list[Entry]  # always in order; no two turns are alike
_Name = tuple[str, int]
_GUESSED: _Name = ("guessed", 0)


@dataclass(frozen=True, slots=True)
class Offer:
    """What there is to give at most: memory of one GPU, and GPUs that are empty."""

    most_bytes: float
    empty: int = 0
    guess_bytes: float = math.inf  # what is enough for a type that nobody knows


class WaitIndex:
    """A line for each size of need, one for guesses, one for each number of empty GPUs."""

    def __init__(self) -> None:
        self._lines: dict[_Name, Line] = {}

    def join(self, group: Group) -> None:
        """Let a group wait where its last no says, if that was for want of room."""
        if group.members:
            for name in _names(group.refused):
                line = self._lines.setdefault(name, [])
                insort(line, (group.turn, group), key=turn_of)

    def leave(self, group: Group) -> None:
        """Take a group out, before its head or its last no change."""
        if group.members:
            for name in _names(group.refused):
                line = self._lines[name]
                del line[bisect_left(line, group.turn, key=turn_of)]
                if not line:
                    del self._lines[name]

    def next_after(self, after: Turn, offer: Offer) -> Group | None:
        """Return the first after a turn of those whose need, as last known, is not too large."""
        best: Entry | None = None
        edge = _bucket(offer.most_bytes)
        for (what, size), line in self._lines.items():
            if not _is_open(what, size, edge, offer):
                continue
            for place in range(bisect_right(line, after, key=turn_of), len(line)):
                entry = line[place]
                if best is not None and best[0] < entry[0]:
                    break
                if what != "need" or size < edge or _needs(entry[1]) <= offer.most_bytes:
                    best = entry
                    break
        return best[1] if best else None


def turn_of(entry: Entry) -> Turn:
    """Return what a line is sorted by."""
    return entry[0]


def _names(refused: Refused | None) -> Iterator[_Name]:
    """Name the lines in which those wait who got this answer."""
    if refused is None or refused.sibling is not None:
        return
    if refused.is_alone:
        yield ("alone", refused.gpus)
        return
    yield ("need", _bucket(refused.need_bytes))
    if refused.is_guess:
        yield _GUESSED


def _is_open(what: str, size: int, edge: int, offer: Offer) -> bool:
    """True when some of a line may be given what they need."""
    if what == "need":
        return size <= edge
    if what == "alone":
        return size <= offer.empty
    return offer.guess_bytes <= offer.most_bytes


def _needs(group: Group) -> float:
    return group.refused.need_bytes if group.refused is not None else 0.0


def _bucket(need_bytes: float) -> int:
    """Put needs that differ by less than a fifth together."""
    if need_bytes == math.inf:
        return 1 << 30
    return int(4 * math.log2(need_bytes)) if need_bytes >= 1 else 0
