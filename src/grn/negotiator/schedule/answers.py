"""Answer one request: the GPUs it gets now, or why it has to wait.

Joins placement, bookings, first runs and the host. Changes nothing; whose turn it is is decided
elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection

from grn.model.job import Request
from grn.negotiator.events import Wait, WaitReason
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.schedule.bookings import NOT_BOOKED, Booked, Bookings
from grn.negotiator.schedule.needs import RequestNeeds
from grn.negotiator.schedule.placement import Need, Place, allowed, is_anywhere, pinned, place
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Book
from grn.negotiator.schedule.room.room_index import MANY
from grn.negotiator.schedule.turns.order import FOR_ANYBODY, BookedFor


class RequestAnswers:
    """Answers to requests by the present state of GPUs, host and bookings."""

    def __init__(
        self,
        memory: TypeProfiles,
        holdings: Holdings,
        needs: RequestNeeds,
        bookings: Bookings,
    ) -> None:
        self._memory = memory
        self._holdings = holdings
        self._needs = needs
        self._bookings = bookings

    def to(self, request: Request, at: float, sequence: int | None = None) -> Place | Wait:
        """Return where a request would be placed now, or why it has to wait."""
        booked = self.booked(request, at)
        return self.placed(request, self._needs.of(request), (), sequence, booked, at)

    def booked(self, request: Request, at: float) -> Booked:
        """Return what the bookings mean for a request: which GPUs are closed to it."""
        if not self._bookings or not request.gpus:
            return NOT_BOOKED
        runs_s = self._needs.lasts_s(request, self._bookings.unknown_s)
        if request.yields:
            runs_s = min(runs_s, request.at_least_s)
        return self._bookings.of(request.user, runs_s, at)

    def booked_for(self, request: Request) -> BookedFor:
        """Return whose bookings matter to a request."""
        if not self._bookings:
            return BookedFor(yields=True) if request.yields else FOR_ANYBODY
        user = request.user if self._bookings.has_user(request.user) else -1
        return BookedFor(user, request.yields)

    def booked_closed(self, request: Request, at: float) -> frozenset[str]:
        """Return the GPUs that bookings close to a request."""
        return self.booked(request, at).closed

    def placed(
        self,
        request: Request,
        needs: dict[str, Need],
        closed: Collection[str],
        sequence: int | None,
        booked: Booked,
        at: float,
    ) -> Place | Wait:
        """Answer a request; GPUs are closed to it, and others are booked."""
        if request.gpus:
            answer = self._on_gpus(request, needs, closed, booked)
            if booked.closed and isinstance(answer, Wait):
                answer = self._because_booked(request, needs, closed, booked, at)
        else:
            answer = self._on_host(request)
        if isinstance(answer, Wait) or self._holdings.host.size is None:
            return answer
        need = self._needs.of_host(request, sum(answer.reserved))
        wait = self._holdings.host.wait(need, sequence)
        return wait or Place(
            answer.gpus, answer.reserved, answer.is_probe, need.ram_bytes, need.cpus
        )

    def _on_host(self, request: Request) -> Place | Wait:
        """Answer a request without GPUs; the first run of its type is measured before others."""
        host, known = self._holdings.host, self._holdings.host_profiles
        if host.size is None:
            return Place((), (), False)
        need = known.need(request, host.capacity_bytes, self._memory.margin)
        is_known = request.ram_bytes is not None or known.knows(request.job_type)
        running = None if is_known else self._holdings.first_runs.get(request.job_type)
        if running is not None:
            return self._wait_for_sibling(running)
        return Place((), (), need.ram_bytes < 0)

    def _because_booked(
        self,
        request: Request,
        needs: dict[str, Need],
        closed: Collection[str],
        booked: Booked,
        at: float,
    ) -> Wait:
        """Return the booking that a refused request waits for, or why it would wait without one."""
        others = [uuid for uuid in closed if uuid not in booked.closed]
        found = self._on_gpus(request, needs, others, NOT_BOOKED)
        if isinstance(found, Wait):
            return found
        return self._bookings.wait(request.user, found.gpus, booked.closed, at)

    def _on_gpus(
        self, request: Request, needs: dict[str, Need], closed: Collection[str], booked: Booked
    ) -> Place | Wait:
        own = self._on_own_booking(request, needs, closed, booked)
        answer = own or self._place(request, needs, closed, booked.closed)
        is_first = (
            answer.is_probe
            if isinstance(answer, Place)
            else answer.reason is WaitReason.NO_ROOM_FOR_FIRST_RUN
        )
        running = self._holdings.first_runs.get(request.job_type) if is_first else None
        if running is None:
            return answer
        books = self._allowed(request)
        homes = pinned(request, books) or books
        known = [book for book in homes if not needs[book.gpu.model].is_probe]
        if len(known) >= request.gpus:  # it was measured on another model than these
            answer = place(request, needs, known, booked.closed.union(closed))
            if isinstance(answer, Place):
                return answer
        return self._wait_for_sibling(running)

    def _on_own_booking(
        self, request: Request, needs: dict[str, Need], closed: Collection[str], booked: Booked
    ) -> Place | None:
        """Place a request on GPUs that its user has booked; None where it does not fit."""
        if not booked.own:
            return None
        books = self._allowed(request)
        homes = pinned(request, books) or books
        own = [book for book in homes if book.gpu.uuid in booked.own]
        if len(own) < request.gpus:
            return None
        found = place(request, needs, own, booked.closed.union(closed))
        return found if isinstance(found, Place) else None

    def _place(
        self,
        request: Request,
        needs: dict[str, Need],
        closed: Collection[str],
        booked: frozenset[str],
    ) -> Place | Wait:
        """Place a request; of very many GPUs, try the roomiest first."""
        books, rooms = self._holdings.books, self._holdings.rooms
        if len(books) > MANY and is_anywhere(request):
            least = min(need.need_bytes for need in needs.values())
            few, are_all = rooms.likely(least, request.gpus, closed, booked)
            if request.is_exclusive:
                are_all = rooms.room(closed, booked=booked).empty < request.gpus
            if len(few) >= request.gpus:
                kept = [books[uuid] for uuid in closed]  # they change the reason
                answer = place(request, needs, few + kept, closed)
                if are_all or isinstance(answer, Place):
                    return answer
        shut = booked.union(closed) if booked else closed
        return place(request, needs, self._allowed(request), shut)

    def _allowed(self, request: Request) -> list[Book]:
        return allowed(request, list(self._holdings.books.values()))

    def _wait_for_sibling(self, lease_id: str) -> Wait:
        lease = self._holdings.leases[lease_id]
        names = ", ".join(str(book.gpu.index) for book in self._holdings.books_of(lease))
        where = f" on GPU {names}" if names else ""
        text = f"the first run of {lease.request.label} is being measured{where}"
        return Wait(WaitReason.FIRST_RUN_ELSEWHERE, f"{text} (lease {lease_id})")
