"""The queue's event loop, the only caller of the engine.

All facts of one turn are handled together and written in one transaction before any action. While
the disk refuses the write, no action is carried out. Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grn.client.leasing.gpu_environment import cores_told
from grn.client.logs import tail
from grn.protocol.lease_messages import GrantedGpus, IdleTold
from grn.queue.engine import QueueEngine
from grn.queue.events import (
    Action,
    ActionFailed,
    AskLease,
    AttemptFound,
    AttemptStarted,
    CancelContinued,
    ClockRead,
    ContinueCancel,
    DropAsk,
    Edited,
    Event,
    Exited,
    IdleReported,
    Launch,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MembersNamed,
    NegotiatorFound,
    NegotiatorLost,
    PassAsk,
    Prepare,
    Recovered,
    ReturnLease,
    RunIdleHook,
    SaveAttemptEnd,
    SaveBegin,
    SettleLease,
    ShimLost,
    Stop,
    SubmitterGone,
    TellEmpty,
    TellEnded,
    WakeAt,
    WatchLease,
    YieldAsked,
)
from grn.queue.jobs import finish
from grn.queue.jobs.job import BUSY, AttemptFate, Exit, Kept, Settlement
from grn.queue.journal.journal import Journal
from grn.queue.journal.journal_file import NotWritten
from grn.queue.journal.rows import Command, DamagedRow
from grn.queue.notifications import MAX_BYTES, Hooks, Notifications, facts_of
from grn.queue.site import Attempt, Site, SiteListener
from grn.queue.sites.router import Router
from grn.queue.submitters import Submitters

if TYPE_CHECKING:
    from grn.queue.sites.fleet import Fleet

log = logging.getLogger(__name__)
RETRY_WRITE_S = 0.5
LAZY_S = 0.004
MAX_SLEEP_S = 60.0  # timers stand still while the machine sleeps, and clocks are set


class QueueLoop:
    """Persists the engine's actions and carries them out."""

    def __init__(
        self,
        engine: QueueEngine,
        journal: Journal,
        site: Callable[[SiteListener], Site],
        boot: str,
        hooks: Hooks,
    ) -> None:
        self.engine = engine
        self.journal = journal
        self.site = Router(journal.identity, self, site)
        self.leases = self.site.leases
        self.submitters = Submitters(boot, self._submitter_gone)
        self.notifications = Notifications(hooks)
        self.trouble: str | None = None
        self.fleet: Fleet | None = None  # without sites there is none
        self._inbox: list[Event] = []
        self._unwritten: list[Action] = []
        self._wake: asyncio.TimerHandle | None = None
        self._ahead: tuple[Attempt, Command] | None = None  # what was prepared last

    # --- facts in ------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time for events, by a monotonic clock."""
        return time.monotonic()

    def tell(self, event: Event) -> None:
        """Note a fact; all facts of this turn are handled together at its end."""
        asyncio.get_running_loop().call_soon(self._turn)
        self._inbox.append(event)

    def tell_lazily(self, event: Event) -> None:
        """Note a fact that can wait for the next one: both then cost the disk one write.

        For example the end of an attempt: its record is on disk already, and the grant for the next
        job is on its way. Or its start, which is not persisted at all.
        """
        asyncio.get_running_loop().call_later(LAZY_S, self._turn)
        self._inbox.append(event)

    def tell_now(self, event: Event) -> None:
        """Note a fact and handle it at once, with all before it."""
        self._inbox.append(event)
        self._turn()

    def catch_up(self) -> None:
        """Handle all noted facts and their consequences at once."""
        while self._inbox:
            self._turn()

    def unfold(self, jobs: Sequence[int]) -> None:
        """Make members of arrays jobs of their own."""
        if jobs:
            self.tell_now(MembersNamed(self.now(), tuple(jobs)))

    # --- the start -----------------------------------------------------------------------

    async def start(self) -> None:
        """Recover every attempt, then continue."""
        self.site.open()
        kept = [self._found(one) for one in self.journal.kept()]
        self.site.tidy()
        arrays = self.journal.kept_arrays()
        specs = [*(one.spec for one in kept), *(array.spec for array in arrays)]
        needs = {need.job for spec in specs for need in spec.after}
        ends = tuple(self.journal.ended_well(needs).items())
        drained = self.journal.is_drained()
        self.tell_now(Recovered(self.now(), tuple(kept), ends, drained, tuple(arrays)))
        for submitter in {one.spec.submitter for one in kept} - {""}:
            self.submitters.watch(submitter)
        for one in kept:
            if one.found in (AttemptFate.ENDED, AttemptFate.LOST):
                self.site.report(Attempt(one.spec.id, one.attempt))

    def _found(self, kept: Kept) -> Kept:
        if kept.state not in BUSY:
            return kept
        found = self.site.find(Attempt(kept.spec.id, kept.attempt), kept.is_same_boot, kept.lease)
        fate, fault = found.fate, kept.fault or found.fault
        log.info(
            "action=recover job=%d attempt=%d found=%s", kept.spec.id, kept.attempt, fate.value
        )
        return kept._replace(found=fate, fault=fault)

    # --- a turn --------------------------------------------------------------------------

    def _turn(self) -> None:
        inbox, self._inbox = self._inbox, []
        if not inbox:
            return
        for event in inbox:
            if isinstance(event, Edited):
                self._ahead = None
            for action in self.engine.handle(event):
                if isinstance(action, SettleLease):  # a question: there is nothing to write first
                    self._settle_lease(action)
                elif isinstance(action, Prepare):
                    self._try(QueueLoop._prepare, action)
                else:
                    self._unwritten.append(action)
        self._write_and_act()
        if self.engine.jobs:
            self.leases.want()

    def _write_and_act(self) -> None:
        """Persist first, then act."""
        try:
            self.journal.write(self._unwritten)
        except NotWritten as error:
            if self.trouble is None:
                log.error("action=save-later reason=%r", error.message)
                asyncio.get_running_loop().call_later(RETRY_WRITE_S, self._write_again)
            self.trouble = error.message
            return
        actions, self._unwritten = self._unwritten, []
        for action in sorted(actions, key=_is_not_awaited):
            act = _ACTS.get(type(action))
            if act is not None:
                self._try(act, action)

    def _try(self, act: Callable[[QueueLoop, Any], None], action: Action) -> None:
        """Carry out one action; one that fails concerns its own job and no other."""
        try:
            act(self, action)
        except Exception as error:
            # Continuing is safe: the engine's decisions are persisted, the other actions of this
            # turn belong to other jobs, and the engine gets an event for the job of this action.
            asked = action.heir if isinstance(action, PassAsk) else action
            log.exception("action=%s result=failed for=%r", type(action).__name__, asked)
            if isinstance(asked, AskLease | Launch):
                job = asked.spec.id if isinstance(asked, AskLease) else asked.job
                text = f"it could not be started: {str(error) or type(error).__name__}"
                self.tell(ActionFailed(self.now(), job, asked.attempt, text))

    def _write_again(self) -> None:
        was, self.trouble = self.trouble, None
        self._write_and_act()
        if self.trouble is None:
            log.warning("action=saved-again after=%r", was)

    # --- acting --------------------------------------------------------------------------

    def _ask_lease(self, action: AskLease) -> None:
        facts, code = self.journal.told(action.spec.id)
        self.leases.ask(action, facts, code)

    def _drop_ask(self, action: DropAsk) -> None:
        self.leases.drop(action.job)

    def _pass_ask(self, action: PassAsk) -> None:
        facts, code = self.journal.told(action.heir.spec.id)
        if not self.leases.pass_on(action.job, action.heir, facts, code):  # it was granted just now
            self.leases.ask(action.heir, facts, code)

    def _return_lease(self, action: ReturnLease) -> None:
        ending = finish.told_to_negotiator(action.exit)
        self.leases.done(action.lease, ending, lambda _: None)

    def _settle_lease(self, action: SettleLease) -> None:
        def settled(how: Settlement) -> None:
            self.tell_lazily(Exited(self.now(), action.job, action.attempt, action.exit, how))

        self.leases.done(action.lease, finish.told_to_negotiator(action.exit), settled)

    def _watch_lease(self, action: WatchLease) -> None:
        self.leases.watch(action.lease)

    def _launch(self, action: Launch) -> None:
        log.debug(
            "action=launch job=%d attempt=%d lease=%s", action.job, action.attempt, action.lease
        )
        attempt = Attempt(action.job, action.attempt)
        ahead, self._ahead = self._ahead, None
        command = ahead[1] if ahead and ahead[0] == attempt else self._command(attempt)
        if action.memory_cap is not None:
            command = replace(command, memory_cap=action.memory_cap)
        self.site.start(attempt, command, action.lease, action.visible)

    def _prepare(self, action: Prepare) -> None:
        """Use the time until the negotiator answers: the rest of a start follows its grant."""
        if not self.leases.has_sites:
            attempt = Attempt(action.job, action.attempt)
            with contextlib.suppress(DamagedRow):  # its launch says so
                self._ahead = attempt, self._command(attempt)
                self.site.prepare(*self._ahead)

    def _command(self, attempt: Attempt) -> Command:
        """Return the command of a job with the variables of this attempt."""
        command = self.journal.command(attempt.job)
        if attempt.number > 1:
            why = finish.why_again(self.journal.reason_of(attempt.job, attempt.number - 1))
            command = replace(command, extra={**command.extra, "GRN_WHY": why})
        told = cores_told(command.cpus, command.environment)
        return replace(command, extra={**told, **command.extra}) if told else command

    def _stop(self, action: Stop) -> None:
        log.info("action=stop job=%d attempt=%d now=%s", action.job, action.attempt, action.is_now)
        attempt = Attempt(action.job, action.attempt)
        self.site.stop(attempt, action.is_now, is_yield=action.is_yield)

    def _wake_at(self, action: WakeAt) -> None:
        if self._wake is not None:
            self._wake.cancel()
        delay_s = min(max(0.0, action.clock - time.time()), MAX_SLEEP_S)
        self._wake = asyncio.get_running_loop().call_later(delay_s, self._read_clock)

    def _continue_cancel(self, _action: ContinueCancel) -> None:
        """Leave a moment for requests: each takes several rounds of the event loop."""
        self.tell_lazily(CancelContinued(self.now()))

    def _read_clock(self) -> None:
        self.tell_now(ClockRead(self.now(), time.time()))

    def _attempt_end_saved(self, action: SaveAttemptEnd) -> None:
        self.site.written(Attempt(action.job, action.attempt))
        self.notifications.changed(action.job)

    def _begin_saved(self, action: SaveBegin) -> None:
        self.notifications.changed(action.job)

    def _tell_ended(self, action: TellEnded) -> None:
        log.debug("action=end job=%d reason=%s", action.job, action.reason.value)
        try:
            hook = self.journal.notify_of(action.job)
        except DamagedRow:
            log.error("action=notify result=failed job=%d reason=damaged", action.job)
            hook = ""
        self.notifications.ended(action.job, action.reason, hook, self._facts_of)

    def _run_idle_hook(self, action: RunIdleHook) -> None:
        facts = {
            "GRN_IDLE_S": f"{action.idle_s:.0f}",
            "GRN_IDLE_BYTES": str(action.held_bytes),
        }
        self.notifications.idle(action.job, lambda job: self._facts_of(job) | facts)

    def _facts_of(self, job: int) -> dict[str, str]:
        """Return what a hook is told of a job."""
        try:
            (row,) = self.journal.rows("jobs.id = ?", [job], "jobs.id", 1)
            argv = self.journal.command(job).argv
        except (DamagedRow, ValueError) as error:
            log.error("action=notify result=partial job=%d reason=%s", job, error)
            return {}
        log_file = os.path.join(self.site.folder(Attempt(job, row["attempt"])), "log")
        return facts_of(row, argv, tail(log_file, MAX_BYTES))

    def _tell_empty(self, _action: TellEmpty) -> None:
        self.site.tidy()
        self.notifications.empty()

    # --- reports of sites, submitters and the negotiator -----------------------------------

    def attempt_started(self, attempt: Attempt) -> None:
        self.tell_lazily(AttemptStarted(self.now(), attempt.job, attempt.number))

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        if exit is None:
            self.tell(ShimLost(self.now(), attempt.job, attempt.number))
        else:
            self.tell(Exited(self.now(), attempt.job, attempt.number, exit))

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None:
        self.tell(AttemptFound(self.now(), attempt.job, attempt.number, fate, text))

    def command_of(self, attempt: Attempt) -> Command | None:
        """Return the command of an attempt; None when its record is damaged."""
        try:
            return self.journal.command(attempt.job)
        except DamagedRow:
            return None

    def _submitter_gone(self, submitter: str) -> None:
        log.info("action=submitter-gone submitter=%s", submitter)
        self.tell(SubmitterGone(self.now(), submitter))

    def has_work(self) -> bool:
        return bool(self.engine.jobs)

    def connected(self) -> None:
        self.tell(NegotiatorFound(self.now()))

    def disconnected(self) -> None:
        self.tell(NegotiatorLost(self.now()))

    def granted(self, job: int, grant: GrantedGpus) -> None:
        self.tell(LeaseGranted(
            self.now(), job, grant.lease, grant.visible, grant.gpus, grant.reserved_bytes,
            not grant.is_first_run, grant.cap,
        ))  # fmt: skip

    def awaited(self, job: int, text: str) -> None:
        self.tell(LeaseAwaited(self.now(), job, text))

    def reasons(self, texts: dict[int, str]) -> None:
        self._inbox += [LeaseAwaited(self.now(), job, text) for job, text in texts.items()]
        self.catch_up()

    def yield_asked(self, lease: str, is_idle: bool) -> None:
        self.tell(YieldAsked(self.now(), lease, is_idle))

    def idle_told(self, told: IdleTold) -> None:
        event = IdleReported(self.now(), told.lease, told.idle_s, told.held_bytes, told.is_to_end)
        self.tell(event)

    def refused(self, job: int, text: str) -> None:
        self.tell(LeaseRefused(self.now(), job, text))


def _is_not_awaited(action: Action) -> bool:
    """True unless a free GPU waits for an action: jobs start before the ends of others are told."""
    return not isinstance(action, Launch)


_ACTS: dict[type, Callable[[QueueLoop, Any], None]] = {
    AskLease: QueueLoop._ask_lease,
    DropAsk: QueueLoop._drop_ask,
    PassAsk: QueueLoop._pass_ask,
    ReturnLease: QueueLoop._return_lease,
    WatchLease: QueueLoop._watch_lease,
    Launch: QueueLoop._launch,
    Stop: QueueLoop._stop,
    WakeAt: QueueLoop._wake_at,
    ContinueCancel: QueueLoop._continue_cancel,
    TellEnded: QueueLoop._tell_ended,
    RunIdleHook: QueueLoop._run_idle_hook,
    TellEmpty: QueueLoop._tell_empty,
    SaveAttemptEnd: QueueLoop._attempt_end_saved,
    SaveBegin: QueueLoop._begin_saved,
}
