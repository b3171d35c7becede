"""Whose turn it is: the requests that wait, grouped so that one answer serves all alike.

Keeps order of arrival within a group and knows each request's place; it decides nothing.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from grn.model.job import Request
from grn.negotiator.arguments import mattering

Turn = tuple[int, int, int]
Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting request: its place and since when it waits."""

    request: Request
    sequence: int
    since: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A no to a group's head that holds until one of these changes."""

    job_type: str
    version: int  # of what was learned of its type
    sibling: str | None = None  # the first run it waits for; else it waits for room:
    gpus: int = 1  # on so many GPUs at once
    is_alone: bool = False  # they must be empty
    need_bytes: float = 0  # that each of them can take
    is_guess: bool = False  # or what a type nobody knows is given
    is_load_known: bool = False  # and on GPUs that are not too busy


@dataclass(slots=True)
class Group:
    """Requests that are interchangeable but for their age; the oldest is first."""

    kind: Kind
    members: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    refused: Refused | None = None  # the latest no to its head

    @property
    def head(self) -> Waiting:
        return next(iter(self.members.values()))


def turn(waiting: Waiting) -> Turn:
    """Sort requests: those that ran out of memory first, then by priority, then by age."""
    request = waiting.request
    return (0 if request.attempt else 1, -request.priority, waiting.sequence)


class Waitlist:
    """All waiting requests."""

    def __init__(self) -> None:
        self._groups: dict[Kind, Group] = {}
        self._kind_of: dict[str, Kind] = {}
        self._of_process: dict[int, set[str]] = {}  # pid -> keys of what it asks for itself
        self._turns: list[tuple[Turn, Group]] = []  # always in order; no two turns are alike
        self._since: list[tuple[float, str]] = []  # a heap; those who wait no more leave it late

    def __len__(self) -> int:
        return len(self._kind_of)

    def __contains__(self, key: str) -> bool:
        return key in self._kind_of

    def __iter__(self) -> Iterator[Waiting]:
        for group in self._groups.values():
            yield from group.members.values()

    def add(self, waiting: Waiting, is_pinned: bool) -> Group:
        """Put a request behind its like, or among them where its old place was."""
        kind = _kind(waiting.request, is_pinned)
        group = self._groups.setdefault(kind, Group(kind))
        self._take_turn(group)
        newest = next(reversed(group.members.values()), None)
        group.members[waiting.request.key] = waiting
        if newest is not None and newest.sequence > waiting.sequence:
            ranked = sorted(group.members.items(), key=lambda item: item[1].sequence)
            group.members = OrderedDict(ranked)
        self._kind_of[waiting.request.key] = kind
        pid = _own_pid(waiting.request)
        if pid is not None:
            self._of_process.setdefault(pid, set()).add(waiting.request.key)
        self._give_turn(group)
        heapq.heappush(self._since, (waiting.since, waiting.request.key))
        return group

    def pop(self, key: str) -> Waiting | None:
        """Take a request out."""
        kind = self._kind_of.pop(key, None)
        if kind is None:
            return None
        group = self._groups[kind]
        self._take_turn(group)
        waiting = group.members.pop(key)
        self._give_turn(group)
        if not group.members:
            del self._groups[kind]
        pid = _own_pid(waiting.request)
        if pid is not None:
            self._of_process[pid].remove(key)
            if not self._of_process[pid]:
                del self._of_process[pid]
        return waiting

    def pin(self, pid: int) -> None:
        """Let what a process asks for wait apart from its like: it cannot move any more."""
        for key in tuple(self._of_process.get(pid, ())):
            self.set_apart(self._groups[self._kind_of[key]].members[key])

    def set_apart(self, waiting: Waiting) -> None:
        """Let a request wait apart from its like; what was said to them says nothing of it."""
        key, kind = waiting.request.key, _kind(waiting.request, is_pinned=True)
        if self._kind_of[key] != kind:
            self.pop(key)
            self.add(waiting, is_pinned=True)
        self._groups[kind].refused = None

    def group_of(self, key: str) -> Group | None:
        """Return the group a request waits in."""
        kind = self._kind_of.get(key)
        return None if kind is None else self._groups[kind]

    def oldest_since(self) -> float:
        """Return since when somebody waits; infinity when nobody does."""
        while self._since:
            since, key = self._since[0]
            group = self.group_of(key)
            if group is not None and group.members[key].since == since:
                return since
            heapq.heappop(self._since)
        return math.inf

    def in_turn(self) -> list[Group]:
        """Return the groups by whose head is next."""
        return [group for _, group in self._turns]

    def _take_turn(self, group: Group) -> None:
        if group.members:
            del self._turns[bisect_left(self._turns, turn(group.head), key=_turn_of)]

    def _give_turn(self, group: Group) -> None:
        if group.members:
            insort(self._turns, (turn(group.head), group), key=_turn_of)


def _turn_of(entry: tuple[Turn, Group]) -> Turn:
    return entry[0]


def _own_pid(request: Request) -> int | None:
    """Return the process that will hold what is asked for, None when it is not born yet."""
    return None if request.holder is None or request.is_command else request.holder.pid


def _kind(request: Request, is_pinned: bool) -> Kind:
    """Return what two requests must share to be answered alike."""
    return (
        request.job_type,
        request.user,
        request.priority,
        request.gpus,
        request.mem_bytes,
        request.is_exclusive,
        request.policy,
        request.slots,
        request.stay,
        request.attempt,
        request.holder.pid if is_pinned and request.holder else None,
        mattering(request.arguments) if request.arguments else (),
    )
