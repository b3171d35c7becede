"""The index of refused groups, by the room they wait for.

An event retries only groups that may fit now, the first in turn of each line. Whether one fits is
decided elsewhere.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from grn.negotiator.events import WaitReason
from grn.negotiator.schedule.placement import FreeSpace
from grn.negotiator.schedule.room.host_ledger import HostRoom
from grn.negotiator.schedule.turns.order import FOR_ANYBODY, BookedFor, Group, Reach, Refusal, Turn

MAX_REACHES = 256  # distinct sets of GPUs: each costs some microseconds per event

_ENDLESS = 1 << 30  # the bucket of what has no bound
_CORE = 1 << 20  # parts, so that buckets tell cores apart
Entry = tuple[Turn, Group]


class _Room(NamedTuple):
    """What the groups of some lines wait for on the GPUs of a reach."""

    what: str  # "need", "guess" or "alone"; of the host "ram" or "cpus"
    gpus: int
    is_load_known: bool = False
    bookings: BookedFor = FOR_ANYBODY


class _Buckets(NamedTuple):
    """The ranges that the need of a group and the time its job may take lie in."""

    size: int = 0
    lasts: int = 0


class LineName(NamedTuple):
    """Where a line is."""

    reach: Reach
    room: _Room
    buckets: _Buckets


@dataclass(slots=True)
class _GroupLine:
    """Groups that wait for like rooms, in turn, and their needs in order."""

    entries: list[Entry] = field(default_factory=list)  # no two turns are equal
    needs: list[float] = field(default_factory=list)


class Ahead(Struct, frozen=True):
    """The bookings that close GPUs to a request."""

    closed: Sequence[frozenset[str]] = (frozenset(),)  # now; then until each later one begins
    starts_s: Sequence[float] = ()  # how soon each of these begins
    unknown_s: float = math.inf  # how long jobs of unknown duration run


NOTHING_AHEAD = Ahead()
_ANY_HOST = HostRoom()
_Level = tuple[bool, int]  # reserved GPUs count; how many of the bookings ahead close GPUs


class Rooms:
    """The room on the GPUs of a reach, by how long a job may take; valid until a book changes."""

    def __init__(
        self,
        free: Callable[[bool, frozenset[str]], FreeSpace],
        left_s: float = 0.0,
        host: HostRoom = _ANY_HOST,
        ahead: Ahead = NOTHING_AHEAD,
        booked: Callable[[BookedFor], Rooms] | None = None,
    ) -> None:
        self._free = free  # with reserved GPUs or without, and without those that are booked
        self._left_s = left_s  # reserved GPUs count for jobs that take no longer than this
        self._host = host
        self._ahead = ahead
        self._booked = booked  # where GPUs are booked
        self._spaces: dict[_Level, FreeSpace] = {}
        self._mosts: dict[tuple[_Room, _Level], float] = {}

    def of(self, room: _Room) -> Rooms:
        """Return the rooms that count for the groups of a line."""
        return self if self._booked is None else self._booked(room.bookings)

    def level(self, lasts_s: float) -> _Level:
        """Return which GPUs count for a job that may take so long."""
        booked_s = min(lasts_s, self._ahead.unknown_s)  # at least: a quick test is never too strict
        starts_s = self._ahead.starts_s
        is_in_time = 0 < self._left_s >= lasts_s < math.inf  # reserved GPUs may never be ready
        return is_in_time, bisect_left(starts_s, booked_s) if starts_s else 0

    def most(self, room: _Room, level: _Level, guess_bytes: float) -> float:
        """Return the largest need of a group that may fit; negative when none may."""
        found = self._mosts.get((room, level))
        if found is None:
            found = self._mosts[(room, level)] = self._most(room, level, guess_bytes)
        return found

    def _most(self, room: _Room, level: _Level, guess_bytes: float) -> float:
        if room.what in ("ram", "cpus"):
            return self._host.ram_bytes if room.what == "ram" else self._host.cpus * _CORE
        free = self._spaces.get(level)
        if free is None:
            free = self._spaces[level] = self._free(level[0], self._ahead.closed[level[1]])
        if room.what == "alone":
            return 0.0 if room.gpus <= free.empty else -1.0
        if room.what == "guess":
            return 0.0 if guess_bytes <= free.most(room.gpus, is_probe=True) else -1.0
        return free.most(room.gpus, room.is_load_known)


class WaitIndex:
    """Lines of refused groups, by the GPUs they may use and the room they need there."""

    def __init__(self) -> None:
        self._lines: dict[Reach, dict[_Room, dict[_Buckets, _GroupLine]]] = {}

    def reaches(self) -> list[Reach]:
        """Return the sets of GPUs that groups wait for."""
        return list(self._lines)

    def is_open_to(self, reach: Reach) -> bool:
        """True when groups that wait for a set of GPUs can be indexed."""
        return not reach.gpus or reach in self._lines or len(self._lines) < MAX_REACHES

    def join(self, group: Group) -> None:
        """Put a group into the lines that its refusal names."""
        refused = group.refused
        if not group.members or refused is None:
            return
        for room, buckets, need in _names(refused):
            rooms = self._lines.setdefault(refused.reach, {})
            line = rooms.setdefault(room, {}).setdefault(buckets, _GroupLine())
            insort_entry(line.entries, (group.turn, group))
            insort(line.needs, need)

    def leave(self, group: Group) -> None:
        """Take a group out, before its head or its refusal change."""
        refused = group.refused
        if not group.members or refused is None:
            return
        for room, buckets, need in _names(refused):
            rooms = self._lines[refused.reach]
            lines = rooms[room]
            line = lines[buckets]
            del line.entries[first_from(line.entries, group.turn)]
            del line.needs[bisect_left(line.needs, need)]
            if not line.entries:
                del lines[buckets]
                if not lines:
                    del rooms[room]
                    if not rooms:
                        del self._lines[refused.reach]

    def open_lines(
        self, after: Turn, reach: Reach, rooms: Rooms, guess_bytes: float
    ) -> Iterator[tuple[Turn, LineName]]:
        """Yield the lines of which some group may fit, each with the first turn after a turn."""
        all_rooms = rooms
        for room, lines in self._lines.get(reach, {}).items():
            rooms = all_rooms.of(room)
            widest = rooms.most(room, rooms.level(0.0), guess_bytes)
            if widest < 0:
                continue
            mosts: dict[int, float] = {}  # by how long jobs may take
            for buckets, line in lines.items():
                if line.needs[0] > widest:  # as in most lines
                    continue
                most = mosts.get(buckets.lasts)
                if most is None:
                    level = rooms.level(_least(buckets.lasts))
                    most = mosts[buckets.lasts] = rooms.most(room, level, guess_bytes)
                if line.needs[0] <= most:
                    position = first_after(line.entries, after)
                    if position < len(line.entries):
                        yield line.entries[position][0], LineName(reach, room, buckets)

    def first_fit(
        self, name: LineName, after: Turn, rooms: Rooms, guess_bytes: float
    ) -> Entry | None:
        """Return the first group of a line after a turn that may fit."""
        line = self._lines.get(name.reach, {}).get(name.room, {}).get(name.buckets)
        if line is None:
            return None
        rooms = rooms.of(name.room)
        least_s, most_s = _least(name.buckets.lasts), _least(name.buckets.lasts + 1)
        level = rooms.level(least_s)
        most = limit = rooms.most(name.room, level, guess_bytes)
        if line.needs[0] > most:
            return None
        is_even = level == rooms.level(most_s)  # all of the line have the same room
        entries, what = line.entries, name.room.what
        for position in range(first_after(entries, after), len(entries)):
            refused = entries[position][1].refused
            if refused is not None:
                if not is_even:
                    limit = rooms.most(name.room, rooms.level(refused.lasts_s), guess_bytes)
                if _amount(refused, what) <= limit:
                    return entries[position]
        return None


def first_from(entries: list[Entry], turn: Turn) -> int:
    """Return the position of the first entry that does not precede a turn."""
    return bisect_left(entries, (turn,))  # a shorter tuple precedes its equals


def first_after(entries: list[Entry], turn: Turn) -> int:
    """Return the position of the first entry after a turn."""
    position = first_from(entries, turn)
    is_there = position < len(entries) and entries[position][0] == turn
    return position + is_there


def insort_entry(entries: list[Entry], entry: Entry) -> None:
    """Insert an entry in turn."""
    entries.insert(first_from(entries, entry[0]), entry)


def _names(refused: Refusal) -> Iterator[tuple[_Room, _Buckets, float]]:
    """Yield the lines that a refusal puts a group into, and what the group needs there."""
    lasts = _bucket(refused.lasts_s)
    if refused.host_reason is not None:
        what = "ram" if refused.host_reason is WaitReason.NO_RAM else "cpus"
        amount = _amount(refused, what)
        yield _Room(what, 0), _Buckets(_bucket(amount)), amount
        return
    kind = (refused.gpus, refused.is_load_known, refused.bookings)
    if refused.is_alone:
        room = _Room("alone", refused.gpus, bookings=refused.bookings)
        yield room, _Buckets(0, lasts), 0.0
        return
    need = refused.need_bytes
    if need < math.inf:
        yield _Room("need", *kind), _Buckets(_bucket(need), lasts), need
    if refused.is_guess:
        yield _Room("guess", *kind), _Buckets(0, lasts), 0.0


def _amount(refused: Refusal, what: str) -> float:
    """Return what a group needs of the room that its line waits for."""
    if what == "need":
        return refused.need_bytes
    if what == "ram":
        return refused.lacks
    return max(0.0, refused.lacks * _CORE - 1) if what == "cpus" else 0.0


def _bucket(amount: float) -> int:
    """Return one number for amounts, of bytes or seconds, that differ by less than a fifth."""
    if amount == math.inf:
        return _ENDLESS
    return int(4 * math.log2(amount)) if amount >= 1 else 0


@cache
def _least(bucket: int) -> float:
    """Return a lower bound of the amounts of a bucket; infinity beyond all that are finite."""
    if bucket >= _ENDLESS:
        return math.inf
    return 0.999 * 2.0 ** (bucket / 4) if bucket > 0 else 0.0
