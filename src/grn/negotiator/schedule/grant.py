"""Grant GPUs to waiting requests in turn; try only requests whose answer may have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from grn.model.job import Request
from grn.negotiator.events import Lease, Wait
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.schedule.answers import RequestAnswers
from grn.negotiator.schedule.bookings import Bookings
from grn.negotiator.schedule.needs import RequestNeeds
from grn.negotiator.schedule.placement import Place
from grn.negotiator.schedule.preemption import Costs, Preemption
from grn.negotiator.schedule.refusals import Refusals, RoomsOnGpus
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Rules
from grn.negotiator.schedule.room.room_index import MANY
from grn.negotiator.schedule.turns.backfill import Backfill
from grn.negotiator.schedule.turns.fair_share import Shares, Usage
from grn.negotiator.schedule.turns.order import BookedFor, Group, Reach, Turn, WaitingRequest
from grn.negotiator.schedule.turns.wait_index import Ahead, Rooms
from grn.negotiator.schedule.turns.wait_queue import Waitlist

USUAL_S = 600.0  # of a type without timed runs
MAX_WORK = 12  # per event, of some 15 us each: the rest of a round follows
_REFUSAL_WORK = 3  # to find that no GPU has room for a request,
_PLACE_WORK = 6  # to place it,
_GRANT_WORK = 18  # and to grant it
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_BEFORE_ALL: Turn = (-1, 0, 0, 0.0, 0)


class Computed(dict[_Key, _Value]):
    """Values that are computed when they are first looked up."""

    def __init__(self, compute: Callable[[_Key], _Value]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: _Key) -> _Value:
        value = self[key] = self._compute(key)
        return value


class Granter:
    """Turns room on GPUs into leases and enters them into the books."""

    def __init__(
        self,
        rules: Rules,
        type_needs: TypeNeeds,
        loads: Loads,
        holdings: Holdings,
        waitlist: Waitlist,
        shares: Shares,
        usage: Usage,
    ) -> None:
        self._memory = memory = type_needs.profiles
        self._holdings = holdings
        self._waitlist = waitlist
        self._shares = shares
        self._usage = usage
        needs = self.needs = RequestNeeds(rules, type_needs, loads, holdings)
        self.bookings = Bookings(rules, holdings, waitlist, needs.alone_s)
        self.answers = RequestAnswers(memory, holdings, needs, self.bookings)
        booked = self.answers.booked_closed
        self._backfill = Backfill(rules, holdings, waitlist, needs, booked)
        self._refusals = Refusals(memory, holdings, needs, self.answers, self._backfill)
        costs = Costs(needs.of, needs.alone_s, loads.of_lease, booked)
        self.preemption = Preemption(rules, holdings, waitlist, costs)
        self._resume = _BEFORE_ALL  # the turn after which a round continues
        self._round_closed: dict[str, int] = {}  # GPUs that are reserved during a round
        self._tried = 0  # requests that were placed, or tried to be
        self._is_due = False  # a round is to begin after the answers
        self.max_work: float = MAX_WORK
        self.max_gpus_at_once = MANY  # with more of them a round after an end is put off

    # --- which request -------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True when a round was put off, or cut short and has to continue."""
        return (self._is_due or self._resume != _BEFORE_ALL) and len(self._waitlist) > 0

    def put_off(self) -> bool:
        """Leave a round for after the answers, where it takes long; False where it does not."""
        self._is_due |= len(self._holdings.books) > self.max_gpus_at_once
        return self._is_due

    def to_all(self, at: float, is_continued: bool = False) -> Iterator[Lease]:
        """Offer free GPUs to waiting requests in turn: one round, at most `max_work` of it.

        A round that was cut short is continued, or begun again where something has changed since.
        """
        is_continued, self._is_due = is_continued and not self._is_due, False
        self.follow_processes()
        if not is_continued:
            self._round_closed = self._closed(at)
            self._wake()
        closed = self._round_closed
        rooms = RoomsOnGpus(self._holdings.rooms, closed)
        left_s = self._backfill.left_s(at)

        def ahead_of(who: BookedFor) -> Ahead:
            return self.bookings.ahead(at, who.user, who.yields)

        def beside_bookings(reach: Reach, who: BookedFor) -> Rooms:
            host = self._holdings.host.room()
            return Rooms(partial(rooms.on, reach), left_s, host, ahead[who])

        def rooms_in(reach: Reach) -> Rooms:
            host, booked = self._holdings.host.room(), None
            if self.bookings:
                booked = Computed(partial(beside_bookings, reach)).__getitem__
            return Rooms(partial(rooms.on, reach), left_s, host, booked=booked)

        ahead, open_rooms = Computed(ahead_of), Computed(rooms_in)
        last = self._resume if is_continued else _BEFORE_ALL
        self._resume, work = _BEFORE_ALL, 0
        for group in self._waitlist.candidates(last, open_rooms.__getitem__, self.needs.guess()):
            if work >= self.max_work:
                self._resume = last
                break
            last = group.turn
            if self._refusals.is_still_no(group, rooms, closed, at):
                self._waitlist.settle(group)
                work += 1
                continue
            before = self._tried
            lease = self._offer(group, at, closed)
            work += _REFUSAL_WORK if self._tried == before else _PLACE_WORK
            if lease is not None:
                work += _GRANT_WORK
                yield lease
                if work >= self.max_work:  # others are looked for after the answers
                    self._resume = last
                    break
                rooms.cache_clear()
                open_rooms.clear()
                self._note_processes()
        self.follow_processes()

    def to_newcomer(self, waiting: WaitingRequest, at: float) -> Iterator[Lease]:
        """Offer GPUs to a new request only: for all others nothing has changed."""
        self.follow_processes()
        group = self._waitlist.group_of(waiting.request.key)
        if group is None or group.head.request.key != waiting.request.key:
            return
        if self.is_behind and group.turn > self._resume:
            return  # older requests are still to be tried before it
        lease = self._offer(group, at, self._closed(at))
        if lease is not None:
            yield lease
            self.follow_processes()

    def at_once(self, request: Request, at: float) -> Lease | None:
        """Grant a request that fits, while no other waits."""
        answer = self.answers.to(request, at)
        return None if isinstance(answer, Wait) else self._grant(request, answer, at)

    def follow_processes(self) -> None:
        """Note which processes have come to GPUs or left them."""
        self._note_processes()
        self._waitlist.pin_some()

    def _note_processes(self) -> None:
        for uuid in self._holdings.rooms.moved():
            self._waitlist.on_gpu(uuid, self._holdings.books[uuid].pids())

    def _wake(self) -> None:
        """Retry groups for which something other than room has changed."""
        for job_type in self._memory.woken:
            self._waitlist.wake(job_type)
        self._memory.woken.clear()
        for key in self.preemption.groups():
            group = self._waitlist.group_of(key)
            if group is not None:
                self._waitlist.wake_group(group)
        if self._backfill.group is not None:  # its head may use the GPUs that are reserved for it
            self._waitlist.wake_group(self._backfill.group)

    def _closed(self, at: float) -> dict[str, int]:
        """Return the GPUs that are reserved, each with the sequence of its request."""
        closed = self._backfill.closed(at)
        return {**closed, **self.preemption.reserved()} if self.preemption.claims else closed

    def _offer(self, group: Group, at: float, closed: dict[str, int]) -> Lease | None:
        """Try the head of a group; record a refusal for the group."""
        head = group.head
        shut = [uuid for uuid, sequence in closed.items() if sequence != head.sequence]
        if shut and self._backfill.may_pass(group, at):
            shut = [uuid for uuid in shut if uuid in self.preemption.reserved()]
        request = head.request
        needs = self.needs.of(request)
        booked = self.answers.booked(request, at)
        refused = None
        if request.gpus:
            refused = self._refusals.without_room(request, needs, shut, booked.closed)
        if refused is not None:
            self._waitlist.refuse(group, refused)
            return None
        self._tried += 1
        answer = self.answers.placed(request, needs, shut, head.sequence, booked, at)
        if isinstance(answer, Place):
            self._waitlist.pop(request.key)
            self._shares.given(head)
            return self._grant(request, answer, at)
        if group.pid is None and _is_own(request) and self._refusals.reach_of(request).is_pinned:
            self._waitlist.refuse(group, None)  # `follow_processes` takes it out of this group
        else:
            self._waitlist.refuse(group, self._refusals.refused(request, needs, answer))
        return None

    def _grant(self, request: Request, where: Place, at: float) -> Lease:
        lease = Lease(
            request, where.gpus, where.reserved, where.is_probe, at,
            ram_bytes=where.ram_bytes, cpus=where.cpus,
        )  # fmt: skip
        self._holdings.put(lease, at)
        usual_s = self._memory.usual_s(request.job_type, self._holdings.model_of(lease))
        expected_s = USUAL_S if usual_s is None else usual_s
        if self.bookings:
            self.bookings.note_grant(lease, at)
        share = self._holdings.share_of(lease)
        self._usage.began(lease.id, request.user, share, expected_s, at)
        return lease


def _is_own(request: Request) -> bool:
    """True when the requesting process will hold the lease."""
    return request.holder is not None and not request.is_command
