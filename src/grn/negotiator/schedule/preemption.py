"""Choose leases that give way to a request without room, and reserve their GPUs for it.

Only leases that were requested as yielding are asked, and none before it has run for the time that
its request states; idle ones too, where the rule says so. The least running time is lost: the
cheapest leases are tried first, idle ones before all, and only those whose end makes the difference
are asked. Who asks for the end, and how, is decided elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from grn.model.job import Request
from grn.negotiator.actions import AskYield
from grn.negotiator.events import Lease, LeaseState, Wait, WaitReason
from grn.negotiator.schedule.placement import Need, Place, allowed, place
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Book, Rules
from grn.negotiator.schedule.room.room_index import MANY
from grn.negotiator.schedule.turns.order import WaitingRequest
from grn.negotiator.schedule.turns.wait_queue import Waitlist

HOLD_S = 30.0  # how long freed GPUs stay reserved when the request still does not fit
GIVE_UP_S = 900.0  # a lease that has not ended by then is not waited for
_SOON_S = 60.0  # a job that usually ends within this is not asked while others can be
_SOON_COST = 1e9
_MAX_REQUESTS = 8  # that are considered per event
_MAX_GROUPS = 64  # that are looked at for these
_MAX_LEASES = 64  # that are tried, the cheapest
ROOM = frozenset({
    WaitReason.NO_ROOM, WaitReason.NO_ROOM_FOR_FIRST_RUN, WaitReason.NO_EMPTY_GPU,
    WaitReason.GPUS_BUSY, WaitReason.NOT_ENOUGH_GPUS, WaitReason.YIELDS_TO_OLDER,
    WaitReason.BOOKED,
})  # fmt: skip


class Claim(Struct, frozen=True):
    """The GPUs that are reserved for a request until the leases asked have ended."""

    key: str
    sequence: int
    gpus: tuple[str, ...]
    victims: tuple[str, ...]
    asked_at: float


class Costs(Struct, frozen=True):
    """What the choice needs to know of leases and requests."""

    needs: Callable[[Request], dict[str, Need]]
    alone_s: Callable[[Request, str], float | None]
    load_of: Callable[[Lease, str], float | None]
    booked: Callable[[Request, float], Collection[str]]  # GPUs that bookings close to a request


class Preemption:
    """The leases that were asked to give way, and the requests they give way to."""

    def __init__(self, rules: Rules, holdings: Holdings, waitlist: Waitlist, costs: Costs) -> None:
        self._rules = rules
        self._holdings = holdings
        self._waitlist = waitlist
        self._costs = costs
        self._urgent: dict[str, None] = {}  # keys of waiting requests that ask at once
        self.claims: dict[str, Claim] = {}  # by key
        self.asked: dict[str, float] = {}  # leases, and when

    def note(self, request: Request) -> None:
        """Note a request that waits."""
        if request.is_urgent and not request.yields:
            self._urgent[request.key] = None

    def reserved(self) -> dict[str, int]:
        """Return the GPUs kept for requests, each with the request's sequence."""
        waiting = (claim for claim in self.claims.values() if claim.key in self._waitlist)
        return {uuid: claim.sequence for claim in waiting for uuid in claim.gpus}

    def groups(self) -> Iterator[str]:
        """Yield the keys of the requests that GPUs are reserved for."""
        return iter(self.claims)

    def ask(
        self, at: float, answer: Callable[[Request, float], Place | Wait]
    ) -> Iterator[AskYield]:
        """Choose leases for the first requests in turn that wait for room."""
        self._prune(at)
        if not self._holdings.yielding:
            return
        for waiting in islice(self._candidates(at), _MAX_REQUESTS):
            said = answer(waiting.request, at)
            if not isinstance(said, Wait) or said.reason not in ROOM:
                continue
            claim = self._claim(waiting, at)
            if claim is None:
                continue
            self.claims[claim.key] = claim
            for lease_id in claim.victims:
                self.asked[lease_id] = at
                yield AskYield(self._holdings.leases[lease_id], claim.key)

    def ask_for_booking(self, leases: Iterable[Lease], at: float) -> Iterator[AskYield]:
        """Ask leases on GPUs that are booked now, each once."""
        for lease in leases:
            if lease.id not in self.asked:
                self.asked[lease.id] = at
                yield AskYield(lease)

    def text(self, key: str) -> str:
        """Say which jobs were asked to give way to a request; empty when none was."""
        claim = self.claims.get(key)
        leases = self._holdings.leases
        alive = [leases[one] for one in claim.victims if one in leases] if claim else []
        names = ", ".join(f"{one.request.label} (lease {one.id})" for one in alive)
        return f"asked to give way to it: {names}" if names else ""

    def check(self) -> None:
        """Raise AssertionError when the claims contradict the books."""
        victims = [one for claim in self.claims.values() for one in claim.victims]
        assert len(victims) == len(set(victims)), "a lease gives way to two requests"
        for lease_id, asked_at in self.asked.items():
            lease = self._holdings.leases.get(lease_id)
            if lease is not None:
                may_yield = lease.request.yields or lease.request.is_queued
                assert may_yield, "a lease that does not yield was asked"
                ran_s = asked_at - lease.granted_at
                assert ran_s >= lease.request.at_least_s, "asked within the time it has"

    def _prune(self, at: float) -> None:
        leases = self._holdings.leases
        for key, claim in list(self.claims.items()):
            are_gone = not any(one in leases for one in claim.victims)
            patience_s = HOLD_S if are_gone else GIVE_UP_S
            is_over = at - claim.asked_at > patience_s + HOLD_S
            if key not in self._waitlist or is_over or self._is_booked(claim, at):
                del self.claims[key]
        for lease_id in [one for one in self.asked if one not in leases]:
            del self.asked[lease_id]
        for key in [one for one in self._urgent if one not in self._waitlist]:
            del self._urgent[key]

    def _is_booked(self, claim: Claim, at: float) -> bool:
        """True when a booking has come between a request and the GPUs that are reserved for it."""
        waiting = self._waitlist.find(claim.key)
        if waiting is None:
            return True
        return not set(claim.gpus).isdisjoint(self._costs.booked(waiting.request, at))

    def _candidates(self, at: float) -> Iterator[WaitingRequest]:
        """Yield requests that may ask others to give way: urgent ones, then in turn."""
        seen = set(self.claims)
        for key in list(self._urgent):
            group = self._waitlist.group_of(key)
            if group is not None and group.head.request.key not in seen:
                head = group.head
                if self._may_hurry(head.request):
                    seen.add(head.request.key)
                    yield head
        for group in islice(self._waitlist.in_turn(), _MAX_GROUPS):
            head = group.head
            has_waited = at - head.since >= self._rules.yield_after_s
            if not head.request.yields and has_waited and head.request.key not in seen:
                yield head

    def _may_hurry(self, request: Request) -> bool:
        """True while a user has not used up its urgent jobs."""
        held = sum(
            lease.request.is_urgent and lease.request.user == request.user
            for lease in self._holdings.leases.values()
        )
        waiting = (self._waitlist.find(key) for key in self.claims if key in self._urgent)
        held += sum(one is not None and one.request.user == request.user for one in waiting)
        return held < self._rules.urgent_per_user

    def _claim(self, waiting: WaitingRequest, at: float) -> Claim | None:
        """Return the leases whose end makes room, and the GPUs; None when no choice does."""
        request = waiting.request
        needs = self._costs.needs(request)
        closed = {
            uuid for uuid, sequence in self.reserved().items() if sequence != waiting.sequence
        }
        closed.update(self._costs.booked(request, at))
        books = [
            book
            for book in allowed(request, list(self._holdings.books.values()))
            if book.gpu.uuid not in closed
        ]
        costs = {
            one: self._cost(self._holdings.leases[one], at)
            for one in self._holdings.yielding
            if one not in self.asked
        }
        usual = sorted((cost, one) for one, cost in costs.items() if cost < math.inf)
        few = [one for _, one in usual[:_MAX_LEASES]]
        books = self._near(books, few, request.gpus)

        def placed(victims: Sequence[str]) -> Place | None:
            found = place(request, needs, [self._without(book, victims) for book in books])
            return found if isinstance(found, Place) else None

        count = _first_enough(len(few), lambda number: placed(few[:number]) is not None)
        if count is None:
            return None
        chosen = few[:count]
        for one in reversed(few[:count]):  # the dearest first: which of them are not needed?
            rest = [other for other in chosen if other != one]
            if placed(rest) is not None:
                chosen = rest
        where = placed(chosen)
        if where is None or not chosen:
            return None
        return Claim(request.key, waiting.sequence, where.gpus, tuple(chosen), at)

    def _near(self, books: list[Book], leases: Collection[str], gpus: int) -> list[Book]:
        """Of very many GPUs, return those of some leases and the roomiest."""
        if len(books) <= MANY:
            return books
        near = {uuid for one in leases for uuid in self._holdings.leases[one].gpus}
        roomiest, _ = self._holdings.rooms.likely(0, gpus)
        near.update(book.gpu.uuid for book in roomiest)
        return [book for book in books if book.gpu.uuid in near]

    def _cost(self, lease: Lease, at: float) -> float:
        """Return the running time that is lost, over all GPUs; infinity for a protected lease."""
        ran_s = at - lease.granted_at
        is_held = lease.state is LeaseState.HELD
        if not is_held or not lease.gpus or ran_s < lease.request.at_least_s:
            return math.inf
        if lease.idle_since is not None:
            return lease.idle_since - at  # the longest first
        model = self._holdings.books[lease.gpus[0]].gpu.model
        usual_s = self._costs.alone_s(lease.request, model)
        is_soon_over = usual_s is not None and 0 <= usual_s - ran_s < _SOON_S
        return ran_s * len(lease.gpus) + (_SOON_COST if is_soon_over else 0.0)

    def _without(self, book: Book, victims: Collection[str]) -> Book:
        """Return the book of a GPU as it will be when some of its leases have ended."""
        gone = [one for one in victims if one in book.leases]
        if not gone:
            return book
        load = sum(
            self._costs.load_of(lease, book.gpu.model) or 0.0
            for lease_id, lease in book.leases.items()
            if lease_id not in gone and lease.state is LeaseState.HELD
        )
        return without(book, gone, load)


def without(book: Book, gone: Collection[str], load: float) -> Book:
    """Return a copy of a book without some leases and without their memory."""
    reading = book.reading
    left = tuple(use for use in reading.uses if not use.leases or set(use.leases) - set(gone))
    freed = sum(use.used_bytes or 0 for use in reading.uses if use not in left)
    freed += sum(
        book.leases[one].reserved_on(book.gpu.uuid) for one in gone if book.measured_of(one) is None
    )
    used = reading.used_bytes
    reading = replace(reading, uses=left, used_bytes=None if used is None else max(0, used - freed))
    made = dataclasses.replace(
        book,
        reading=reading,
        leases={one: lease for one, lease in book.leases.items() if one not in gone},
        measured={one: size for one, size in book.measured.items() if one not in gone},
        entangled=set(book.entangled),
        load=load,
        changed=None,
        _sums=None,
    )
    made.mode = book.mode
    made.is_closed = book.is_closed and bool(made.outgrown())
    return made


def _first_enough(most: int, is_enough: Callable[[int], bool]) -> int | None:
    """Return the least number up to `most` that is enough; None when even `most` is not."""
    if not most or not is_enough(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
