"""Waiting requests: their order, groups of alike requests, and the index of refused groups.

The order is out-of-memory retries, priority, short types, fair share, age. Refused groups are
indexed by the room they wait for: a release retries only groups that may fit now, the first in turn
of each line.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from grn.model.job import Request
from grn.negotiator.events import WaitReason
from grn.negotiator.schedule.host_ledger import HostRoom
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


class BookedFor(NamedTuple):
    """The bookings that matter to requests: not those of their user, nor later ones to some."""

    user: int = -1  # who has bookings; other users are all alike
    yields: bool = False


FOR_ANYBODY = BookedFor()


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
    host_reason: WaitReason | None = None  # GPUs have room, and the host lacks memory or cores:
    lacks: float = 0.0  # bytes, or cores
    bookings: BookedFor = FOR_ANYBODY  # whose bookings do not matter to it


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


class Rooms(NamedTuple):
    """The room on the GPUs of a reach, and the room there for jobs that end in time."""

    free: FreeSpace
    backfill: FreeSpace  # with the GPUs that are reserved for a starving request,
    left_s: float  # for jobs that take no longer than this
    host: HostRoom = HostRoom()
    booked: Callable[[BookedFor], Rooms] | None = None  # where GPUs are booked

    def of(self, room: _Room) -> Rooms:
        """Return the rooms that count for the groups of a line."""
        return self if self.booked is None else self.booked(room.bookings)


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
            last = _last_bucket(rooms)
            in_time, late = _mosts(room, rooms, guess_bytes)
            if in_time < 0:
                continue  # the room for all other jobs is part of this room
            edges = (_bucket(in_time), _bucket(late))
            for buckets, line in lines.items():
                is_late = buckets.lasts > last
                if buckets.size > edges[is_late]:
                    continue
                if line.needs[0] <= (late if is_late else in_time):
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
        in_time, late = _mosts(name.room, rooms, guess_bytes)
        last = _last_bucket(rooms)
        most = late if name.buckets.lasts > last else in_time
        least = late if name.buckets.lasts == last else most  # a bucket of jobs of both kinds
        if line.needs[0] > most:
            return None
        entries, what = line.entries, name.room.what
        for position in range(first_after(entries, after), len(entries)):
            refused = entries[position][1].refused
            if refused is not None:
                limit = most if least == most or refused.lasts_s <= rooms.left_s else least
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


def _most(room: _Room, free: FreeSpace, guess_bytes: float) -> float:
    """Return the largest need of a group that may fit; negative when none may."""
    if room.what == "alone":
        return 0.0 if room.gpus <= free.empty else -1.0
    if room.what == "guess":
        return 0.0 if guess_bytes <= free.most(room.gpus, is_probe=True) else -1.0
    return free.most(room.gpus, room.is_load_known)


def _mosts(room: _Room, rooms: Rooms, guess_bytes: float) -> tuple[float, float]:
    """Return the largest needs that may fit: of a job that ends in time, and of others."""
    if room.what in ("ram", "cpus"):
        most = rooms.host.ram_bytes if room.what == "ram" else rooms.host.cpus * _CORE
        return most, most
    in_time = _most(room, rooms.backfill, guess_bytes)
    if rooms.free is rooms.backfill or in_time < 0:
        return in_time, in_time
    return in_time, _most(room, rooms.free, guess_bytes)


def _last_bucket(rooms: Rooms) -> int:
    """Return the bucket of the time that reserved GPUs may be backfilled."""
    return _bucket(rooms.left_s) if rooms.left_s > 0 else -1


def _bucket(amount: float) -> int:
    """Return one number for amounts, of bytes or seconds, that differ by less than a fifth."""
    if amount == math.inf:
        return 1 << 30
    return int(4 * math.log2(amount)) if amount >= 1 else 0
