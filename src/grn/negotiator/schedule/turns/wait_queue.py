"""The waiting requests, in groups whose members share one answer.

Keeps each group in order of arrival and all groups in turn, and finds the groups whose answer may
have changed. The answers are given in `grant.py`.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count, islice
from operator import itemgetter

from grn.model.job import Request
from grn.negotiator.learn.arguments import lasting, mattering
from grn.negotiator.schedule.turns.order import (
    Group,
    Kind,
    Reach,
    Refusal,
    Turn,
    WaitingRequest,
    turn,
)
from grn.negotiator.schedule.turns.wait_index import (
    Entry,
    LineName,
    Rooms,
    WaitIndex,
    first_from,
    insort_entry,
)

MAX_SET_APART = 256  # requests that are moved to the group of their process per event: 30 us each


class Waitlist:
    """All waiting requests."""

    def __init__(
        self,
        rank: Callable[[WaitingRequest], Turn] = turn,
        judge: Callable[[WaitingRequest], WaitingRequest] = lambda waiting: waiting,
        rank_all: Callable[[Iterable[WaitingRequest]], Iterable[Turn]] | None = None,
    ) -> None:
        self._rank = rank
        self._rank_all = rank_all or partial(map, rank)
        self._judge = judge  # updates the estimate for the head of a group
        self._groups: dict[Kind, Group] = {}
        self._kind_of: dict[str, Kind] = {}
        self._loose: dict[int, dict[str, None]] = {}  # pid -> its keys in groups of any process
        self._apart: dict[int, dict[int, Group]] = {}  # pid -> groups of this process only
        self._to_pin: dict[int, None] = {}  # processes with loose keys that are to be set apart
        self._pids_on: dict[str, set[int]] = {}  # GPU -> processes whose refusals depend on it
        self._turns: list[Entry] = []  # always in order; no two turns are equal
        self._since: list[tuple[float, str]] = []  # a heap; keys that left are dropped late
        self._numbers = 0
        self._of_type: dict[str, dict[int, Group]] = {}
        self._of_user: dict[int, dict[int, Group]] = {}
        self._count_by_user: Counter[int] = Counter()
        self._misplaced: dict[int, Group] = {}  # groups whose turn has changed
        self._fresh: dict[int, Group] = {}  # groups without a refusal that is known to hold
        self._lines = WaitIndex()  # the other groups, by the room they wait for
        self._heads: list[_Head] = []  # a heap: the next candidates of this round
        self._head_numbers = count()  # to compare two entries of one turn
        self._ordered: list[tuple[Turn, WaitingRequest]] | None = (
            None  # None when it must be sorted
        )
        self.changed: dict[str, None] | None = None  # where to note keys that came, went or moved

    def __len__(self) -> int:
        return len(self._kind_of)

    def __contains__(self, key: str) -> bool:
        return key in self._kind_of

    def __iter__(self) -> Iterator[WaitingRequest]:
        for group in self._groups.values():
            yield from group.in_line()

    def add(self, waiting: WaitingRequest, is_pinned: bool) -> Group:
        """Put a request into its group, at the position of its sequence."""
        kind = _kind(waiting.request, is_pinned)
        group = self._groups.get(kind) or self._begin(kind, waiting.request)
        self._take_turn(group)
        group.put(waiting)
        self._kind_of[waiting.request.key] = kind
        self._count_by_user[waiting.request.user] += 1
        self._note(waiting.request.key)
        pid = _own_pid(waiting.request)
        if pid is not None and group.pid is None:
            self._loose.setdefault(pid, {})[waiting.request.key] = None
        if self._ordered is not None:
            insort(self._ordered, (self._rank(waiting), waiting), key=itemgetter(0))
        self._give_turn(group)
        heapq.heappush(self._since, (waiting.since, waiting.request.key))
        return group

    def pop(self, key: str) -> WaitingRequest | None:
        """Take a request out."""
        kind = self._kind_of.pop(key, None)
        if kind is None:
            return None
        group = self._groups[kind]
        self._note(key)
        self._take_turn(group)
        waiting = group.take(key)
        self._unorder(waiting)
        self._give_turn(group)
        if not group.members:
            self._end(group, waiting.request)
        self._count_by_user[waiting.request.user] -= 1
        if not self._count_by_user[waiting.request.user]:
            del self._count_by_user[waiting.request.user]
        pid = _own_pid(waiting.request)
        if pid is not None and pid in self._loose:
            self._loose[pid].pop(key, None)
            if not self._loose[pid]:
                del self._loose[pid]
                self._to_pin.pop(pid, None)
        return waiting

    def on_gpu(self, uuid: str, pids: Collection[int]) -> None:
        """Note the processes on a GPU whose book has changed.

        A process that came or left has another choice of GPUs: its requests are retried.
        """
        waiting = {pid for pid in pids if pid in self._apart}
        for pid in waiting ^ self._pids_on.pop(uuid, set()):
            for group in self._apart.get(pid, {}).values():
                if group.number not in self._fresh:
                    self._fresh[group.number] = group
                    heapq.heappush(self._heads, self._head(group))
        if waiting:
            self._pids_on[uuid] = waiting
        self._to_pin.update((pid, None) for pid in pids if pid in self._loose)

    def pin_some(self) -> None:
        """Set requests of processes on GPUs apart, a limited number per event."""
        keys = (key for pid in self._to_pin for key in self._loose[pid])
        for key in list(islice(keys, MAX_SET_APART)):
            self.set_apart(self._groups[self._kind_of[key]].members[key])

    def set_apart(self, waiting: WaitingRequest) -> None:
        """Move a request whose process cannot leave its GPUs to a group of this process only."""
        key, kind = waiting.request.key, _kind(waiting.request, is_pinned=True)
        if self._kind_of[key] != kind:
            self.pop(key)
            self.add(waiting, is_pinned=True)
        self.refuse(self._groups[kind], None)

    def refuse(self, group: Group, refused: Refusal | None) -> None:
        """Note the latest refusal of a group; None: retry it at every event."""
        self._lines.leave(group)
        if refused is not None and not self._lines.is_open_to(refused.reach):
            refused = None
        group.refused = refused
        self._lines.join(group)
        if refused is None:
            self._fresh[group.number] = group
            return
        self._fresh.pop(group.number, None)
        if group.pid is not None:
            for uuid in refused.reach.gpus:
                self._pids_on.setdefault(uuid, set()).add(group.pid)

    def wake(self, job_type: str) -> None:
        """Retry all groups of a type: its profile or first run has changed."""
        self._fresh.update(self._of_type.get(job_type, {}))

    def renew_user(self, user: int) -> None:
        """Answer all groups of a user again: the user has made or lost a booking."""
        for group in list(self._of_user.get(user, {}).values()):
            self.refuse(group, None)

    def wake_group(self, group: Group) -> None:
        """Retry one group."""
        if group.members:
            self._fresh[group.number] = group

    def move(self, users: Iterable[int], most: int) -> None:
        """Sort the groups of users again, at most `most` per event."""
        for user in users:
            self._misplaced.update(self._of_user.get(user, {}))
        self.sort(most)

    def learned(self, job_types: Iterable[str], most: int) -> None:
        """Sort the groups of some types again, at most `most` per event."""
        for job_type in job_types:
            self._misplaced.update(self._of_type.get(job_type, {}))
        self.sort(most)

    def sort(self, most: int) -> None:
        """Sort some of the groups again whose turns may have changed."""
        if self._misplaced:
            self._ordered = None
        for number in list(islice(self._misplaced, most)):
            group = self._misplaced.pop(number)
            head = self._judge(group.head)
            if head is not group.head or self._rank(head) != group.turn:
                self._take_turn(group)
                self._give_turn(group, head)

    def settle(self, group: Group) -> None:
        """Keep a group's refusal until something changes."""
        if group.refused is not None:
            self._fresh.pop(group.number, None)

    def candidates(
        self, after: Turn, rooms_on: Callable[[Reach], Rooms], guess_bytes: float
    ) -> Iterator[Group]:
        """Yield the groups after a turn whose answer may have changed, in turn.

        Each is answered before the next is taken. Grants take room, so a group that did not fit
        when a round began cannot fit later in it, unless a grant brings its process to a GPU.
        """
        self._heads = heads = [self._head(one) for one in self._fresh.values() if one.turn > after]
        for reach in self._lines.reaches():
            found = self._lines.open_lines(after, reach, rooms_on(reach), guess_bytes)
            heads += [(turn, next(self._head_numbers), line) for turn, line in found]
        heapq.heapify(heads)
        while heads:
            turn, _, source = heapq.heappop(heads)
            group = source if isinstance(source, Group) else None
            if not isinstance(source, Group):
                entry = self._lines.first_fit(source, after, rooms_on(source.reach), guess_bytes)
                if entry is None:
                    continue
                heapq.heappush(heads, (entry[0], next(self._head_numbers), source))
                group = entry[1] if entry[0] == turn else None
            if group is not None and turn > after and group.members and group.turn == turn:
                after = turn
                yield group
                if group.number in self._fresh and group.turn > turn:  # the next of its members
                    heapq.heappush(heads, self._head(group))

    def _head(self, group: Group) -> _Head:
        return (group.turn, next(self._head_numbers), group)

    def _begin(self, kind: Kind, like: Request) -> Group:
        self._numbers += 1
        group = self._groups[kind] = Group(kind, number=self._numbers)
        self._of_type.setdefault(like.job_type, {})[group.number] = group
        self._of_user.setdefault(like.user, {})[group.number] = group
        self._fresh[group.number] = group
        if kind[_PID] is not None:
            group.pid = _own_pid(like)
        if group.pid is not None:
            self._apart.setdefault(group.pid, {})[group.number] = group
        return group

    def _end(self, group: Group, like: Request) -> None:
        self._fresh.pop(group.number, None)
        self._misplaced.pop(group.number, None)
        del self._groups[group.kind]
        del self._of_type[like.job_type][group.number]
        if not self._of_type[like.job_type]:
            del self._of_type[like.job_type]
        del self._of_user[like.user][group.number]
        if not self._of_user[like.user]:
            del self._of_user[like.user]
        if group.pid is not None:
            del self._apart[group.pid][group.number]
            if not self._apart[group.pid]:
                del self._apart[group.pid]

    def find(self, key: str) -> WaitingRequest | None:
        """Return a waiting request."""
        group = self.group_of(key)
        return None if group is None else group.members[key]

    def group_of(self, key: str) -> Group | None:
        """Return the group a request waits in."""
        kind = self._kind_of.get(key)
        return None if kind is None else self._groups[kind]

    def oldest_since(self) -> float:
        """Return since when the oldest request waits; infinity when none waits."""
        while self._since:
            since, key = self._since[0]
            waiting = self.find(key)
            if waiting is not None and waiting.since == since:
                return since
            heapq.heappop(self._since)
        return math.inf

    def has_type(self, job_type: str) -> bool:
        """True when a request of a type waits."""
        return job_type in self._of_type

    def count_by_user(self) -> dict[int, int]:
        """Return how many requests of each user wait."""
        return dict(self._count_by_user)

    def in_turn(self) -> Iterator[Group]:
        """Yield the groups by the turn of their heads."""
        return (group for _, group in self._turns)

    def ordered(self) -> list[WaitingRequest]:
        """Return all requests, the next first."""
        if self._ordered is None:
            entries: list[tuple[Turn, WaitingRequest]] = []
            for _, group in self._turns:
                members = list(group.in_line())
                entries += zip(self._rank_all(members), members, strict=True)
            entries.sort(key=itemgetter(0))
            self._ordered = entries
        return [waiting for _, waiting in self._ordered]

    def _unorder(self, waiting: WaitingRequest) -> None:
        """Take one request out of the order of all; where its turn has changed, drop the order."""
        if self._ordered is not None:
            position = bisect_left(self._ordered, self._rank(waiting), key=itemgetter(0))
            if self._ordered[position : position + 1] and self._ordered[position][1] is waiting:
                del self._ordered[position]
            else:
                self._ordered = None

    def _note(self, key: str) -> None:
        if self.changed is not None:
            self.changed[key] = None

    def _take_turn(self, group: Group) -> None:
        if group.members:
            del self._turns[first_from(self._turns, group.turn)]
            self._lines.leave(group)

    def _give_turn(self, group: Group, judged: WaitingRequest | None = None) -> None:
        if group.members:
            head = judged or self._judge(group.head)
            if head is not group.head:
                self._ordered = None
                group.members[head.request.key] = head
                self._note(head.request.key)
            group.turn = self._rank(head)
            insort_entry(self._turns, (group.turn, group))
            self._lines.join(group)


_PID = 11  # the position of the process in a kind
_Head = tuple[Turn, int, Group | LineName]  # a candidate, or a line and the first that it may be


def _own_pid(request: Request) -> int | None:
    """Return the process that will hold the lease, None when it does not exist yet."""
    return None if request.holder is None or request.is_command else request.holder.pid


def _kind(request: Request, is_pinned: bool) -> Kind:
    """Return what two requests must share to get the same answer."""
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
        request.is_spared,
        request.holder.pid if is_pinned and request.holder else None,
        mattering(request.arguments) if request.arguments else (),
        lasting(request.arguments) if request.arguments else (),
        request.code,
        request.yields,
        request.is_urgent,
        request.cpus,
        request.ram_bytes,
        request.time_limit_s,
    )
