"""The requests that wait, grouped so that one answer serves all alike.

Keeps order of arrival within a group and knows each request's place; it decides nothing.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter

from grn.model.job import Request
from grn.negotiator.learn.argument_names import lasting, mattering
from grn.negotiator.schedule.order import Group, Kind, Refused, Turn, Waiting, turn
from grn.negotiator.schedule.wait_index import Entry, Offer, WaitIndex, turn_of


class Waitlist:
    """All waiting requests."""

    def __init__(
        self,
        rank: Callable[[Waiting], Turn] = turn,
        judge: Callable[[Waiting], Waiting] = lambda waiting: waiting,
    ) -> None:
        self._rank = rank
        self._judge = judge  # brings up to date what is believed of one that may be next
        self._groups: dict[Kind, Group] = {}
        self._kind_of: dict[str, Kind] = {}
        self._of_process: dict[int, set[str]] = {}  # pid -> keys of what it asks for itself
        self._turns: list[Entry] = []  # always in order; no two turns are alike
        self._since: list[tuple[float, str]] = []  # a heap; those who wait no more leave it late
        self._numbers = 0
        self._of_type: dict[str, dict[int, Group]] = {}
        self._of_user: dict[int, dict[int, Group]] = {}
        self._misplaced: dict[int, Group] = {}  # groups whose turn has changed
        self._fresh: dict[int, Group] = {}  # groups that nobody has said no to, or not lately
        self._lines = WaitIndex()  # the others, by what they wait for
        self._ordered: list[Waiting] | None = None
        self.changed: dict[str, None] | None = None  # where to note keys that came, went or moved

    def __len__(self) -> int:
        return len(self._kind_of)

    def __contains__(self, key: str) -> bool:
        return key in self._kind_of

    def __iter__(self) -> Iterator[Waiting]:
        for group in self._groups.values():
            yield from group.in_line()

    def add(self, waiting: Waiting, is_pinned: bool) -> Group:
        """Put a request behind its like, or among them where its old place was."""
        kind = _kind(waiting.request, is_pinned)
        group = self._groups.get(kind) or self._begin(kind, waiting.request)
        self._take_turn(group)
        group.put(waiting)
        self._kind_of[waiting.request.key] = kind
        self._note(waiting.request.key)
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
        self._note(key)
        self._take_turn(group)
        waiting = group.take(key)
        self._give_turn(group)
        if not group.members:
            self._end(group, waiting.request)
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
        self._lines.leave(group)
        group.refused = refused
        self._lines.join(group)
        if refused is None:
            self._fresh[group.number] = group
        else:
            self._fresh.pop(group.number, None)

    def wake(self, job_type: str) -> None:
        """Let all groups of a type be asked again: something has changed for them."""
        self._fresh.update(self._of_type.get(job_type, {}))

    def move(self, users: Iterable[int], most: int) -> None:
        """Sort in anew what users wait for; of very many groups the rest at the next times."""
        for user in users:
            self._misplaced.update(self._of_user.get(user, {}))
        self.sort(most)

    def learned(self, job_type: str, most: int) -> None:
        """Sort in anew those of a type; of very many groups the rest at the next times."""
        self._misplaced.update(self._of_type.get(job_type, {}))
        self.sort(most)

    def sort(self, most: int) -> None:
        """Sort in anew some of those whose turns may have changed."""
        for number in list(islice(self._misplaced, most)):
            group = self._misplaced.pop(number)
            self._take_turn(group)
            self._give_turn(group)

    def settle(self, group: Group) -> None:
        """Ask a group no more until something changes: its last no still holds."""
        if group.refused is not None:
            self._fresh.pop(group.number, None)

    def fresh(self) -> list[Group]:
        """Return those whose last no, if there was one, says nothing any more; in turn."""
        return sorted(self._fresh.values(), key=lambda group: group.turn)

    def next_fitting(self, after: Turn, offer: Offer) -> Group | None:
        """Return the first after a turn of those to whom there may be enough to give."""
        return self._lines.next_after(after, offer)

    def _begin(self, kind: Kind, like: Request) -> Group:
        self._numbers += 1
        group = self._groups[kind] = Group(kind, number=self._numbers)
        self._of_type.setdefault(like.job_type, {})[group.number] = group
        self._of_user.setdefault(like.user, {})[group.number] = group
        self._fresh[group.number] = group
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

    def find(self, key: str) -> Waiting | None:
        """Return a request that waits."""
        group = self.group_of(key)
        return None if group is None else group.members[key]

    def group_of(self, key: str) -> Group | None:
        """Return the group a request waits in."""
        kind = self._kind_of.get(key)
        return None if kind is None else self._groups[kind]

    def oldest_since(self) -> float:
        """Return since when somebody waits; infinity when nobody does."""
        while self._since:
            since, key = self._since[0]
            waiting = self.find(key)
            if waiting is not None and waiting.since == since:
                return since
            heapq.heappop(self._since)
        return math.inf

    def job_types(self) -> set[str]:
        """Return all types of which some wait."""
        return set(self._of_type)

    def count_by_user(self) -> dict[int, int]:
        """Return how many requests of each user wait."""
        return {
            user: sum(len(group.members) for group in groups.values())
            for user, groups in self._of_user.items()
        }

    def in_turn(self) -> Iterator[Group]:
        """Go through the groups by whose head is next."""
        return (group for _, group in self._turns)

    def ordered(self) -> list[Waiting]:
        """Return all requests, the next first; the same list until something changes."""
        if self._ordered is None:
            entries: list[tuple[Turn, Waiting]] = []
            for turn, group in self._turns:
                head, *others = group.in_line()
                entries.append((turn, head))
                entries += ((self._rank(one), one) for one in others)
            entries.sort(key=itemgetter(0))
            self._ordered = [waiting for _, waiting in entries]
        return self._ordered

    def _note(self, key: str) -> None:
        if self.changed is not None:
            self.changed[key] = None

    def _take_turn(self, group: Group) -> None:
        self._ordered = None
        if group.members:
            del self._turns[bisect_left(self._turns, group.turn, key=turn_of)]
            self._lines.leave(group)

    def _give_turn(self, group: Group) -> None:
        if group.members:
            before = group.head
            head = self._judge(before)
            if head is not before:
                group.members[head.request.key] = head
                self._note(head.request.key)
            group.turn = self._rank(head)
            insort(self._turns, (group.turn, group), key=turn_of)
            self._lines.join(group)


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
        request.is_spared,
        request.holder.pid if is_pinned and request.holder else None,
        mattering(request.arguments) if request.arguments else (),
        lasting(request.arguments) if request.arguments else (),
        request.code,
    )
