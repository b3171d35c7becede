"""All state of the queue; `handle(event) -> actions` is the only door.

Decides which job is next and what its end means. GPUs are the negotiator's to give; processes,
files and clocks are the loop's to touch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from grn.queue import finish
from grn.queue.events import (
    Action,
    AskLease,
    CancelAsked,
    DrainAsked,
    DropAsk,
    EndReason,
    Event,
    Exit,
    Exited,
    Found,
    HoldAsked,
    JobSpec,
    JobState,
    Kept,
    Launch,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    PassAsk,
    Recovered,
    ReturnLease,
    SaveAttemptEnd,
    SaveBegin,
    SaveDrain,
    SaveEnd,
    SaveState,
    Settled,
    ShimLost,
    Started,
    Stop,
    Submitted,
    TellEmpty,
    TellEnded,
)
from grn.queue.lifecycle import moved
from grn.queue.line import Job, Line

PASS_ON_S = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """How many jobs are asked for at once, and how many may run at once (0: as GPUs allow)."""

    window: int = 64
    running: int = 0


class Engine:
    """The queue's mind."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.jobs: dict[int, Job] = {}
        self.is_drained = False
        self.has_negotiator = False
        self._line = Line(self.jobs)
        self._busy = 0  # starting, running or stopping
        self._followers: dict[int, list[int]] = {}

    def handle(self, event: Event) -> list[Action]:
        """Take in one fact and return what is to be done."""
        actions = list(_HANDLERS[type(event)](self, event))
        if not self.jobs and any(isinstance(action, TellEnded) for action in actions):
            actions.append(TellEmpty())
        return actions

    # --- questions -----------------------------------------------------------------------

    def why(self, job: Job) -> str:
        """Say why a job does not run yet, or what it does."""
        if job.state is not JobState.QUEUED:
            return str(job.state.value)
        if job.is_held:
            return "kept back until `grn release`"
        if job.waits_for:
            return f"comes after {', '.join(map(str, sorted(job.waits_for)))}"
        if self.is_drained:
            return "the queue is drained: `grn drain --off` goes on"
        if not self.has_negotiator:
            return "no negotiator answers"
        if job.is_asked:
            return job.why or "the negotiator was asked"
        if self.limits.running and self._busy >= self.limits.running:
            return f"{self.limits.running} jobs of this queue run already"
        return "others are before it"

    def counts(self) -> dict[str, int]:
        """Return how many jobs run and how many are queued."""
        return {"running": self._busy, "queued": len(self.jobs) - self._busy}

    def check(self) -> None:
        """Raise AssertionError when the state contradicts itself."""
        self._line.check()
        busy = 0
        for job_id, job in self.jobs.items():
            assert job.spec.id == job_id
            assert job.state is not JobState.ENDED, "an ended job is kept"
            assert not (job.lease and job.state is JobState.QUEUED), "queued with a lease"
            busy += job.state is not JobState.QUEUED
        assert busy == self._busy

    # --- submitting and steering ---------------------------------------------------------

    def _recovered(self, event: Recovered) -> Iterator[Action]:
        self.is_drained = event.is_drained
        for kept in event.jobs:
            self._add(kept)
        ends = dict(event.ends)
        for job in list(self.jobs.values()):
            yield from self._wire(job, ends)
        for kept in event.jobs:
            if kept.found is not None and kept.spec.id in self.jobs:
                yield from self._settle_found(kept)
        yield from self._ask()

    def _submitted(self, event: Submitted) -> Iterator[Action]:
        ends = dict(event.ends)
        for spec in event.jobs:
            kept = Kept(spec, JobState.QUEUED, tries_left=spec.retries, place=spec.id)
            job = self._add(kept)
            job.is_held = event.is_held
            yield from self._wire(job, ends)
            if event.is_held and spec.id in self.jobs:
                yield self._saved(job)
        yield from self._ask()

    def _cancel_asked(self, event: CancelAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self.jobs.get(job_id)
            if job is None:
                continue
            if job.state is JobState.QUEUED:
                yield from self._end(job, EndReason.CANCELLED, "", None)
                continue
            is_second = job.state is JobState.STOPPING
            job.state = moved(job.state, event) or job.state
            yield self._saved(job)
            yield Stop(job_id, job.attempt, event.is_now or is_second)
        yield from self._ask()

    def _hold_asked(self, event: HoldAsked) -> Iterator[Action]:
        for job_id in event.jobs:
            job = self.jobs.get(job_id)
            if job is None or job.state is not JobState.QUEUED or job.is_held == event.is_held:
                continue
            job.is_held = event.is_held
            yield from self._unask(job)
            self._line.add(job)
            yield self._saved(job)
        yield from self._ask()

    def _move_asked(self, event: MoveAsked) -> Iterator[Action]:
        places = [job.place for job in self.jobs.values()]
        first, last = min(places, default=0), max(places, default=0)
        moving = [self.jobs[job_id] for job_id in event.jobs if job_id in self.jobs]
        for step, job in enumerate(moving):
            if job.state is not JobState.QUEUED:
                continue
            yield from self._unask(job)
            if event.priority is not None:
                job.priority = event.priority
                job.spec = replace(job.spec, priority=event.priority)
            if event.to_front is not None:
                job.place = first - len(moving) + step if event.to_front else last + 1 + step
            self._line.add(job)
            yield self._saved(job)
            yield from self._unask_followers(job)
        yield from self._ask()

    def _unask_followers(self, moved_job: Job) -> Iterator[Action]:
        """Let those behind a moved job ask once more: the negotiator goes by who asked first."""
        for job in self._line.all_asked():
            if job.rank[:2] == moved_job.rank[:2] and job.rank > moved_job.rank:
                yield from self._unask(job)
                self._line.add(job)

    def _drain_asked(self, event: DrainAsked) -> Iterator[Action]:
        self.is_drained = event.is_drained
        yield SaveDrain(event.is_drained)
        if event.is_drained:
            for job in self._line.all_asked():
                yield from self._unask(job)
                self._line.add(job)
        yield from self._ask()

    # --- leases --------------------------------------------------------------------------

    def _lease_granted(self, event: LeaseGranted) -> Iterator[Action]:
        job = self.jobs.get(event.job)
        if job is None or not job.is_asked:
            yield ReturnLease(event.lease)  # it was taken back while the grant was on its way
            return
        self._line.unask(job)
        yield from self._begin(job, event)
        yield from self._ask()

    def _begin(self, job: Job, grant: LeaseGranted) -> Iterator[Action]:
        job.attempt += 1
        job.lease, job.grant = grant.lease, grant
        job.why = ""
        self._busy += 1
        job.state = JobState.STARTING
        job_id = job.spec.id
        yield self._saved(job)
        yield SaveBegin(job_id, job.attempt, grant.lease, grant.gpus, grant.reserved_bytes)
        yield Launch(job_id, job.attempt, grant.lease, grant.visible)

    def _lease_awaited(self, event: LeaseAwaited) -> Iterator[Action]:
        job = self.jobs.get(event.job)
        if job is not None:
            job.why = event.text
        yield from ()

    def _lease_refused(self, event: LeaseRefused) -> Iterator[Action]:
        job = self.jobs.get(event.job)
        if job is not None and job.is_asked:
            self._line.unask(job)
            yield from self._end(job, EndReason.REFUSED, event.text, None)
            yield from self._ask()

    def _negotiator_lost(self, event: NegotiatorLost) -> Iterator[Action]:
        self.has_negotiator = False
        yield from ()

    def _negotiator_found(self, event: NegotiatorFound) -> Iterator[Action]:
        """Ask again for all that was asked: the same keys keep their places."""
        self.has_negotiator = True
        for job in self._line.all_asked():
            yield AskLease(job.spec, job.attempt + 1, job.memory_attempt)
        yield from self._ask()

    # --- attempts ------------------------------------------------------------------------

    def _started(self, event: Started) -> Iterator[Action]:
        """Note that it runs; not written down, for recovery treats starting and running alike."""
        job = self._at(event.job, event.attempt)
        if job is not None:
            job.state = moved(job.state, event) or job.state
        yield from ()

    def _exited(self, event: Exited) -> Iterator[Action]:
        job = self._at(event.job, event.attempt)
        if job is None or moved(job.state, event) is None:
            return
        is_stopping = job.state is JobState.STOPPING
        settled = event.settled or Settled()
        reason = finish.reason_of(event.exit, settled)
        yield SaveAttemptEnd(event.job, event.attempt, reason, event.exit, settled.peak_bytes)
        verdict = finish.after_exit(
            event.exit, settled, job.tries_left, job.memory_attempt, is_stopping
        )
        if event.settled is None:
            yield from self._pass_on(job, event)
        yield from self._conclude(job, verdict, event.exit)

    def _pass_on(self, job: Job, event: Exited) -> Iterator[Action]:
        """Start the next job under the lease of a short one, if it is of the same kind.

        Saves the way to the negotiator and back between short jobs. For fairness a lease is passed
        on only for a moment, and only to the job whose turn it is.
        """
        heir = self._heir(job, event.at)
        if heir is None or job.grant is None:
            yield ReturnLease(job.lease, event.exit)
            return
        self._line.unask(heir)
        following = self._line.first()
        if following is not None and following.kind == heir.kind:
            self._line.ask(following)
            ask = AskLease(following.spec, following.attempt + 1, following.memory_attempt)
            yield PassAsk(heir.spec.id, ask)
        else:
            yield DropAsk(heir.spec.id)
        yield from self._begin(heir, job.grant)

    def _heir(self, job: Job, at: float) -> Job | None:
        grant = job.grant
        if grant is None or not grant.may_pass_on or at - grant.at > PASS_ON_S:
            return None
        best = self._line.first_asked()
        if self.is_drained or best is None or best.kind != job.kind:
            return None
        following = self._line.first()
        return None if following is not None and following.rank < best.rank else best

    def _shim_lost(self, event: ShimLost) -> Iterator[Action]:
        job = self._at(event.job, event.attempt)
        if job is None or moved(job.state, event) is None:
            return
        is_stopping = job.state is JobState.STOPPING
        exit = Exit(None, text="the shim was killed")
        yield SaveAttemptEnd(event.job, event.attempt, EndReason.LOST, exit, None)
        yield from self._conclude(job, finish.after_loss(job.tries_left, is_stopping), exit)

    def _conclude(
        self, job: Job, verdict: finish.End | finish.Again, exit: Exit | None
    ) -> Iterator[Action]:
        self._busy -= 1
        job.lease, job.grant = "", None
        if isinstance(verdict, finish.End):
            yield from self._end(job, verdict.reason, verdict.text, exit)
        else:
            job.state = JobState.QUEUED
            job.tries_left -= verdict.is_counted
            job.memory_attempt += verdict.needs_more_memory
            self._line.add(job)
            yield self._saved(job)
        yield from self._ask()

    def _settle_found(self, kept: Kept) -> Iterator[Action]:
        """Go on from what recovery found of an attempt; exits come as events of their own."""
        job = self.jobs[kept.spec.id]
        if kept.found is Found.NOT_BEGUN:
            is_stopping = job.state is JobState.STOPPING
            exit = Exit(None, text="the queue ended before it began")
            yield SaveAttemptEnd(job.spec.id, job.attempt, EndReason.INTERRUPTED, exit, None)
            self._busy -= 1
            job.state, job.lease = JobState.QUEUED, ""
            if is_stopping:
                yield from self._end(job, EndReason.CANCELLED, "", None)
            else:
                self._line.add(job)
                yield self._saved(job)
        elif kept.found is Found.INTERRUPTED:
            exit = Exit(None, text="the machine went down")
            yield SaveAttemptEnd(job.spec.id, job.attempt, EndReason.INTERRUPTED, exit, None)
            again = finish.Again(EndReason.INTERRUPTED, is_counted=False)
            end = finish.End(EndReason.INTERRUPTED, "the machine went down while it ran")
            may_requeue = job.spec.may_requeue and job.state is not JobState.STOPPING
            yield from self._conclude(job, again if may_requeue else end, None)
        elif kept.found is Found.ALIVE:
            if job.state is JobState.STOPPING:
                yield Stop(job.spec.id, job.attempt, is_now=False)
            else:
                job.state = JobState.RUNNING

    # --- the line ------------------------------------------------------------------------

    def _ask(self) -> Iterator[Action]:
        """Ask the negotiator for leases for those at the head of the line.

        When no more may be asked for, a better ranked job takes the place of the last asked.
        """
        while not self.is_drained and self.has_negotiator:
            if not self._may_ask_more():
                last = self._line.outranked()
                if last is None:
                    return
                yield from self._unask(last)
                self._line.add(last)
            job = self._line.first()
            if job is None:
                return
            self._line.ask(job)
            yield AskLease(job.spec, job.attempt + 1, job.memory_attempt)

    def _may_ask_more(self) -> bool:
        asked = self._line.asked
        if asked >= self.limits.window:
            return False
        return not self.limits.running or self._busy + asked < self.limits.running

    def _unask(self, job: Job) -> Iterator[Action]:
        if job.is_asked:
            self._line.unask(job)
            yield DropAsk(job.spec.id)

    # --- jobs ----------------------------------------------------------------------------

    def _add(self, kept: Kept) -> Job:
        job = Job(
            kept.spec,
            kept.spec.priority,
            kept.place,
            kept.tries_left,
            kept.state,
            kept.attempt,
            kept.memory_attempt,
            kept.is_held,
            lease=kept.lease,
        )
        self.jobs[kept.spec.id] = job
        self._busy += kept.state is not JobState.QUEUED
        return job

    def _wire(self, job: Job, ends: dict[int, bool]) -> Iterator[Action]:
        """Note which jobs a queued one comes after; those that ended badly end it as well."""
        if job.state is not JobState.QUEUED:
            return
        for after in job.spec.after:
            if after.job in self.jobs:
                job.waits_for.add(after.job)
                self._followers.setdefault(after.job, []).append(job.spec.id)
            elif after.must_be_ok and not ends.get(after.job, True):
                # One that is not known any more ended well: else this job had ended with it.
                yield from self._end(job, EndReason.SKIPPED, _skipped(after.job), None)
                ends[job.spec.id] = False
                return
        self._line.add(job)

    def _end(self, job: Job, reason: EndReason, text: str, exit: Exit | None) -> Iterator[Action]:
        """End a job, and all that must not run without it; chains of them may be long."""
        todo = deque([(job, reason, text, exit)])
        while todo:
            job, reason, text, exit = todo.popleft()
            job_id = job.spec.id
            if self.jobs.pop(job_id, None) is None:
                continue  # it came after two of them
            yield from self._unask(job)
            yield SaveEnd(job_id, reason, text, exit)
            yield TellEnded(job_id, reason)
            for follower_id in self._followers.pop(job_id, []):
                follower = self.jobs.get(follower_id)
                if follower is None:
                    continue
                follower.waits_for.discard(job_id)
                if reason is not EndReason.OK and _needs(follower.spec, job_id):
                    todo.append((follower, EndReason.SKIPPED, _skipped(job_id), None))
                else:
                    self._line.add(follower)

    def _at(self, job_id: int, attempt: int) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job is not None and job.attempt == attempt else None

    @staticmethod
    def _saved(job: Job) -> SaveState:
        return SaveState(
            job.spec.id, job.state, job.attempt, job.tries_left, job.memory_attempt, job.is_held,
            job.priority, job.place,
        )  # fmt: skip


def _needs(spec: JobSpec, before: int) -> bool:
    """True when a job must not run unless the one before has ended well."""
    return any(one.job == before and one.must_be_ok for one in spec.after)


def _skipped(before: int) -> str:
    return f"job {before}, which it comes after, did not end well"


_HANDLERS: dict[type, Callable[[Engine, Any], Iterator[Action]]] = {
    Recovered: Engine._recovered,
    Submitted: Engine._submitted,
    LeaseGranted: Engine._lease_granted,
    LeaseAwaited: Engine._lease_awaited,
    LeaseRefused: Engine._lease_refused,
    NegotiatorLost: Engine._negotiator_lost,
    NegotiatorFound: Engine._negotiator_found,
    Started: Engine._started,
    Exited: Engine._exited,
    ShimLost: Engine._shim_lost,
    CancelAsked: Engine._cancel_asked,
    HoldAsked: Engine._hold_asked,
    MoveAsked: Engine._move_asked,
    DrainAsked: Engine._drain_asked,
}
