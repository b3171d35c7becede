"""Waiting requests: their order, groups of alike requests, and the index of refused groups.

The order is out-of-memory retries, priority, short types, fair share, age. Refusal groups are
indexed by the room they wait for: a release retries only groups that may fit now, the first in turn
of each list.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from grn.model.job import Request
from grn.negotiator.schedule.placement import FreeSpace

Turn = tuple[int, int, int, float, int]
Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """One waiting request: its place and since when it waits."""

    request: Request
    sequence: int
    since: float
    is_short: bool = False  # its type is known to be short
    cost_h: float = 0.0  # its expected use in hours of a whole GPU
    place_h: float = 0.0  # the summed cost of its user's earlier requests


class Reach(NamedTuple):
    """The GPUs that a request may use; none are named where all are allowed."""

    gpus: tuple[str, ...] = ()
    is_pinned: bool = False  # its process uses these GPUs already and cannot leave them


ANYWHERE = Reach()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal of a group's head that holds until one of these changes."""

    job_type: str
    version: int  # of the profile of its type
    sibling: str | None = None  # the first run of its type, which it waits for,
    gpus: int = 1  # or this number of GPUs with room at once
    is_alone: bool = False  # that are empty,
    need_bytes: float = 0  # or that can take this need each,
    is_guess: bool = False  # or the least guess for a type without a profile,
    is_load_known: bool = False  # and that are not too busy,
    reach: Reach = ANYWHERE  # among these GPUs
    lasts_s: float = 0.0  # how long such a job may take: reserved GPUs count if it ends in time


@dataclass(slots=True)
class Group:
    """Requests that differ only by age; the oldest is first."""

    kind: Kind
    members: dict[str, WaitingRequest] = field(default_factory=dict)  # by key, in no order
    refused: Refusal | None = None  # the latest refusal of its head
    number: int = 0  # unique
    turn: Turn = (0, 0, 0, 0.0, 0)  # of its head when the group was last sorted
    line: list[tuple[int, str]] = field(default_factory=list)  # sequences and keys, in order
    pid: int | None = None  # the process of all members, when it cannot leave its GPUs

    @property
    def head(self) -> WaitingRequest:
        return self.members[self.line[0][1]]

    def in_line(self) -> Iterator[WaitingRequest]:
        """Yield the members, the oldest first."""
        return (self.members[key] for _, key in self.line)

    def put(self, waiting: WaitingRequest) -> None:
        """Insert a request by its age."""
        key = waiting.request.key
        self.members[key] = waiting
        insort(self.line, (waiting.sequence, key))

    def take(self, key: str) -> WaitingRequest:
        """Take a request out."""
        waiting = self.members.pop(key)
        del self.line[bisect_left(self.line, (waiting.sequence, key))]
        return waiting


def turn(waiting: WaitingRequest, is_over: bool = False, level: float = 0.0) -> Turn:
    """Return the sort key: retries after out of memory, priority, short types, usage, age.

    The short types of a user whose usage is far above others' do not precede.
    """
    request = waiting.request
    is_short = waiting.is_short and not is_over
    again = 0 if request.attempt or request.is_spared else 1
    return (again, -request.priority, 1 - is_short, level, waiting.sequence)


MAX_REACHES = 256  # distinct sets of GPUs: each costs some microseconds per event

Entry = tuple[Turn, Group]
Line = list[Entry]  # always in order; no two turns are equal


class _Name(NamedTuple):
    """The room that the groups of a line wait for."""

    what: str  # "need", "guess" or "alone"
    gpus: int
    is_load_known: bool = False
    size: int = 0  # the bucket of the need
    lasts: int = 0  # the bucket of the time it may take


class Rooms(NamedTuple):
    """The room on the GPUs of a reach, and the room there for jobs that end in time."""

    free: FreeSpace
    backfill: FreeSpace  # with the GPUs that are reserved for a starving request,
    left_s: float  # for jobs that take no longer than this


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
        self, after: Turn, reach: Reach, rooms: Rooms, guess_bytes: float
    ) -> Entry | None:
        """Return the first group after a turn that may fit into the room on the GPUs of a reach."""
        best: Entry | None = None
        edges: dict[float, int] = {}
        last = _bucket(rooms.left_s) if rooms.left_s > 0 else -1
        for name, line in self._lines.get(reach, {}).items():
            room = rooms.backfill if name.lasts <= last else rooms.free
            most = room.most(name.gpus, name.is_load_known)
            if most not in edges:
                edges[most] = _bucket(most)
            if not _is_open(name, edges[most], most, room, guess_bytes):
                continue
            is_sure = name.what != "need" or name.size < edges[most]
            is_mixed = name.lasts == last and rooms.free is not rooms.backfill
            for place in range(bisect_right(line, after, key=turn_of), len(line)):
                entry = line[place]
                if best is not None and best[0] < entry[0]:
                    break
                if is_mixed and not _may_fit(entry[1], name, rooms, guess_bytes):
                    continue
                if is_sure or _needs(entry[1]) <= most:
                    best = entry
                    break
        return best


def turn_of(entry: Entry) -> Turn:
    """Return the sort key of a line."""
    return entry[0]


def _names(refused: Refusal) -> Iterator[_Name]:
    """Name the lines that a refusal puts a group into."""
    lasts = _bucket(refused.lasts_s)
    if refused.is_alone:
        yield _Name("alone", refused.gpus, lasts=lasts)
        return
    if refused.need_bytes < math.inf:
        size = _bucket(refused.need_bytes)
        yield _Name("need", refused.gpus, refused.is_load_known, size, lasts)
    if refused.is_guess:
        yield _Name("guess", refused.gpus, refused.is_load_known, lasts=lasts)


def _is_open(name: _Name, edge: int, most: float, room: FreeSpace, guess_bytes: float) -> bool:
    """True when some groups of a line may fit."""
    if name.what == "need":
        return name.size <= edge
    if name.what == "alone":
        return name.gpus <= room.empty
    return guess_bytes <= most


def _may_fit(group: Group, name: _Name, rooms: Rooms, guess_bytes: float) -> bool:
    """True when one group of a line may fit into the room that it may use."""
    if group.refused is None or group.refused.lasts_s <= rooms.left_s:
        return True
    most = rooms.free.most(name.gpus, name.is_load_known)
    is_open = _is_open(name, _bucket(most), most, rooms.free, guess_bytes)
    return is_open and (name.what != "need" or _needs(group) <= most)


def _needs(group: Group) -> float:
    return group.refused.need_bytes if group.refused is not None else 0.0


def _bucket(amount: float) -> int:
    """Return one number for amounts, of bytes or seconds, that differ by less than a fifth."""
    if amount == math.inf:
        return 1 << 30
    return int(4 * math.log2(amount)) if amount >= 1 else 0
