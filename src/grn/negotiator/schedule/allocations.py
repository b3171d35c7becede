"""Current allocations: the book of each GPU, the leases in it, and the samples of each job.

Keeps the three consistent; the next grant is decided elsewhere.
"""

from __future__ import annotations

from grn.model.gpu import Gpu, Reading
from grn.negotiator.events import Lease, LeaseState
from grn.negotiator.learn import profiling
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.type_profiles import TypeProfiles
from grn.negotiator.schedule.free_index import Shelf
from grn.negotiator.schedule.ledger import Book, check_books
from grn.negotiator.schedule.limits import Rules
from grn.negotiator.schedule.placement import Size


class Holdings:
    """All GPUs and all leases."""

    def __init__(self, rules: Rules, memory: TypeProfiles, loads: Loads) -> None:
        self._rules = rules
        self._memory = memory
        self._loads = loads
        self.books: dict[str, Book] = {}
        self.shelf = Shelf(self.books)
        self.leases: dict[str, Lease] = {}
        self.watches: dict[str, profiling.RunWatch] = {}  # lease -> samples of its job
        self.draining: set[str] = set()
        self.first_runs: dict[str, str] = {}  # job type -> lease of its unmeasured first run
        self._by_key: dict[str, str] = {}  # key of a request -> its lease
        self._sizes: dict[str, Size] = {}

    def open(self, gpu: Gpu, reading: Reading) -> None:
        """Open the book of one GPU."""
        book = Book(gpu, self._rules.guard.of(gpu.total_bytes), reading)
        self.books[gpu.uuid] = book
        self.shelf.watch(book)
        known = self._sizes.get(gpu.model)
        if known is None or known.total_bytes < gpu.total_bytes:
            self._sizes[gpu.model] = Size(gpu.total_bytes, book.capacity_bytes)

    def sizes(self) -> dict[str, Size]:
        """Return the largest GPU of each model."""
        return self._sizes

    def books_of(self, lease: Lease) -> list[Book]:
        """Return the books of the GPUs a lease is on."""
        return [self.books[uuid] for uuid in lease.gpus]

    def held_by_key(self, key: str) -> Lease | None:
        """Return the lease that a request was granted and still holds."""
        lease = self.leases.get(self._by_key.get(key, ""))
        return lease if lease is not None and lease.state is LeaseState.HELD else None

    def is_sharing(self, lease: Lease) -> bool:
        """True when a GPU of this lease has other leases, or strangers beyond the guard."""
        return any(
            len(book.leases) > 1 or book.strangers_bytes > book.guard_bytes
            for book in self.books_of(lease)
        )

    def share_of(self, lease: Lease) -> float:
        """Return how many whole GPUs a lease takes: the larger of its memory and load on each."""
        if lease.request.is_exclusive:
            return float(len(lease.gpus))
        shares = 0.0
        for book, size in zip(self.books_of(lease), lease.reserved, strict=True):
            load = self._loads.of(lease.request.job_type, book.gpu.model) or 0.0
            shares += min(1.0, max(size / book.capacity_bytes, load))
        return shares

    def put(self, lease: Lease, at: float) -> None:
        """Write a new lease into the books."""
        self.watches[lease.id] = profiling.RunWatch(min(lease.granted_at, at))
        if lease.is_probe:
            self.first_runs.setdefault(lease.request.job_type, lease.id)
        self.replace(lease)

    def replace(self, lease: Lease) -> None:
        """Replace a lease by its new state."""
        self.leases[lease.id] = lease
        if lease.state is LeaseState.HELD:
            self._by_key[lease.request.key] = lease.id
        else:
            self.draining.add(lease.id)
        for book in self.books_of(lease):
            book.put(lease)
            self.weigh(book)
        if not lease.is_probe:
            self.end_first_run(lease)

    def drop(self, lease: Lease) -> None:
        """Remove a lease from the books."""
        del self.leases[lease.id]
        del self.watches[lease.id]
        self.draining.discard(lease.id)
        if self._by_key.get(lease.request.key) == lease.id:
            del self._by_key[lease.request.key]
        self.end_first_run(lease)
        for book in self.books_of(lease):
            book.take(lease.id)
            self.weigh(book)

    def weigh(self, book: Book) -> None:
        """Sum the estimated loads of the jobs on a GPU."""
        model = book.gpu.model
        book.load = sum(
            self._loads.of_lease(lease, model) or 0.0
            for lease in book.leases.values()
            if lease.state is LeaseState.HELD
        )
        book.note_change()

    def set_caps(self, model: str | None = None) -> None:
        """Set the load cap in the books of one GPU model, or of all."""
        for book in self.books.values():
            if model is None or book.gpu.model == model:
                cap = self._rules.load_cap or self._loads.cap(book.gpu.model)
                if book.load_cap == cap and model is not None:
                    return  # unchanged, here and on all others
                learned = self._loads.overlaps.because(book.gpu.model)
                book.load_cap, book.cap_because = cap, "as set" if self._rules.load_cap else learned
                book.note_change()

    def end_first_run(self, lease: Lease) -> None:
        """Stop the siblings of a first run from waiting for it."""
        job_type = lease.request.job_type
        if self.first_runs.get(job_type) == lease.id:
            del self.first_runs[job_type]
            self._memory.woken.add(job_type)

    def check(self) -> None:
        """Raise AssertionError when the books contradict each other."""
        check_books(self.books, self.leases)
        assert self.watches.keys() == self.leases.keys()
        for job_type, lease_id in self.first_runs.items():
            assert self.leases[lease_id].request.job_type == job_type
