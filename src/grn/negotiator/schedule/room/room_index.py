"""GPUs in order of the room that they have left: all of them, and parts of them.

A part is what a request may use at all, or what bookings leave of it. Each is kept in order as the
books change, so that a question costs the same with any number of GPUs. What fits is decided
elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from grn.negotiator.schedule.placement import Entry, FreeSpace, is_calm, is_empty, is_taking
from grn.negotiator.schedule.room.ledger import Book
from grn.negotiator.schedule.turns.order import ANYWHERE, Reach

MANY = 64  # up to this many GPUs all are considered
FEW = 32  # beyond that, this many of the roomiest
_MAX_PARTS = 256  # kept in order; each takes some 100 bytes for each of its GPUs
_NONE: frozenset[str] = frozenset()


class _Noted(NamedTuple):
    """What is known of one GPU."""

    entry: Entry | None = None  # its room, while it takes newcomers
    is_calm: bool = False
    takes_probe: bool = False
    is_empty: bool = False


_UNKNOWN = _Noted()


class _Part:
    """Some GPUs, the fullest first."""

    def __init__(self, uuids: Iterable[str]) -> None:
        self.noted = dict.fromkeys(uuids, _UNKNOWN)
        self.free: list[Entry] = []
        self.calm: list[Entry] = []
        self.for_probe: list[Entry] = []
        self.empty: set[str] = set()
        self.seen = -1  # changes that have been applied

    def follow(self, changed: Collection[str], now: Mapping[str, _Noted]) -> None:
        """Apply the changes of some GPUs."""
        if self.are_nearly_all(changed):
            self.noted = {uuid: now[uuid] for uuid in self.noted}
            here = list(self.noted.items())
            found = [(noted, noted.entry) for _, noted in here if noted.entry is not None]
            self.free = sorted(entry for _, entry in found)
            self.calm = sorted(entry for noted, entry in found if noted.is_calm)
            self.for_probe = sorted(entry for noted, entry in found if noted.takes_probe)
            self.empty = {uuid for uuid, noted in here if noted.is_empty}
            return
        for uuid in changed:
            before = self.noted.get(uuid)
            if before is not None and before != now[uuid]:
                self._take(uuid, before)
                self._put(uuid, now[uuid])

    def follow_whole(self, whole: _Part, places: Mapping[str, int]) -> None:
        """Take over the order of all GPUs: much less work than to sort."""
        now = whole.noted
        self.noted = {uuid: now[uuid] for uuid in self.noted}
        here = {places[uuid] for uuid in self.noted}
        self.free = [entry for entry in whole.free if entry[1] in here]
        self.calm = [entry for entry in whole.calm if entry[1] in here]
        self.for_probe = [entry for entry in whole.for_probe if entry[1] in here]
        self.empty = whole.empty.intersection(self.noted)

    def are_nearly_all(self, changed: Collection[str]) -> bool:
        """True when it is less work to begin again than to apply these changes."""
        return len(changed) > max(MANY, len(self.noted) // 2)

    def _put(self, uuid: str, noted: _Noted) -> None:
        self.noted[uuid] = noted
        for entries, entry in self._entries(noted):
            insort(entries, entry)
        if noted.is_empty:
            self.empty.add(uuid)

    def _take(self, uuid: str, noted: _Noted) -> None:
        for entries, entry in self._entries(noted):
            del entries[bisect_left(entries, entry)]
        self.empty.discard(uuid)

    def _entries(self, noted: _Noted) -> Iterator[tuple[list[Entry], Entry]]:
        """Yield the lists that a GPU is in, and its entry there."""
        if noted.entry is not None:
            yield self.free, noted.entry
            if noted.is_calm:
                yield self.calm, noted.entry
            if noted.takes_probe:
                yield self.for_probe, noted.entry


class RoomIndex:
    """All GPUs, and what is left on those that are open to newcomers."""

    def __init__(self, books: Mapping[str, Book]) -> None:
        self._books = books
        self._places: dict[str, int] = {}
        self._by_place: list[Book] = []
        self._noted: dict[str, _Noted] = {}
        self._whole = _Part(())
        self._parts: dict[tuple[Reach, frozenset[str]], _Part] = {}  # the latest used is last
        self._log: list[str] = []  # the latest GPUs whose notes have changed
        self._forgotten = 0  # how many entries were removed from the front of the log
        self.changed: set[str] = set()  # GPUs whose books have changed
        self._moved: set[str] = set()  # the same since `moved` was last called

    def watch(self, book: Book) -> None:
        """Add a GPU."""
        uuid = book.gpu.uuid
        self._places[uuid] = len(self._places)
        self._by_place.append(book)
        self._noted[uuid] = self._whole.noted[uuid] = _UNKNOWN
        self._parts.clear()
        self.changed.add(uuid)
        book.changed = self.changed

    def moved(self) -> set[str]:
        """Return the GPUs whose books have changed since the last call."""
        self._refresh()
        moved, self._moved = self._moved, set()
        return moved

    def room(
        self,
        closed: Collection[str] = (),
        reach: Reach = ANYWHERE,
        booked: frozenset[str] = _NONE,
    ) -> FreeSpace:
        """Return the room on the GPUs of a reach that are neither closed nor booked."""
        self._refresh()
        if reach.is_pinned:
            here = [uuid for uuid in reach.gpus if uuid not in closed and uuid not in booked]
            return self._room_of_process(here)
        if len(closed) > FEW:
            closed, booked = (), booked.union(closed)
        part = self._part(reach, booked)
        out = {self._places[uuid] for uuid in closed}
        empty = len(part.empty) - sum(uuid in part.empty for uuid in set(closed))
        return FreeSpace(part.free, empty, part.calm, part.for_probe, out)

    def _room_of_process(self, uuids: Sequence[str]) -> FreeSpace:
        """Return the room for a process on its own GPUs: its memory without a lease is room."""
        books = [book for uuid in uuids if is_taking(book := self._books[uuid])]
        free = sorted(
            (
                book.free_bytes + book.strangers_bytes if book.leases else book.capacity_bytes,
                self._places[book.gpu.uuid],
            )
            for book in books
        )
        return FreeSpace(free, sum(not book.leases for book in books), free, free)

    def likely(
        self,
        least_bytes: float,
        gpus: int,
        closed: Collection[str] = (),
        booked: frozenset[str] = _NONE,
    ) -> tuple[list[Book], bool]:
        """Return the roomiest open GPUs, and whether no others have `least_bytes` of room."""
        self._refresh()
        free = self._part(ANYWHERE, booked).free
        able = len(free) - bisect_left(free, (least_bytes, -1))
        for uuid in closed:
            entry = self._noted[uuid].entry
            able -= uuid not in booked and entry is not None and entry[0] >= least_bytes
        most = FEW + gpus
        return self.roomiest(min(most, max(able, 2 * gpus)), closed, booked), able <= most

    def roomiest(
        self, most: int, closed: Collection[str] = (), booked: frozenset[str] = _NONE
    ) -> list[Book]:
        """Return the open GPUs with the most room, the roomiest first."""
        self._refresh()
        out = {self._places[uuid] for uuid in closed}
        free = self._part(ANYWHERE, booked).free
        open_to_all = (place for _, place in reversed(free) if place not in out)
        return [self._by_place[place] for place in islice(open_to_all, most)]

    def check(self) -> None:
        """Raise AssertionError when the order is not that of the books."""
        self._refresh()
        now = {uuid: self._note(uuid, book) for uuid, book in self._books.items()}
        assert now == self._noted, "room that the books do not have"
        for part in [self._whole, *(self._part(*name) for name in list(self._parts))]:
            fresh = _Part(part.noted)
            fresh.follow(list(now), now)
            kept = (part.noted, part.free, part.calm, part.for_probe, part.empty)
            made = (fresh.noted, fresh.free, fresh.calm, fresh.for_probe, fresh.empty)
            assert kept == made, "GPUs out of order"

    def _part(self, reach: Reach, booked: frozenset[str]) -> _Part:
        """Return a part of the GPUs, up to date."""
        if not (reach.gpus or booked):
            return self._whole
        name = (reach, booked)
        part = self._parts.pop(name, None)
        if part is None:
            part = _Part(uuid for uuid in reach.gpus or self._books if uuid not in booked)
            if len(self._parts) >= _MAX_PARTS:
                del self._parts[next(iter(self._parts))]
        self._parts[name] = part
        last = self._forgotten + len(self._log)
        if part.seen < self._forgotten:
            part.follow_whole(self._whole, self._places)
        elif part.seen < last:
            changed = set(self._log[part.seen - self._forgotten :])
            if part.are_nearly_all(changed):
                part.follow_whole(self._whole, self._places)
            else:
                part.follow(changed, self._noted)
        part.seen = last
        return part

    def refresh_some(self, most: int) -> bool:
        """Bring the order up to date with some of the books; True when others are left."""
        self._refresh(most)
        return bool(self.changed)

    def _refresh(self, most: int | None = None) -> None:
        if not self.changed:
            return
        due = list(islice(self.changed, most))
        self._moved.update(due)
        changed = []
        for uuid in due:
            noted = self._note(uuid, self._books[uuid])
            if noted != self._noted[uuid]:
                self._noted[uuid] = noted
                changed.append(uuid)
        self.changed.difference_update(due)
        self._whole.follow(changed, self._noted)
        if self._parts:
            self._log += changed
            if len(self._log) > 4 * len(self._books):
                self._forgotten += len(self._log)
                self._log.clear()

    def _note(self, uuid: str, book: Book) -> _Noted:
        if not is_taking(book):
            return _Noted(is_empty=is_empty(book))
        entry = (book.most_takeable_bytes, self._places[uuid])
        return _Noted(entry, is_calm(book), not book.has_probe, is_empty(book))
