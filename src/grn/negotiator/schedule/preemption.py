"""Jobs that outgrow what they have reserved: whose GPU is closed, and which first run makes room.

Follows memory from look to look and asks; nobody is ended here.
"""

from __future__ import annotations

from collections.abc import Iterator

from grn.model.units import show_size
from grn.negotiator.events import Lease, LeaseState, WantBack
from grn.negotiator.learn.growth import Track, runs_out
from grn.negotiator.learn.type_profiles import TypeProfiles
from grn.negotiator.schedule.allocations import Holdings
from grn.negotiator.schedule.ledger import Book
from grn.negotiator.schedule.limits import Rules

MAX_REQUEUES = 2  # after that a job has a GPU to itself

_Place = tuple[str, str]  # GPU, lease


class Preemption:
    """What is known of memory that grows beyond its reservation."""

    def __init__(self, rules: Rules, memory: TypeProfiles, holdings: Holdings) -> None:
        self._rules = rules
        self._memory = memory
        self._holdings = holdings
        self._tracks: dict[_Place, Track] = {}
        self._seen: dict[str, int] = {}  # leases that outgrew, and what they had when that was seen
        self.wanted: dict[str, str] = {}  # leases that were asked to make room, and why

    def look(self, at: float) -> Iterator[WantBack]:
        """Take in what the latest readings show."""
        self._close(at)
        self.wanted = {one: text for one, text in self.wanted.items() if self._is_held(one)}
        kept: dict[_Place, Track] = {}
        if self._rules.requeue_s > 0:
            for lease in self._holdings.leases.values():
                if lease.is_probe and _may_make_room(lease):
                    yield from self._follow(lease, at, kept)
        self._tracks = kept

    def _close(self, at: float) -> None:
        """Close the GPUs on which somebody outgrows its reservation right now."""
        seen: dict[str, int] = {}
        for book in self._holdings.books.values():
            is_growing = False
            for lease_id in book.outgrown() if book.leases else ():
                lease, watch = self._holdings.leases[lease_id], self._holdings.watches[lease_id]
                peak, rose_at = watch.peak_bytes, watch.rose_at
                self._memory.outgrown(lease.request, book.gpu.model, peak + peak // 10)
                first = seen[lease_id] = self._seen.get(lease_id, peak)
                if rose_at is not None and peak > first and at - rose_at < self._rules.flat_s:
                    is_growing = True  # one jump, or what a process had before, is no growth
            if is_growing != book.is_closed:
                book.close(is_growing)
        self._seen = seen

    def _follow(self, lease: Lease, at: float, kept: dict[_Place, Track]) -> Iterator[WantBack]:
        """Ask a first run to make room where memory runs out before long."""
        for book in self._holdings.books_of(lease):
            if not book.is_read or not self._holdings.is_sharing(lease):
                continue
            for lease_id in book.leases:
                place = (book.gpu.uuid, lease_id)
                track = kept[place] = self._tracks.get(place) or Track()
                track.add(at, book.measured.get(lease_id) or 0)
            if lease.id not in self.wanted and (text := self._trouble(lease, book, kept)):
                self.wanted[lease.id] = text
                yield WantBack(lease.id, text)

    def _trouble(self, lease: Lease, book: Book, tracks: dict[_Place, Track]) -> str:
        """Say why the memory of a GPU runs out before long; empty when it does not."""
        slopes = {one: tracks[(book.gpu.uuid, one)].slope() for one in book.outgrown()}
        slope = sum(max(0.0, one) for one in slopes.values())
        limit, used = book.capacity_bytes, book.reading.used_bytes or 0
        if not runs_out(used, slope, limit, self._rules.requeue_s):
            return ""
        worst = max(slopes, key=lambda one: slopes[one])
        had = show_size(book.leases[worst].reserved_on(book.gpu.uuid))
        has, where = show_size(book.measured.get(worst) or 0), f"GPU {book.gpu.index}"
        if worst == lease.id:
            return f"made room: it grew to {has} where {had} were left beside others on {where}"
        label = book.leases[worst].request.label
        return f"made room for {label} (lease {worst}), which grew from {had} to {has} on {where}"

    def _is_held(self, lease_id: str) -> bool:
        lease = self._holdings.leases.get(lease_id)
        return lease is not None and lease.state is LeaseState.HELD


def _may_make_room(lease: Lease) -> bool:
    request = lease.request
    is_open = lease.state is LeaseState.HELD and not request.is_exclusive
    return is_open and request.may_yield and request.attempt < MAX_REQUEUES
