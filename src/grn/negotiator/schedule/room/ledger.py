"""The book of each GPU: memory reserved by leases and memory in use.

`free = total - guard - leases - strangers - unexplained`. Placement is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from grn.model.gpu import ComputeMode, Gpu, GpuHealth, GpuKind, Reading
from grn.model.job import IdleRule
from grn.model.units import MiB
from grn.negotiator.events import Lease, LeaseState

MIN_LOAD = 0.02  # the least load of any job


@dataclass(frozen=True, slots=True)
class Guard:
    """The part of a GPU that is never reserved."""

    fraction: float = 0.05
    fixed_bytes: int = 512 * MiB

    def of(self, total_bytes: int) -> int:
        """Return the guard of one GPU; the fixed part scales down on small ones."""
        return int(total_bytes * self.fraction) + min(self.fixed_bytes, total_bytes // 48)


@dataclass(frozen=True, slots=True)
class Rules:
    """The configurable limits of the engine."""

    guard: Guard = field(default_factory=Guard)
    flat_s: float = 60.0  # a first run whose memory has not risen for this long is measured
    patience_s: float = 600.0  # after this long GPUs are reserved for the oldest request
    grace_s: float = 2.0  # after a restart, how long positions are kept for earlier requests
    load_cap: float = 0.0  # jobs share a GPU until their loads add up to this; 0: as learned
    short_s: float = 900.0  # types that usually take no longer precede others
    share_half_life_s: float = 86400.0  # the half-life of a user's usage
    weights: Mapping[int, float] = field(default_factory=dict)  # by user; others have 1
    yield_after_s: float = 30.0  # a request without room waits so long before others give way
    urgent_per_user: int = 1  # how many urgent jobs of a user may ask at once
    bookings_per_user: int = 3
    booking_share: float = 1.0  # the part of the GPUs that one user may have booked at a time
    booking_lapse_s: float = 900.0  # after so long without a job of its user a booking ends
    booking_unknown_s: float = 172800.0  # before a booking: how long jobs of unknown duration run
    idle_limit_s: float = 1800.0  # a lease or stranger without load for so long is idle; 0: none
    idle_after_s: float = 1200.0  # but no lease before it has run for so long
    idle_rule: IdleRule = IdleRule.SHOW


@dataclass(slots=True)
class Book:
    """One GPU: its latest reading and the leases on it. Sums are cached until a change."""

    gpu: Gpu
    guard_bytes: int
    reading: Reading
    leases: dict[str, Lease] = field(default_factory=dict)
    measured: dict[str, int | None] = field(default_factory=dict)  # lease -> its share of its tree
    entangled: set[str] = field(default_factory=set)  # leases that share a process with others
    is_closed: bool = False  # a job grows beyond its reservation: no newcomers
    load: float = 0.0  # the summed estimated loads of all jobs here
    changed: set[str] | None = None  # where to note that this book has changed
    load_cap: float = math.inf  # the load up to which another job may come
    cap_because: str = ""
    capacity_bytes: int = field(init=False)  # what may be reserved at most
    is_virtual: bool = field(init=False)
    is_changed: bool = True  # leases or memory have changed since this was last cleared
    mode: ComputeMode = field(init=False)  # the last one that the driver reported
    _is_split: bool = False  # the memory of the latest reading is split among the present leases
    _sums: tuple[int, int, int, int, int] | None = None
    _outgrown: list[str] | None = None

    def __post_init__(self) -> None:
        self.capacity_bytes = self.gpu.total_bytes - self.guard_bytes
        self.is_virtual = self.gpu.kind is GpuKind.VIRTUAL
        self.mode = ComputeMode.EXCLUSIVE if self.gpu.is_exclusive else ComputeMode.SHARED
        self._note_mode()

    @property
    def most_takeable_bytes(self) -> int:
        """Return the largest need of a newcomer that fits here."""
        return self.free_bytes if self.leases else self.once_empty_bytes

    @property
    def once_empty_bytes(self) -> int:
        """Return the largest need that fits beside the strangers when no lease is left here."""
        return (self._sums or self._totals())[4]

    def beside_bytes(self, foreign_bytes: int) -> int:
        """Return the largest need that fits beside foreign memory when no lease is left here.

        A desktop within the guard leaves the GPU whole: no job can have more of this one.
        """
        return self.capacity_bytes - (foreign_bytes if foreign_bytes > self.guard_bytes else 0)

    @property
    def names(self) -> tuple[str, str]:
        """Return the names by which users may select this GPU."""
        return (self.gpu.uuid, str(self.gpu.index))

    @property
    def booked_bytes(self) -> int:
        return (self._sums or self._totals())[0]

    @property
    def strangers_bytes(self) -> int:
        """Return the memory of processes that hold no lease here."""
        return (self._sums or self._totals())[1]

    @property
    def unexplained_bytes(self) -> int:
        return (self._sums or self._totals())[2]

    @property
    def free_bytes(self) -> int:
        """Return the memory that may still be reserved; it can be negative."""
        return (self._sums or self._totals())[3]

    @property
    def is_read(self) -> bool:
        """True when the latest reading shows the use of this GPU."""
        return self.reading.health is GpuHealth.OK and self.reading.used_bytes is not None

    @property
    def is_usable(self) -> bool:
        """True when a job could start here."""
        return self.is_read and self.mode is not ComputeMode.PROHIBITED

    @property
    def is_exclusive(self) -> bool:
        """True while the driver lets only one process in."""
        return self.mode is ComputeMode.EXCLUSIVE

    def measured_of(self, lease_id: str) -> int | None:
        """Return the memory of a lease's processes here, None when the driver hides it."""
        return self.measured.get(lease_id, 0) if self.reading.lists_processes else None

    @property
    def has_probe(self) -> bool:
        """True while a first run, not yet measured, is on this GPU."""
        return any(lease.is_probe for lease in self.leases.values())

    @property
    def has_exclusive(self) -> bool:
        """True while a job has this GPU to itself."""
        return any(lease.request.is_exclusive for lease in self.leases.values())

    def used_by_stranger(self, pid: int) -> int:
        """Return the memory here of one process that holds no lease here."""
        uses = [use for use in self.reading.uses if use.pid == pid]
        return sum(use.used_bytes or 0 for use in uses if not self._live(use.leases))

    def has_pid(self, pid: int) -> bool:
        """True when that process has memory here or holds a lease here."""
        if self.leases and self.holds(pid):
            return True
        # A virtual GPU has no memory outside leases.
        return not self.is_virtual and any(use.pid == pid for use in self.reading.uses)

    def holds(self, pid: int) -> bool:
        """True when that process holds a lease here."""
        return pid in self._holders()

    def pids(self) -> set[int]:
        """Return the processes that have memory here or hold a lease here."""
        if self.is_virtual:  # it has no memory outside leases
            return self._holders()
        return self._holders().union(use.pid for use in self.reading.uses)

    def _holders(self) -> set[int]:
        return {
            lease.request.holder.pid
            for lease in self.leases.values()
            if lease.state is LeaseState.HELD
            and lease.request.holder is not None
            and not lease.request.is_command  # another process will hold it
        }

    def put(self, lease: Lease) -> None:
        """Add or replace a lease."""
        self.leases[lease.id] = lease
        self._forget_sums()
        self.is_closed = self.is_closed and bool(self.outgrown())
        self.note_change()

    def take(self, lease_id: str) -> None:
        """Remove a lease; on a virtual GPU its memory goes with it."""
        self.leases.pop(lease_id, None)
        self.measured.pop(lease_id, None)
        self._forget_sums()
        self.is_closed = self.is_closed and bool(self.outgrown())
        self.note_change()
        reading = self.reading
        if not reading.uses and not (self.is_virtual and reading.used_bytes):  # never seen
            return
        if self.is_virtual and reading.used_bytes is not None:
            left = tuple(use for use in reading.uses if self._live(use.leases))
            used = sum(use.used_bytes or 0 for use in left)
            reading = replace(reading, used_bytes=used, uses=left)
        self.read(reading)  # again: memory it shared with other leases of its process is theirs now

    def read(self, reading: Reading) -> None:
        """Apply a new reading; split each process's memory among the leases it runs under."""
        former, self.reading = self.reading, reading
        if self._is_split and _is_same_memory(former, reading):
            return
        self._note_mode()
        measured: dict[str, int | None] = {}
        self.entangled.clear()
        for use in reading.uses:
            live = self._live(use.leases)
            if len(live) > 1:
                self.entangled.update(live)
            for lease_id in live:
                share = None if use.used_bytes is None else use.used_bytes // len(live)
                before = measured.get(lease_id, 0)
                measured[lease_id] = None if share is None or before is None else before + share
        if reading.health is GpuHealth.OK:
            self.measured = measured
        self._forget_sums()
        self._is_split = True
        self.note_change()

    def _note_mode(self) -> None:
        if self.reading.mode is not None:
            self.mode = self.reading.mode

    def outgrown(self) -> list[str]:
        """Return the running leases that have more here than they reserved.

        Leases that share a process are left out: their shares are unknown.
        """
        if not self.measured:
            return []
        if self._outgrown is None:
            leases = self.leases.items()
            self._outgrown = [lease_id for lease_id, lease in leases if self._is_outgrown(lease)]
        return self._outgrown

    def _is_outgrown(self, lease: Lease) -> bool:
        measured = self.measured.get(lease.id)
        if not measured or measured <= lease.reserved_on(self.gpu.uuid):
            return False
        return lease.state is LeaseState.HELD and lease.id not in self.entangled

    def close(self, is_closed: bool) -> None:
        """Close this GPU to newcomers, or open it again."""
        self.is_closed = is_closed
        self._sums = None
        self.note_change()

    def _forget_sums(self) -> None:
        self._sums = self._outgrown = None
        self._is_split, self.is_changed = False, True

    def note_change(self) -> None:
        """Notify the observer of this book of a change."""
        if self.changed is not None:
            self.changed.add(self.gpu.uuid)

    def check_sums(self) -> None:
        """Raise AssertionError when cached sums are not those of the leases and the reading."""
        sums, outgrown = self._sums, self._outgrown
        self._sums = self._outgrown = None
        assert sums is None or sums == self._totals(), f"{self.gpu.uuid} has old sums"
        assert outgrown is None or outgrown == self.outgrown(), f"{self.gpu.uuid} has old jobs"

    def _live(self, lease_ids: tuple[str, ...]) -> list[str]:
        return [lease_id for lease_id in lease_ids if lease_id in self.leases]

    def _totals(self) -> tuple[int, int, int, int, int]:
        booked, strangers, unexplained = self._add_up()
        foreign = strangers + unexplained
        free = self.capacity_bytes - booked - foreign
        if self.is_closed:
            free = min(free, 0)
        self._sums = (booked, strangers, unexplained, free, self.beside_bytes(foreign))
        return self._sums

    def _add_up(self) -> tuple[int, int, int]:
        booked = strangers = explained = 0
        for lease_id, lease in self.leases.items():
            reserved, measured = lease.reserved_on(self.gpu.uuid), self.measured_of(lease_id)
            booked += max(reserved, measured or 0)
            if measured and measured > reserved and self._is_outgrown(lease):
                booked += measured // 10  # it may keep growing
            # Where the driver hides what a process uses, its memory shows only in the GPU's total:
            # count it against what its lease has reserved rather than twice.
            explained += reserved if measured is None else 0
        for use in self.reading.uses:
            live, size = self._live(use.leases), use.used_bytes or 0
            strangers += 0 if live else size
            is_hidden = any(self.measured_of(lease_id) is None for lease_id in live)
            explained += 0 if is_hidden else size
        return booked, strangers, max(0, (self.reading.used_bytes or 0) - explained)


def _is_same_memory(before: Reading, after: Reading) -> bool:
    """True when two readings differ at most in load, temperature and power."""
    return (
        before.used_bytes == after.used_bytes
        and before.uses == after.uses
        and before.health is after.health
        and before.mode is after.mode
        and before.lists_processes is after.lists_processes
    )


def check_books(books: Mapping[str, Book], leases: Mapping[str, Lease]) -> None:
    """Raise AssertionError when books and leases contradict each other."""
    for uuid, book in books.items():
        assert all(leases.get(lease_id) is book.leases[lease_id] for lease_id in book.leases)
        promised = sum(lease.reserved_on(uuid) for lease in book.leases.values())
        assert promised <= book.capacity_bytes, f"{uuid} has promised more than it has"
        probes = sum(lease.is_probe for lease in book.leases.values())
        assert probes <= 1, f"two first runs on {uuid}"
        assert not book.has_exclusive or len(book.leases) == 1, f"{uuid} is not exclusive"
        book.check_sums()
    for lease_id, lease in leases.items():
        assert lease.id == lease_id
        assert len(lease.gpus) == len(set(lease.gpus)) == len(lease.reserved) == lease.request.gpus
        assert all(lease_id in books[uuid].leases for uuid in lease.gpus)
