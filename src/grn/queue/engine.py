"""The state of the queue; events enter through `handle(event) -> actions`.

Decides which job is next and what its end means. The negotiator grants GPUs; the loop touches
processes, files and clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from grn.queue import finish
from grn.queue.events import (
    Action,
    ActionFailed,
    AttemptFate,
    AttemptStarted,
    CancelAsked,
    DrainAsked,
    EndReason,
    Event,
    Exit,
    Exited,
    HoldAsked,
    JobState,
    Kept,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    Recovered,
    ReturnLease,
    SaveAttemptEnd,
    SaveDrain,
    Settled,
    ShimLost,
    Stop,
    Submitted,
    SubmitterGone,
    TellEmpty,
    TellEnded,
)
from grn.queue.job_table import Roll, saved
from grn.queue.lease_window import Asks, WindowLimits
from grn.queue.lifecycle import moved
from grn.queue.ready_queue import QueuedJob


class QueueEngine:
    """The queue's mind."""

    def __init__(self, limits: WindowLimits | None = None) -> None:
        self._roll = Roll()
        self._asks = Asks(limits or WindowLimits(), self._roll)
        self.jobs = self._roll.jobs

    def handle(self, event: Event) -> list[Action]:
        """Apply one event and return the actions that follow."""
        actions = list(_HANDLERS[type(event)](self, event))
        if not self.jobs and any(isinstance(action, TellEnded) for action in actions):
            actions.append(TellEmpty())
        return actions

    # --- questions -----------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """True while no job is started."""
        return self._asks.is_drained

    def why(self, job: QueuedJob) -> str:
        """Say why a job does not run yet, or what it does."""
        if job.state is not JobState.QUEUED:
            return str(job.state.value)
        if job.is_held:
            return "kept back until `grn release`"
        if job.waits_for:
            return f"comes after {', '.join(map(str, sorted(job.waits_for)))}"
        if self.is_drained:
            return "the queue is drained: `grn drain --off` goes on"
        if not self._asks.has_negotiator:
            return "no negotiator answers"
        if job.is_asked:
            return "; ".join(filter(None, (job.past, job.why or "the negotiator was asked")))
        if self._asks.is_full:
            return f"{self._asks.limits.running} jobs of this queue run already"
        before = self._asks.open
        return f"behind {before} other{'s' * (before != 1)} of yours"

    def counts(self) -> dict[str, int]:
        """Return how many jobs run and how many are queued."""
        busy = self._roll.busy
        return {"running": busy, "queued": len(self.jobs) - busy}

    def check(self) -> None:
        """Raise AssertionError when the state contradicts itself."""
        self._roll.check()

    # --- submitting and steering ---------------------------------------------------------

    def _recovered(self, event: Recovered) -> Iterator[Action]:
        self._asks.is_drained = event.is_drained
        for kept in event.jobs:
            self._roll.add(kept)
        ends = dict(event.ends)
        for job in list(self.jobs.values()):
            if job.fault and job.state is JobState.QUEUED:
                yield from self._roll.end(job, EndReason.LOST, job.fault, None)
                ends[job.spec.id] = False
        for job in list(self.jobs.values()):
            yield from self._roll.wire(job, ends)
        for kept in event.jobs:
            if kept.found is not None and kept.spec.id in self.jobs:
                yield from self._settle_found(kept)
        yield from self._asks.more()

    def _submitted(self, event: Submitted) -> Iterator[Action]:
        ends = dict(event.ends)
        for spec in event.jobs:
            kept = Kept(spec, JobState.QUEUED, tries_left=spec.retries, place=spec.id)
            job = self._roll.add(kept)
            job.is_held = event.is_held
            yield from self._roll.wire(job, ends)
            if event.is_held and spec.id in self.jobs:
                yield saved(job)
        yield from self._asks.more()

    def _cancel_asked(self, event: CancelAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self.jobs.get(job_id)
            if job is None:
                continue
            if job.state is JobState.QUEUED:
                yield from self._roll.end(job, EndReason.CANCELLED, event.text, None)
                continue
            is_second = job.state is JobState.STOPPING
            job.state = moved(job.state, event) or job.state
            yield saved(job)
            yield Stop(job_id, job.attempt, event.is_now or is_second)
        yield from self._asks.more()

    def _submitter_gone(self, event: SubmitterGone) -> Iterator[Action]:
        """Cancel all that is tied to a process that has ended."""
        tied = [job.spec.id for job in self.jobs.values() if job.spec.submitter == event.submitter]
        asked = CancelAsked(event.at, tuple(tied), text="the process that submitted it has ended")
        yield from self._cancel_asked(asked)

    def _end(
        self, job: QueuedJob, reason: EndReason, text: str, exit: Exit | None
    ) -> Iterator[Action]:
        """End a job for good; the failure of one that is to fail fast ends its group's line."""
        yield from self._roll.end(job, reason, text, exit)
        spec = job.spec
        if not spec.is_fail_fast or reason in (EndReason.OK, EndReason.CANCELLED):
            return
        for other in list(self.jobs.values()):
            is_mate = (other.spec.group, other.spec.submitter) == (spec.group, spec.submitter)
            if is_mate and other.state is JobState.QUEUED and other.spec.id in self.jobs:
                text = f"job {spec.id} of its group has failed"
                yield from self._roll.end(other, EndReason.CANCELLED, text, None)

    def _hold_asked(self, event: HoldAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self.jobs.get(job_id)
            if job is None or job.state is not JobState.QUEUED or job.is_held == event.is_held:
                continue
            job.is_held = event.is_held
            yield from self._roll.line_up_anew(job)
            yield saved(job)
        yield from self._asks.more()

    def _move_asked(self, event: MoveAsked) -> Iterator[Action]:
        places = [job.place for job in self.jobs.values()]
        first, last = min(places, default=0), max(places, default=0)
        moving = [self.jobs[job_id] for job_id in event.jobs if job_id in self.jobs]
        for step, job in enumerate(moving):
            if job.state is not JobState.QUEUED:
                continue
            yield from self._roll.unask(job)
            if event.priority is not None:
                job.priority = event.priority
                job.spec = replace(job.spec, priority=event.priority)
            if event.to_front is not None:
                job.place = first - len(moving) + step if event.to_front else last + 1 + step
            self._roll.line.add(job)
            yield saved(job)
            yield from self._unask_followers(job)
        yield from self._asks.more()

    def _unask_followers(self, moved_job: QueuedJob) -> Iterator[Action]:
        """Request again for jobs behind a moved one: the negotiator goes by order of requests."""
        for job in self._roll.line.all_asked():
            if job.rank[:2] == moved_job.rank[:2] and job.rank > moved_job.rank:
                yield from self._roll.line_up_anew(job)

    def _drain_asked(self, event: DrainAsked) -> Iterator[Action]:
        self._asks.is_drained = event.is_drained
        yield SaveDrain(event.is_drained)
        if event.is_drained:
            for job in self._roll.line.all_asked():
                yield from self._roll.line_up_anew(job)
        yield from self._asks.more()

    # --- leases --------------------------------------------------------------------------

    def _lease_granted(self, event: LeaseGranted) -> Iterator[Action]:
        job = self.jobs.get(event.job)
        if job is None or not job.is_asked:
            yield ReturnLease(event.lease)  # it was taken back while the grant was on its way
            return
        self._roll.line.unask(job)
        yield from self._asks.begin(job, event)
        yield from self._asks.more()

    def _lease_awaited(self, event: LeaseAwaited) -> Iterator[Action]:
        job = self.jobs.get(event.job)
        if job is not None and job.is_asked:
            job.why = event.text
        yield from ()

    def _lease_refused(self, event: LeaseRefused) -> Iterator[Action]:
        job = self.jobs.get(event.job)
        if job is not None and job.is_asked:
            self._roll.line.unask(job)
            yield from self._end(job, EndReason.REFUSED, event.text, None)
            yield from self._asks.more()

    def _negotiator_lost(self, event: NegotiatorLost) -> Iterator[Action]:
        self._asks.has_negotiator = False
        yield from ()

    def _negotiator_found(self, event: NegotiatorFound) -> Iterator[Action]:
        """Ask again for all that was asked: the same keys keep their places."""
        self._asks.has_negotiator = True
        yield from self._asks.again()
        yield from self._asks.more()

    # --- attempts ------------------------------------------------------------------------

    def _started(self, event: AttemptStarted) -> Iterator[Action]:
        """Note that it runs; not written down, for recovery treats starting and running alike."""
        job = self._roll.at(event.job, event.attempt)
        if job is not None:
            job.state = moved(job.state, event) or job.state
        yield from ()

    def _exited(self, event: Exited) -> Iterator[Action]:
        job = self._roll.at(event.job, event.attempt)
        if job is None or moved(job.state, event) is None:
            return
        is_stopping = job.state is JobState.STOPPING
        settled = event.settled or Settled()
        reason = finish.reason_of(event.exit, settled)
        job.past = finish.past(reason, settled, event.exit.text)
        peak = settled.peak_bytes
        yield SaveAttemptEnd(event.job, event.attempt, reason, event.exit, peak, job.past)
        tries = finish.RetryBudget(job.tries_left, job.memory_attempt, job.spared)
        verdict = finish.after_exit(event.exit, settled, tries, is_stopping)
        if event.settled is None:
            yield from self._asks.pass_on(job, event)
        yield from self._conclude(job, verdict, event.exit)

    def _shim_lost(self, event: ShimLost) -> Iterator[Action]:
        job = self._roll.at(event.job, event.attempt)
        if job is None or moved(job.state, event) is None:
            return
        is_stopping = job.state is JobState.STOPPING
        exit = Exit(None, text=job.fault or "the shim was killed")
        yield SaveAttemptEnd(event.job, event.attempt, EndReason.LOST, exit, None)
        yield from self._conclude(job, finish.after_loss(job.tries_left, is_stopping), exit)

    def _action_failed(self, event: ActionFailed) -> Iterator[Action]:
        """Set a job aside whose lease could not be asked for, or whose attempt not be launched."""
        job = self.jobs.get(event.job)
        if job is None or moved(job.state, event) is None:
            return
        if job.state is JobState.QUEUED:
            if job.attempt < event.attempt:
                yield from self._end(job, EndReason.LOST, event.text, None)
                yield from self._asks.more()
        elif job.attempt == event.attempt:
            yield SaveAttemptEnd(
                event.job, event.attempt, EndReason.LOST, Exit(None, text=event.text), None
            )
            yield ReturnLease(job.lease)
            is_stopping = job.state is JobState.STOPPING
            reason = EndReason.CANCELLED if is_stopping else EndReason.LOST
            yield from self._conclude(job, finish.AttemptEnd(reason, event.text), None)

    def _conclude(
        self, job: QueuedJob, verdict: finish.AttemptEnd | finish.RunAgain, exit: Exit | None
    ) -> Iterator[Action]:
        if job.fault and (isinstance(verdict, finish.RunAgain) or verdict.reason is EndReason.LOST):
            verdict = finish.AttemptEnd(EndReason.LOST, job.fault)
        self._roll.busy -= 1
        job.lease, job.grant = "", None
        if isinstance(verdict, finish.AttemptEnd):
            yield from self._end(job, verdict.reason, verdict.text, exit)
        else:
            job.state = JobState.QUEUED
            job.is_held = bool(job.spec.submitter)  # who is tied to it clears its files first
            job.tries_left -= verdict.is_counted
            job.memory_attempt += verdict.needs_more_memory
            job.spared += verdict.is_spared
            self._roll.line.add(job)
            yield saved(job)
        yield from self._asks.more()

    def _settle_found(self, kept: Kept) -> Iterator[Action]:
        """Go on from what recovery found of an attempt; exits come as events of their own."""
        job = self.jobs[kept.spec.id]
        if kept.found is AttemptFate.NOT_BEGUN:
            is_stopping = job.state is JobState.STOPPING
            exit = Exit(None, text="the queue ended before it began")
            yield SaveAttemptEnd(job.spec.id, job.attempt, EndReason.INTERRUPTED, exit, None)
            self._roll.busy -= 1
            job.state, job.lease = JobState.QUEUED, ""
            if is_stopping:
                yield from self._roll.end(job, EndReason.CANCELLED, "", None)
            elif job.fault:
                yield from self._roll.end(job, EndReason.LOST, job.fault, None)
            else:
                self._roll.line.add(job)
                yield saved(job)
        elif kept.found is AttemptFate.INTERRUPTED:
            exit = Exit(None, text="the machine went down")
            yield SaveAttemptEnd(job.spec.id, job.attempt, EndReason.INTERRUPTED, exit, None)
            again = finish.RunAgain(EndReason.INTERRUPTED, is_counted=False)
            end = finish.AttemptEnd(EndReason.INTERRUPTED, "the machine went down while it ran")
            may_requeue = job.spec.may_requeue and job.state is not JobState.STOPPING
            yield from self._conclude(job, again if may_requeue else end, None)
        elif kept.found is AttemptFate.ALIVE:
            if job.state is JobState.STOPPING:
                yield Stop(job.spec.id, job.attempt, is_now=False)
            else:
                job.state = JobState.RUNNING


_HANDLERS: dict[type, Callable[[QueueEngine, Any], Iterator[Action]]] = {
    Recovered: QueueEngine._recovered,
    Submitted: QueueEngine._submitted,
    LeaseGranted: QueueEngine._lease_granted,
    LeaseAwaited: QueueEngine._lease_awaited,
    LeaseRefused: QueueEngine._lease_refused,
    NegotiatorLost: QueueEngine._negotiator_lost,
    NegotiatorFound: QueueEngine._negotiator_found,
    AttemptStarted: QueueEngine._started,
    Exited: QueueEngine._exited,
    ShimLost: QueueEngine._shim_lost,
    ActionFailed: QueueEngine._action_failed,
    CancelAsked: QueueEngine._cancel_asked,
    SubmitterGone: QueueEngine._submitter_gone,
    HoldAsked: QueueEngine._hold_asked,
    MoveAsked: QueueEngine._move_asked,
    DrainAsked: QueueEngine._drain_asked,
}
