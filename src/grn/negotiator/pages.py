"""Long listings in pages, so that every answer is quick however many jobs there are.

A cursor is `ORDER.OFFSET`. The first page of `status` shows the head of each list. If that is not
all, the listing restarts from an order fixed at that moment: a row that exists throughout is never
left out, whatever comes and goes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from grn.negotiator import views
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import Lease
from grn.negotiator.views import Row

PAGE_ROWS = 50  # some 70 us each
PROFILE_ROWS = 25  # each has twenty runs
MAX_ORDERS = 4

Entry = tuple[int, str]  # 0 and a lease's id, or the place and the key of a waiting request
Cursor = str


class Pages:
    """Status, reasons and profiles of one view, page by page."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self._orders: dict[int, list[Entry]] = {}
        self._latest = 0

    def status(self, at: float, after: Cursor | None) -> tuple[Row, Cursor | None]:
        """Return a page of `status`, and the cursor of the next."""
        if after is not None:
            return self._following(at, *_parts(after))
        view = self._view
        is_whole = max(len(view.leases), len(view.waitlist)) <= PAGE_ROWS
        row = views.status(view, at, PAGE_ROWS)
        return row, None if is_whole else f"{self._latest + 1}.0"

    def why(self, name: str, at: float, after: Cursor | None) -> tuple[list[Row], Cursor | None]:
        """Return a page of the jobs that a name matches."""
        begin = _parts(after)[1] if after else 0
        end = begin + PAGE_ROWS
        found = views.all_meant(self._view, name)
        return [views.meant(self._view, one, at) for one in found[begin:end]], _next(
            0, end, len(found)
        )

    def profiles(
        self, job_type: str | None, after: Cursor | None
    ) -> tuple[list[Row], Cursor | None]:
        """Return a page of profiles."""
        begin = _parts(after)[1] if after else 0
        end = begin + PROFILE_ROWS
        found = views.profiles_of(self._view, job_type)
        return [views.profile(self._view, one) for one in found[begin:end]], _next(
            0, end, len(found)
        )

    def _following(self, at: float, number: int, begin: int) -> tuple[Row, Cursor | None]:
        number, order = self._order(number)
        entries = order[begin : begin + PAGE_ROWS]
        leases = list(self._leases(entries))
        waiting = list(self._waiting(entries, at))
        shown = {
            "leases": [views.lease(self._view, one, at) for one in leases],
            "waiting": waiting,
        }
        return shown, _next(number, begin + PAGE_ROWS, len(order))

    def _leases(self, entries: list[Entry]) -> Iterator[Lease]:
        """Find the leases of a page, and of requests that were granted meanwhile."""
        view = self._view
        waited = {key for place, key in entries if place and key not in view.waitlist}
        if waited:
            yield from (one for one in view.leases.values() if one.request.key in waited)
        for place, name in entries:
            if not place and name in view.leases:
                yield view.leases[name]

    def _waiting(self, entries: list[Entry], at: float) -> Iterator[Row]:
        for place, key in entries:
            one = self._view.waitlist.find(key) if place else None
            if one is not None:
                yield views.waiting(self._view, one, place, at)

    def _order(self, number: int) -> tuple[int, list[Entry]]:
        """Return an order by its number; make a new one; a forgotten one is the latest."""
        if number not in self._orders:
            if number > self._latest or not self._orders:
                self._make_order()
            number = self._latest
        return number, self._orders[number]

    def _make_order(self) -> None:
        view = self._view
        self._latest += 1
        leases: list[Entry] = [(0, lease_id) for lease_id in view.leases]
        self._orders[self._latest] = leases + [
            (place, one.request.key) for place, one in enumerate(view.waitlist.ordered(), 1)
        ]
        self._orders.pop(self._latest - MAX_ORDERS, None)


def _parts(cursor: Cursor) -> tuple[int, int]:
    number, _, offset = cursor.partition(".")
    return int(number), int(offset)


def _next(number: int, begin: int, count: int) -> Cursor | None:
    return f"{number}.{begin}" if begin < count else None
