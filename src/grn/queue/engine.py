"""The state of the queue; `handle(event) -> actions` is the only way to change it.

Decides which job is next and what its end means. The negotiator grants GPUs; the loop touches
processes, files and clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from grn.model.text import counted
from grn.queue.events import (
    Action,
    ActionFailed,
    AttemptFound,
    AttemptStarted,
    CancelAsked,
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
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    Recovered,
    ReturnLease,
    RunIdleHook,
    SaveAttemptEnd,
    SaveDrain,
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
from grn.queue.jobs.job import (
    AttemptFate,
    EndReason,
    Exit,
    JobState,
    JobView,
    Kept,
    Settlement,
    Step,
)
from grn.queue.jobs.job_table import JobTable, QueuedJob, restored, saved
from grn.queue.jobs.lease_window import LeaseWindow, StartWindows, WindowLimits


class QueueEngine:
    """The decisions of one queue."""

    def __init__(self, limits: WindowLimits | None = None) -> None:
        self._table = JobTable()
        self._window = LeaseWindow(limits or WindowLimits(), self._table)
        self._start_windows = StartWindows(self._table)
        self.jobs = JobViews(self._table, self._window, self._start_windows)

    def handle(self, event: Event) -> list[Action]:
        """Apply one event and return the actions that follow."""
        actions = list(_HANDLERS[type(event)](self, event))
        if not self._table.jobs and any(isinstance(action, TellEnded) for action in actions):
            actions.append(TellEmpty())
        return actions

    # --- questions -----------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """True while no job is started."""
        return self._window.is_drained

    def counts(self) -> dict[str, int]:
        """Return how many jobs run, are queued, and are held."""
        busy, held = self._table.busy, self._table.held
        return {"running": busy, "queued": len(self._table.jobs) - busy - held, "held": held}

    def check(self) -> None:
        """Raise AssertionError when the state contradicts itself."""
        self._table.check()

    # --- submitting and steering ---------------------------------------------------------

    def _recovered(self, event: Recovered) -> Iterator[Action]:
        self._window.is_drained = event.is_drained
        for kept in event.jobs:
            job = restored(kept)
            self._table.add(job)
            yield from self._start_windows.enter(job)
        ends = dict(event.ends)
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

    def _cancel_asked(self, event: CancelAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self._table.jobs.get(job_id)
            if job is None:
                continue
            if job.state is JobState.QUEUED:
                yield from self._table.end(job, EndReason.CANCELLED, event.text, None)
                continue
            is_second = job.state is JobState.STOPPING
            self._table.step(job, Step.STOP)
            yield saved(job)
            yield Stop(job_id, job.attempt, event.is_now or is_second)
        yield from self._window.more()

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
        yield from self._cancel_asked(asked)

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

    def _hold_asked(self, event: HoldAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self._table.jobs.get(job_id)
            if job is None or job.state is not JobState.QUEUED or job.is_held == event.is_held:
                continue
            self._table.hold(job, is_held=event.is_held)
            yield from self._table.reorder(job)
            yield saved(job)
        yield from self._window.more()

    def _move_asked(self, event: MoveAsked) -> Iterator[Action]:
        places = [job.place for job in self._table.jobs.values()]
        first, last = min(places, default=0), max(places, default=0)
        moving = [self._table.jobs[job_id] for job_id in event.jobs if job_id in self._table.jobs]
        for step, job in enumerate(moving):
            if job.state is not JobState.QUEUED:
                continue
            yield from self._table.unask(job)
            if event.priority is not None:
                job.priority = event.priority
                job.spec = job.spec._replace(priority=event.priority)
            if event.to_front is not None:
                job.place = first - len(moving) + step if event.to_front else last + 1 + step
            self._table.ready.add(job)
            yield saved(job)
            yield from self._unask_followers(job)
        yield from self._window.more()

    def _edited(self, event: Edited) -> Iterator[Action]:
        job = self._table.jobs.get(event.spec.id)
        if job is None or job.state is not JobState.QUEUED:
            return  # it began or ended first
        yield from self._table.unask(job)
        job.tries_left = max(0, job.tries_left + event.spec.retries - job.spec.retries)
        job.spec, job.priority, job.said = event.spec, event.spec.priority, ""
        yield from self._start_windows.enter(job)
        self._table.ready.add(job)
        yield saved(job)
        yield from self._unask_followers(job)
        yield from self._window.more()

    def _unask_followers(self, moved_job: QueuedJob) -> Iterator[Action]:
        """Request again for jobs behind a moved one: the negotiator goes by order of requests."""
        for job in self._table.ready.all_asked():
            if job.rank[:2] == moved_job.rank[:2] and job.rank > moved_job.rank:
                yield from self._table.reorder(job)

    def _drain_asked(self, event: DrainAsked) -> Iterator[Action]:
        self._window.is_drained = event.is_drained
        yield SaveDrain(event.is_drained)
        if event.is_drained:
            for job in self._table.ready.all_asked():
                yield from self._table.reorder(job)
        yield from self._window.more()

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
                job.place = self._table.first_place()
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


class JobViews(Mapping[int, JobView]):
    """Read-only views of the jobs that have not ended, each made on access."""

    def __init__(self, table: JobTable, window: LeaseWindow, starts: StartWindows) -> None:
        self._table = table
        self._window = window
        self._start_windows = starts

    def __getitem__(self, job_id: int) -> JobView:
        job = self._table.jobs[job_id]
        return JobView(
            job_id, job.state, job.is_held, job.attempt, job.priority, job.place, job.is_asked,
            job.tries_left, job.memory_attempt, job.spared, frozenset(job.waits_for),
            self._why(job),
        )  # fmt: skip

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._table.jobs

    def __iter__(self) -> Iterator[int]:
        return iter(self._table.jobs)

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._table.jobs)

    def __len__(self) -> int:
        return len(self._table.jobs)

    def _why(self, job: QueuedJob) -> str:
        """Return why a job does not run yet, or its state."""
        window = self._window
        if job.state is not JobState.QUEUED:
            return str(job.state.value)
        if job.is_held:
            return "held: run `grn release` to let it start"
        if job.waits_for:
            waits_for = sorted(job.waits_for)
            plural = "s" * (len(waits_for) > 1)
            return f"waiting for job{plural} {', '.join(map(str, waits_for))} to finish"
        if job.opens_at is not None:
            return self._start_windows.why(job.opens_at)
        if window.is_drained:
            return "the queue is paused: run `grn drain --off` to resume"
        if not window.has_negotiator:
            return "no negotiator answers"
        if job.is_asked:
            return "; ".join(filter(None, (job.past, job.said or "the negotiator was asked")))
        if self._table.ready.is_full(job):
            return f"its array runs at most {counted(job.spec.array_limit, 'job')} at a time"
        if window.is_full:
            return f"this queue runs at most {counted(window.limits.running, 'job')} at a time"
        return f"behind {counted(window.open, 'other job')} of yours"


_ENDABLE = (JobState.STARTING, JobState.RUNNING)
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
    AttemptFound: QueueEngine._attempt_found,
    ActionFailed: QueueEngine._action_failed,
    CancelAsked: QueueEngine._cancel_asked,
    YieldAsked: QueueEngine._yield_asked,
    IdleReported: QueueEngine._idle_reported,
    SubmitterGone: QueueEngine._submitter_gone,
    HoldAsked: QueueEngine._hold_asked,
    MoveAsked: QueueEngine._move_asked,
    Edited: QueueEngine._edited,
    DrainAsked: QueueEngine._drain_asked,
    ClockRead: QueueEngine._clock_read,
}
