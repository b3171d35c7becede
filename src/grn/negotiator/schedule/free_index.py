"""GPUs ordered by the room they have left, updated one by one.

On machines with many GPUs a decision considers only the few candidates found here.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from grn.negotiator.schedule.ledger import Book
from grn.negotiator.schedule.order import ANYWHERE, Reach
from grn.negotiator.schedule.placement import Entry, FreeSpace, is_calm, is_empty, is_taking

_Put = Callable[[Entry], None]
MANY = 64  # up to this many GPUs all are considered
FEW = 32  # beyond that, this many of the roomiest


class Shelf:
    """All GPUs that are open to newcomers, the fullest first."""

    def __init__(self, books: Mapping[str, Book]) -> None:
        self._books = books
        self._places: dict[str, int] = {}
        self._entries: dict[str, tuple[Entry | None, bool]] = {}
        self._free: list[Entry] = []
        self._calm: list[Entry] = []
        self._empty: set[str] = set()
        self.changed: set[str] = set()  # GPUs whose books have changed
        self._moved: set[str] = set()  # the same since `moved` was last called

    def watch(self, book: Book) -> None:
        """Add a GPU."""
        self._places[book.gpu.uuid] = len(self._places)
        self.changed.add(book.gpu.uuid)
        book.changed = self.changed

    def moved(self) -> set[str]:
        """Return the GPUs whose books have changed since the last call."""
        self._refresh()
        moved, self._moved = self._moved, set()
        return moved

    def room(self, closed: Collection[str] = (), reach: Reach = ANYWHERE) -> FreeSpace:
        """Return the room on the GPUs of a reach that are not closed."""
        self._refresh()
        if reach.gpus:
            return self._room_on([uuid for uuid in reach.gpus if uuid not in closed], reach)
        if not closed:
            return FreeSpace(self._free, len(self._empty), self._calm)
        out = {self._places[uuid] for uuid in closed}
        free = [entry for entry in self._free if entry[1] not in out]
        calm = [entry for entry in self._calm if entry[1] not in out]
        return FreeSpace(free, len(self._empty.difference(closed)), calm)

    def _room_on(self, uuids: Sequence[str], reach: Reach) -> FreeSpace:
        if not reach.is_pinned:
            noted = [self._entries[uuid] for uuid in uuids]
            free = sorted(entry for entry, _ in noted if entry is not None)
            calm = sorted(entry for entry, is_quiet in noted if entry is not None and is_quiet)
            return FreeSpace(free, len(self._empty.intersection(uuids)), calm)
        # Memory that a process has here without a lease is room for its own requests.
        books = [book for uuid in uuids if is_taking(book := self._books[uuid])]
        free = sorted(
            (
                book.free_bytes + book.strangers_bytes if book.leases else book.capacity_bytes,
                self._places[book.gpu.uuid],
            )
            for book in books
        )
        return FreeSpace(free, sum(not book.leases for book in books), free)

    def likely(self, least_bytes: float, gpus: int) -> tuple[list[Book], bool]:
        """Return the roomiest GPUs, and whether no others have `least_bytes` of room."""
        self._refresh()
        books = list(self._books.values())
        able = len(self._free) - bisect_left(self._free, (least_bytes, -1))
        most = FEW + gpus
        chosen = self._free[-min(most, max(able, 2 * gpus)) :]
        return [books[place] for _, place in reversed(chosen)], able <= most

    def _refresh(self) -> None:
        self._moved |= self.changed
        if len(self.changed) > MANY:  # all were read: rebuild
            self._entries, self._free, self._calm, self._empty = {}, [], [], set()
            for uuid, book in self._books.items():
                self._note(uuid, book, self._free.append, self._calm.append)
            self._free.sort()
            self._calm.sort()
        else:
            for uuid in self.changed:
                self._forget(uuid)
                book = self._books[uuid]
                self._note(uuid, book, partial(insort, self._free), partial(insort, self._calm))
        self.changed.clear()

    def _note(self, uuid: str, book: Book, to_free: _Put, to_calm: _Put) -> None:
        entry = (book.most_takeable_bytes, self._places[uuid]) if is_taking(book) else None
        calm = entry is not None and is_calm(book)
        self._entries[uuid] = (entry, calm)
        if entry is not None:
            to_free(entry)
            if calm:
                to_calm(entry)
        if is_empty(book):
            self._empty.add(uuid)

    def _forget(self, uuid: str) -> None:
        entry, calm = self._entries.get(uuid, (None, False))
        if entry is not None:
            del self._free[bisect_left(self._free, entry)]
            if calm:
                del self._calm[bisect_left(self._calm, entry)]
        self._empty.discard(uuid)
