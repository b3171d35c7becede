"""Whose turn it is: the requests that wait, grouped so that one answer serves all alike.

Keeps order of arrival within a group and knows each request's place; it decides nothing.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from grn.model.job import Request
from grn.negotiator.arguments import mattering

Turn = tuple[int, int, int, float, int]
Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting request: its place and since when it waits."""

    request: Request
    sequence: int
    since: float
    is_short: bool = False  # its type is known to take little time
    tag: float = 0.0  # what its user will have been given by then, in hours of a whole GPU


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
    number: int = 0  # to tell groups apart
    bucket: int | None = None  # where it waits for room, by how much it needs at least

    @property
    def head(self) -> Waiting:
        return next(iter(self.members.values()))


def turn(waiting: Waiting) -> Turn:
    """Sort requests: out of memory first, then priority, short ones, shares of users, age."""
    request = waiting.request
    level = 0 if waiting.is_short else 1
    return (0 if request.attempt else 1, -request.priority, level, waiting.tag, waiting.sequence)


class Shares:
    """Turns between users: each gets as much of the GPUs as any other who waits.

    A request is given a tag when it comes: where its user stands, who then moves on by what it will
    cost. The smallest tag is next. A user's own requests stay in their order; one who has not asked
    for long stands where the others are, so nobody saves up turns.
    """

    def __init__(self) -> None:
        self._stands: dict[int, float] = {}
        self._now = 0.0  # the tag of who was last given something

    def tag(self, user: int, cost: float) -> float:
        """Return the tag of a new request."""
        begins = max(self._now, self._stands.get(user, 0.0))
        self._stands[user] = begins + cost
        return begins

    def given(self, waiting: Waiting) -> None:
        """Note that a request got its GPUs."""
        self._now = max(self._now, waiting.tag)


class Waitlist:
    """All waiting requests."""

    def __init__(self) -> None:
        self._groups: dict[Kind, Group] = {}
        self._kind_of: dict[str, Kind] = {}
        self._of_process: dict[int, set[str]] = {}  # pid -> keys of what it asks for itself
        self._turns: list[tuple[Turn, Group]] = []  # always in order; no two turns are alike
        self._since: list[tuple[float, str]] = []  # a heap; those who wait no more leave it late
        self._numbers = 0
        self._of_type: dict[str, dict[int, Group]] = {}
        self._fresh: dict[int, Group] = {}  # groups that nobody has said no to, or not lately
        self._hungry: dict[int, list[tuple[Turn, Group]]] = {}  # others by need, each in turn
        self._guessed: dict[int, Group] = {}  # those of them whose need is a guess
        self._alone: dict[int, Group] = {}  # and those that want GPUs to themselves

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
        group = self._groups.get(kind) or self._begin(kind, waiting.request.job_type)
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
            self._end(group, waiting.request.job_type)
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
        self.refuse(self._groups[kind], None)

    def refuse(self, group: Group, refused: Refused | None) -> None:
        """Note the latest no to a group, None when it is to be asked at every turn."""
        self._put_down(group)
        group.refused = refused
        if refused is None:
            self._fresh[group.number] = group
        elif refused.sibling is None and refused.is_alone:
            self._alone[group.number] = group
        elif refused.sibling is None:
            group.bucket = _bucket(refused.need_bytes)
            self._shelve(group)
            if refused.is_guess:
                self._guessed[group.number] = group

    def wake(self, job_type: str) -> None:
        """Let all groups of a type be asked again: something has changed for them."""
        self._fresh.update(self._of_type.get(job_type, {}))

    def settle(self, group: Group) -> None:
        """Ask a group no more until something changes: its last no still holds."""
        if group.refused is not None:
            self._fresh.pop(group.number, None)

    def next_fitting(self, after: Turn, most_bytes: float) -> Group | None:
        """Return the first after a turn of those whose need, as last known, is not too large."""
        edge, best = _bucket(most_bytes), None
        for bucket, line in self._hungry.items():
            if bucket > edge:
                continue
            for place in range(bisect_right(line, after, key=_turn_of), len(line)):
                its_turn, group = line[place]
                if best is not None and best[0] < its_turn:
                    break
                refused = group.refused
                if bucket < edge or (refused is not None and refused.need_bytes <= most_bytes):
                    best = (its_turn, group)
                    break
        return best[1] if best else None

    def worth_asking(self, most_bytes: float, guess_bytes: float, has_empty: bool) -> list[Group]:
        """Return what else may get a yes now besides those that fit, by whose head is next."""
        found = dict(self._fresh)
        if guess_bytes <= most_bytes:
            found.update(self._guessed)
        if has_empty:
            found.update(self._alone)
        return sorted(found.values(), key=lambda group: turn(group.head))

    def _begin(self, kind: Kind, job_type: str) -> Group:
        self._numbers += 1
        group = self._groups[kind] = Group(kind, number=self._numbers)
        self._of_type.setdefault(job_type, {})[group.number] = group
        self._fresh[group.number] = group
        return group

    def _end(self, group: Group, job_type: str) -> None:
        self._put_down(group)
        del self._groups[group.kind]
        del self._of_type[job_type][group.number]
        if not self._of_type[job_type]:
            del self._of_type[job_type]

    def _put_down(self, group: Group) -> None:
        number = group.number
        for some in (self._fresh, self._guessed, self._alone):
            some.pop(number, None)
        self._unshelve(group)
        group.bucket = None

    def _shelve(self, group: Group) -> None:
        if group.bucket is not None and group.members:
            line = self._hungry.setdefault(group.bucket, [])
            insort(line, (turn(group.head), group), key=_turn_of)

    def _unshelve(self, group: Group) -> None:
        if group.bucket is not None and group.members:
            line = self._hungry[group.bucket]
            del line[bisect_left(line, turn(group.head), key=_turn_of)]
            if not line:
                del self._hungry[group.bucket]

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
            self._unshelve(group)

    def _give_turn(self, group: Group) -> None:
        if group.members:
            insort(self._turns, (turn(group.head), group), key=_turn_of)
            self._shelve(group)


def _bucket(need_bytes: float) -> int:
    """Put needs that differ by less than a fifth together."""
    if need_bytes == math.inf:
        return 1 << 30
    return int(4 * math.log2(need_bytes)) if need_bytes >= 1 else 0


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
