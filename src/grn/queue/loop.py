"""The queue's event loop: facts in, actions out; the only caller of the engine.

All facts of one turn are handled together and written in one transaction before any action. While
the disk refuses the write, no action is carried out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from grn.queue.engine import QueueEngine
from grn.queue.events import (
    Action,
    ActionFailed,
    AskLease,
    AttemptFate,
    AttemptStarted,
    DropAsk,
    EndReason,
    Event,
    Exit,
    Exited,
    JobState,
    Kept,
    Launch,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    NegotiatorFound,
    NegotiatorLost,
    PassAsk,
    Recovered,
    ReturnLease,
    SaveAttemptEnd,
    SaveBegin,
    Settled,
    ShimLost,
    Stop,
    SubmitterGone,
    TellEmpty,
    TellEnded,
)
from grn.queue.finish import reason_of
from grn.queue.journal.journal import Journal
from grn.queue.journal.journal_file import NotWritten
from grn.queue.journal.rows import RUN_NO_MORE, BadRow
from grn.queue.leases import Leases
from grn.queue.local.launcher import Launcher, LaunchSettings, UnreadableAttempt
from grn.queue.local.workers import Attempt, Record
from grn.queue.submitters import Submitters

log = logging.getLogger(__name__)
RETRY_WRITE_S = 0.5
LAZY_S = 0.004
SHORT_S = 0.025  # below what a shim waits before it takes a lease over

_OUTCOMES = {EndReason.OK: "ok", EndReason.OUT_OF_MEMORY: "oom"}


@dataclass(frozen=True, slots=True)
class Hooks:
    """Commands of the user's to run when something has happened; empty for none."""

    on_end: str = ""
    on_failure: str = ""
    on_empty: str = ""


class QueueLoop:
    """Persists the engine's actions and carries them out."""

    def __init__(
        self,
        engine: QueueEngine,
        journal: Journal,
        manners: LaunchSettings,
        boot: str,
        hooks: Hooks,
    ) -> None:
        self.engine = engine
        self.journal = journal
        self.leases = Leases(manners.queue_id, self)
        self.launcher = Launcher(manners, self._shim_started, self._shim_gone)
        self.submitters = Submitters(boot, self._submitter_gone)
        self.trouble: str | None = None
        self._boot = boot
        self._hooks = hooks
        self._inbox: list[Event] = []
        self._unwritten: list[Action] = []
        self._held: dict[int, str] = {}  # job -> its lease
        self._waiters: defaultdict[int, list[Callable[[int], None]]] = defaultdict(list)
        self._watchers: defaultdict[int, list[Callable[[int], None]]] = defaultdict(list)
        self._notifications: set[asyncio.Task[None]] = set()

    # --- facts in ------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time events carry: it never jumps."""
        return time.monotonic()

    def tell(self, event: Event) -> None:
        """Note a fact; all facts of this turn are handled together at its end."""
        asyncio.get_running_loop().call_soon(self._turn)
        self._inbox.append(event)

    def tell_lazily(self, event: Event) -> None:
        """Note a fact that can wait for the next one: both then cost the disk one write.

        The end of an attempt is such a one: its record is on disk already, and the grant for the
        next job is on its way. So is its start, which is not written down at all.
        """
        asyncio.get_running_loop().call_later(LAZY_S, self._turn)
        self._inbox.append(event)

    def tell_now(self, event: Event) -> None:
        """Note a fact and handle it at once, with all before it."""
        self._inbox.append(event)
        self._turn()

    def catch_up(self) -> None:
        """Handle all facts that were noted, so that the engine knows what we know."""
        self._turn()

    def when_ended(self, job: int, waiter: Callable[[int], None]) -> None:
        """Register a callback for the end of a job."""
        self._waiters[job].append(waiter)

    def when_changed(self, job: int, watcher: Callable[[int], None]) -> None:
        """Remember who is told of each change of a job."""
        if job in self.engine.jobs:
            self._watchers[job].append(watcher)

    def stop_waiting(self, job: int, waiter: Callable[[int], None]) -> None:
        """Forget who waited for a job, or watched it."""
        for known in (self._waiters, self._watchers):
            if waiter in known.get(job, []):
                known[job].remove(waiter)

    # --- the start -----------------------------------------------------------------------

    async def start(self) -> None:
        """Find what became of everything, then go on."""
        self.launcher.open()
        kept = [self._found(one) for one in self.journal.kept()]
        self.launcher.found_all()
        after = {need.job for one in kept for need in one.spec.after}
        ends = self.journal.ended_well(after)
        drained = self.journal.is_drained()
        self.tell_now(Recovered(self.now(), tuple(kept), tuple(ends.items()), drained))
        for submitter in {one.spec.submitter for one in kept} - {""}:
            self.submitters.watch(submitter)
        for one in kept:
            if one.found in (AttemptFate.ENDED, AttemptFate.LOST):
                self._shim_gone(Attempt(one.spec.id, one.attempt))

    def _found(self, kept: Kept) -> Kept:
        if kept.state is JobState.QUEUED:
            return kept
        lease, boot = self.journal.lease_of(kept.spec.id, kept.attempt)
        fault = kept.fault
        if not boot:
            # Written together with the state, so it is damaged. That it was begun in this boot is
            # the safe guess: a shim that lives is found, and nothing is run again.
            boot, fault = self._boot, fault or RUN_NO_MORE
            log.error("action=set-aside job=%d attempt=%d", kept.spec.id, kept.attempt)
        attempt = Attempt(kept.spec.id, kept.attempt)
        try:
            found = self.launcher.find(attempt, boot == self._boot)
        except UnreadableAttempt as error:
            found, fault = self.launcher.find_process(attempt), f"{error}: it is not run again"
            log.error("action=set-aside job=%d reason=%r", kept.spec.id, fault)
        log.info(
            "action=recover job=%d attempt=%d found=%s", kept.spec.id, kept.attempt, found.value
        )
        if boot == self._boot and found is not AttemptFate.NOT_BEGUN:
            if lease:
                self._held[kept.spec.id] = lease
        elif boot == self._boot and lease:
            self.leases.done(lease, {"outcome": "failed"}, lambda _: None)
        return replace(kept, found=found, lease=lease, fault=fault)

    # --- a turn --------------------------------------------------------------------------

    def _turn(self) -> None:
        inbox, self._inbox = self._inbox, []
        if not inbox:
            return
        actions = self._unwritten
        for event in inbox:
            actions = actions + self.engine.handle(event)
        self._unwritten = actions
        self._write_and_act()
        if self.engine.jobs and not self.leases.is_connected:
            self.leases.want()

    def _write_and_act(self) -> None:
        """Remember first, then act."""
        try:
            self.journal.write(self._unwritten)
        except NotWritten as error:
            if self.trouble is None:
                log.error("action=save-later reason=%r", error.message)
                asyncio.get_running_loop().call_later(RETRY_WRITE_S, self._write_again)
            self.trouble = error.message
            return
        actions, self._unwritten = self._unwritten, []
        for action in actions:
            act = _ACTS.get(type(action))
            if act is not None:
                self._try(act, action)

    def _try(self, act: Callable[[QueueLoop, Any], None], action: Action) -> None:
        """Carry out one action; one that fails concerns its own job and no other."""
        try:
            act(self, action)
        except Exception as error:
            # Going on is safe: what the engine decided is written down, the other actions of this
            # turn belong to other jobs, and the engine is told of the job that this one was for.
            job, attempt = _concerned(action)
            log.exception(
                "action=%s result=failed job=%s attempt=%s", type(action).__name__, job, attempt
            )
            if job is not None:
                text = f"it could not be started: {str(error) or type(error).__name__}"
                self.tell(ActionFailed(self.now(), job, attempt, text))

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
        if not self.leases.pass_on(action.job, action.heir.spec.id):  # it was granted just now
            self._ask_lease(action.heir)

    def _return_lease(self, action: ReturnLease) -> None:
        ending = {"outcome": "failed"} if action.exit is None else _ending(action.exit)
        self.leases.done(action.lease, ending, lambda _: None)

    def _launch(self, action: Launch) -> None:
        log.debug(
            "action=launch job=%d attempt=%d lease=%s", action.job, action.attempt, action.lease
        )
        command = self.journal.command(action.job)
        self._held[action.job] = action.lease
        attempt = Attempt(action.job, action.attempt)
        self.launcher.start(attempt, command, action.lease, action.visible)

    def _stop(self, action: Stop) -> None:
        log.info("action=stop job=%d attempt=%d now=%s", action.job, action.attempt, action.is_now)
        self.launcher.stop(Attempt(action.job, action.attempt), action.is_now)

    def _attempt_ended(self, action: SaveAttemptEnd) -> None:
        self.launcher.settled(Attempt(action.job, action.attempt))
        self._tell_changed(action.job)

    def _begun(self, action: SaveBegin) -> None:
        self._tell_changed(action.job)

    def _tell_changed(self, job: int) -> None:
        for watcher in self._watchers.get(job, ()):
            watcher(job)

    def _tell_ended(self, action: TellEnded) -> None:
        log.debug("action=end job=%d reason=%s", action.job, action.reason.value)
        for known in (self._waiters, self._watchers):
            for waiter in known.pop(action.job, []):
                waiter(action.job)
        own = self._notify_of(action.job)
        happened = {"GRN_JOB_ID": str(action.job), "GRN_REASON": action.reason.value}
        hooks = [own, self._hooks.on_end]
        if action.reason is not EndReason.OK:
            hooks.append(self._hooks.on_failure)
        for hook in filter(None, hooks):
            self._notify(hook, {"GRN_EVENT": "end", **happened})

    def _notify_of(self, job: int) -> str:
        try:
            return self.journal.notify_of(job)
        except BadRow:
            log.error("action=notify result=failed job=%d reason=damaged", job)
            return ""

    def _tell_empty(self, _action: TellEmpty) -> None:
        self.launcher.shorten_notes()
        if self._hooks.on_empty:
            self._notify(self._hooks.on_empty, {"GRN_EVENT": "empty"})

    def _notify(self, hook: str, facts: dict[str, str]) -> None:
        task = asyncio.get_running_loop().create_task(_run_hook(hook, facts))
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    def _submitter_gone(self, submitter: str) -> None:
        log.info("action=submitter-gone submitter=%s", submitter)
        self.tell(SubmitterGone(self.now(), submitter))

    # --- shims ---------------------------------------------------------------------------

    def _shim_started(self, attempt: Attempt) -> None:
        self.tell_lazily(AttemptStarted(self.now(), attempt.job, attempt.number))
        job = self.engine.jobs.get(attempt.job)
        if job is not None and job.state is JobState.STOPPING:
            asyncio.get_running_loop().call_soon(self.launcher.stop, attempt, False)

    def _shim_gone(self, attempt: Attempt, said: Record | None = None) -> None:
        """A shim has ended: see what it wrote, and settle the lease before the engine hears."""
        exit = self._exit_of(attempt, said)
        lease = self._held.pop(attempt.job, "")
        if exit is None:
            killed = self.launcher.end_leftovers(attempt)
            log.warning(
                "action=shim-lost job=%d attempt=%d killed=%d", attempt.job, attempt.number, killed
            )
            self._settle(lease, {"outcome": "failed"}, None)
            self.tell(ShimLost(self.now(), attempt.job, attempt.number))
            return

        def settled(how: Settled | None) -> None:
            self.tell_lazily(Exited(self.now(), attempt.job, attempt.number, exit, how))

        if lease and exit.status == 0 and exit.ran_s < SHORT_S:
            # Too short to have been taken over from us: the engine may pass the lease on.
            self.tell(Exited(self.now(), attempt.job, attempt.number, exit, None))
        else:
            self._settle(lease, _ending(exit), settled)

    def _exit_of(self, attempt: Attempt, said: Record | None) -> Exit | None:
        """Return how an attempt ended; a record that is damaged says nothing."""
        try:
            return self.launcher.exit_of(attempt, said)
        except (OSError, TypeError, ValueError):
            log.exception(
                "action=read-exit result=failed job=%d attempt=%d", attempt.job, attempt.number
            )
            return None

    def _settle(
        self, lease: str, ending: dict[str, Any], then: Callable[[Settled], None] | None
    ) -> None:
        if lease:
            self.leases.done(lease, ending, then or (lambda _: None))
        elif then is not None:
            then(Settled())

    # --- what the negotiator says --------------------------------------------------------

    def has_work(self) -> bool:
        return bool(self.engine.jobs)

    def connected(self) -> None:
        for lease in self._held.values():
            self.leases.watch(lease)
        self.tell(NegotiatorFound(self.now()))

    def disconnected(self) -> None:
        self.tell(NegotiatorLost(self.now()))

    def granted(self, job: int, answer: dict[str, Any]) -> None:
        gpus = tuple(gpu["index"] for gpu in answer["gpus"])
        self.tell(
            LeaseGranted(
                self.now(),
                job,
                answer["lease"],
                answer["visible"],
                gpus,
                answer["reserved"],
                not answer["probe"],
            )
        )

    def awaited(self, job: int, text: str) -> None:
        self.tell(LeaseAwaited(self.now(), job, text))

    def reasons(self, texts: dict[int, str]) -> None:
        for job, text in texts.items():
            if job in self.engine.jobs and self.engine.jobs[job].why != text:
                self.tell(LeaseAwaited(self.now(), job, text))
        self.catch_up()

    def refused(self, job: int, text: str) -> None:
        self.tell(LeaseRefused(self.now(), job, text))


_ACTS: dict[type, Callable[[QueueLoop, Any], None]] = {
    AskLease: QueueLoop._ask_lease,
    DropAsk: QueueLoop._drop_ask,
    PassAsk: QueueLoop._pass_ask,
    ReturnLease: QueueLoop._return_lease,
    Launch: QueueLoop._launch,
    Stop: QueueLoop._stop,
    TellEnded: QueueLoop._tell_ended,
    TellEmpty: QueueLoop._tell_empty,
    SaveAttemptEnd: QueueLoop._attempt_ended,
    SaveBegin: QueueLoop._begun,
}


def _concerned(action: Action) -> tuple[int | None, int]:
    """Return the job, and its attempt, that cannot go on when an action fails; None for none."""
    if isinstance(action, PassAsk):
        action = action.heir
    if isinstance(action, AskLease):
        return action.spec.id, action.attempt
    return (action.job, action.attempt) if isinstance(action, Launch) else (None, 0)


def _ending(exit: Exit) -> dict[str, Any]:
    """Return what the negotiator is told of the end of an attempt."""
    reason = reason_of(exit, Settled())
    said: dict[str, Any] = {"outcome": _OUTCOMES.get(reason, "failed")}
    if exit.resident_bytes:
        said["resident"] = exit.resident_bytes
    if exit.asked_bytes:
        said["asked"] = exit.asked_bytes
    return said


async def _run_hook(hook: str, facts: dict[str, str]) -> None:
    """Run a notification; one that fails is logged and does no more harm."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", hook,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **facts},
        start_new_session=True,
    )  # fmt: skip
    status = await process.wait()
    if status:
        log.warning("action=notify result=failed status=%d", status)
