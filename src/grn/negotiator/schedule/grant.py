"""Grant GPUs to waiting requests in turn; try only requests whose answer may have changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

from grn.model.host import HOST_MODEL
from grn.model.job import Request
from grn.model.units import GiB
from grn.negotiator.events import Lease, Wait, WaitReason
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.schedule.allocations import MANY, Holdings, Shelf
from grn.negotiator.schedule.bookings import NOT_BOOKED, Booked, Bookings
from grn.negotiator.schedule.host_ledger import HostNeed
from grn.negotiator.schedule.ledger import Book, Rules
from grn.negotiator.schedule.placement import (
    FreeSpace,
    Need,
    Place,
    allowed,
    is_anywhere,
    pinned,
    place,
)
from grn.negotiator.schedule.preemption import Costs, Preemption
from grn.negotiator.schedule.turns.backfill import Keeper
from grn.negotiator.schedule.turns.fair_share import Shares, Usage
from grn.negotiator.schedule.turns.order import (
    ANYWHERE,
    FOR_ANYBODY,
    BookedFor,
    Group,
    Reach,
    Refusal,
    Rooms,
    Turn,
    WaitingRequest,
)
from grn.negotiator.schedule.turns.wait_queue import Waitlist

USUAL_S = 600.0  # of a type without timed runs
MAX_WORK = 512  # per event: the rest of a round follows at the next events
_ASK_WORK = 8  # placing a request costs this many times as much as checking its refusal
_MOST_GUESSED = 0.5  # of the host, for a type that no run has shown,
_FIRST_RUN, _MAX_FIRST_RUN_BYTES = 1 / 3, 32 * GiB  # of its memory, for a first run
_BEFORE_ALL: Turn = (-1, 0, 0, 0.0, 0)


class Granter:
    """Turns room on GPUs into leases and enters them into the books."""

    def __init__(
        self,
        rules: Rules,
        memory: TypeProfiles,
        loads: Loads,
        holdings: Holdings,
        waitlist: Waitlist,
        shares: Shares,
        usage: Usage,
    ) -> None:
        self._short_s = rules.short_s
        self._memory = memory
        self._loads = loads
        self._holdings = holdings
        self._waitlist = waitlist
        self._shares = shares
        self._usage = usage
        self.bookings = Bookings(rules, holdings, waitlist, self.alone_s)
        self._keeper = Keeper(
            rules, holdings, waitlist, self.needs, self.alone_s, self.host_need, self._booked_closed
        )
        costs = Costs(self.needs, self.alone_s, loads.of_lease, self._booked_closed)
        self.preemption = Preemption(rules, holdings, waitlist, costs)
        self._least_guess = (-1, 0)  # the version of all profiles, and the guess they lead to
        self._resume = _BEFORE_ALL  # the turn after which the next round begins

    def needs(self, request: Request) -> dict[str, Need]:
        """Return the estimated need of a request on each GPU model."""
        if not request.gpus:
            return {}
        needs = self._memory.needs(request, self._holdings.sizes(), self._reach(request))
        for model, need in needs.items():
            load = self._loads.of(request.job_type, model, request.arguments)
            beside = self._loads.slower_beside(request.job_type, model)
            if load is not None or beside:
                needs[model] = replace(
                    need, load=load, beside=beside, power=self._loads.power(model)
                )
        return self._by_speed(request, needs) if len(needs) > 1 else needs

    def never_fits(self, request: Request) -> str | None:
        """Return why no GPU here can ever serve a request, None when one may."""
        reach = self._reach(request)
        sizes = self._holdings.sizes()
        return self._memory.never_fits(request, sizes, sizes if reach is None else reach)

    def _reach(self, request: Request) -> Mapping[str, int] | None:
        """Return how many GPUs of each model a request may use, None for all."""
        if not request.slots and not request.stay:
            return None
        books = allowed(request, list(self._holdings.books.values()))
        stay = [book for book in books if book.gpu.uuid in request.stay]
        return Counter(book.gpu.model for book in stay or books)

    def _by_speed(self, request: Request, needs: dict[str, Need]) -> dict[str, Need]:
        """Add to needs on several models the relative duration on each, where it is known."""
        alone = {model: self.alone_s(request, model) for model in needs}
        times = [each for each in alone.values() if each is not None]
        if len(times) < 2:
            return needs
        return {
            model: replace(need, longer=(alone[model] or min(times)) / min(times))
            for model, need in needs.items()
        }

    def guess(self) -> int:
        """Return the least need of a type without a profile."""
        if self._least_guess[0] != self._memory.version:
            least = self._memory.least_guess(self._holdings.sizes())
            self._least_guess = (self._memory.version, least)
        return self._least_guess[1]

    def is_short(self, request: Request) -> bool:
        """True when such runs are known to be short, or no run has shown what they need.

        A first run goes first: until it is measured, it and its siblings need more room than they
        use.
        """
        if self._is_unmeasured(request):
            return True
        for model in self.models(request):
            alone_s = self.alone_s(request, model)
            if alone_s is not None and alone_s <= self._short_s:
                return True
        return False

    def _is_unmeasured(self, request: Request) -> bool:
        if request.mem_bytes is not None or request.is_exclusive or not request.gpus:
            return False
        return not any(
            self._memory.shows(request.job_type, model) for model in self._holdings.sizes()
        )

    def models(self, request: Request) -> Collection[str]:
        """Return the GPU models a request may be placed on; the host for one without GPUs."""
        return self._holdings.sizes() if request.gpus else (HOST_MODEL,)

    def alone_s(self, request: Request, model: str) -> float | None:
        """Return how long such runs take alone on a GPU model, None when unknown."""
        return self._memory.alone_s(request, model, self._loads.power(model))

    # --- which request -------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True when a round was cut short and continues at the next event."""
        return self._resume != _BEFORE_ALL

    def to_all(self, at: float) -> Iterator[Lease]:
        """Offer free GPUs to waiting requests in turn: one round, at most `MAX_WORK` of it."""
        self.follow_processes()
        closed = self._closed(at)
        self._wake()
        rooms = _Rooms(self._holdings.shelf, closed)
        left_s = self._keeper.left_s(at)

        @cache
        def beside_bookings(reach: Reach, who: BookedFor) -> Rooms:
            booked = self.bookings.room(at, who.user, who.yields)
            free = rooms.on(reach, False, booked.closed)
            backfill = rooms.on(reach, left_s > 0, booked.active)
            host = self._holdings.host.room()
            return Rooms(free, backfill, max(left_s, booked.left_s), host)

        @cache
        def rooms_on(reach: Reach) -> Rooms:
            booked = partial(beside_bookings, reach) if self.bookings else None
            host = self._holdings.host.room()
            free, backfill = rooms.on(reach, False), rooms.on(reach, left_s > 0)
            return Rooms(free, backfill, left_s, host, booked)

        last, self._resume, work = self._resume, _BEFORE_ALL, 0
        for group in self._waitlist.candidates(last, rooms_on, self.guess()):
            if work >= MAX_WORK:
                self._resume = last
                break
            last = group.turn
            if self._is_still_no(group, rooms, closed, at):
                self._waitlist.settle(group)
                work += 1
                continue
            work += _ASK_WORK
            lease = self._offer(group, at, closed)
            if lease is not None:
                yield lease
                for each in (rooms, rooms_on, beside_bookings):
                    each.cache_clear()
                self._note_processes()
        self.follow_processes()

    def to_newcomer(self, waiting: WaitingRequest, at: float) -> Iterator[Lease]:
        """Offer GPUs to a new request only: for all others nothing has changed."""
        self.follow_processes()
        group = self._waitlist.group_of(waiting.request.key)
        if group is None or group.head.request.key != waiting.request.key:
            return
        if self.is_behind and group.turn > self._resume:
            return  # older requests are still to be tried before it
        lease = self._offer(group, at, self._closed(at))
        if lease is not None:
            yield lease
            self.follow_processes()

    def at_once(self, request: Request, at: float) -> Lease | None:
        """Grant a request that fits, while no other waits."""
        answer = self.answer(request, at)
        return None if isinstance(answer, Wait) else self._grant(request, answer, at)

    def follow_processes(self) -> None:
        """Note which processes have come to GPUs or left them."""
        self._note_processes()
        self._waitlist.pin_some()

    def _note_processes(self) -> None:
        for uuid in self._holdings.shelf.moved():
            self._waitlist.on_gpu(uuid, self._holdings.books[uuid].pids())

    def _wake(self) -> None:
        """Retry groups for which something other than room has changed."""
        for job_type in self._memory.woken:
            self._waitlist.wake(job_type)
        self._memory.woken.clear()
        for key in self.preemption.groups():
            group = self._waitlist.group_of(key)
            if group is not None:
                self._waitlist.wake_group(group)
        if self._keeper.group is not None:  # its head may use the GPUs that are reserved for it
            self._waitlist.wake_group(self._keeper.group)

    def _closed(self, at: float) -> dict[str, int]:
        """Return the GPUs that are reserved, each with the sequence of its request."""
        closed = self._keeper.closed(at)
        return {**closed, **self.preemption.reserved()} if self.preemption.claims else closed

    def _offer(self, group: Group, at: float, closed: dict[str, int]) -> Lease | None:
        """Try the head of a group; record a refusal for the group."""
        head = group.head
        shut = [uuid for uuid, sequence in closed.items() if sequence != head.sequence]
        if shut and self._keeper.may_pass(group, at):
            shut = [uuid for uuid in shut if uuid in self.preemption.reserved()]
        request = head.request
        needs = self.needs(request)
        booked = self._booked(request, at)
        if booked.closed:
            shut = list(dict.fromkeys([*shut, *booked.closed]))
        refused = self._without_room(request, needs, shut) if request.gpus else None
        if refused is not None:
            self._waitlist.refuse(group, refused)
            return None
        answer = self._answer(request, needs, shut, head.sequence, booked, at)
        if isinstance(answer, Place):
            self._waitlist.pop(request.key)
            self._shares.given(head)
            return self._grant(request, answer, at)
        if group.pid is None and _is_own(request) and self._reach_of(request).is_pinned:
            self._waitlist.refuse(group, None)  # `follow_processes` takes it out of this group
        else:
            self._waitlist.refuse(group, self._refused(request, needs, answer))
        return None

    def _without_room(
        self, request: Request, needs: Mapping[str, Need], shut: Collection[str]
    ) -> Refusal | None:
        """Refuse a request that no GPUs have room for, without placing it; None when some may."""
        if request.job_type in self._holdings.first_runs:
            return None  # it may wait for its first run, whatever the room
        refused = self._refused(request, needs)
        room = self._holdings.shelf.room(shut, refused.reach)
        if refused.reach.is_pinned or not self._has_no_room(refused, room):
            return None
        return refused

    def _grant(self, request: Request, where: Place, at: float) -> Lease:
        lease = Lease(
            request, where.gpus, where.reserved, where.is_probe, at,
            ram_bytes=where.ram_bytes, cpus=where.cpus,
        )  # fmt: skip
        self._holdings.put(lease, at)
        usual_s = self._memory.usual_s(request.job_type, self._holdings.model_of(lease))
        expected_s = USUAL_S if usual_s is None else usual_s
        if self.bookings:
            self.bookings.note_grant(lease, at)
        share = self._holdings.share_of(lease)
        self._usage.began(lease.id, request.user, share, expected_s, at)
        return lease

    # --- recorded refusals ---------------------------------------------------

    def _reach_of(self, request: Request) -> Reach:
        """Return the GPUs that a request may use at present."""
        if is_anywhere(request) or not request.gpus:
            return ANYWHERE
        books = allowed(request, list(self._holdings.books.values()))
        homes = pinned(request, books)
        if not homes and len(books) == len(self._holdings.books):
            return ANYWHERE
        return Reach(tuple(book.gpu.uuid for book in homes or books), bool(homes))

    def _refused(
        self, request: Request, needs: Mapping[str, Need], wait: Wait | None = None
    ) -> Refusal:
        """Return what must change before a request gets another answer."""
        job_type, reach = request.job_type, self._reach_of(request)
        reason = wait.reason if wait is not None else None
        if wait is not None and reason in (WaitReason.NO_RAM, WaitReason.CPUS_BUSY):
            version = self._version_of(job_type)
            return Refusal(job_type, version, reach=reach, host_reason=reason, lacks=wait.lacks)
        here = self._needs_on(reach, needs)
        sibling = None
        if reason is WaitReason.FIRST_RUN_ELSEWHERE:
            sibling = self._holdings.first_runs.get(job_type)
        is_unsure = sibling is not None or self._memory.is_guess(job_type)
        enough = [need.need_bytes for need in here if not (is_unsure and need.is_probe)]
        return Refusal(
            job_type,
            self._version_of(job_type),
            sibling,
            request.gpus,
            request.is_exclusive,
            min(enough, default=math.inf),
            sibling is None and len(enough) < len(here),
            not reach.is_pinned and all(need.load is not None for need in here),
            reach,
            self._keeper.lasts_s(request),
            bookings=self._booked_for(request),
        )

    def _needs_on(self, reach: Reach, needs: Mapping[str, Need]) -> list[Need]:
        """Return the needs on the GPUs that a request may use; a pinned one tries its own GPUs."""
        if not reach.gpus:
            return list(needs.values())
        books = [self._holdings.books[uuid] for uuid in reach.gpus]
        if not reach.is_pinned:
            return [needs[model] for model in {book.gpu.model for book in books}]
        return [
            replace(need, need_bytes=min(need.need_bytes, book.capacity_bytes))
            for book in books
            for need in (needs[book.gpu.model],)
        ]

    def _is_still_no(self, group: Group, rooms: _Rooms, closed: dict[str, int], at: float) -> bool:
        """True when nothing has changed that could turn the refusal of a group into a grant."""
        refused = group.refused
        if refused is None:
            return False
        if group.pid is not None and refused.reach != self._reach_of(group.head.request):
            return False  # its process has come to a GPU or left one
        if refused.host_reason is not None:
            is_same = refused.version == self._version_of(refused.job_type)
            return is_same and not self._holdings.host.could(refused.host_reason, refused.lacks)
        booked = self._booked(group.head.request, at).closed
        room = rooms.on(refused.reach, self._keeper.may_pass(group, at), booked)
        is_kept = bool(closed) and group.head.sequence in closed.values()
        if refused.is_alone and not is_kept and self._has_no_room(refused, room):
            return True  # whatever the need: too few GPUs are empty
        if refused.version != self._version_of(refused.job_type):
            return False
        first_run = self._holdings.first_runs.get(refused.job_type)
        has_ended = refused.sibling is not None and first_run != refused.sibling
        return not (has_ended or is_kept) and self._has_no_room(refused, room)

    def _has_no_room(self, refused: Refusal, room: FreeSpace) -> bool:
        """True when a request that was refused for lack of room would be refused again."""
        if refused.is_alone:
            return room.empty < refused.gpus
        least = refused.need_bytes
        if refused.is_guess:
            least = min(least, self.guess())
        return not room.has(refused.gpus, least, refused.is_load_known)

    # --- where ---------------------------------------------------------------------------

    def answer(self, request: Request, at: float, sequence: int | None = None) -> Place | Wait:
        """Return where a request would be placed now, or why it has to wait."""
        booked = self._booked(request, at)
        return self._answer(request, self.needs(request), booked.closed, sequence, booked, at)

    def _booked(self, request: Request, at: float) -> Booked:
        """Return what the bookings mean for a request: which GPUs are closed to it."""
        if not self.bookings or not request.gpus:
            return NOT_BOOKED
        runs_s = self._keeper.lasts_s(request, self.bookings.unknown_s)
        if request.yields:
            runs_s = min(runs_s, request.at_least_s)
        return self.bookings.of(request.user, runs_s, at)

    def _booked_for(self, request: Request) -> BookedFor:
        if not self.bookings:
            return BookedFor(yields=True) if request.yields else FOR_ANYBODY
        user = request.user if self.bookings.has_user(request.user) else -1
        return BookedFor(user, request.yields)

    def _booked_closed(self, request: Request, at: float) -> Collection[str]:
        return self._booked(request, at).closed

    def _answer(
        self,
        request: Request,
        needs: dict[str, Need],
        closed: Collection[str],
        sequence: int | None,
        booked: Booked,
        at: float,
    ) -> Place | Wait:
        """Answer a request; the GPUs that are closed include those that are booked."""
        if request.gpus:
            answer = self._on_gpus(request, needs, closed, booked)
            if booked.closed and isinstance(answer, Wait):
                answer = self._because_booked(request, needs, closed, booked, at)
        else:
            answer = self._on_host(request)
        if isinstance(answer, Wait) or self._holdings.host.size is None:
            return answer
        need = self.host_need(request, sum(answer.reserved))
        wait = self._holdings.host.wait(need, sequence)
        return wait or replace(answer, ram_bytes=need.ram_bytes, cpus=need.cpus)

    def host_need(self, request: Request, gpu_bytes: int) -> HostNeed:
        """Return the need of a request on the host, given what it reserves on GPUs.

        What no run has shown is the median of other types, running ones included. Memory is at most
        the part that the request has of all GPUs, and as much while no type is known. A first run,
        which does not state its GPU memory, counts as a third of the host, at most 32 GiB: few
        start at once until one has shown its need.
        """
        host, known = self._holdings.host, self._holdings.host_profiles
        need = known.need(request, host.capacity_bytes, self._memory.margin)
        size = host.size
        if not need.is_guess or size is None:
            return need
        if request.gpus:
            share = min(_MOST_GUESSED, gpu_bytes / max(1, self._holdings.capacity_bytes))
        else:
            share = min(1.0, (request.cpus or 1.0) / size.cpus)
        ram, cpus = known.guess()
        if need.ram_bytes < 0:
            room = max(0, host.capacity_bytes - host.strangers_bytes)
            most = int(room * share)
            if request.gpus and request.mem_bytes is None:
                most = max(most, min(int(room * _FIRST_RUN), _MAX_FIRST_RUN_BYTES))
            guess = most if ram is None else min(ram, most)
            need = replace(need, ram_bytes=guess, because="guessed from other types")
        if need.cpus < 0:
            most_cpus = size.cpus * share if request.gpus else 1.0
            room_cpus = max(0.0, min(most_cpus, 1.0, host.free_cpus()))
            guessed = room_cpus if cpus is None else min(cpus, most_cpus)
            need = replace(need, cpus=guessed, cpus_because="guessed from other types")
        return need

    def _on_host(self, request: Request) -> Place | Wait:
        """Answer a request without GPUs; the first run of its type is measured before others."""
        host, known = self._holdings.host, self._holdings.host_profiles
        if host.size is None:
            return Place((), (), False)
        need = known.need(request, host.capacity_bytes, self._memory.margin)
        is_known = request.ram_bytes is not None or known.knows(request.job_type)
        running = None if is_known else self._holdings.first_runs.get(request.job_type)
        if running is not None:
            return self._wait_for_sibling(running)
        return Place((), (), need.ram_bytes < 0)

    def _version_of(self, job_type: str) -> int:
        """Return a number that rises whenever the needs of a type may have changed."""
        host = self._holdings.host_profiles
        return self._memory.version_of(job_type) + host.version_of(job_type)

    def _because_booked(
        self,
        request: Request,
        needs: dict[str, Need],
        closed: Collection[str],
        booked: Booked,
        at: float,
    ) -> Wait:
        """Return the booking that a refused request waits for, or why it would wait without one."""
        others = [uuid for uuid in closed if uuid not in booked.closed]
        found = self._on_gpus(request, needs, others, NOT_BOOKED)
        if isinstance(found, Wait):
            return found
        return self.bookings.wait(request.user, found.gpus, booked.closed, at)

    def _on_gpus(
        self, request: Request, needs: dict[str, Need], closed: Collection[str], booked: Booked
    ) -> Place | Wait:
        books = allowed(request, list(self._holdings.books.values()))
        own = self._on_own_booking(request, needs, books, closed, booked)
        answer = own or self._place(request, needs, books, closed)
        is_first = (
            answer.is_probe
            if isinstance(answer, Place)
            else answer.reason is WaitReason.NO_ROOM_FOR_FIRST_RUN
        )
        running = self._holdings.first_runs.get(request.job_type) if is_first else None
        if running is None:
            return answer
        homes = pinned(request, books) or books
        known = [book for book in homes if not needs[book.gpu.model].is_probe]
        if len(known) >= request.gpus:  # it was measured on another model than these
            answer = place(request, needs, known, closed)
            if isinstance(answer, Place):
                return answer
        return self._wait_for_sibling(running)

    def _on_own_booking(
        self,
        request: Request,
        needs: dict[str, Need],
        books: list[Book],
        closed: Collection[str],
        booked: Booked,
    ) -> Place | None:
        """Place a request on GPUs that its user has booked; None where it does not fit."""
        if not booked.own:
            return None
        homes = pinned(request, books) or books
        own = [book for book in homes if book.gpu.uuid in booked.own]
        if len(own) < request.gpus:
            return None
        found = self._place(request, needs, own, closed)
        return found if isinstance(found, Place) else None

    def _place(
        self,
        request: Request,
        needs: dict[str, Need],
        books: list[Book],
        closed: Collection[str],
    ) -> Place | Wait:
        """Place a request; of very many GPUs, try the roomiest first."""
        if len(books) > MANY and is_anywhere(request):
            shelf = self._holdings.shelf
            least = min(need.need_bytes for need in needs.values())
            few, are_all = shelf.likely(least, request.gpus, closed)
            if request.is_exclusive:
                are_all = shelf.room(closed).empty < request.gpus
            if len(few) >= request.gpus:
                kept = [self._holdings.books[uuid] for uuid in closed]  # they change the reason
                answer = place(request, needs, few + kept, closed)
                if are_all or isinstance(answer, Place):
                    return answer
        return place(request, needs, books, closed)

    def _wait_for_sibling(self, lease_id: str) -> Wait:
        lease = self._holdings.leases[lease_id]
        names = ", ".join(str(book.gpu.index) for book in self._holdings.books_of(lease))
        where = f" on GPU {names}" if names else ""
        text = f"the first run of {lease.request.label} is being measured{where}"
        return Wait(WaitReason.FIRST_RUN_ELSEWHERE, f"{text} (lease {lease_id})")


class _Rooms:
    """The room on sets of GPUs, computed once between two grants."""

    def __init__(self, shelf: Shelf, closed: Collection[str]) -> None:
        self._shelf = shelf
        self._closed = closed
        self._found: dict[tuple[Reach, bool, frozenset[str]], FreeSpace] = {}

    def on(
        self, reach: Reach, with_closed: bool, booked: frozenset[str] = frozenset()
    ) -> FreeSpace:
        """Return the room on the GPUs of a reach, with or without those that are reserved.

        GPUs that are booked are left out.
        """
        name = (reach, with_closed or not self._closed, booked)
        if name not in self._found:
            closed = () if name[1] else self._closed
            self._found[name] = self._shelf.room({*closed, *booked} if booked else closed, reach)
        return self._found[name]

    def cache_clear(self) -> None:
        """Drop all results: a lease was granted."""
        self._found.clear()


def _is_own(request: Request) -> bool:
    """True when the requesting process will hold the lease."""
    return request.holder is not None and not request.is_command
