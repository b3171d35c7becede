"""GPUs reserved for a starving request, and which jobs may use them until then."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from grn.model.job import Request
from grn.negotiator.schedule.needs import RequestNeeds, remaining_s
from grn.negotiator.schedule.placement import Need, allowed, is_anywhere, to_keep
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Book, Rules
from grn.negotiator.schedule.room.room_index import FEW, MANY
from grn.negotiator.schedule.turns.order import Group, WaitingRequest
from grn.negotiator.schedule.turns.wait_queue import Waitlist

_NEVER = float("-inf")
_PASSED = 4  # after this many times the patience its GPUs are not backfilled any more
_MAX_CONSIDERED = 16  # starving groups of one user that are tried for a reservation per event


class Backfill:
    """Records which GPUs are reserved, for which request, and until when."""

    def __init__(
        self,
        rules: Rules,
        holdings: Holdings,
        waitlist: Waitlist,
        needs: RequestNeeds,
        booked: Callable[[Request, float], frozenset[str]],
    ) -> None:
        self._rules = rules
        self._holdings = holdings
        self._waitlist = waitlist
        self._needs = needs
        self._booked = booked  # GPUs that bookings close to a request
        self._kept: dict[str, int] = {}  # GPU -> sequence of the request it was last reserved for
        self._until = _NEVER  # when the reserved GPUs will have room for their request
        self.group: Group | None = None  # its head is the request that the GPUs are reserved for

    def closed(self, at: float) -> dict[str, int]:
        """Reserve GPUs for the first starving request in turn."""
        self._until, self.group = _NEVER, None
        self._holdings.host.kept = None
        patience_s = self._rules.patience_s
        if at - self._waitlist.oldest_since() < patience_s:
            return {}
        for group in self._starving(at):
            head = group.head
            if self._keeps_host(group):
                self.group = group
                return {}
            if not head.request.gpus:
                continue
            needs = self._needs.of(head.request)
            is_first = any(need.is_probe for need in needs.values())
            if is_first and head.request.job_type in self._holdings.first_runs:
                continue  # it does not wait for room
            booked = self._booked(head.request, at)
            kept = self._still_kept(head, needs, booked) or self._to_keep(head, needs, at, booked)
            if kept:
                if at - head.since < _PASSED * patience_s:
                    waits = [self._drained_s(book, needs[book.gpu.model], at) for book in kept]
                    self._until = at + max(waits)
                self._kept = {book.gpu.uuid: head.sequence for book in kept}
                self.group = group
                return self._kept
        return {}

    def _to_keep(
        self, head: WaitingRequest, needs: Mapping[str, Need], at: float, booked: frozenset[str]
    ) -> list[Book]:
        """Choose the GPUs to reserve; of very many, among the roomiest."""
        request, ready_s = head.request, partial(self._ready_s, at, head.sequence)
        if len(self._holdings.books) > MANY and is_anywhere(request):
            few = self._holdings.rooms.roomiest(FEW + request.gpus, (), booked)
            kept = to_keep(request, needs, few, ready_s)
            if kept:
                return kept
        books = allowed(request, list(self._holdings.books.values()))
        if booked:
            books = [book for book in books if book.gpu.uuid not in booked]
        return to_keep(request, needs, books, ready_s)

    def _keeps_host(self, group: Group) -> bool:
        """Keep memory and cores of the host for a starving request that GPUs have room for."""
        head, refused = group.head, group.refused
        if refused is None or refused.host_reason is None:
            return False
        self._holdings.host.kept = (head.sequence, self._needs.of_host(head.request, 0))
        return True

    def _still_kept(
        self, head: WaitingRequest, needs: Mapping[str, Need], booked: Collection[str]
    ) -> list[Book]:
        """Return the GPUs that a request has reserved already, none when it needs others.

        They precede all others, so the others need not be tried.
        """
        request = head.request
        if request.holder is not None and not request.is_command:
            return []  # its process may have come to other GPUs
        kept = [
            self._holdings.books[uuid]
            for uuid in self._kept
            if self._kept[uuid] == head.sequence and uuid not in booked
        ]
        return to_keep(request, needs, kept) if len(kept) == request.gpus else []

    def _starving(self, at: float) -> Iterator[Group]:
        """Yield groups whose heads are starving, in turn; a few of each user."""
        considered: Counter[int] = Counter()
        users = len(self._waitlist.count_by_user())
        for group in self._waitlist.in_turn():
            head, refused = group.head, group.refused
            user = head.request.user
            if at - head.since < self._rules.patience_s or considered[user] == _MAX_CONSIDERED:
                continue
            first_run = self._holdings.first_runs.get(head.request.job_type)
            if first_run is not None and refused is not None and refused.sibling == first_run:
                continue  # it does not wait for room
            yield group
            considered[user] += 1
            users -= considered[user] == _MAX_CONSIDERED
            if not users:
                return

    def left_s(self, at: float) -> float:
        """Return how long reserved GPUs may be backfilled; not positive when they may not be."""
        return self._until - at

    def may_pass(self, group: Group, at: float) -> bool:
        """True when a job usually ends before the reserved GPUs have room for their request."""
        left_s = self.left_s(at)
        if left_s <= 0:
            return False
        lasts_s = self._needs.lasts_s(group.head.request)
        return lasts_s < math.inf and lasts_s <= left_s  # GPUs may never be ready

    def _ready_s(self, at: float, sequence: int, book: Book, need: Need) -> float:
        """Return how long a GPU takes to have room; a GPU that is reserved already stays so."""
        if self._kept.get(book.gpu.uuid) == sequence:
            return -1.0
        return self._drained_s(book, need, at)

    def _drained_s(self, book: Book, need: Need, at: float) -> float:
        """Return when enough jobs of a GPU will have ended; infinity when unknown."""
        free, ends = book.free_bytes, []
        if free >= need.need_bytes:
            return 0.0
        for lease in book.leases.values():
            usual_s = self._needs.alone_s(lease.request, book.gpu.model)
            left_s = remaining_s(lease.request, usual_s, at - lease.granted_at)
            ends.append((left_s, lease.reserved_on(book.gpu.uuid)))
        waits_s = 0.0
        for left_s, size in sorted(ends):
            if free >= need.need_bytes:
                break
            free, waits_s = free + size, left_s
        return waits_s
