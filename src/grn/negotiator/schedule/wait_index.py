"""Refused groups of waiting requests, indexed by the room they wait for.

A release then retries only groups that may fit now, the first in turn of each list.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple

from grn.negotiator.schedule.order import Group, Reach, Refused, Turn
from grn.negotiator.schedule.placement import FreeSpace

MAX_REACHES = 256  # distinct sets of GPUs: each costs some microseconds per event

Entry = tuple[Turn, Group]
Line = list[Entry]  # always in order; no two turns are equal


class _Name(NamedTuple):
    """The room that the groups of a line wait for."""

    what: str  # "need", "guess" or "alone"
    gpus: int
    is_load_known: bool = False
    size: int = 0  # the bucket of the need


class WaitIndex:
    """Lines of refused groups, by the GPUs they may use and the room they need there."""

    def __init__(self) -> None:
        self._lines: dict[Reach, dict[_Name, Line]] = {}

    def reaches(self) -> list[Reach]:
        """Return the sets of GPUs that groups wait for."""
        return list(self._lines)

    def is_open_to(self, reach: Reach) -> bool:
        """True when groups that wait for a set of GPUs can be indexed."""
        return not reach.gpus or reach in self._lines or len(self._lines) < MAX_REACHES

    def join(self, group: Group) -> None:
        """Put a group into the lines that its refusal names."""
        if group.members and group.refused is not None:
            for name in _names(group.refused):
                lines = self._lines.setdefault(group.refused.reach, {})
                insort(lines.setdefault(name, []), (group.turn, group), key=turn_of)

    def leave(self, group: Group) -> None:
        """Take a group out, before its head or its refusal change."""
        if group.members and group.refused is not None:
            for name in _names(group.refused):
                lines = self._lines[group.refused.reach]
                line = lines[name]
                del line[bisect_left(line, group.turn, key=turn_of)]
                if not line:
                    del lines[name]
                    if not lines:
                        del self._lines[group.refused.reach]

    def next_after(
        self, after: Turn, reach: Reach, room: FreeSpace, guess_bytes: float
    ) -> Entry | None:
        """Return the first group after a turn that may fit into the room on the GPUs of a reach."""
        best: Entry | None = None
        edges: dict[float, int] = {}
        for name, line in self._lines.get(reach, {}).items():
            most = room.most(name.gpus, name.is_load_known)
            if most not in edges:
                edges[most] = _bucket(most)
            if not _is_open(name, edges[most], most, room, guess_bytes):
                continue
            is_sure = name.what != "need" or name.size < edges[most]
            for place in range(bisect_right(line, after, key=turn_of), len(line)):
                entry = line[place]
                if best is not None and best[0] < entry[0]:
                    break
                if is_sure or _needs(entry[1]) <= most:
                    best = entry
                    break
        return best


def turn_of(entry: Entry) -> Turn:
    """Return the sort key of a line."""
    return entry[0]


def _names(refused: Refused) -> Iterator[_Name]:
    """Name the lines that a refusal puts a group into."""
    if refused.is_alone:
        yield _Name("alone", refused.gpus)
        return
    if refused.need_bytes < math.inf:
        yield _Name("need", refused.gpus, refused.is_load_known, _bucket(refused.need_bytes))
    if refused.is_guess:
        yield _Name("guess", refused.gpus, refused.is_load_known)


def _is_open(name: _Name, edge: int, most: float, room: FreeSpace, guess_bytes: float) -> bool:
    """True when some groups of a line may fit."""
    if name.what == "need":
        return name.size <= edge
    if name.what == "alone":
        return name.gpus <= room.empty
    return guess_bytes <= most


def _needs(group: Group) -> float:
    return group.refused.need_bytes if group.refused is not None else 0.0


def _bucket(need_bytes: float) -> int:
    """Return one number for needs that differ by less than a fifth."""
    if need_bytes == math.inf:
        return 1 << 30
    return int(4 * math.log2(need_bytes)) if need_bytes >= 1 else 0
