"""The state of the negotiator; events enter through `handle(event) -> actions`.

Decides which request gets which GPU, and when. Does no I/O: time comes with the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from grn.model.gpu import GpuHealth, Reading
from grn.model.host import HOST_MODEL
from grn.model.job import Outcome, Request
from grn.negotiator.actions import (
    Action,
    Defer,
    DropLease,
    DropProfile,
    DropWaiting,
    Grant,
    LookSoon,
    Refuse,
    SaveLease,
    SaveRun,
    SaveWaiting,
    SetTimer,
    Settle,
    TellWaiting,
)
from grn.negotiator.endings import Endings
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import (
    BookingMade,
    BookingRemoved,
    Event,
    HolderChanged,
    HolderGone,
    JobStarted,
    KernelKilled,
    Lease,
    LeaseState,
    ProfileForgotten,
    Released,
    ReporterJoined,
    ReporterLost,
    Requested,
    Resumed,
    RunsImported,
    Sampled,
    Stopping,
    TimerFired,
    Wait,
    WaitReason,
    Withdrawn,
)
from grn.negotiator.learn.host import HostProfiles
from grn.negotiator.learn.idle_leases import IdleLeases
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory.type_profiles import CHANCE, TypeProfiles
from grn.negotiator.learn.runs import Runs
from grn.negotiator.schedule.admission import refusal
from grn.negotiator.schedule.allocations import YIELDING_COST, Holdings
from grn.negotiator.schedule.grant import USUAL_S, Granter
from grn.negotiator.schedule.ledger import Rules
from grn.negotiator.schedule.placement import pinned
from grn.negotiator.schedule.turns.fair_share import Shares, Usage, class_of
from grn.negotiator.schedule.turns.order import WaitingRequest
from grn.negotiator.schedule.turns.reconnects import Returning
from grn.negotiator.schedule.turns.wait_queue import Waitlist


class Engine:
    """All state of the negotiator that decisions depend on."""

    def __init__(
        self,
        rules: Rules | None = None,
        memory: TypeProfiles | None = None,
        loads: Loads | None = None,
        host: HostProfiles | None = None,
    ) -> None:
        self._rules = rules or Rules()
        self._memory = memory or TypeProfiles()
        self._loads = loads or Loads()
        self._usage = Usage(self._rules.share_half_life_s, self._rules.weights)
        self._shares = Shares(self._rules, self._usage)
        self._waitlist = Waitlist(self._shares.turn, self._judged, self._shares.turns)
        self._holdings = Holdings(self._rules, self._memory, self._loads, host)
        self._runs = Runs(self._rules, self._memory, self._loads, self._holdings)
        self._granter = Granter(
            self._rules,
            self._memory,
            self._loads,
            self._holdings,
            self._waitlist,
            self._shares,
            self._usage,
        )
        self._books = self._holdings.books
        self._leases = self._holdings.leases
        self._endings = Endings(self._holdings)
        self._idle = IdleLeases(self._rules, self._holdings)
        self._sequence = 0
        self._saved: set[str] = set()  # keys saved as waiting
        self._returning = Returning(self._waitlist)
        self._grace_until = _NEVER
        self._residue_until = _NEVER
        self._handlers: dict[type, Callable[[Any], Iterable[Action]]] = {
            JobStarted: self._started,
            Requested: self._requested,
            Withdrawn: self._withdrawn,
            HolderChanged: self._holder_changed,
            ReporterJoined: self._reporter_joined,
            ReporterLost: self._reporter_lost,
            Released: self._released,
            KernelKilled: self._kernel_killed,
            HolderGone: self._holder_gone,
            TimerFired: self._timer_fired,
            Resumed: self._resumed,
            Sampled: self._sampled,
            ProfileForgotten: self._profile_forgotten,
            RunsImported: self._runs_imported,
            BookingMade: self._booking_made,
            BookingRemoved: self._booking_removed,
            Stopping: lambda event: self._usage.to_save(event.at, is_last=True),
        }
        self.view = EngineView(
            self._rules,
            self._holdings,
            self._waitlist,
            self._memory,
            self._loads,
            self._usage,
            self._shares,
            self._granter.needs,
            self._why,
            self._memory.quota.dropped,
            self._granter.preemption.asked,
            self._granter.preemption.claims,
            bookings=self._granter.bookings,
            idle_strangers=self._idle.strangers,
            idle_ending=self._idle.ending,
        )

    # --- entry ------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Apply one event and return the actions that follow."""
        return list(self._handlers[type(event)](event))

    # --- questions (they change nothing) -------------------------------------------------

    def _wants_look(self, at: float) -> bool:
        """True while a request waits for memory that the next sample may show to be free."""
        if not len(self._waitlist):
            return False
        return at < self._residue_until or bool(self._holdings.draining)

    def _why(self, key: str, at: float) -> Wait | None:
        """Return why a request waits, None when it does not wait."""
        group = self._waitlist.group_of(key)
        if group is None:
            return None
        if at < self._grace_until:
            return _RESTARTING
        if text := self._granter.preemption.text(key):
            return Wait(WaitReason.PREEMPTING, text)
        waiting = group.members[key]
        answer = self._granter.answer(waiting.request, at, waiting.sequence)
        if isinstance(answer, Wait):
            return answer
        return Wait(
            WaitReason.YIELDS_TO_OLDER, "free memory is reserved for a job that has waited longer"
        )

    def check(self) -> None:
        """Raise AssertionError when the books contradict each other."""
        self._holdings.check()
        self._endings.check()
        self._idle.check()
        self._granter.preemption.check()
        self._granter.bookings.check()
        for lease in self._leases.values():
            is_held = lease.state is LeaseState.HELD
            assert not (is_held and lease.request.key in self._waitlist), "granted and waiting"
        assert self._saved >= {waiting.request.key for waiting in self._waitlist}

    # --- one method per event ------------------------------------------------------------

    def _started(self, event: JobStarted) -> Iterator[Action]:
        readings = {reading.uuid: reading for reading in event.readings}
        if event.host is not None:
            guard = self._rules.guard.of(event.host.ram_bytes)
            self._holdings.host.open(event.host, guard)
        self._runs.wall_offset_s = event.wall_offset_s
        for gpu in event.gpus:
            unread = Reading(gpu.uuid, GpuHealth.UNKNOWN)
            self._holdings.open(gpu, readings.get(gpu.uuid, unread))
        self._shares.gpus = len(event.gpus)
        self._usage.load(event.uses, event.wall_offset_s)
        profiles = event.profiles
        self._memory.quota.load(profiles)
        if self._memory.quota.is_over():  # as when an older version has written it
            held = {one.request.job_type for one in event.leases}
            dropped = set(self._memory.quota.excess(held.__contains__))
            profiles = tuple(one for one in profiles if one.job_type not in dropped)
            for job_type in dropped:
                yield DropProfile(job_type)
        self._memory.load(profiles, dict(event.numbers).get(CHANCE))
        self._loads.load([one for one in profiles if one.model != HOST_MODEL])
        self._holdings.host_profiles.load(profiles)
        self._holdings.set_caps()
        self._memory.woken.clear()  # no request waits yet
        for lease in event.leases:
            if all(uuid in self._books for uuid in lease.gpus):
                self._holdings.put(lease, event.at)
                self._resume(lease, event.at)
                self._idle.restore(lease, event.at)
                if lease.request.has_parent:
                    self._endings.expect_report(lease.id)
            else:
                yield DropLease(lease.id)  # it is on a GPU that is not managed any more
        for book in self._books.values():
            book.read(book.reading)  # again, now that its memory can be attributed
        self._granter.bookings.open(event.bookings, event.wall_offset_s)
        self._returning.expect(event.waiting)
        self._sequence = max((place + 1 for _, place in event.waiting), default=0)
        self._saved = {key for key, _ in event.waiting}
        if self._books:
            self._granter.guess()  # needs all profiles: compute it before the first request
        if event.waiting:
            self._grace_until = event.at + self._rules.grace_s

    def _requested(self, event: Requested) -> Iterator[Action]:
        request = event.request
        held = self._holdings.held_by_key(request.key)
        if held is not None:  # the client lost the answer and asks again
            yield self._granted(held)
            return
        refused = self._refusal(request)
        if refused is not None:
            yield from self._withdrawn(Withdrawn(event.at, request.key))
            yield refused
            return
        if not len(self._waitlist) and self._grace_until == _NEVER:
            lease = self._granter.at_once(request, event.at)
            if lease is not None:
                self._returning.take(request.key)
                yield from self._given(lease)
                return
        waiting = self._enqueue(request, event.at)
        if self._ends_grace(event.at):
            yield from self._schedule(event.at)
        elif event.at >= self._grace_until:
            for lease in self._granter.to_newcomer(waiting, event.at):
                yield from self._given(lease)
        if request.key in self._waitlist:
            self._saved.add(request.key)
            if request.is_urgent:
                self._granter.preemption.note(request)
                yield from self._preempt(event.at)
            yield SaveWaiting(request.key, waiting.sequence, request.holder)
            yield TellWaiting(request.key, self._why(request.key, event.at) or _RESTARTING)

    def _refusal(self, request: Request) -> Refuse | None:
        """Return the refusal of a request that can never be granted, else None."""
        host = self._holdings.host
        refused = host.refusal(request.key, request.cpus, request.ram_bytes)
        if refused is not None or not request.gpus:
            return refused
        return refusal(request, list(self._books.values()), self._granter.never_fits)

    def _ends_grace(self, at: float) -> bool:
        """True once after a restart: when all waiting requests are back, or the grace is over."""
        if self._grace_until == _NEVER or (at < self._grace_until and self._returning):
            return False
        self._grace_until = _NEVER
        return True

    def _enqueue(self, request: Request, at: float) -> WaitingRequest:
        before = self._waitlist.pop(request.key)
        if before is not None:
            waiting = replace(before, request=request)
            if class_of(waiting) != class_of(before):  # it asks with another priority
                self._shares.gave_up(before)
                waiting = self._shares.join(waiting, at)
        else:
            old = self._returning.take(request.key)
            sequence = self._sequence if old is None else old
            self._sequence = max(self._sequence, sequence + 1)
            waiting = self._placed(request, sequence, at)
        self._waitlist.add(waiting, bool(pinned(request, list(self._books.values()))))
        return waiting

    def _placed(self, request: Request, sequence: int, at: float) -> WaitingRequest:
        """Give a new request its place in its user's line, and the user its place among users."""
        models = self._granter.models(request)
        usual = [self._memory.usual_s(request.job_type, model) for model in models]
        usual_s = min((each for each in usual if each is not None), default=None)
        is_short = self._granter.is_short(request)
        shares = [
            max(need.need_bytes / self._holdings.sizes()[model].capacity_bytes, need.load or 0.0)
            for model, need in self._granter.needs(request).items()
        ]
        share = min(1.0, max(shares, default=0.0)) * (YIELDING_COST if request.yields else 1.0)
        cost_h = request.gpus * share * (USUAL_S if usual_s is None else usual_s) / 3600
        were_several = self._shares.are_several()
        waiting = WaitingRequest(request, sequence, at, is_short, cost_h)
        waiting = self._shares.join(waiting, at, self._returning.place_before(waiting))
        self._returning.came(waiting)
        if self._shares.are_several() and not were_several:
            self._move_users(at)  # the first user had no position until now
        return waiting

    def _judged(self, waiting: WaitingRequest) -> WaitingRequest:
        """Move a request that turned out to be short, or not, to its class."""
        is_short = self._granter.is_short(waiting.request)
        return waiting if is_short is waiting.is_short else self._shares.becomes(waiting, is_short)

    def _move_users(self, at: float) -> None:
        """Reorder users whose use differs from what was expected."""
        self._waitlist.move(self._shares.update(at), _MAX_MOVED)

    def _withdrawn(self, event: Withdrawn) -> Iterator[Action]:
        self._returning.take(event.key)
        yield from self._unsave(event.key)
        waiting = self._waitlist.pop(event.key)
        if waiting is not None:
            self._shares.gave_up(waiting)
            yield from self._schedule(event.at)  # GPUs may have been reserved for it

    def _holder_changed(self, event: HolderChanged) -> Iterator[Action]:
        lease = self._leases.get(event.lease)
        if lease is not None:
            request = replace(lease.request, holder=event.holder, is_command=False, has_parent=True)
            changed = replace(lease, request=request)
            self._holdings.replace(changed)
            self._granter.follow_processes()
            self._endings.bound(lease.id)
            if event.is_reported:
                self._endings.expect_report(lease.id)
            yield SaveLease(changed)

    def _reporter_joined(self, event: ReporterJoined) -> Iterable[Action]:
        if event.lease in self._leases:
            self._endings.expect_report(event.lease)
        return ()

    def _reporter_lost(self, event: ReporterLost) -> Iterator[Action]:
        yield from self._concluded(self._endings.reporter_lost(event.lease), event.at)

    def _timer_fired(self, event: TimerFired) -> Iterator[Action]:
        yield from self._concluded(self._endings.due(event.at), event.at)

    def _released(self, event: Released) -> Iterator[Action]:
        lease = self._leases.get(event.lease)
        if lease is None or lease.state is LeaseState.DRAINING:
            return
        is_virtual = all(book.is_virtual for book in self._holdings.books_of(lease))
        peak, reported = event.peak_bytes, event.gpu_peak_bytes
        if is_virtual and lease.gpus:
            reported = event.resident_bytes
        if reported is not None:
            peak = max(peak or 0, reported)
        outcome = self._endings.outcome_of(lease, event.outcome, event.at)
        if outcome is Outcome.KILLED:  # it was told of: this word is for holders that vanish
            outcome = Outcome.FAILED
        if outcome is Outcome.OUT_OF_MEMORY and not lease.gpus:
            outcome = Outcome.FAILED  # it has used a GPU that it was not given
        shown = outcome
        is_vain = outcome in (Outcome.FAILED, Outcome.CANCELLED, Outcome.YIELDED)
        if is_vain and lease.request.is_command and event.resident_bytes is None:
            shown = Outcome.NOT_STARTED  # no command has run under it
        if outcome is not event.outcome or peak != event.peak_bytes:
            event = replace(event, outcome=outcome, peak_bytes=peak)
        yield from self._ended(lease, event, shown)
        self._endings.forget(lease.id)
        yield from self._runs.drop(lease)
        yield from self._drop_types()
        if not is_virtual:
            # The process still runs and may keep its memory a moment longer than its lease.
            self._residue_until = event.at + _RESIDUE_S
        yield from self._schedule(event.at)
        if self._wants_look(event.at):
            yield LookSoon()
        yield Defer()

    def _kernel_killed(self, event: KernelKilled) -> Iterable[Action]:
        self._endings.killed_by_kernel(event.at, event.count)
        return ()

    def _holder_gone(self, event: HolderGone) -> Iterator[Action]:
        lease = self._leases.get(event.lease)
        if lease is not None and lease.state is LeaseState.HELD:
            yield from self._concluded(self._endings.holder_gone(lease, event.at), event.at)

    def _concluded(self, found: Iterator[Lease | SetTimer], at: float) -> Iterator[Action]:
        """End the leases whose process is gone; their memory may still be there."""
        for lease in found:
            if isinstance(lease, SetTimer):
                yield lease
                continue
            outcome = self._endings.outcome_of(lease, Outcome.KILLED, at)
            yield from self._ended(lease, Released(at, lease.id, outcome), outcome, is_lost=True)
            yield from self._drop_types()
            draining = replace(
                lease, state=LeaseState.DRAINING, is_probe=False, outcome=outcome, idle_since=None
            )
            self._holdings.replace(draining)
            yield SaveLease(draining)
            yield from self._schedule(at)
            yield LookSoon()

    def _ended(
        self, lease: Lease, end: Released, shown: Outcome, is_lost: bool = False
    ) -> Iterator[Action]:
        """Judge the end of a lease, answer and learn from it."""
        self._usage.ended(lease.id, end.at)
        settled, learned = self._runs.ended(lease, end)
        yield Settle(lease, end.at, settled, shown, is_lost)
        yield from learned
        self._waitlist.learned((lease.request.job_type,), _MAX_MOVED)

    def _resumed(self, _event: Resumed) -> Iterable[Action]:
        self._memory.refresh()
        return ()

    def _sampled(self, event: Sampled) -> Iterator[Action]:
        for reading in event.readings:
            book = self._books.get(reading.uuid)
            if book is not None:
                if book.is_virtual:
                    yield from self._endings.overflow(reading)
                book.read(reading)
        if event.host is not None:
            self._holdings.host.read(event.host, event.at)
            uses = event.host.uses
            self._holdings.host_profiles.seen(self._leases.values(), uses, event.at)
        for action in self._runs.look(event.at, event.survived):
            if isinstance(action, DropLease):
                self._endings.forget(action.lease)
            yield action
        self._waitlist.learned(self._memory.woken, _MAX_MOVED)  # measured now: turns change
        yield from self._idle.look(event.at, event.owners)
        yield from self._account(event.at)
        if event.wall_offset_s is not None:
            self._granter.bookings.offset_s = event.wall_offset_s
        yield from self._keep_bookings(event.at)
        if event.at >= self._grace_until:
            for key in self._returning.give_up():
                yield from self._unsave(key)
        yield from self._schedule(event.at)
        yield from self._preempt(event.at)
        if self._wants_look(event.at):
            yield LookSoon()

    def _profile_forgotten(self, event: ProfileForgotten) -> Iterator[Action]:
        self._loads.forget(event.job_type)
        self._holdings.host_profiles.forget(event.job_type)
        if self._memory.forget(event.job_type):
            yield DropProfile(event.job_type)
            self._waitlist.learned((event.job_type,), _MAX_MOVED)
            yield from self._schedule(event.at)

    def _runs_imported(self, event: RunsImported) -> Iterator[Action]:
        """Learn from runs on another machine; each counts once, however often it is told."""
        new = self._memory.unknown(event.job_type, event.model, event.runs)
        for run in new:
            self._memory.add_imported(event.job_type, event.model, event.label, event.user, run)
            self._holdings.host_profiles.add(event.job_type, run)
            yield SaveRun(event.job_type, event.model, event.label, event.user, run)
        if new:
            yield from self._drop_types()
            self._waitlist.learned((event.job_type,), _MAX_MOVED)
            yield from self._schedule(event.at)

    def _booking_made(self, event: BookingMade) -> Iterator[Action]:
        yield from self._granter.bookings.put(event.bookings, event.at)
        yield from self._schedule(event.at)
        yield LookSoon()  # which asks leases to give way, where it has begun

    def _booking_removed(self, event: BookingRemoved) -> Iterator[Action]:
        yield from self._granter.bookings.remove(event.booking, "removed")
        yield from self._schedule(event.at)

    def _keep_bookings(self, at: float) -> Iterator[Action]:
        """Choose the GPUs of bookings, end what is over, and clear the GPUs of those that begin."""
        bookings = self._granter.bookings
        if bookings:
            yield from bookings.advance(at)
            yield from self._granter.preemption.ask_for_booking(bookings.in_the_way(at), at)

    def _drop_types(self) -> Iterator[Action]:
        """Evict types above the quota, but none that runs or waits."""
        if not self._memory.quota.is_over():
            return
        for job_type in self._memory.quota.excess(self._is_in_use):
            self._loads.forget(job_type)
            self._memory.drop(job_type)
            self._holdings.host_profiles.drop(job_type)
            yield DropProfile(job_type)

    def _is_in_use(self, job_type: str) -> bool:
        return self._holdings.has_type(job_type) or self._waitlist.has_type(job_type)

    # --- usage of users -------------------------------------------------------------

    def _resume(self, lease: Lease, at: float) -> None:
        if lease.state is LeaseState.HELD:
            share = self._holdings.share_of(lease)
            self._usage.resumed(lease.id, lease.request.user, share, lease.granted_at, at)

    def _account(self, at: float) -> Iterator[Action]:
        """Account the current use of all jobs to their users."""
        for lease_id in self._holdings.reshared:
            lease = self._leases[lease_id]
            if lease.state is LeaseState.HELD:
                self._usage.follow(lease_id, self._holdings.share_of(lease), at)
        self._holdings.reshared.clear()
        self._usage.advance(at)
        if self._shares.are_several():
            self._move_users(at)
        self._waitlist.sort(_MAX_MOVED)
        yield from self._usage.to_save(at)

    # --- consequences of events ------------------------------------------------------

    def _schedule(self, at: float) -> Iterator[Action]:
        """Grant free GPUs to waiting requests."""
        if at >= self._grace_until and len(self._waitlist):
            for lease in self._granter.to_all(at):
                yield from self._given(lease)
            if self._granter.is_behind:
                yield LookSoon()

    def _preempt(self, at: float) -> Iterator[Action]:
        """Ask leases that yield to give way to requests without room."""
        preemption = self._granter.preemption
        if (self._holdings.yielding or preemption.claims) and at >= self._grace_until:
            yield from preemption.ask(at, self._granter.answer)

    def _given(self, lease: Lease) -> Iterator[Action]:
        """Persist and announce a grant."""
        yield from self._unsave(lease.request.key)
        yield SaveLease(lease)
        yield self._granted(lease)

    def _unsave(self, key: str) -> Iterator[Action]:
        if key in self._saved:
            self._saved.remove(key)
            yield DropWaiting(key)

    def _granted(self, lease: Lease) -> Grant:
        gpus = tuple(book.gpu for book in self._holdings.books_of(lease))
        return Grant(lease.request.key, lease, gpus)


_NEVER = float("-inf")
_MAX_MOVED = 64  # groups whose turns are changed at once: some 8 us each
_RESIDUE_S = 5.0
_RESTARTING = Wait(
    WaitReason.RESTARTING,
    "the negotiator has just restarted and waits for earlier requests to reconnect",
)
