"""Follow the memory of running jobs: shrink reservations, and close GPUs that jobs outgrow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from grn.negotiator.actions import Action, DropLease, SaveLease
from grn.negotiator.events import Lease, LeaseState
from grn.negotiator.learn.host_profiles import MIN_CPUS
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Book, Rules

MAX_WORK = 96  # leases to look at and loads to split in one event, of some 15 us each
_LOADS_AT_ONCE = 128  # GPUs whose loads are split in one sample
_SOON_S = 2.0  # after the sample before


class RunningJobs:
    """Turns readings into updates of leases."""

    def __init__(
        self, rules: Rules, type_needs: TypeNeeds, loads: Loads, holdings: Holdings
    ) -> None:
        self._rules = rules
        self._type_needs = type_needs
        self._memory = type_needs.profiles
        self._loads = loads
        self._holdings = holdings
        self._outgrew: dict[str, int] = {}  # leases above their reservation, and their use then
        self._looked_at = float("-inf")
        self._turn = 0  # counts samples
        # Of the latest sample: leases still to look at, GPUs whose loads are still to be split.
        self._unseen: OrderedDict[str, None] = OrderedDict()
        self._unsplit: OrderedDict[str, None] = OrderedDict()
        self.max_work: float = MAX_WORK

    def look(self, at: float, survived: Collection[str] = ()) -> Iterator[Action]:
        """Release the leases of dead jobs, and close GPUs with jobs that outgrow their reservation.

        `go_on` applies the readings to all other leases and to loads. A lease in `survived` stays
        as it is: processes of a dead job are alive, and one without memory may still use the
        reservation.
        """
        books = self._holdings.books
        outgrown = {one for book in books.values() if book.leases for one in book.outgrown()}
        for lease in self._to_look_at(at):
            if lease.state is LeaseState.DRAINING:
                if lease.id not in survived:
                    yield from self._drain(lease)
            elif lease.id in outgrown:
                yield from self._look_at(lease, at)
            else:
                self._unseen[lease.id] = None
        outgrew: dict[str, int] = {}
        parts = self._parts(at)
        for place, (uuid, book) in enumerate(books.items()):
            book.is_changed = False
            if book.leases and (place + self._turn) % parts == 0:
                self._unsplit[uuid] = None
            is_growing = bool(book.leases) and self._is_growing(book, at, outgrew)
            if is_growing != book.is_closed:
                book.close(is_growing)
        self._outgrew = outgrew

    @property
    def is_behind(self) -> bool:
        """True when the latest sample is not applied to everything yet."""
        return bool(self._unseen or self._unsplit)

    def go_on(self, max_work: float | None = None) -> Iterator[Action]:
        """Apply the latest sample to more leases and loads, at most `max_work` of them."""
        left = self.max_work if max_work is None else max_work
        while self.is_behind and left > 0:
            left -= 1
            if self._unseen:
                lease_id, _ = self._unseen.popitem(last=False)
                yield from self._look_at(self._holdings.leases[lease_id], self._looked_at)
            else:
                uuid, _ = self._unsplit.popitem(last=False)
                self._loads.look(self._holdings.books[uuid], self._looked_at)
        if not self.is_behind:
            self._holdings.weigh_changed()

    def catch_up(self, ending: Lease) -> Iterator[Action]:
        """Apply the latest sample to a lease that ends, and to all others on its GPUs."""
        if not self.is_behind:
            return
        books = self._holdings.books_of(ending)
        for lease_id in dict.fromkeys((ending.id, *(one for book in books for one in book.leases))):
            if lease_id in self._unseen:
                del self._unseen[lease_id]
                yield from self._look_at(self._holdings.leases[lease_id], self._looked_at)
        for book in books:
            if book.gpu.uuid in self._unsplit:
                del self._unsplit[book.gpu.uuid]
                self._loads.look(book, self._looked_at)

    def check(self) -> None:
        """Raise AssertionError when the rest of a sample, or a need, is not of a running job."""
        leases, noted = self._holdings.leases, {*self._unseen, *self._memory.running.leases()}
        assert all(leases[one].state is LeaseState.HELD for one in noted)

    def _parts(self, at: float) -> int:
        """Return how many samples share the work of splitting the loads of all GPUs.

        A load is a mean over time: on a machine with very many GPUs each is split every few
        samples, as long as those are close together.
        """
        is_soon = at - self._looked_at < _SOON_S
        self._looked_at = at
        self._turn += 1
        return 1 + len(self._holdings.books) // _LOADS_AT_ONCE if is_soon else 1

    def _to_look_at(self, at: float) -> list[Lease]:
        """Return the leases that a sample may change: not those that are settled and flat.

        One that is not settled may become flat, or has grown for too long, without a change.
        """
        changed = {
            lease_id
            for book in self._holdings.books.values()
            if book.is_changed
            for lease_id in book.leases
        }
        changed |= self._holdings.draining
        if self._holdings.host.size is not None:
            seen = self._holdings.host_profiles.watches
            changed |= {one for one, watch in seen.items() if not watch.ram.is_settled}
        leases = self._holdings.leases
        return [
            leases[lease_id]
            for lease_id, watch in self._holdings.watches.items()
            if lease_id in changed
            or (not watch.is_settled and self._is_due(leases[lease_id], watch, at))
        ]

    def _is_due(self, lease: Lease, watch: profiling.RunWatch, at: float) -> bool:
        """True when time alone may have changed what is to be done about a run."""
        is_old = at - watch.began_at >= profiling.GROWS_ON_S
        is_calm = watch.rose_at is None or is_old or watch.is_flat(at, self._rules.flat_s)
        if is_calm or not lease.gpus:
            return is_calm
        if watch.rose_at is not None and at - watch.rose_at < profiling.QUIET_S:
            return False  # nor has it settled: as most runs that are young
        settling = self._settling(lease)
        return settling is not None and settling.has_settled(watch, at)

    def _is_growing(self, book: Book, at: float, outgrew: dict[str, int]) -> bool:
        """True while a job grows beyond its reservation; note such jobs in `outgrew`."""
        is_growing = False
        for lease_id in book.outgrown():
            lease, watch = self._holdings.leases[lease_id], self._holdings.watches[lease_id]
            peak, rose_at = watch.peak_bytes, watch.rose_at
            self._memory.running.outgrew(lease.request, book.gpu.model, peak + peak // 10)
            first = outgrew[lease_id] = self._outgrew.get(lease_id, peak)
            if rose_at is not None and peak > first and at - rose_at < self._rules.flat_s:
                is_growing = True  # not on a single jump or memory from before the lease
        return is_growing

    def drop(self, lease: Lease) -> Iterator[Action]:
        """Remove a lease, also from the state file."""
        self._holdings.drop(lease)
        yield DropLease(lease.id)

    def _drain(self, lease: Lease) -> Iterator[Action]:
        """Release a dead job's lease when the driver shows its memory as free."""
        books = self._holdings.books_of(lease)
        if not all(book.is_read for book in books):
            return
        if any(lease.id in book.measured for book in books):
            freed = replace(lease, reserved=(0,) * len(lease.gpus))
            if freed != lease:
                self._holdings.replace(freed)
                yield SaveLease(freed)
        else:
            yield from self.drop(lease)

    def _look_at(self, lease: Lease, at: float) -> Iterator[Action]:
        """Follow the memory of a running job; shrink the reservation of a flat first run."""
        if self._holdings.host.size is not None:
            yield from self._look_at_host(lease, at)
            lease = self._holdings.leases[lease.id]
        if not lease.gpus:
            return
        books = self._holdings.books_of(lease)
        if not all(book.is_read for book in books):
            return  # without a reading nothing shows that its memory is flat
        measured = [book.measured_of(lease.id) for book in books]
        used = max((size for size in measured if size is not None), default=0)
        is_hidden = any(book.unexplained_bytes > book.guard_bytes for book in books)
        if not used and (None in measured or is_hidden):
            return  # a driver that hides a process's memory does not show that it uses none
        watch = self._holdings.watches[lease.id].seen(at, used)
        self._holdings.watches[lease.id] = watch
        if watch.is_settled:
            return
        settling = self._settling(lease)
        if settling is not None and settling.has_settled(watch, at):
            yield from self._keep(lease, watch)
            self._note_peak(lease)
            return
        if not watch.is_flat(at, self._rules.flat_s):
            yield from self._follow(lease, watch, at)
            return
        self._holdings.watches[lease.id] = replace(watch, is_settled=settling is None)
        shares = not lease.request.is_exclusive
        if shares and (lease.is_probe or self._is_unmeasured(lease, books[0].gpu.model)):
            yield from self._settle(lease, watch, at)
        elif shares and lease.request.mem_bytes is None and not lease.request.attempt:
            yield from self._trim(lease, watch, at)
        self._note_peak(lease)

    def _note_peak(self, lease: Lease) -> None:
        """Count the peak of a settled run for its type, unless flat runs of that may still grow."""
        watch, model = self._holdings.watches[lease.id], self._holdings.only_model_of(lease)
        if watch.is_settled and model and not self._memory.is_grower(lease.request.job_type):
            self._memory.shown(lease.request, model, watch.peak_bytes)

    def _look_at_host(self, lease: Lease, at: float) -> Iterator[Action]:
        """Shrink what a job has of the host, once its memory there is flat, to what it uses.

        The first run of a type without GPUs keeps its siblings waiting until then, or until it has
        grown for long.
        """
        watch, request = self._holdings.host_profiles.watches[lease.id], lease.request
        is_old = at - watch.ram.began_at >= profiling.GROWS_ON_S
        is_untold = is_old and watch.ram.rose_at is None  # it uses none, or its use is unknown
        is_flat = is_untold or watch.ram.is_flat(at, self._rules.flat_s)
        is_first = lease.is_probe and not lease.gpus
        is_over = is_first and (is_flat or is_old)
        if not is_over and (not is_flat or watch.ram.is_settled):
            return
        kept = replace(lease, is_probe=False) if is_over else lease
        if is_flat:
            watch.ram = replace(watch.ram, is_settled=True)
            if request.ram_bytes is None:
                kept = replace(kept, ram_bytes=min(lease.ram_bytes, self._trimmed(lease, at)))
            if request.cpus is None and watch.cpus is not None:
                kept = replace(kept, cpus=min(lease.cpus, max(MIN_CPUS, watch.cpus)))
        if kept != lease:
            self._holdings.replace(kept)
            yield SaveLease(kept)

    def _trimmed(self, lease: Lease, at: float) -> int:
        """Return what a job that is flat keeps of the host's memory."""
        host, watch = self._holdings.host_profiles, self._holdings.host_profiles.watches[lease.id]
        capacity, most = self._holdings.host.capacity_bytes, host.most_of_alike(lease.request)
        if most:
            return profiling.trimmed_bytes(watch.ram, most, capacity)
        return profiling.shrunk_bytes(watch.ram, at, capacity)

    def _settle(self, lease: Lease, watch: profiling.RunWatch, at: float) -> Iterator[Action]:
        """Shrink a first run's reservation to its measured need and some headroom."""
        model = self._holdings.books[lease.gpus[0]].gpu.model
        keep = profiling.shrunk_bytes(watch, at, self._holdings.sizes()[model].capacity_bytes)
        if self._memory.is_grower(lease.request.job_type):  # its present memory shows little
            needs = self._type_needs.of(lease.request, self._holdings.sizes())
            keep = max(keep, needs[model].need_bytes)
        shrunk = tuple(min(before, keep) for before in lease.reserved)
        settled = replace(lease, reserved=shrunk, is_probe=False)
        self._holdings.replace(settled)
        self._memory.running.settled(lease.request, model, keep, watch.peak_bytes)
        yield SaveLease(settled)

    def _settling(self, lease: Lease) -> profiling.Settling | None:
        """Return when runs of a lease's type have their memory, None where that does not count."""
        request = lease.request
        if lease.is_probe or request.is_exclusive or request.mem_bytes is not None:
            return None
        model = self._holdings.only_model_of(lease)
        return self._memory.settling(request, model) if model is not None else None

    def _keep(self, lease: Lease, watch: profiling.RunWatch) -> Iterator[Action]:
        """Shrink the reservation of a run that has reached its memory to what it uses."""
        self._holdings.watches[lease.id] = replace(watch, is_settled=True)
        model = self._holdings.books[lease.gpus[0]].gpu.model
        capacity = self._holdings.sizes()[model].capacity_bytes
        keep = profiling.settled_bytes(watch, capacity)
        kept = replace(lease, reserved=tuple(min(before, keep) for before in lease.reserved))
        if kept != lease:
            self._holdings.replace(kept)
            yield SaveLease(kept)

    def _follow(self, lease: Lease, watch: profiling.RunWatch, at: float) -> Iterator[Action]:
        """Stop a first run that keeps growing from blocking its siblings and the whole GPU."""
        request, books = lease.request, self._holdings.books_of(lease)
        model, is_long = books[0].gpu.model, at - watch.began_at >= profiling.GROWS_ON_S
        if not (is_long and watch.peak_bytes) or request.is_exclusive:
            return
        if not lease.is_probe and not self._is_unmeasured(lease, model):
            return
        self._memory.running.grows_on(request, model, watch.peak_bytes)
        self._holdings.end_first_run(lease)
        reserved = tuple(
            profiling.growing_bytes(watch.peak_bytes, before, book.free_bytes)
            for before, book in zip(lease.reserved, books, strict=True)
        )
        is_probe = lease.is_probe and not watch.is_slow(at)
        grown = replace(lease, reserved=reserved, is_probe=is_probe)
        if grown != lease:
            self._holdings.replace(grown)
            yield SaveLease(grown)

    def _is_unmeasured(self, lease: Lease, model: str) -> bool:
        """True for a run of a type of which no run has shown the need, in its first try."""
        request = lease.request
        if request.mem_bytes is not None or request.attempt:
            return False
        return not self._memory.knows(request.job_type, model)

    def _trim(self, lease: Lease, watch: profiling.RunWatch, at: float) -> Iterator[Action]:
        """Shrink the reservation of a run that is flat, near the peak of runs like it if any."""
        model = self._holdings.books[lease.gpus[0]].gpu.model
        capacity = self._holdings.sizes()[model].capacity_bytes
        most = self._memory.most_of_alike(lease.request, model)
        if most:
            keep = profiling.trimmed_bytes(watch, most, capacity)
        elif self._memory.is_grower(lease.request.job_type):
            return
        elif most is None and not watch.is_flat(at, profiling.LOW_LONGER * self._rules.flat_s):
            self._holdings.watches[lease.id] = watch  # it may have loaded only a part
            return
        else:  # no run had the same arguments, or none has ended: as after a first run
            keep = profiling.shrunk_bytes(watch, at, capacity)
        trimmed = replace(lease, reserved=tuple(min(before, keep) for before in lease.reserved))
        if trimmed != lease:
            self._holdings.replace(trimmed)
            yield SaveLease(trimmed)
