"""Read-only view of an engine. Reading changes no decision; events change the engine.

The protocols name the reading methods of the parts, so that mypy refuses the changing ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Protocol

from msgspec.structs import replace

from grn.model.gpu import GpuKind
from grn.model.job import Argument, Profile, Request
from grn.negotiator.actions import TellIdle
from grn.negotiator.events import Booking, Lease, Wait
from grn.negotiator.learn.host_profiles import HostProfiles
from grn.negotiator.learn.idle_leases import IdleStranger
from grn.negotiator.learn.memory.estimate import Known
from grn.negotiator.learn.memory.margin import Margin
from grn.negotiator.learn.memory.profiling import RunWatch
from grn.negotiator.schedule.booking_plan import admitted
from grn.negotiator.schedule.bookings import Bookings
from grn.negotiator.schedule.placement import Need
from grn.negotiator.schedule.preemption import Claim
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.host_ledger import HostLedger
from grn.negotiator.schedule.room.ledger import Book, Rules
from grn.negotiator.schedule.turns.fair_share import Shares
from grn.negotiator.schedule.turns.order import Group, Turn, WaitingRequest
from grn.negotiator.schedule.turns.wait_queue import Waitlist


class WaitingRequests(Protocol):
    """The wait queue, to read."""

    def __len__(self) -> int: ...
    def __contains__(self, key: str) -> bool: ...
    def __iter__(self) -> Iterator[WaitingRequest]: ...
    def find(self, key: str) -> WaitingRequest | None: ...
    def group_of(self, key: str) -> Group | None: ...
    def ordered(self) -> Sequence[WaitingRequest]: ...
    def in_turn(self) -> Iterator[Group]: ...
    def count_by_user(self) -> Mapping[int, int]: ...


class KnownTypes(Protocol):
    """The profiles of job types, to read."""

    @property
    def margin(self) -> Margin: ...
    def known(self, job_type: str, model: str) -> Known | None: ...
    def profiles(self) -> list[Profile]: ...
    def profile(self, job_type: str, model: str) -> Profile | None: ...
    def knows(self, job_type: str, model: str) -> bool: ...
    def owners(self, job_type: str) -> set[int]: ...
    def alone_s(self, request: Request, model: str, power: float) -> float | None: ...
    def spread(self, job_type: str, model: str, power: float) -> float: ...


class KnownLoads(Protocol):
    """The loads of job types, to read."""

    def of(
        self, job_type: str, model: str, arguments: tuple[Argument, ...] = ()
    ) -> float | None: ...
    def slower_beside(self, job_type: str, model: str) -> Mapping[str, float] | None: ...
    def crowd_of(self, lease_id: str) -> float: ...
    def power(self, model: str) -> float: ...


class UserUsage(Protocol):
    """The GPU usage of users, to read."""

    def users(self) -> Iterable[int]: ...
    def level(self, user: int, at: float) -> float: ...
    def weight(self, user: int) -> float: ...
    def used_h(self, user: int, at: float) -> float: ...
    def rate(self, user: int) -> float: ...


class EngineView:
    """GPUs, leases, waiting requests, profiles and usage of one engine."""

    def __init__(
        self,
        rules: Rules,
        holdings: Holdings,
        waitlist: Waitlist,
        memory: KnownTypes,
        loads: KnownLoads,
        usage: UserUsage,
        shares: Shares,
        needs: Callable[[Request], dict[str, Need]],
        why: Callable[[str, float], Wait | None],
        types_dropped: Mapping[int, int],
        asked_to_yield: Mapping[str, float],
        claims: Mapping[str, Claim],
        *,
        bookings: Bookings,
        idle_strangers: Mapping[str, Mapping[int, IdleStranger]],
        idle_ending: Mapping[str, TellIdle],
    ) -> None:
        self._rules = rules
        self._holdings = holdings
        self._bookings = bookings
        self._waitlist = waitlist
        self._shares = shares
        self.books: Mapping[str, Book] = MappingProxyType(holdings.books)
        self.leases: Mapping[str, Lease] = MappingProxyType(holdings.leases)
        self.first_runs: Mapping[str, str] = MappingProxyType(holdings.first_runs)
        self.draining: AbstractSet[str] = holdings.draining
        self.waitlist: WaitingRequests = waitlist
        self.memory: KnownTypes = memory
        self.loads: KnownLoads = loads
        self.usage: UserUsage = usage
        self.host: HostLedger = holdings.host
        self.host_profiles: HostProfiles = holdings.host_profiles
        self.needs = needs  # of a request on each GPU model
        self.why = why  # a request waits, at a time; None when it does not wait
        self.patience_s = rules.patience_s  # after this long GPUs are reserved for a request
        self.claims = MappingProxyType(claims)  # by key: room that others were asked to make
        self.asked_to_yield = MappingProxyType(asked_to_yield)  # lease -> when
        self.types_dropped = MappingProxyType(types_dropped)  # user -> types over the quota
        self.booking_unknown_s = rules.booking_unknown_s  # how long jobs of unknown duration run
        self.bookings: Mapping[int, Booking] = MappingProxyType(bookings.by_id)
        self.idle_strangers = MappingProxyType(idle_strangers)  # by GPU and pid
        self.idle_ending = MappingProxyType(idle_ending)  # leases whose jobs are ended as idle

    def booking_clock(self, at: float) -> float:
        """Return the time of the wall clock by which bookings begin and end."""
        return at + self._bookings.offset_s

    def admitted(self, wish: Booking, at: float) -> tuple[Booking, ...]:
        """Return a new booking with its id and GPUs, then those that move for it; or raise."""
        wish = replace(wish, id=self._bookings.new_id())
        now, gpus = self.booking_clock(at), tuple(self.books)
        return admitted(wish, list(self.bookings.values()), gpus, now, self._rules)

    def held_by_key(self, key: str) -> Lease | None:
        """Return the lease that was granted to a request and is held."""
        return self._holdings.held_by_key(key)

    def turn(self, waiting: WaitingRequest) -> Turn:
        """Return the sort key of a waiting request."""
        return self._shares.turn(waiting)

    def turn_if_asked(self, waiting: WaitingRequest, at: float) -> Turn:
        """Return the sort key that a request would have if it came now."""
        return self._shares.turn_if_asked(waiting, at)

    def users_before(self, user: int, at: float) -> int:
        """Return how many waiting users precede this one by lower usage."""
        return self._shares.before(user, at)

    def watch(self, lease_id: str) -> RunWatch:
        """Return the samples of a running job."""
        return self._holdings.watches[lease_id]

    def needs_last_look(self, lease_id: str, keeps_peaks: bool) -> bool:
        """True when the peak of a lease is known only after one more sample of its GPUs."""
        return self.is_measured_at_its_end(lease_id) and (keeps_peaks or self.is_unseen(lease_id))

    def is_measured_at_its_end(self, lease_id: str) -> bool:
        """True for a lease whose process must wait while its end is measured, if that is due."""
        gpus = self.leases[lease_id].gpus
        return bool(gpus) and self.books[gpus[0]].gpu.kind is not GpuKind.VIRTUAL

    def is_unseen(self, lease_id: str) -> bool:
        """True when no sample has shown memory of a lease."""
        return self.watch(lease_id).rose_at is None

    def follow(self, keys: dict[str, None]) -> None:
        """Note in `keys` each request that joins, leaves or moves from now on."""
        self._waitlist.changed = keys

    def unfollow(self, keys: dict[str, None]) -> None:
        """Stop noting requests in `keys`."""
        if self._waitlist.changed is keys:
            self._waitlist.changed = None
