"""The state of the queue; `handle(event) -> actions` is the only way to change it.

Decides which job is next and what its end means. The negotiator grants GPUs; the loop touches
processes, files and clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from grn.queue.events import (
    Action,
    ActionFailed,
    ArraySubmitted,
    AttemptFound,
    AttemptStarted,
    CancelAsked,
    CancelContinued,
    ClockRead,
    DrainAsked,
    Edited,
    Event,
    Exited,
    HoldAsked,
    IdleReported,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MembersNamed,
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    Recovered,
    ReturnLease,
    RunIdleHook,
    SaveAttemptEnd,
    SettleLease,
    ShimLost,
    Stop,
    Submitted,
    SubmitterGone,
    TellEmpty,
    TellEnded,
    WatchLease,
    YieldAsked,
)
from grn.queue.jobs import finish
from grn.queue.jobs.arrays import FoldedArray
from grn.queue.jobs.job import (
    AttemptFate,
    EndReason,
    Exit,
    JobState,
    Kept,
    KeptArray,
    Settlement,
    Step,
)
from grn.queue.jobs.job_table import JobTable, restored, saved
from grn.queue.jobs.job_views import JobViews
from grn.queue.jobs.lease_window import LeaseWindow, WindowLimits
from grn.queue.jobs.queued_job import QueuedJob
from grn.queue.jobs.start_windows import StartWindows
from grn.queue.jobs.steering import Steering


class QueueEngine:
    """The decisions of one queue."""

    def __init__(self, limits: WindowLimits | None = None) -> None:
        self._table = JobTable()
        self._start_windows = StartWindows(self._table)
        self._window = LeaseWindow(limits or WindowLimits(), self._table, self._start_windows)
        self._steering = Steering(self._table, self._window, self._start_windows)
        self.jobs = JobViews(self._table, self._window, self._start_windows)

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
        return self._window.is_drained

    def counts(self) -> dict[str, int]:
        """Return how many jobs run, are queued, and are held."""
        busy, held = self._table.busy, self._table.held + self._table.arrays.held
        return {"running": busy, "queued": len(self.jobs) - busy - held, "held": held}

    def check(self) -> None:
        """Raise AssertionError when the state contradicts itself."""
        self._table.check()

    # --- submitting ----------------------------------------------------------------------

    def _recovered(self, event: Recovered) -> Iterator[Action]:
        self._window.is_drained = event.is_drained
        for kept in event.jobs:
            job = restored(kept)
            self._table.add(job)
            yield from self._start_windows.enter(job)
        ends = dict(event.ends)
        for array in event.arrays:
            yield from self._add_array(array, ends)
        for job in list(self._table.jobs.values()):
            if job.fault and job.state is JobState.QUEUED:
                yield from self._table.end(job, EndReason.LOST, job.fault, None)
                ends[job.spec.id] = False
        for job in list(self._table.jobs.values()):
            yield from self._table.connect(job, ends)
        for kept in event.jobs:
            if kept.found is not None and kept.spec.id in self._table.jobs:
                yield from self._settle_found(kept)
        yield from self._window.more()

    def _submitted(self, event: Submitted) -> Iterator[Action]:
        ends = dict(event.ends)
        for spec in event.jobs:
            job = QueuedJob(spec, JobState.QUEUED, spec.priority, spec.id, spec.retries)
            job.is_held = event.is_held
            self._table.add(job)
            yield from self._start_windows.enter(job)
            yield from self._table.connect(job, ends)
            if event.is_held and spec.id in self._table.jobs:
                yield saved(job)
        yield from self._window.more()

    def _array_submitted(self, event: ArraySubmitted) -> Iterator[Action]:
        yield from self._add_array(event.array, dict(event.ends))
        yield from self._window.more()

    def _add_array(self, kept: KeptArray, ends: dict[int, bool]) -> Iterator[Action]:
        array = FoldedArray(kept)
        yield from self._start_windows.enter(array)
        yield from self._table.add_array(array, ends)
        if kept.fault:
            for job in (yield from self._table.unfold(array, list(array))):
                job.fault = kept.fault  # the job is ended with all others that have one
                ends[job.spec.id] = False

    def _members_named(self, event: MembersNamed) -> Iterator[Action]:
        """Make members of arrays jobs of their own."""
        for array in list(self._table.arrays):
            yield from self._window.unfold(array, event.jobs)

    def _yield_asked(self, event: YieldAsked) -> Iterator[Action]:
        """End an attempt that yields, or is idle; it is run again."""
        job = self._table.under(event.lease)
        if job is None or job.state not in _ENDABLE or job.is_yielding or job.idle_text:
            return
        if job.spec.yields or event.is_idle:
            job.is_yielding = True
            yield Stop(job.spec.id, job.attempt, is_now=False, is_yield=True)

    def _idle_reported(self, event: IdleReported) -> Iterator[Action]:
        """Tell the user of an idle job, and end it where that is the rule."""
        job = self._table.under(event.lease)
        if job is None or job.state not in _ENDABLE or job.idle_text:
            return
        if event.is_to_end and not job.is_yielding:
            job.idle_text = finish.idle_text(event.idle_s)
            yield Stop(job.spec.id, job.attempt, is_now=False)
        yield RunIdleHook(job.spec.id, event.idle_s, event.held_bytes)

    def _submitter_gone(self, event: SubmitterGone) -> Iterator[Action]:
        """Cancel the jobs tied to a process that has ended."""
        tied = [
            job.spec.id
            for job in self._table.jobs.values()
            if job.spec.submitter == event.submitter
        ]
        asked = CancelAsked(event.at, tuple(tied), text="the process that submitted it has ended")
        yield from self._steering.cancel(asked)

    def _end(
        self, job: QueuedJob, reason: EndReason, text: str, exit: Exit | None
    ) -> Iterator[Action]:
        """End a job for good; the failure of a fail-fast job cancels its group's queued jobs."""
        yield from self._table.end(job, reason, text, exit)
        spec = job.spec
        if not spec.is_fail_fast or reason in (EndReason.OK, EndReason.CANCELLED):
            return
        for other in list(self._table.jobs.values()):
            is_mate = (other.spec.group, other.spec.submitter) == (spec.group, spec.submitter)
            if is_mate and other.state is JobState.QUEUED and other.spec.id in self._table.jobs:
                text = f"job {spec.id} of its group has failed"
                yield from self._table.end(other, EndReason.CANCELLED, text, None)

    def _clock_read(self, event: ClockRead) -> Iterator[Action]:
        yield from self._start_windows.read_clock(event.clock)
        yield from self._window.more()

    # --- leases --------------------------------------------------------------------------

    def _lease_granted(self, event: LeaseGranted) -> Iterator[Action]:
        job = self._table.jobs.get(event.job)
        if job is None or not job.is_asked:
            yield ReturnLease(event.lease)  # withdrawn while the grant was on its way
            return
        self._table.ready.unask(job)
        yield from self._window.begin(job, event)
        yield from self._window.more()

    def _lease_awaited(self, event: LeaseAwaited) -> Iterator[Action]:
        job = self._table.jobs.get(event.job)
        if job is not None and job.is_asked:
            job.said = event.text
        yield from ()

    def _lease_refused(self, event: LeaseRefused) -> Iterator[Action]:
        job = self._table.jobs.get(event.job)
        if job is not None and job.is_asked:
            self._table.ready.unask(job)
            yield from self._end(job, EndReason.REFUSED, event.text, None)
            yield from self._window.more()

    def _negotiator_lost(self, event: NegotiatorLost) -> Iterator[Action]:
        self._window.has_negotiator = False
        yield from ()

    def _negotiator_found(self, event: NegotiatorFound) -> Iterator[Action]:
        """Request more leases; the lease conversation repeats the open requests."""
        self._window.has_negotiator = True
        yield from self._window.more()

    # --- attempts ------------------------------------------------------------------------

    def _started(self, event: AttemptStarted) -> Iterator[Action]:
        """Note that an attempt runs; not persisted: recovery treats starting and running alike."""
        job = self._table.at(event.job, event.attempt)
        if job is not None:
            self._table.step(job, Step.RUN)
            if job.state is JobState.STOPPING:  # there was no shim yet to pass the cancel to
                yield Stop(event.job, event.attempt, is_now=False)
            elif job.is_yielding or job.idle_text:
                yield Stop(event.job, event.attempt, False, is_yield=job.is_yielding)

    def _exited(self, event: Exited) -> Iterator[Action]:
        job = self._table.at(event.job, event.attempt)
        if job is None:
            return
        if job.is_yielding and job.state is not JobState.STOPPING:
            event = replace(event, exit=finish.as_yielded(event.exit))
        elif job.idle_text and job.state is not JobState.STOPPING:
            event = replace(event, exit=finish.as_idle(event.exit, job.idle_text))
        is_open = bool(job.lease) and event.settled is None
        if is_open and not finish.may_pass_on(event.exit):
            yield SettleLease(event.job, event.attempt, job.lease, event.exit)
            yield from self._window.prepare()
            return
        settled = event.settled or Settlement()
        reason = finish.reason_of(event.exit, settled)
        job.past = finish.past(reason, settled, event.exit.text)
        peak = settled.peak_bytes
        text = "; ".join(filter(None, (job.past, event.exit.note)))
        yield SaveAttemptEnd(event.job, event.attempt, reason, event.exit, peak, text)
        tries = finish.RetryBudget(job.tries_left, job.memory_attempt, job.spared)
        is_stopping = job.state is JobState.STOPPING
        verdict = finish.after_exit(event.exit, settled, tries, is_stopping)
        if is_open:
            yield from self._window.pass_on(job, event)
        yield from self._conclude(job, verdict, event.exit)

    def _shim_lost(self, event: ShimLost) -> Iterator[Action]:
        job = self._table.at(event.job, event.attempt)
        if job is None:
            return
        exit = Exit(None, text=job.fault or "the shim was killed")
        yield SaveAttemptEnd(event.job, event.attempt, EndReason.LOST, exit, None)
        if job.lease:
            yield ReturnLease(job.lease)
        is_stopping = job.state is JobState.STOPPING
        yield from self._conclude(job, finish.after_loss(job.tries_left, is_stopping), exit)

    def _action_failed(self, event: ActionFailed) -> Iterator[Action]:
        """End a job whose lease could not be requested or whose attempt could not be launched."""
        job = self._table.jobs.get(event.job)
        if job is not None and job.state is JobState.QUEUED and job.attempt < event.attempt:
            yield from self._end(job, EndReason.LOST, event.text, None)
            yield from self._window.more()
        job = self._table.at(event.job, event.attempt)
        if job is None or job.state is JobState.RUNNING:
            return
        exit = Exit(None, text=event.text)
        yield SaveAttemptEnd(event.job, event.attempt, EndReason.LOST, exit, None)
        yield ReturnLease(job.lease)
        is_stopping = job.state is JobState.STOPPING
        reason = EndReason.CANCELLED if is_stopping else EndReason.LOST
        yield from self._conclude(job, finish.AttemptEnd(reason, event.text), None)

    def _conclude(
        self, job: QueuedJob, verdict: finish.AttemptEnd | finish.RunAgain, exit: Exit | None
    ) -> Iterator[Action]:
        if job.fault and (isinstance(verdict, finish.RunAgain) or verdict.reason is EndReason.LOST):
            verdict = finish.AttemptEnd(EndReason.LOST, job.fault)
        if isinstance(verdict, finish.AttemptEnd):
            yield from self._end(job, verdict.reason, verdict.text, exit)
        else:
            self._table.step(job, Step.REQUEUE)
            # The process it is tied to clears the files of an attempt that has begun first.
            is_held = verdict.has_begun and bool(job.spec.submitter)
            self._table.hold(job, is_held=is_held)
            job.tries_left -= verdict.is_counted
            job.memory_attempt += verdict.needs_more_memory
            job.spared += verdict.is_spared
            if verdict.goes_first:
                job.place = self._table.places()[0] - 1
            self._table.ready.add(job)
            yield saved(job)
        yield from self._window.more()

    def _settle_found(self, kept: Kept) -> Iterator[Action]:
        """Continue from what recovery found of an attempt; exits follow as separate events."""
        job = self._table.jobs[kept.spec.id]
        if kept.found in (AttemptFate.NOT_BEGUN, AttemptFate.INTERRUPTED):
            yield from self._end_unfinished(job, kept.found, "")
            return
        if kept.found is AttemptFate.ALIVE:
            yield from self._found_alive(job)
        if job.lease:
            yield WatchLease(job.lease)

    def _attempt_found(self, event: AttemptFound) -> Iterator[Action]:
        """Continue from what a node has found of an attempt."""
        job = self._table.at(event.job, event.attempt)
        if job is None:
            return
        if event.fate in (AttemptFate.NOT_BEGUN, AttemptFate.INTERRUPTED):
            yield from self._end_unfinished(job, event.fate, event.text)
        elif event.fate is AttemptFate.ALIVE:
            yield from self._found_alive(job)

    def _found_alive(self, job: QueuedJob) -> Iterator[Action]:
        self._table.step(job, Step.RUN)
        if job.state is JobState.STOPPING:
            yield Stop(job.spec.id, job.attempt, is_now=False)

    def _end_unfinished(self, job: QueuedJob, fate: AttemptFate, what: str) -> Iterator[Action]:
        """Conclude an attempt that never began, or did not survive its machine."""
        is_stopping = job.state is JobState.STOPPING
        text, verdict = finish.after_restart(fate, job.spec.may_requeue, is_stopping, what)
        exit = Exit(None, text=text)
        yield SaveAttemptEnd(job.spec.id, job.attempt, EndReason.INTERRUPTED, exit, None)
        if job.lease:
            yield ReturnLease(job.lease)
        yield from self._conclude(job, verdict, None)


_ENDABLE = (JobState.STARTING, JobState.RUNNING)
_HANDLERS: dict[type, Callable[[QueueEngine, Any], Iterator[Action]]] = {
    Recovered: QueueEngine._recovered,
    Submitted: QueueEngine._submitted,
    ArraySubmitted: QueueEngine._array_submitted,
    MembersNamed: QueueEngine._members_named,
    LeaseGranted: QueueEngine._lease_granted,
    LeaseAwaited: QueueEngine._lease_awaited,
    LeaseRefused: QueueEngine._lease_refused,
    NegotiatorLost: QueueEngine._negotiator_lost,
    NegotiatorFound: QueueEngine._negotiator_found,
    AttemptStarted: QueueEngine._started,
    Exited: QueueEngine._exited,
    ShimLost: QueueEngine._shim_lost,
    AttemptFound: QueueEngine._attempt_found,
    ActionFailed: QueueEngine._action_failed,
    CancelAsked: lambda engine, event: engine._steering.cancel(event),
    CancelContinued: lambda engine, _event: engine._steering.end_cancelled(),
    YieldAsked: QueueEngine._yield_asked,
    IdleReported: QueueEngine._idle_reported,
    SubmitterGone: QueueEngine._submitter_gone,
    HoldAsked: lambda engine, event: engine._steering.hold(event),
    MoveAsked: lambda engine, event: engine._steering.move(event),
    Edited: lambda engine, event: engine._steering.edit(event),
    DrainAsked: lambda engine, event: engine._steering.drain(event),
    ClockRead: QueueEngine._clock_read,
}
