"""Current allocations: the book of each GPU, the leases in it, and the samples of each job.

Keeps the three consistent. The next grant is decided elsewhere.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from grn.model.gpu import Gpu, Reading
from grn.model.host import HOST_MODEL
from grn.model.job import IdleRule
from grn.negotiator.events import Lease, LeaseState
from grn.negotiator.learn.host_profiles import HostProfiles
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.schedule.placement import Size
from grn.negotiator.schedule.room.host_ledger import HostLedger
from grn.negotiator.schedule.room.ledger import Book, Rules, check_books
from grn.negotiator.schedule.room.room_index import RoomIndex

_MIN_SHARE = 1e-6  # of a job that uses nothing: it is accounted all the same
YIELDING_COST = 0.5  # of a lease that may be asked to give way, in fair share


class Holdings:
    """All GPUs and all leases."""

    def __init__(
        self, rules: Rules, memory: TypeProfiles, loads: Loads, host: HostProfiles | None = None
    ) -> None:
        self._rules = rules
        self._memory = memory
        self._loads = loads
        self.books: dict[str, Book] = {}
        self.rooms = RoomIndex(self.books)
        self.leases: dict[str, Lease] = {}
        self.watches: dict[str, profiling.RunWatch] = {}  # lease -> samples of its job
        self.draining: set[str] = set()
        self.yielding: dict[str, None] = {}  # held leases that may be asked to give way now
        self.first_runs: dict[str, str] = {}  # job type -> lease of its unmeasured first run
        self.reshared: dict[str, None] = {}  # leases that may take another share of their GPUs
        self._types: Counter[str] = Counter()  # leases of each job type
        self._by_key: dict[str, str] = {}  # key of a request -> its lease
        self._sizes: dict[str, Size] = {}
        self.host = HostLedger()
        self.host_profiles = host or HostProfiles(memory.woken)
        self.capacity_bytes = 0  # of all GPUs together

    def open(self, gpu: Gpu, reading: Reading) -> None:
        """Open the book of one GPU."""
        book = Book(gpu, self._rules.guard.of(gpu.total_bytes), reading)
        self.books[gpu.uuid] = book
        self.rooms.watch(book)
        self.capacity_bytes += book.capacity_bytes
        known = self._sizes.get(gpu.model)
        if known is None or known.total_bytes < gpu.total_bytes:
            self._sizes[gpu.model] = Size(gpu.total_bytes, book.capacity_bytes)
        elif known.total_bytes == gpu.total_bytes:
            self._sizes[gpu.model] = replace(known, count=known.count + 1)

    def sizes(self) -> dict[str, Size]:
        """Return the memory of the largest GPUs of each model."""
        return self._sizes

    def books_of(self, lease: Lease) -> list[Book]:
        """Return the books of the GPUs a lease is on."""
        return [self.books[uuid] for uuid in lease.gpus]

    def held_by_key(self, key: str) -> Lease | None:
        """Return the lease that a request was granted and still holds."""
        lease = self.leases.get(self._by_key.get(key, ""))
        return lease if lease is not None and lease.state is LeaseState.HELD else None

    def has_type(self, job_type: str) -> bool:
        """True when there is a lease of a type."""
        return job_type in self._types

    def model_of(self, lease: Lease) -> str:
        """Return the GPU model that a lease is on; the host for one without GPUs."""
        return self.books[lease.gpus[0]].gpu.model if lease.gpus else HOST_MODEL

    def only_model_of(self, lease: Lease) -> str | None:
        """Return the one GPU model that a lease is on, None when there are several or none."""
        models = {book.gpu.model for book in self.books_of(lease)}
        return models.pop() if len(models) == 1 else None

    def is_sharing(self, lease: Lease) -> bool:
        """True when a GPU of this lease has other leases, or strangers beyond the guard."""
        return any(
            len(book.leases) > 1 or book.strangers_bytes > book.guard_bytes
            for book in self.books_of(lease)
        )

    def share_of(self, lease: Lease) -> float:
        """Return how many whole GPUs a lease counts as: the larger of its memory and load on each.

        One that yields counts half.
        """
        part = YIELDING_COST if lease.request.yields else 1.0
        if not lease.gpus:
            return part * self._host_share(lease) * len(self.books)
        if lease.request.is_exclusive:
            return part * len(lease.gpus)
        shares = 0.0
        for book, size in zip(self.books_of(lease), lease.reserved, strict=True):
            load = self._loads.of(lease.request.job_type, book.gpu.model) or 0.0
            shares += min(1.0, max(size / book.capacity_bytes, load))
        return part * shares

    def _host_share(self, lease: Lease) -> float:
        """Return the part of the host that a lease takes: the larger of its memory and cores."""
        size = self.host.size
        if size is None:
            return _MIN_SHARE
        shares = (lease.ram_bytes / size.ram_bytes, lease.cpus / size.cpus, _MIN_SHARE)
        return min(1.0, max(shares))

    def put(self, lease: Lease, at: float) -> None:
        """Write a new lease into the books."""
        self._types[lease.request.job_type] += 1
        self.watches[lease.id] = profiling.RunWatch(min(lease.granted_at, at))
        self.host_profiles.began(lease, at)
        if lease.is_probe:
            self.first_runs.setdefault(lease.request.job_type, lease.id)
        self.replace(lease)

    def replace(self, lease: Lease) -> None:
        """Replace a lease by its new state."""
        self.leases[lease.id] = lease
        self.reshared[lease.id] = None
        if lease.state is LeaseState.HELD:
            self._by_key[lease.request.key] = lease.id
            if self.may_yield(lease):
                self.yielding[lease.id] = None
            else:
                self.yielding.pop(lease.id, None)
        else:
            self.draining.add(lease.id)
            self.yielding.pop(lease.id, None)
        self.host.put(lease)
        for book in self.books_of(lease):
            book.put(lease)
            self.weigh(book)
        if not lease.is_probe:
            self.end_first_run(lease)

    def may_yield(self, lease: Lease) -> bool:
        """True for a lease that was requested as yielding, or is idle where such ones give way."""
        if lease.request.yields:
            return True
        is_idle = lease.idle_since is not None and lease.request.is_queued
        return is_idle and self._rules.idle_rule is IdleRule.YIELD

    def drop(self, lease: Lease) -> None:
        """Remove a lease from the books."""
        del self.leases[lease.id]
        self._types[lease.request.job_type] -= 1
        if not self._types[lease.request.job_type]:
            del self._types[lease.request.job_type]
        del self.watches[lease.id]
        self.reshared.pop(lease.id, None)
        self.host.take(lease.id)
        self.host_profiles.ended(lease.id)
        self.draining.discard(lease.id)
        self.yielding.pop(lease.id, None)
        if self._by_key.get(lease.request.key) == lease.id:
            del self._by_key[lease.request.key]
        self.end_first_run(lease)
        for book in self.books_of(lease):
            book.take(lease.id)
            self.weigh(book)

    def weigh(self, book: Book) -> None:
        """Sum the estimated loads of the jobs on a GPU."""
        model = book.gpu.model
        load = sum(
            self._loads.of_lease(lease, model) or 0.0
            for lease in book.leases.values()
            if lease.state is LeaseState.HELD
        )
        if load != book.load:
            book.load = load
            book.note_change()

    def weigh_changed(self) -> None:
        """Sum the loads of the GPUs with jobs whose estimated loads have changed."""
        types = self._loads.take_changed()
        changed: dict[str, None] = {}
        for lease_id, lease in self.leases.items() if types else ():
            if lease.request.job_type in types:
                self.reshared[lease_id] = None
                changed.update(dict.fromkeys(lease.gpus))
        for uuid in changed:
            self.weigh(self.books[uuid])

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
        self.rooms.check()
        assert self._types == Counter(lease.request.job_type for lease in self.leases.values())
        self.host.check(self.leases)
        assert self.host_profiles.watches.keys() == self.leases.keys()
        assert self.watches.keys() == self.leases.keys()
        held = (one for one in self.leases.values() if one.state is LeaseState.HELD)
        assert self.yielding.keys() == {one.id for one in held if self.may_yield(one)}
        for job_type, lease_id in self.first_runs.items():
            assert self.leases[lease_id].request.job_type == job_type
