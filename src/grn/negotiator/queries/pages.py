"""Long listings in pages, so that every answer is quick however many jobs there are.

A cursor is `ORDER.OFFSET`. The first page of `status` shows the head of each list. If that is not
all, the listing restarts from an order fixed at that moment: a row that exists throughout is never
left out, whatever comes and goes meanwhile.

Every page is a generator that yields after a few rows, where events may change the engine. Waiting
requests are therefore read before leases: a request that is granted meanwhile is among the leases.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import Lease
from grn.negotiator.queries import views
from grn.negotiator.queries.forecast import Forecast, Forecasts
from grn.negotiator.queries.views import Row
from grn.negotiator.schedule.turns.order import WaitingRequest

PAGE_ROWS = 50  # some 70 us each
PROFILE_ROWS = 25  # each has twenty runs
MAX_ORDERS = 4
PIECE_REQUESTS = 500  # that are looked at without a pause: some 0.2 ms

Made = TypeVar("Made")
Pieces = Generator[None, None, Made]
Entry = tuple[int, str]  # 0 and a lease's id, or the place and the key of a waiting request
Cursor = str


class Pages:
    """Status, reasons and profiles of one view, page by page."""

    def __init__(self, view: EngineView, forecasts: Forecasts | None = None) -> None:
        self._view = view
        self._forecasts = forecasts or Forecasts(view)
        self._orders: dict[int, list[Entry]] = {}
        self._latest = 0

    def status(self, at: float, after: Cursor | None) -> Pieces[tuple[Row, Cursor | None]]:
        """Return a page of `status`, and the cursor of the next."""
        if after is not None:
            return (yield from self._following(at, *_parts(after)))
        view = self._view
        page = views.status(view, at, 0)
        told = yield from self._forecasts.current(at)
        is_whole = len(view.waitlist) <= PAGE_ROWS
        first = [(place, one.request.key) for place, one in islice(views.in_turn(view), PAGE_ROWS)]
        waiting = yield from self._waiting_rows(first, at, told)
        is_whole = is_whole and len(view.leases) <= PAGE_ROWS
        leases = yield from self._lease_rows(islice(view.leases.values(), PAGE_ROWS), at, told)
        page |= {"leases": leases, "waiting": _still_waiting(waiting, leases)}
        return page, None if is_whole else f"{self._latest + 1}.0"

    def why(
        self, name: str, at: float, after: Cursor | None
    ) -> Pieces[tuple[list[Row], Cursor | None]]:
        """Return a page of the jobs that a name matches."""
        begin = _parts(after)[1] if after else 0
        end = begin + PAGE_ROWS
        view = self._view
        found: list[Entry] = [
            (0, one.id) for one in view.leases.values() if views.is_meant(name, one.request, one.id)
        ]
        for part in _parted(view.waitlist.ordered()):
            found += [
                (place, one.request.key)
                for place, one in part
                if views.is_meant(name, one.request, one.request.lease)
            ]
            yield
        told = yield from self._forecasts.current(at)
        waiting = yield from self._waiting_rows(found[begin:end], at, told)
        page = yield from self._lease_rows(self._leases(found[begin:end]), at, told)
        return page + _still_waiting(waiting, page), _next(0, end, len(found))

    def profiles(
        self, job_type: str | None, after: Cursor | None
    ) -> Pieces[tuple[list[Row], Cursor | None]]:
        """Return a page of profiles."""
        begin = _parts(after)[1] if after else 0
        end = begin + PROFILE_ROWS
        found = views.profiles_of(self._view, job_type)
        page = []
        for one in found[begin:end]:
            page.append(views.profile(self._view, one))
            yield
        return page, _next(0, end, len(found))

    def _following(self, at: float, number: int, begin: int) -> Pieces[tuple[Row, Cursor | None]]:
        number, order = yield from self._order(number)
        entries = order[begin : begin + PAGE_ROWS]
        told = yield from self._forecasts.current(at)
        waiting = yield from self._waiting_rows(entries, at, told)
        leases = yield from self._lease_rows(self._leases(entries), at, told)
        shown = {"leases": leases, "waiting": _still_waiting(waiting, leases)}
        return shown, _next(number, begin + PAGE_ROWS, len(order))

    def _waiting_rows(
        self, entries: Iterable[Entry], at: float, told: Forecast
    ) -> Pieces[list[Row]]:
        """Return the rows of the entries that wait."""
        rows = []
        for place, key in entries:
            one = self._view.waitlist.find(key) if place else None
            if one is not None:
                row = views.waiting(self._view, one, place, at)
                rows.append(row | {"starts_in_s": told.starts_in_s(key, at)})
                yield
        return rows

    def _lease_rows(self, leases: Iterable[Lease], at: float, told: Forecast) -> Pieces[list[Row]]:
        """Return the rows of leases, without those that end meanwhile."""
        rows = []
        for lease in list(leases):
            if lease.id in self._view.leases:
                row = views.lease(self._view, self._view.leases[lease.id], at)
                rows.append(row | {"ends_in_s": told.ends_in_s(lease.id, at)})
                yield
        return rows

    def _leases(self, entries: list[Entry]) -> Iterator[Lease]:
        """Find the leases of a page, and of requests that were granted meanwhile."""
        view = self._view
        waited = {key for place, key in entries if place and key not in view.waitlist}
        if waited:
            yield from (one for one in view.leases.values() if one.request.key in waited)
        for place, name in entries:
            if not place and name in view.leases:
                yield view.leases[name]

    def _order(self, number: int) -> Pieces[tuple[int, list[Entry]]]:
        """Return an order by its number; make a new one; a forgotten one is the latest."""
        if number not in self._orders:
            if number > self._latest or not self._orders:
                yield from self._make_order()
            number = self._latest
        return number, self._orders[number]

    def _make_order(self) -> Pieces[None]:
        view = self._view
        order: list[Entry] = [(0, lease_id) for lease_id in view.leases]
        for part in _parted(view.waitlist.ordered()):
            order += [(place, one.request.key) for place, one in part]
            yield
        self._latest += 1
        self._orders[self._latest] = order
        self._orders.pop(self._latest - MAX_ORDERS, None)


def _parted(
    requests: Sequence[WaitingRequest],
) -> Iterator[Iterable[tuple[int, WaitingRequest]]]:
    """Yield requests and their places, in parts that are quickly looked at."""
    for begin in range(0, len(requests), PIECE_REQUESTS):
        yield enumerate(requests[begin : begin + PIECE_REQUESTS], begin + 1)


def _still_waiting(waiting: list[Row], leases: list[Row]) -> list[Row]:
    """Return the waiting requests without those that were granted since they were read."""
    granted = {row["id"] for row in leases}
    return [row for row in waiting if row["id"] not in granted]


def _parts(cursor: Cursor) -> tuple[int, int]:
    number, _, offset = cursor.partition(".")
    return int(number), int(offset)


def _next(number: int, begin: int, count: int) -> Cursor | None:
    return f"{number}.{begin}" if begin < count else None
