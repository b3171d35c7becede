"""Grant GPUs: ask waiting requests in turn, and only those whose answer may have changed."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterator
from dataclasses import replace

from grn.model.job import Request
from grn.negotiator.events import Lease, Wait, WaitReason
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.type_profiles import TypeProfiles
from grn.negotiator.schedule.allocations import Holdings
from grn.negotiator.schedule.backfill import Keeper
from grn.negotiator.schedule.fair_share import Shares
from grn.negotiator.schedule.free_index import MANY
from grn.negotiator.schedule.ledger import Book
from grn.negotiator.schedule.limits import Rules
from grn.negotiator.schedule.order import Group, Refused, Turn, Waiting
from grn.negotiator.schedule.placement import FreeSpace, Need, Place, allowed, pinned, place
from grn.negotiator.schedule.usage import Usage
from grn.negotiator.schedule.wait_index import Offer
from grn.negotiator.schedule.wait_queue import Waitlist

USUAL_S = 600.0  # of a type whose runs nobody has timed
_BEFORE_ALL: Turn = (-1, 0, 0, 0.0, 0)


class Granter:
    """Turns room on GPUs into leases, written into the books as they are given."""

    def __init__(
        self,
        rules: Rules,
        memory: TypeProfiles,
        loads: Loads,
        holdings: Holdings,
        waitlist: Waitlist,
        shares: Shares,
        usage: Usage,
    ) -> None:
        self._short_s = rules.short_s
        self._memory = memory
        self._loads = loads
        self._holdings = holdings
        self._waitlist = waitlist
        self._shares = shares
        self._usage = usage
        self._keeper = Keeper(rules, holdings, waitlist, self.needs, self.alone_s)
        self._least_guess = (-1, 0)  # the version of our memory, and the guess it leads to

    def needs(self, request: Request) -> dict[str, Need]:
        """Return what a request is believed to need on each GPU model."""
        needs = self._memory.needs(request, self._holdings.sizes(), self._reach(request))
        for model, need in needs.items():
            load = self._loads.of(request.job_type, model, request.arguments)
            beside = self._loads.slower_beside(request.job_type, model)
            if load is not None or beside:
                needs[model] = replace(
                    need, load=load, beside=beside, power=self._loads.power(model)
                )
        return self._by_speed(request, needs) if len(needs) > 1 else needs

    def never_fits(self, request: Request) -> str | None:
        """Say why no GPU here will ever do for a request, None when one may."""
        reach = self._reach(request)
        sizes = self._holdings.sizes()
        return self._memory.never_fits(request, sizes, sizes if reach is None else reach)

    def _reach(self, request: Request) -> set[str] | None:
        """Return the models that a request may use, None for all."""
        if not request.slots and not request.stay:
            return None
        books = allowed(request, list(self._holdings.books.values()))
        stay = [book for book in books if book.gpu.uuid in request.stay]
        return {book.gpu.model for book in stay or books}

    def _by_speed(self, request: Request, needs: dict[str, Need]) -> dict[str, Need]:
        """Add to needs on several models how long a job takes on each, where runs tell."""
        alone = {model: self.alone_s(request, model) for model in needs}
        times = [each for each in alone.values() if each is not None]
        if len(times) < 2:
            return needs
        return {
            model: replace(need, longer=(alone[model] or min(times)) / min(times))
            for model, need in needs.items()
        }

    def guess(self) -> int:
        """Return what a type nobody knows needs at least."""
        if self._least_guess[0] != self._memory.version:
            least = self._memory.least_guess(self._holdings.sizes())
            self._least_guess = (self._memory.version, least)
        return self._least_guess[1]

    def is_short(self, request: Request) -> bool:
        """True when runs like this are known to take little time."""
        for model in self._holdings.sizes():
            alone_s = self.alone_s(request, model)
            if alone_s is not None and alone_s <= self._short_s:
                return True
        return False

    def alone_s(self, request: Request, model: str) -> float | None:
        """Return how long runs like this take alone on a GPU model, None when nobody knows."""
        return self._memory.alone_s(request, model, self._loads.power(model))

    # --- to whom -------------------------------------------------------------------------

    def to_all(self, at: float) -> Iterator[Lease]:
        """Offer GPUs to those who wait, in turn, until nobody's wish fits any more."""
        closed = self._keeper.closed(at)
        rooms = self._rooms(closed)
        others = self._others(rooms, closed, at)
        placed: list[Request] = []
        last, place_after = _BEFORE_ALL, 0
        # Who is refused is not asked again in this round: grants only take room.
        while (found := self._next(last, others, place_after, rooms[1])) is not None:
            group, is_other = found
            place_after += is_other
            last = group.turn
            if self._is_still_no(group, rooms[self._keeper.may_pass(group, at)], closed):
                continue
            head = group.head
            lease = self._offer(group, at, closed)
            if lease is not None:
                yield lease
                placed.append(head.request)
                rooms = self._rooms(closed)
            if group.members and group.head is not head:  # the next of its like, in its own turn
                insort(others, group, place_after, key=lambda group: group.turn)
        for request in placed:
            self.pin(request)

    def to_newcomer(self, waiting: Waiting, at: float) -> Iterator[Lease]:
        """Offer to a newcomer alone: for all others nothing has changed."""
        group = self._waitlist.group_of(waiting.request.key)
        if group is not None and group.head.request.key == waiting.request.key:
            lease = self._offer(group, at, self._keeper.closed(at))
            if lease is not None:
                yield lease
                self.pin(waiting.request)

    def at_once(self, request: Request, at: float) -> Lease | None:
        """Grant what fits to the only one who asks, without a place in the line."""
        answer = self.answer(request)
        return None if isinstance(answer, Wait) else self._grant(request, answer, at)

    def pin(self, request: Request) -> None:
        """Keep what else a process waits for from holding up its like: it cannot move any more."""
        if request.holder is not None and not request.is_command:
            self._waitlist.pin(request.holder.pid)

    def _others(
        self, rooms: tuple[FreeSpace, FreeSpace], closed: dict[str, int], at: float
    ) -> list[Group]:
        """Return those to whom something else has changed than the room there is, in turn."""
        for job_type in self._memory.woken:
            self._waitlist.wake(job_type)
        self._memory.woken.clear()
        if closed:  # what is kept free is for one who is asked each time
            self._waitlist.wake(self._keeper.job_type)
        others = []
        for group in self._waitlist.fresh():
            if self._is_still_no(group, rooms[self._keeper.may_pass(group, at)], closed):
                self._waitlist.settle(group)
            else:
                others.append(group)
        return others

    def _next(
        self, last: Turn, others: list[Group], place: int, room: FreeSpace
    ) -> tuple[Group, bool] | None:
        """Return whose turn it is after the last one, and whether it is from the others."""
        most = room.free[-1][0] if room.free else -math.inf
        fitting = self._waitlist.next_fitting(last, Offer(most, room.empty, self.guess()))
        while place < len(others) and not others[place].members:
            place += 1
        other = others[place] if place < len(others) else None
        if other is None:
            return (fitting, False) if fitting else None
        if fitting is None or other.turn <= fitting.turn:
            return other, True
        return fitting, False

    def _offer(self, group: Group, at: float, closed: dict[str, int]) -> Lease | None:
        """Try the head of a group; the answer no is remembered for the group."""
        head = group.head
        shut = [uuid for uuid, sequence in closed.items() if sequence != head.sequence]
        if shut and self._keeper.may_pass(group, at):
            shut = []
        answer = self.answer(head.request, shut)
        if isinstance(answer, Place):
            self._waitlist.pop(head.request.key)
            self._shares.given(head)
            return self._grant(head.request, answer, at)
        if pinned(head.request, list(self._holdings.books.values())):
            self._waitlist.refuse(group, None)
            if len(group.members) > 1:
                self._waitlist.set_apart(head)  # its like can go where it cannot
        else:
            self._waitlist.refuse(group, self._refused(head.request, answer))
        return None

    def _grant(self, request: Request, where: Place, at: float) -> Lease:
        lease = Lease(request, where.gpus, where.reserved, where.is_probe, at)
        self._holdings.put(lease, at)
        usual_s = self._memory.usual_s(
            request.job_type, self._holdings.books_of(lease)[0].gpu.model
        )
        expected_s = USUAL_S if usual_s is None else usual_s
        share = self._holdings.share_of(lease)
        self._usage.began(lease.id, request.user, share, expected_s, at)
        return lease

    # --- what is remembered of a no ------------------------------------------------------

    def _refused(self, request: Request, wait: Wait) -> Refused | None:
        """Return what must change before a request that may go anywhere gets another answer."""
        job_type, needs = request.job_type, self.needs(request)
        version = self._memory.version_of(job_type)
        if wait.reason is WaitReason.FIRST_RUN_ELSEWHERE:
            is_unknown = all(need.is_probe for need in needs.values())
            sibling = self._holdings.first_runs.get(job_type)
            return Refused(job_type, version, sibling) if is_unknown else None
        is_guess = self._memory.is_guess(job_type)
        enough = [need.need_bytes for need in needs.values() if not (is_guess and need.is_probe)]
        least, is_guess = min(enough, default=math.inf), len(enough) < len(needs)
        busy = all(need.load is not None for need in needs.values())
        gpus, is_alone = request.gpus, request.is_exclusive
        return Refused(job_type, version, None, gpus, is_alone, least, is_guess, busy)

    def _is_still_no(self, group: Group, room: FreeSpace, closed: dict[str, int]) -> bool:
        """True when nothing has changed that could turn the last no to this group into a yes."""
        refused = group.refused
        is_kept = bool(closed) and group.head.sequence in closed.values()
        if refused is not None and refused.is_alone and not is_kept and room.empty < refused.gpus:
            return True  # whatever was learned: there is no GPU for it alone
        if refused is None or refused.version != self._memory.changed.get(refused.job_type, 0):
            return False
        if refused.sibling is not None:
            return self._holdings.first_runs.get(refused.job_type) == refused.sibling
        if is_kept or refused.is_alone:
            return False
        least = refused.need_bytes
        if refused.is_guess:
            least = min(least, self.guess())
        return not room.has(refused.gpus, least, refused.is_load_known)

    def _rooms(self, closed: Collection[str]) -> tuple[FreeSpace, FreeSpace]:
        """Return the room on GPUs that are not closed, and on all of them."""
        room = self._holdings.shelf.room(closed)
        return room, self._holdings.shelf.room() if closed else room

    # --- where ---------------------------------------------------------------------------

    def answer(self, request: Request, closed: Collection[str] = ()) -> Place | Wait:
        """Say where a request would go now, or why it has to wait."""
        needs = self.needs(request)
        books = allowed(request, list(self._holdings.books.values()))
        answer = self._place(request, needs, books, closed)
        is_first = (
            answer.is_probe
            if isinstance(answer, Place)
            else answer.reason is WaitReason.NO_ROOM_FOR_FIRST_RUN
        )
        running = self._holdings.first_runs.get(request.job_type) if is_first else None
        if running is None:
            return answer
        homes = pinned(request, books) or books
        known = [book for book in homes if not needs[book.gpu.model].is_probe]
        if len(known) >= request.gpus:  # it is measured on another model than these
            answer = place(request, needs, known, closed)
            if isinstance(answer, Place):
                return answer
        return self._wait_for_sibling(running)

    def _place(
        self,
        request: Request,
        needs: dict[str, Need],
        books: list[Book],
        closed: Collection[str],
    ) -> Place | Wait:
        """Place a request; of very many GPUs only the roomiest are looked at if they will do."""
        is_bound = request.holder is not None and not request.is_command
        if len(books) > MANY and not (request.slots or request.stay or is_bound or closed):
            least = min(need.need_bytes for need in needs.values())
            few, are_all = self._holdings.shelf.likely(least, request.gpus)
            answer = place(request, needs, few, closed) if len(few) >= request.gpus else None
            is_sure = are_all and not request.is_exclusive
            if answer is not None and (is_sure or isinstance(answer, Place)):
                return answer
        return place(request, needs, books, closed)

    def _wait_for_sibling(self, lease_id: str) -> Wait:
        lease = self._holdings.leases[lease_id]
        names = ", ".join(str(book.gpu.index) for book in self._holdings.books_of(lease))
        text = f"the first run of {lease.request.label} is being measured on GPU {names}"
        return Wait(WaitReason.FIRST_RUN_ELSEWHERE, f"{text} (lease {lease_id})")
