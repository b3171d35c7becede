"""The state of the negotiator; events enter through `handle(event) -> actions`.

Decides which request gets which GPU, and when. Does no I/O: time comes with the events.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from grn.model.gpu import GpuHealth, Reading
from grn.model.host import HOST_MODEL
from grn.model.job import Outcome
from grn.negotiator.actions import (
    Action,
    Defer,
    DropLease,
    DropProfile,
    LookSoon,
    SaveLease,
    SaveRun,
    SetTimer,
    Settle,
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
    Withdrawn,
)
from grn.negotiator.learn.ended_runs import EndedRun, EndedRuns
from grn.negotiator.learn.host_profiles import HostProfiles
from grn.negotiator.learn.idle_leases import IdleLeases
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.learn.memory.type_profiles import CHANCE, TypeProfiles
from grn.negotiator.learn.running_jobs import RunningJobs
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.ledger import Rules
from grn.negotiator.schedule.room.room_index import MANY
from grn.negotiator.scheduler import RequestScheduler


class Engine:
    """All state of the negotiator that decisions depend on."""

    def __init__(
        self,
        rules: Rules | None = None,
        needs: TypeNeeds | None = None,
        loads: Loads | None = None,
        host: HostProfiles | None = None,
    ) -> None:
        self._rules = rules or Rules()
        needs = needs or TypeNeeds(TypeProfiles())
        self._memory = needs.profiles
        self._loads = loads or Loads()
        self._holdings = Holdings(self._rules, self._memory, self._loads, host)
        self._running = RunningJobs(self._rules, needs, self._loads, self._holdings)
        self._ended_runs = EndedRuns(self._rules, self._memory, self._loads, self._holdings)
        self._scheduler = RequestScheduler(self._rules, needs, self._loads, self._holdings)
        self._waitlist = self._scheduler.waitlist
        self._bookings = self._scheduler.granter.bookings
        self._preemption = self._scheduler.granter.preemption
        self._books = self._holdings.books
        self._leases = self._holdings.leases
        self._endings = Endings(self._holdings)
        self._idle = IdleLeases(self._rules, self._holdings)
        self._residue_until = _NEVER
        self._unlearned: deque[EndedRun] = deque()
        self._after_sample: deque[Callable[[float], Iterable[Action]]] = deque()  # still to be done
        self.max_after_sample = _MAX_AFTER_SAMPLE
        self._handlers: dict[type, Callable[[Any], Iterable[Action]]] = {
            JobStarted: self._started,
            Requested: self._scheduler.requested,
            Withdrawn: self._scheduler.withdrawn,
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
            Stopping: lambda event: self._scheduler.usage.to_save(event.at, is_last=True),
        }
        self.view = EngineView(
            self._rules,
            self._holdings,
            self._waitlist,
            self._memory,
            self._loads,
            self._scheduler.usage,
            self._scheduler.shares,
            self._scheduler.granter.needs.of,
            self._scheduler.why,
            self._memory.quota.dropped,
            self._preemption.asked,
            self._preemption.claims,
            bookings=self._bookings,
            idle_strangers=self._idle.strangers,
            idle_ending=self._idle.ending,
        )

    # --- entry ------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Apply one event and return the actions that follow."""
        actions: list[Action] = []
        if self._unlearned and not self._goes_before_learning(event):
            actions += self._learn()
        actions += self._handlers[type(event)](event)
        if self._scheduler.is_behind or self._running.is_behind or self._after_sample:
            actions.append(Defer(is_soon=True))
        return actions

    # --- questions (they change nothing) -------------------------------------------------

    def _wants_look(self, at: float) -> bool:
        """True while a request waits for memory that the next sample may show to be free."""
        if not len(self._waitlist):
            return False
        return at < self._residue_until or bool(self._holdings.draining)

    def check(self) -> None:
        """Raise AssertionError when the books contradict each other."""
        self._holdings.check()
        self._endings.check()
        self._idle.check()
        self._scheduler.check()
        self._running.check()

    # --- one method per event ------------------------------------------------------------

    def _started(self, event: JobStarted) -> Iterator[Action]:
        readings = {reading.uuid: reading for reading in event.readings}
        if event.host is not None:
            guard = self._rules.guard.of(event.host.ram_bytes)
            self._holdings.host.open(event.host, guard)
        self._ended_runs.wall_offset_s = event.wall_offset_s
        for gpu in event.gpus:
            unread = Reading(gpu.uuid, GpuHealth.UNKNOWN)
            self._holdings.open(gpu, readings.get(gpu.uuid, unread))
        self._scheduler.open(event)
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
                self._scheduler.resume(lease, event.at)
                self._idle.restore(lease, event.at)
                if lease.request.has_parent:
                    self._endings.expect_report(lease.id)
            else:
                yield DropLease(lease.id)  # it is on a GPU that is not managed any more
        for book in self._books.values():
            book.read(book.reading)  # again, now that its memory can be attributed
        if self._books:
            self._scheduler.granter.needs.guess()  # needs all profiles: compute it before a request

    def _holder_changed(self, event: HolderChanged) -> Iterator[Action]:
        lease = self._leases.get(event.lease)
        if lease is not None:
            request = replace(lease.request, holder=event.holder, is_command=False, has_parent=True)
            changed = replace(lease, request=request)
            self._holdings.replace(changed)
            self._scheduler.granter.follow_processes()
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
        yield from self._running.catch_up(lease)
        lease = self._leases[lease.id]
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
        yield from self._running.drop(lease)
        yield from self._drop_types()
        if not is_virtual:
            # The process still runs and may keep its memory a moment longer than its lease.
            self._residue_until = event.at + _RESIDUE_S
        yield from self._scheduler.schedule_after_end(event.at)
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
            yield from self._running.catch_up(lease)
            lease = self._leases[lease.id]
            outcome = self._endings.outcome_of(lease, Outcome.KILLED, at)
            yield from self._ended(lease, Released(at, lease.id, outcome), outcome, is_lost=True)
            yield from self._drop_types()
            draining = replace(
                lease, state=LeaseState.DRAINING, is_probe=False, outcome=outcome, idle_since=None
            )
            self._holdings.replace(draining)
            yield SaveLease(draining)
            yield from self._scheduler.schedule_after_end(at)
            yield LookSoon()

    def _ended(
        self, lease: Lease, end: Released, shown: Outcome, is_lost: bool = False
    ) -> Iterator[Action]:
        """Judge the end of a lease, answer and learn from it."""
        self._scheduler.usage.ended(lease.id, end.at)
        settled, run = self._ended_runs.judge(lease, end)
        yield Settle(lease, end.at, settled, shown, is_lost)
        self._unlearned.append(replace(run, is_vain=shown is Outcome.NOT_STARTED))
        if shown is not Outcome.OK or not self._ended_runs.is_ordinary(run):
            yield from self._learn()

    def _goes_before_learning(self, event: Event) -> bool:
        """True for an event that is handled before what ended runs teach, where that is little.

        After an end with an answer, the next request is decided with that run learned.
        """
        if isinstance(event, Requested):
            return not any(run.event.is_awaited for run in self._unlearned)
        return isinstance(event, Released | Resumed)

    def _learn(self) -> Iterator[Action]:
        """Learn from runs that have ended."""
        while self._unlearned:
            run = self._unlearned.popleft()
            yield from self._ended_runs.learn(run)
            self._scheduler.learned((run.lease.request.job_type,))

    def _resumed(self, event: Resumed) -> Iterator[Action]:
        has_news = bool(self._unlearned)
        if has_news:
            last = self._unlearned[-1].lease.request
            yield from self._learn()
            self._scheduler.granter.needs.renew(last)
            yield from self._drop_types()
        if self._running.is_behind:
            yield from self._running.go_on()
        elif self._after_sample:
            yield from self._after_sample.popleft()(event.at)  # the last begins a round
        else:
            yield from self._scheduler.go_on(event.at, has_news)
        self._memory.refresh()

    def _sampled(self, event: Sampled) -> Iterator[Action]:
        if self._running.is_behind:
            yield from self._running.go_on(math.inf)  # with the sample before
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
        for action in self._running.look(event.at, event.survived):
            if isinstance(action, DropLease):
                self._endings.forget(action.lease)
            yield action
        if event.wall_offset_s is not None:
            self._bookings.offset_s = event.wall_offset_s
        is_small = len(self._books) <= MANY
        if is_small or not self._running.is_behind:
            yield from self._running.go_on()
        look_for_idle = partial(self._look_for_idle, event)
        self._after_sample = deque(
            [look_for_idle, self._account, self._keep_bookings, self._note_rooms, self._offer_room]
        )
        while self._after_sample and is_small and not self._running.is_behind:
            yield from self._after_sample.popleft()(event.at)

    def _look_for_idle(self, sample: Sampled, _at: float) -> Iterable[Action]:
        """Find the leases and strangers that a sample shows to be idle."""
        return self._idle.look(sample.at, sample.owners)

    def _account(self, at: float) -> Iterator[Action]:
        if self._scheduler.account_some(at, self.max_after_sample):
            self._after_sample.appendleft(self._account)
            return
        self._scheduler.learned(self._memory.woken)  # measured now: turns change
        yield from self._scheduler.account(at)

    def _note_rooms(self, at: float) -> Iterable[Action]:
        """Note the room on GPUs that have changed: all of them, after very many ends."""
        if self._holdings.rooms.refresh_some(self.max_after_sample):
            self._after_sample.appendleft(self._note_rooms)
        else:
            self._scheduler.granter.follow_processes()
        return ()

    def _offer_room(self, at: float) -> Iterator[Action]:
        """Give the room that a sample has shown to requests that wait."""
        yield from self._scheduler.give_up_absent(at)
        yield from self._scheduler.schedule(at)
        yield from self._scheduler.preempt(at)
        if self._wants_look(at):
            yield LookSoon()

    def _profile_forgotten(self, event: ProfileForgotten) -> Iterator[Action]:
        self._loads.forget(event.job_type)
        self._holdings.host_profiles.forget(event.job_type)
        if self._memory.forget(event.job_type):
            yield DropProfile(event.job_type)
            self._scheduler.learned((event.job_type,))
            yield from self._scheduler.schedule(event.at)

    def _runs_imported(self, event: RunsImported) -> Iterator[Action]:
        """Learn from runs on another machine; each counts once, however often it is told."""
        new = self._memory.unknown(event.job_type, event.model, event.runs)
        for run in new:
            self._memory.add_imported(event.job_type, event.model, event.label, event.user, run)
            self._holdings.host_profiles.add(event.job_type, run)
            yield SaveRun(event.job_type, event.model, event.label, event.user, run)
        if new:
            yield from self._drop_types()
            self._scheduler.learned((event.job_type,))
            yield from self._scheduler.schedule(event.at)

    def _booking_made(self, event: BookingMade) -> Iterator[Action]:
        yield from self._bookings.put(event.bookings, event.at)
        yield from self._scheduler.schedule(event.at)
        yield LookSoon()  # which asks leases to give way, where it has begun

    def _booking_removed(self, event: BookingRemoved) -> Iterator[Action]:
        yield from self._bookings.remove(event.booking, "removed")
        yield from self._scheduler.schedule(event.at)

    def _keep_bookings(self, at: float) -> Iterator[Action]:
        """Choose the GPUs of bookings, end what is over, and clear the GPUs of those that begin."""
        if self._bookings:
            yield from self._bookings.advance(at)
            yield from self._choose_for_bookings(at)

    def _choose_for_bookings(self, at: float) -> Iterator[Action]:
        """Look at the GPUs of one booking after the other, and clear those of which begin."""
        if self._bookings.is_choosing:
            yield from self._bookings.choose_next(at)
            self._after_sample.appendleft(self._choose_for_bookings)
            return
        yield from self._preemption.ask_for_booking(self._bookings.in_the_way(at), at)

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


_NEVER = float("-inf")
_RESIDUE_S = 5.0
_MAX_AFTER_SAMPLE = 256  # leases to account, or GPUs to sort again, in one event: some 5 us each
