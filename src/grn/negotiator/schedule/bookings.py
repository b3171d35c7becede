"""The bookings: which GPUs are closed to a request because of them, and until when.

The GPUs of a booking are chosen when it is made and chosen again while jobs are on them that are
not expected to end before its start. From its start on it keeps each GPU that is free of the jobs
of others. A request of another user is not granted a booked GPU unless its job ends before the
start: by its time limit or the usual time of its type, with the caution of backfill, or because
it gives way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from grn.model.job import Request
from grn.model.windows import show_span
from grn.negotiator.actions import DropBooking, SaveBooking
from grn.negotiator.events import Booking, Lease, LeaseState, Wait, WaitReason
from grn.negotiator.schedule.needs import remaining_s
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Book, Rules
from grn.negotiator.schedule.room.room_index import MANY
from grn.negotiator.schedule.turns.wait_index import Ahead
from grn.negotiator.schedule.turns.wait_queue import Waitlist

_CHOICE_S = 5.0  # GPUs of a booking that are not free in time are chosen again at this interval
_NONE: frozenset[str] = frozenset()


class Booked(NamedTuple):
    """What the bookings mean for one request."""

    closed: frozenset[str] = _NONE  # GPUs of other users
    own: frozenset[str] = _NONE  # GPUs that are booked by its user at present


NOT_BOOKED = Booked()


class Bookings:
    """All bookings by id. The wall clock is that of the latest event that told it."""

    def __init__(
        self,
        rules: Rules,
        holdings: Holdings,
        waitlist: Waitlist,
        alone_s: Callable[[Request, str], float | None],
    ) -> None:
        self._rules = rules
        self._holdings = holdings
        self._waitlist = waitlist
        self._alone_s = alone_s
        self.offset_s = 0.0  # wall clock minus the clock of events
        self.by_id: dict[int, Booking] = {}
        self._began_at: dict[int, float] = {}  # active bookings, by the clock of events
        self._held_since: dict[int, dict[str, float]] = {}  # and each of their GPUs
        self._used: set[int] = set()  # bookings with a job of their user since the latest `advance`
        self._choose_at = -math.inf
        self._to_choose: dict[int, None] = {}  # bookings whose GPUs are to be looked at again
        self._sets: dict[tuple[int, ...], frozenset[str]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self.by_id)

    # --- questions ---------------------------------------------------------------------

    @property
    def unknown_s(self) -> float:
        """Return how long jobs of unknown duration are expected to run."""
        return self._rules.booking_unknown_s

    def of(self, user: int, runs_s: float, at: float) -> Booked:
        """Return what the bookings mean for a job that starts now and takes so long at most."""
        if not self.by_id:
            return NOT_BOOKED
        now = at + self.offset_s
        until = now + runs_s
        others, own = [], []
        for one in self.by_id.values():
            if now >= one.end_at:
                continue
            is_active = one.start_at <= now
            if one.user != user and (is_active or one.start_at < until):
                others.append(one.id)
            elif one.user == user and is_active:
                own.append(one.id)
        closed = self._gpus_of(others)
        return Booked(closed, self._gpus_of(own) - closed)

    def ahead(self, at: float, user: int, yields: bool) -> Ahead:
        """Return what the bookings mean for requests of a user, of which all yield or none does.

        One that yields may be asked to end sooner than at the start of a booking.
        """
        now = at + self.offset_s
        others = [one for one in self.by_id.values() if one.user != user and now < one.end_at]
        closed = [one.id for one in others if one.start_at <= now]
        later = sorted((one.start_at - now, one.id) for one in others if one.start_at > now)
        sets, starts_s = [self._gpus_of(closed)], []
        for start_s, booking in [] if yields else later:
            closed.append(booking)
            sets.append(self._gpus_of(closed))
            starts_s.append(start_s)
        return Ahead(sets, starts_s, self.unknown_s)

    def has_user(self, user: int) -> bool:
        """True when a user has a booking."""
        return any(one.user == user for one in self.by_id.values())

    def wait(self, user: int, gpus: Collection[str], closed: Collection[str], at: float) -> Wait:
        """Name the first booking that keeps a request from GPUs."""
        now = at + self.offset_s
        kept = set(gpus) & set(closed)
        ahead = [one for one in self.by_id.values() if one.user != user and now < one.end_at]
        first = min(
            (one for one in ahead if not kept.isdisjoint(one.gpus)),
            key=lambda one: (one.start_at, one.id),
        )
        books = [self._holdings.books[uuid] for uuid in first.gpus if uuid in kept]
        names = ", ".join(str(book.gpu.index) for book in books)
        span = show_span(first.start_at, first.end_at, now)
        text = (
            f"GPU {names} {'is' if len(books) == 1 else 'are'} booked by {first.user_name} {span}"
        )
        if first.start_at > now:
            text += "; runs of this job have not shown that it ends before"
        return Wait(WaitReason.BOOKED, text)

    def new_id(self) -> int:
        """Return the id of the next booking."""
        return self._last_id + 1

    # --- changes -------------------------------------------------------------------------

    def open(self, bookings: Iterable[Booking], offset_s: float) -> None:
        """Load saved bookings; GPUs that are not managed any more are left out."""
        self.offset_s = offset_s
        for one in bookings:
            gpus = tuple(uuid for uuid in one.gpus if uuid in self._holdings.books)
            self._put(replace(one, gpus=gpus))

    def put(self, bookings: Sequence[Booking], at: float) -> Iterator[SaveBooking]:
        """Add a booking that was admitted, and move others."""
        for one in bookings:
            self._put(one)
        self._waitlist.renew_user(bookings[0].user)
        yield from map(SaveBooking, bookings)
        for one in self._in_order():
            yield from self._choose(one, at)
        self._hold(at)

    def remove(self, booking: int, because: str) -> Iterator[DropBooking]:
        """Remove a booking."""
        one = self.by_id.pop(booking, None)
        if one is not None:
            self._forget(booking)
            self._used.discard(booking)
            self._sets.clear()
            self._waitlist.renew_user(one.user)
            yield DropBooking(booking, because)

    def note_grant(self, lease: Lease, at: float) -> None:
        """Note that a user has a job on GPUs that are booked for them."""
        now = at + self.offset_s
        for one in self.by_id.values():
            is_own = one.user == lease.request.user and one.start_at <= now
            if is_own and not one.is_used and not set(lease.gpus).isdisjoint(one.gpus):
                self._used.add(one.id)

    def advance(self, at: float) -> Iterator[SaveBooking | DropBooking]:
        """End bookings whose time is over or that are unused; choose GPUs again."""
        now = at + self.offset_s
        waiting = self._waitlist.count_by_user()
        for one in list(self.by_id.values()):
            if now >= one.end_at:
                yield from self.remove(one.id, "over")
            elif now < one.start_at:
                self._forget(one.id)  # also when the clock was set back
            elif self._is_used(one):
                self._put(replace(one, is_used=True))
                yield SaveBooking(self.by_id[one.id])
            elif not one.is_used and one.user not in waiting:
                began_at = self._began_at.setdefault(one.id, at)
                if at - began_at >= self._rules.booking_lapse_s:
                    yield from self.remove(one.id, "unused")
        self._used.clear()
        if self.by_id and at >= self._choose_at:
            self._choose_at = at + _CHOICE_S
            self._to_choose.update(dict.fromkeys(one.id for one in self._in_order()))
        self._hold(at)

    @property
    def is_choosing(self) -> bool:
        """True when the GPUs of some bookings are to be looked at again."""
        return bool(self._to_choose)

    def choose_next(self, at: float) -> Iterator[SaveBooking]:
        """Choose GPUs again for the first of these bookings, the earliest one."""
        booking = next(iter(self._to_choose))
        del self._to_choose[booking]
        if booking in self.by_id:
            yield from self._choose(self.by_id[booking], at)
            self._hold(at)

    def in_the_way(self, at: float) -> Iterator[Lease]:
        """Yield leases of others on GPUs that are booked now, which give way."""
        for booking, gpus in self._held_since.items():
            for uuid in gpus:
                for lease in self._holdings.books[uuid].leases.values():
                    request = lease.request
                    is_other = request.user != self.by_id[booking].user
                    is_asked = request.yields and lease.state is LeaseState.HELD
                    if is_other and is_asked and at - lease.granted_at >= request.at_least_s:
                        yield lease

    def check(self) -> None:
        """Raise AssertionError when bookings contradict each other or the leases."""
        for one in self.by_id.values():
            assert len(one.gpus) == len(set(one.gpus)) <= one.count
            assert not one.able or set(one.gpus) <= set(one.able)
            for other in self.by_id.values():
                if other.id != one.id and other.overlaps(one.start_at, one.end_at):
                    assert set(one.gpus).isdisjoint(other.gpus), "a GPU is booked twice"
        for booking, gpus in self._held_since.items():
            for uuid, since in gpus.items():
                for lease in self._holdings.books[uuid].leases.values():
                    is_own = lease.request.user == self.by_id[booking].user
                    assert is_own or lease.granted_at <= since, "granted on a booked GPU"

    def _put(self, booking: Booking) -> None:
        self.by_id[booking.id] = booking
        self._last_id = max(self._last_id, booking.id)
        self._sets.clear()

    def _forget(self, booking: int) -> None:
        self._began_at.pop(booking, None)
        self._held_since.pop(booking, None)

    def _gpus_of(self, ids: Sequence[int]) -> frozenset[str]:
        """Return the GPUs of some bookings."""
        if not ids:
            return _NONE
        name = tuple(sorted(ids))
        if name not in self._sets:
            self._sets[name] = frozenset(uuid for one in ids for uuid in self.by_id[one].gpus)
        return self._sets[name]

    def _is_used(self, booking: Booking) -> bool:
        """True when a booking turns out to be used."""
        if booking.is_used:
            return False
        return booking.id in self._used or any(
            lease.request.user == booking.user
            for uuid in booking.gpus
            for lease in self._holdings.books[uuid].leases.values()
        )

    def _hold(self, at: float) -> None:
        """Note since when the GPUs of active bookings are closed to others."""
        now = at + self.offset_s
        for one in self.by_id.values():
            if one.start_at <= now < one.end_at:
                self._began_at.setdefault(one.id, at)
                held = self._held_since.get(one.id, {})
                self._held_since[one.id] = {uuid: held.get(uuid, at) for uuid in one.gpus}

    # --- the choice of GPUs ----------------------------------------------------------------

    def _in_order(self) -> list[Booking]:
        return sorted(self.by_id.values(), key=lambda one: (one.start_at, one.id))

    def _choose(self, booking: Booking, at: float) -> Iterator[SaveBooking]:
        """Choose GPUs again for a booking if its GPUs are not expected to be free in time."""
        if self._is_ready_in_time(booking, at):
            return
        gpus = self._chosen(booking, at)
        if gpus != booking.gpus:
            self._put(replace(booking, gpus=gpus))
            yield SaveBooking(self.by_id[booking.id])

    def _is_ready_in_time(self, booking: Booking, at: float) -> bool:
        left_s = max(0.0, booking.start_at - at - self.offset_s)
        books = [self._holdings.books[uuid] for uuid in booking.gpus]
        return len(books) == booking.count and all(
            book.is_usable and self._drained_s(book, booking.user, at) <= left_s for book in books
        )

    def _chosen(self, booking: Booking, at: float) -> tuple[str, ...]:
        """Return the GPUs that are free of the jobs of others first; no other booking has them."""
        start_at, end_at = booking.start_at, booking.end_at
        taken = {
            uuid
            for one in self.by_id.values()
            if one.id != booking.id and one.overlaps(start_at, end_at)
            for uuid in one.gpus
        }
        free = [
            book
            for uuid, book in self._holdings.books.items()
            if uuid not in taken and (not booking.able or uuid in booking.able)
        ]

        if len(free) > MANY:  # consider those with the fewest jobs of others
            most = max(MANY, 2 * booking.count)
            free.sort(key=lambda book: len(_in_the_way(book, booking.user)))
            free = free[:most] + [book for book in free[most:] if book.gpu.uuid in booking.gpus]

        def rank(book: Book) -> tuple[bool, float, bool, int]:
            is_new = book.gpu.uuid not in booking.gpus
            drained_s = self._drained_s(book, booking.user, at)
            return (not book.is_usable, drained_s, is_new, len(book.leases))

        chosen = {book.gpu.uuid for book in sorted(free, key=rank)[: booking.count]}
        return tuple(uuid for uuid in self._holdings.books if uuid in chosen)

    def _drained_s(self, book: Book, user: int, at: float) -> float:
        """Return when the jobs of other users will have left a GPU; those that yield do at once."""
        model = book.gpu.model
        return max(
            (
                remaining_s(
                    lease.request, self._alone_s(lease.request, model), at - lease.granted_at
                )
                for lease in _in_the_way(book, user)
            ),
            default=0.0,
        )


def _in_the_way(book: Book, user: int) -> list[Lease]:
    """Return the leases on a GPU that a booking of a user has to wait for."""
    return [
        lease
        for lease in book.leases.values()
        if lease.request.user != user
        and not lease.request.yields
        and lease.state is LeaseState.HELD
    ]
