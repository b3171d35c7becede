"""Find the leases and the processes without a lease that are idle, and what follows.

Reads loads at points in time from the books. A load is averaged over short windows, so that one
noisy sample does not count as work; one that is not known is not idle. A first run is not idle, nor
is a lease that has not run for long. Which lease gives way, and how a job ends, is decided
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from grn.model.job import IdleRule
from grn.negotiator.actions import Action, SaveLease, TellIdle, TellIdleStranger
from grn.negotiator.events import Lease, LeaseState
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Book, Rules

MIN_STRANGER_BYTES = 256 << 20  # a desktop's windows are not worth a word
IDLE_LOAD = 0.05  # of a GPU; below it is idle
WINDOW_S = 60.0  # at most
_WINDOWS = 10  # in a limit, at least
_LOOKS = 20  # in a window: more often nothing is gained
_MIN_KNOWN = 0.5  # of a window, before its load counts
_LONGEST_S = 120.0  # between two samples that belong together
Name = str | tuple[str, int]  # a lease, or a process on a GPU


class IdleStranger(Struct, frozen=True):
    """A process without a lease that holds memory of a GPU and does not use it."""

    pid: int
    user: int | None
    since: float


class IdleLeases:
    """Which leases and strangers are idle, and who was asked to end."""

    def __init__(self, rules: Rules, holdings: Holdings) -> None:
        self._rules = rules
        self._holdings = holdings
        self._idleness = Idleness()
        self._first_seen: dict[tuple[str, int], float] = {}  # strangers, by GPU and pid
        self._restored: list[str] = []  # leases that were idle when an earlier negotiator ended
        self.strangers: dict[str, dict[int, IdleStranger]] = {}  # those that are idle, by GPU
        self.ending: dict[str, TellIdle] = {}  # leases whose queue was told to end the job

    def restore(self, lease: Lease, at: float) -> None:
        """Take over a lease from before a restart."""
        if lease.idle_since is not None:
            self._idleness.restore(lease.id, lease.idle_since, at)
            self._restored.append(lease.id)

    def look(self, at: float, owners: Iterable[tuple[int, int]] = ()) -> Iterator[Action]:
        """Apply the latest readings; return what is to be saved and who is to be told."""
        if not self._idleness.is_due(at):
            return
        users = dict(owners)
        for name, since in self._idleness.seen(at, list(self._samples(at))):
            if isinstance(name, str):
                yield from self._lease_changed(self._holdings.leases[name], since, at)
            else:
                yield from self._stranger_changed(*name, users, since, at)
        if self._restored:
            again, self._restored = self._restored, []
            yield from self._end_again(again, at)
        self._forget()

    def check(self) -> None:
        """Raise AssertionError when a lease is saved as idle that is not, or the other way."""
        self._idleness.check()
        for lease in self._holdings.leases.values():
            is_held = lease.state is LeaseState.HELD
            assert is_held or lease.idle_since is None, "idle without a process"
            if is_held:
                assert lease.idle_since == self._idleness.since(lease.id), "idle since another time"
            assert lease.idle_since is None or not lease.is_probe, "an idle first run"
        for uuid, found in self.strangers.items():
            for pid, stranger in found.items():
                assert self._idleness.since((uuid, pid)) == stranger.since

    # --- loads ---------------------------------------------------------------------------

    def _samples(self, at: float) -> Iterator[Sample]:
        rules, books = self._rules, self._holdings.books
        usual_s, ran_since = rules.idle_limit_s, at - rules.idle_after_s
        whole, own = _loads(books)
        for lease in self._holdings.leases.values():
            limit_s = lease.request.idle_limit_s or usual_s
            if not limit_s or not lease.gpus or lease.state is not LeaseState.HELD:
                continue
            load: float | None = 0.0
            for uuid in lease.gpus:
                here = whole.get(uuid)
                if uuid in own:
                    here = _most(books[uuid], own[uuid], lease.id)
                load = None if here is None or load is None else max(load, here)
            is_exempt = lease.is_probe or lease.granted_at > ran_since
            yield Sample(lease.request.lease, load, limit_s, is_exempt)
        if usual_s:
            for uuid, book in books.items():
                if book.strangers_bytes or book.unexplained_bytes:
                    yield from self._strangers(uuid, book, at)

    def _strangers(self, uuid: str, book: Book, at: float) -> Iterator[Sample]:
        """Yield the processes on a GPU that hold no lease there."""
        if book.is_virtual or not book.is_read:
            return
        loads = dict(book.reading.process_loads)
        for use in book.reading.uses:
            is_small = use.used_bytes is not None and use.used_bytes < MIN_STRANGER_BYTES
            if is_small or any(one in book.leases for one in use.leases):
                continue
            name = (uuid, use.pid)
            age_s = at - self._first_seen.setdefault(name, at)
            load = _most(book, loads, use.pid)
            limit_s = self._rules.idle_limit_s
            yield Sample(name, load, limit_s, age_s < self._rules.idle_after_s)

    # --- changes -------------------------------------------------------------------------

    def _lease_changed(self, lease: Lease, since: float | None, at: float) -> Iterator[Action]:
        idled_s = lease.idle_s(at) if since is None else lease.idled_s
        changed = replace(lease, idle_since=since, idled_s=idled_s)
        self._holdings.replace(changed)
        yield SaveLease(changed)
        if since is not None and self._rules.idle_rule is not IdleRule.SHOW:
            yield self._tell(changed, at)

    def _tell(self, lease: Lease, at: float) -> TellIdle:
        is_to_end = self._rules.idle_rule is IdleRule.END and lease.request.is_queued
        books = self._holdings.books_of(lease)
        held = sum(held_bytes(book, lease) for book in books)
        gpus = tuple(book.gpu.index for book in books)
        told = TellIdle(lease, at - (lease.idle_since or at), held, gpus, is_to_end)
        if is_to_end:
            self.ending[lease.id] = told
        return told

    def _end_again(self, restored: Iterable[str], at: float) -> Iterator[Action]:
        """Ask again for the end of jobs that may not have heard of it before a restart."""
        for lease_id in restored:
            lease = self._holdings.leases.get(lease_id)
            is_idle = lease is not None and lease.idle_since is not None
            if lease is not None and is_idle and self._rules.idle_rule is IdleRule.END:
                told = self._tell(lease, at)
                if told.is_to_end:
                    yield told

    def _stranger_changed(
        self, uuid: str, pid: int, users: dict[int, int], since: float | None, at: float
    ) -> Iterator[Action]:
        here = self.strangers.setdefault(uuid, {})
        here.pop(pid, None)
        if since is None:
            return
        user = users.get(pid)
        here[pid] = IdleStranger(pid, user, since)
        if self._rules.idle_rule is not IdleRule.SHOW and user is not None:
            book = self._holdings.books[uuid]
            held = book.used_by_stranger(pid)
            yield TellIdleStranger(pid, user, book.gpu.index, at - since, held)

    def _forget(self) -> None:
        """Drop strangers that are gone, and leases that have ended or work again."""
        for uuid, found in list(self.strangers.items()):
            gone = [pid for pid in found if self._idleness.since((uuid, pid)) is None]
            for pid in gone:
                del found[pid]
            if not found:
                del self.strangers[uuid]
        for name in [one for one in self._first_seen if not self._idleness.has(one)]:
            del self._first_seen[name]
        for lease_id in list(self.ending):
            if self._idleness.since(lease_id) is None:
                del self.ending[lease_id]


def held_bytes(book: Book, lease: Lease) -> int:
    """Return what a lease keeps of a GPU: what it has reserved, or uses beyond that."""
    return max(lease.reserved_on(book.gpu.uuid), book.measured.get(lease.id) or 0)


def _loads(
    books: Mapping[str, Book],
) -> tuple[dict[str, float], dict[str, dict[str, float | None]]]:
    """Return the loads of GPUs of which no more is known, and those of leases on all others."""
    whole: dict[str, float] = {}
    own: dict[str, dict[str, float | None]] = {}
    for uuid, book in books.items():
        if book.leases:
            reading = book.reading
            if reading.process_loads or book.is_virtual:
                own[uuid] = _own_loads(book)
            elif book.is_read and (load := _whole(book)) is not None:
                whole[uuid] = load / 100
    return whole, own


def _own_loads(book: Book) -> dict[str, float | None]:
    """Return the load of each lease with processes on a GPU, in percent, None when unknown."""
    reading = book.reading
    loads = dict(reading.process_loads)
    found: dict[str, float | None] = {}
    for use in reading.uses:
        load = loads.get(use.pid)
        for lease_id in use.leases:
            before = found.get(lease_id, 0.0)
            found[lease_id] = None if load is None or before is None else before + load
    return found


def _most(book: Book, own: Mapping[Any, float | None], name: str | int) -> float | None:
    """Return what a lease or process uses of a GPU at most, None when nothing tells.

    The load of a virtual GPU is the sum of what is known of its processes: it says nothing of one
    that is not known, and no process has none.
    """
    if not book.is_read:
        return None
    pct = own.get(name)
    if book.is_virtual:
        pct = own.get(name, 0.0)
    else:
        known = [one for one in (pct, _whole(book)) if one is not None]
        pct = min(known, default=None)
    return None if pct is None else pct / 100


def _whole(book: Book) -> float | None:
    """Return the load of a GPU, None where it does not tell that of each of its processes.

    No part is larger than the whole: without load, no process uses the GPU. With load, the part
    of each process is known only if there is one process.
    """
    reading = book.reading
    if reading.load_pct is None:
        return None
    is_telling = reading.load_pct < 100 * IDLE_LOAD or len(reading.uses) <= 1
    return reading.load_pct if is_telling else None


class Sample(NamedTuple):
    """The load of one lease or process on its busiest GPU, None when unknown."""

    name: Name
    load: float | None
    limit_s: float  # idle after so long
    is_exempt: bool = False  # not idle yet, however long it has used nothing


class Changed(NamedTuple):
    """One that has become idle, or is so no more: then `since` is None."""

    name: Name
    since: float | None


@dataclass(slots=True)
class _Watch:
    """The present window of one, and since when its windows are quiet."""

    window_at: float
    load_s: float = 0.0  # load times time,
    known_s: float = 0.0  # over the time in which it was known
    quiet_since: float | None = None
    is_idle: bool = False

    def add(self, at: float, passed_s: float, load: float | None, window_s: float) -> None:
        """Add a load; close the window when it is over, or when it can only be a busy one."""
        if load is not None:
            self.load_s += load * passed_s
            self.known_s += passed_s
        if at - self.window_at >= window_s:
            is_known = self.known_s >= _MIN_KNOWN * (at - self.window_at)
            self.begin(at, is_quiet=is_known and self.load_s < IDLE_LOAD * self.known_s)
        elif self.load_s >= IDLE_LOAD * window_s:
            self.begin(at, is_quiet=False)

    def begin(self, at: float, *, is_quiet: bool) -> None:
        """Begin a window after one that was quiet or not."""
        if not is_quiet:
            self.quiet_since = None
        elif self.quiet_since is None:
            self.quiet_since = self.window_at
        self.window_at, self.load_s, self.known_s = at, 0.0, 0.0


class Idleness:
    """The loads of all that are watched, summed up."""

    def __init__(self) -> None:
        self._watches: dict[Name, _Watch] = {}
        self._seen_at: float | None = None
        self._step_s = 0.0

    def is_due(self, at: float) -> bool:
        """True when another look can show something new."""
        return self._seen_at is None or at - self._seen_at >= self._step_s

    def restore(self, name: Name, since: float, at: float) -> None:
        """Take over that one was idle before a restart."""
        self._watches[name] = _Watch(at, quiet_since=since, is_idle=True)

    def since(self, name: Name) -> float | None:
        """Return since when one is idle, None when it is not."""
        watch = self._watches.get(name)
        return watch.quiet_since if watch is not None and watch.is_idle else None

    def has(self, name: Name) -> bool:
        """True when one was there at the last look."""
        return name in self._watches

    def seen(self, at: float, samples: Iterable[Sample]) -> list[Changed]:
        """Apply the loads of all that are there; others are forgotten without a word."""
        is_first = self._seen_at is None
        passed_s = 0.0 if self._seen_at is None else at - self._seen_at
        before, self._watches = self._watches, {}
        self._seen_at, shortest_s = at, WINDOW_S
        found: list[Changed] = []
        watches, is_gap = self._watches, passed_s > _LONGEST_S
        for name, load, limit_s, is_exempt in samples:
            window_s = limit_s / _WINDOWS
            if window_s > WINDOW_S:
                window_s = WINDOW_S
            elif window_s < shortest_s:
                shortest_s = window_s
            watch = before.get(name)
            if watch is None:  # what was before is not its own
                watches[name] = _Watch(at)
                continue
            watches[name] = watch
            if is_gap:
                watch.begin(at, is_quiet=False)
            elif is_first:
                watch.window_at = at
            else:
                watch.add(at, passed_s, load, window_s)
            since = watch.quiet_since
            if since is None and not watch.is_idle:
                continue  # as most
            is_idle = since is not None and (
                watch.is_idle or (at - since >= limit_s and not is_exempt)
            )
            if is_idle is not watch.is_idle:
                watch.is_idle = is_idle
                found.append(Changed(name, since if is_idle else None))
        self._step_s = shortest_s / _LOOKS
        return found

    def check(self) -> None:
        """Raise AssertionError when one is idle without a quiet time."""
        for watch in self._watches.values():
            assert watch.quiet_since is not None or not watch.is_idle, "idle since never"
            assert watch.known_s >= 0
