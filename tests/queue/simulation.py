"""A seeded history of the queue's engine: users, a negotiator, shims, and every way to fail.

Drives the engine the daemon runs; the loop around it is the daemon's in miniature, and what is
true is kept apart from what the engine believes. Lean: a million facts are told within a test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from grn.queue.engine import QueueEngine
from grn.queue.events import (
    Action,
    ArraySubmitted,
    AskLease,
    AttemptStarted,
    CancelAsked,
    CancelContinued,
    ContinueCancel,
    DrainAsked,
    DropAsk,
    Event,
    Exited,
    HoldAsked,
    Launch,
    LeaseAwaited,
    LeaseGranted,
    LeaseRefused,
    MembersNamed,
    MoveAsked,
    NegotiatorFound,
    NegotiatorLost,
    PassAsk,
    Recovered,
    ReturnLease,
    SettleLease,
    ShimLost,
    Stop,
    Submitted,
    TellEnded,
)
from grn.queue.jobs import finish
from grn.queue.jobs.job import (
    After,
    AttemptFate,
    EndReason,
    Exit,
    JobSpec,
    JobState,
    Kept,
    KeptArray,
    Settlement,
)
from grn.queue.jobs.lease_window import WindowLimits
from tests.queue.world import (
    QUEUED,
    RUNNING,
    STARTING,
    STOPPING,
    WRITERS,
    Attempt,
    Disk,
    Leases,
    Negotiator,
    Row,
    Shim,
)

MAX_ALIVE = 14
LONG = Exit(0, ran_s=9.0)
CANCELLED = Exit(None, 15, EndReason.CANCELLED)
EXITS = (
    *[Exit(0)] * 6,
    LONG,
    Exit(1),
    Exit(None, 9),
    Exit(1, because=EndReason.OUT_OF_MEMORY),
    Exit(127, because=EndReason.NOT_RUNNABLE),
    Exit(None, 15, EndReason.TIMED_OUT),
)


LEGAL = {
    QUEUED: {STARTING, JobState.ENDED},
    STARTING: {RUNNING, STOPPING, QUEUED, JobState.ENDED},
    RUNNING: {STOPPING, QUEUED, JobState.ENDED},
    STOPPING: {JobState.ENDED},
}


class Crash(Exception):
    """The queue's process ends here."""


class Wish:
    """What a user wants: the same when it is sent again."""

    def __init__(self, chance: random.Random) -> None:
        self.key = f"{chance.getrandbits(48):012x}"
        self.count = chance.choice((1, 1, 2, 3))
        self.priority = chance.choice((0, 0, 0, 1, 5))
        self.retries = chance.choice((0, 0, 1, 2))
        self.may_requeue = chance.random() < 0.3
        self.is_held = chance.random() < 0.1
        self.gpus = 9 if chance.random() < 0.02 else 1  # nobody has nine
        self.has_after = chance.random() < 0.3
        self.kind = chance.choice("ab")
        self.is_array = chance.random() < 0.3
        self.limit = chance.choice((0, 0, 1)) if self.is_array else 0

    def specs(self, first: int, after: tuple[After, ...]) -> tuple[JobSpec, ...]:
        return tuple(
            JobSpec(job, self.kind, self.kind, self.gpus, None, False, self.priority, after,
                    self.retries, self.may_requeue, array=first if self.limit else 0,
                    array_limit=self.limit)
            for job in range(first, first + self.count)
        )  # fmt: skip


class Simulation:
    """One world with one queue in it; whatever must not be raises AssertionError.

    The last four parameters are for mutants: another engine, another reading of what is on the
    disk, a loop that acts before it writes, and one that passes on a request that is granted.
    """

    def __init__(
        self,
        seed: int,
        engine_type: Callable[[WindowLimits], QueueEngine] = QueueEngine,
        found: Callable[..., AttemptFate] = finish.found,
        *,
        acts_first: bool = False,
        passes_blindly: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.engine_type, self.found = engine_type, found
        self.acts_first, self.passes_blindly = acts_first, passes_blindly
        self.limits = self.chance.choice(
            [WindowLimits(window=4), WindowLimits(window=64), WindowLimits(3, 2)]
        )
        self.has_faults = True
        self.now = 0.0
        self.events = self.crashes = self.power_cuts = 0
        self.disk = Disk()
        self.negotiator = Negotiator()
        self.shims: list[Shim] = []
        self.commands: dict[int, Attempt] = {}  # job -> the attempt whose command is alive
        self.wishes: list[Wish] = []  # sent, and not answered
        # The queue's process.
        self.life = 0
        self.engine: QueueEngine | None = None
        self.inbox: list[Event] = []
        self.unwritten: list[Action] = []
        self.leases = Leases(self.negotiator)

    # --- the loop in miniature -----------------------------------------------------------

    def tell(self, event: Event) -> None:
        self.inbox.append(event)

    def turn(self) -> None:
        """Handle all that was told, write it down, act: the queue may die between any two."""
        engine, inbox, actions = self.engine, self.inbox, self.unwritten
        assert engine is not None
        self.inbox = []
        for event in inbox:
            self.events += 1
            before = states(engine)
            actions += engine.handle(event)
            check_moves(before, states(engine), event)
            if self.events % 8 == 0:
                engine.check()
        self.may_crash(0.002)
        if self.acts_first:
            self.act(actions)
        if self.has_faults and self.chance.random() < 0.004:
            self.unwritten = actions  # the disk is full: nothing is acted on
            return
        self.unwritten = []
        for action in actions:
            write = WRITERS.get(type(action))
            if write is not None:
                write(self.disk, action)
        self.may_crash(0.002)
        if not self.acts_first:
            self.act(actions)

    def act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            act = ACTS.get(type(action))
            if act is not None:
                act(self, action)
                self.may_crash(0.001)

    def may_crash(self, chance: float) -> None:
        if self.has_faults and self.chance.random() < chance:
            raise Crash

    # --- acting: only on what is on the disk ---------------------------------------------

    def launch(self, action: Launch) -> None:
        attempt, row = (action.job, action.attempt), self.disk.rows[action.job]
        assert attempt in self.disk.begun, "I10: launched before it was written"
        assert row.state in (STARTING, STOPPING), "I10: launched before it was written"
        assert not row.held, "a held job is launched"
        for after in row.spec.after:
            fate = self.disk.fates.get(after.job)
            assert fate is EndReason.OK or (fate and not after.must_be_ok), "launched too early"
        self.order(Shim(attempt, action.lease, self.life))

    def order(self, shim: Shim) -> None:
        assert self.engine is not None
        self.shims.append(shim)
        self.tell(AttemptStarted(self.now, *shim.attempt))

    def stop(self, action: Stop) -> None:
        for shim in self.shims:
            if shim.attempt == (action.job, action.attempt):
                shim.is_stopped = True

    def pass_ask(self, action: PassAsk) -> None:
        is_passed = self.leases.pass_on(action.job, action.heir.spec.id)
        if not is_passed and not self.passes_blindly:
            self.leases.ask(action.heir)

    def continue_cancel(self, _action: ContinueCancel) -> None:
        self.tell(CancelContinued(self.now))

    def tell_ended(self, action: TellEnded) -> None:
        assert self.disk.fates.get(action.job) is action.reason, "I10: told before it was written"

    # --- shims ---------------------------------------------------------------------------

    def advance(self, shim: Shim) -> None:
        """Let a shim do one step, and often the next ones."""
        folder = self.disk.folders[shim.attempt]
        while True:
            if shim.step == "ordered":
                if folder.is_locked:
                    return self.leave(shim)
                folder.is_locked, shim.step = True, "locked"
            elif shim.step == "locked":
                if folder.claim:
                    folder.is_locked = False
                    return self.leave(shim)
                folder.claim, shim.step = "shim", "claimed"
            elif shim.step == "claimed":
                assert shim.attempt[0] not in self.commands, "I2: two attempts of a job run at once"
                users = [one for one in self.shims if one.lease == shim.lease]
                assert all(one.step != "running" for one in users), "I5: two run under one lease"
                self.commands[shim.attempt[0]], shim.step = shim.attempt, "running"
            elif shim.step == "running":
                shim.exit, shim.step = self.end_of(shim), "ended"
                self.commands.pop(shim.attempt[0], None)
            elif shim.step == "ended":
                folder.exit, shim.step = shim.exit, "written"
            else:
                folder.is_locked = False
                return self.leave(shim)
            if self.chance.random() < 0.2:
                return None

    def end_of(self, shim: Shim) -> Exit:
        """Let a command run to its end; of those that run for a while the negotiator knows."""
        if shim.is_stopped and self.chance.random() < 0.8:
            return CANCELLED
        if self.negotiator.is_up and shim.lease in self.negotiator.leases:
            shim.is_bound = self.chance.random() < 0.5
        exit = EXITS[int(self.chance.random() * len(EXITS))]
        return LONG if shim.is_bound and exit.status == 0 else exit

    def leave(self, shim: Shim) -> None:
        """A shim is done or dead: the queue that watches it is told."""
        self.shims.remove(shim)
        if shim.is_bound and not self.leases.is_connected:
            self.negotiator.end(shim.lease)  # it saw the process go
        claim = self.disk.folders[shim.attempt].claim
        if self.engine is None or claim == "queue":
            return
        if claim == "shim":
            self.shim_gone(shim.attempt)
        elif shim.life == self.life:  # it had not begun: another may
            self.order(Shim(shim.attempt, shim.lease, self.life))

    def kill(self, shim: Shim) -> None:
        """A shim is killed; its command lives on."""
        if shim.step != "ordered":
            self.disk.folders[shim.attempt].is_locked = False
        self.leave(shim)

    def shim_gone(self, attempt: Attempt) -> None:
        exit = self.disk.folders[attempt].exit
        if exit is None:
            if self.commands.get(attempt[0]) == attempt:
                del self.commands[attempt[0]]  # the queue ends what is left behind
            self.tell(ShimLost(self.now, *attempt))
        else:
            self.tell(Exited(self.now, *attempt, exit))

    def settle_lease(self, action: SettleLease) -> None:
        exited = Exited(self.now, action.job, action.attempt, action.exit)
        self.leases.done(action.lease, lambda how: self.tell(replace(exited, settled=how)))

    # --- the negotiator ------------------------------------------------------------------

    def negotiate(self) -> None:
        """Both sides hear what was said, and grants are made."""
        negotiator, chance = self.negotiator, self.chance
        if not negotiator.is_up:
            return
        if self.engine is not None and not self.leases.is_connected:
            self.leases.connected()
            self.tell(NegotiatorFound(self.now))
        heard, negotiator.heard = negotiator.heard, []
        for message in heard:
            negotiator.hear(message, chance.random() < 0.5, chance.random() < 0.5)
        negotiator.grant()
        if self.engine is not None:
            said, negotiator.says = negotiator.says, []
            for message in said:
                self.hear(*message)

    def hear(self, verb: str, number: int, *rest: Any) -> None:
        leases, now = self.leases, self.now
        leases.unheard.pop(number, None)
        job = leases.jobs.get(number)
        if verb == "settled":
            then = leases.settling.pop(number, None)
            if then is not None:
                because = "b.py took its room" if rest[1] else ""
                then(Settlement(None, rest[0], is_victim=rest[1], because=because))
        elif job is None:
            if verb == "granted":
                leases.done(rest[0], None)
        elif verb == "waiting":
            self.tell(LeaseAwaited(now, job, "no room"))
        else:
            del leases.jobs[number]
            leases.keys.pop(job, None)
            if verb == "refused":
                self.tell(LeaseRefused(now, job, "it never fits"))
            else:
                may_pass_on = self.chance.random() < 0.8
                self.tell(LeaseGranted(now, job, rest[0], "0", (0,), 1, may_pass_on))

    def lose_negotiator(self) -> None:
        self.negotiator.is_up = False
        self.negotiator.hang_up()
        if self.leases.is_connected:
            self.leases.lost()
            self.tell(NegotiatorLost(self.now))

    # --- the queue's life ----------------------------------------------------------------

    def recover(self) -> None:
        """Bring a queue up from what is on the disk."""
        self.life += 1
        self.engine = self.engine_type(self.limits)
        self.leases = Leases(self.negotiator)
        rows = self.disk.rows
        kept = [self.look_at(row) for row in self.disk.alive().values()]
        arrays = tuple(self.disk.arrays.values())
        needed = {after.job for one in (*kept, *arrays) for after in one.spec.after}
        ends = tuple(
            (job, rows[job].reason is EndReason.OK)
            for job in needed
            if job in rows and rows[job].reason is not None
        )
        self.tell(Recovered(self.now, tuple(kept), ends, self.disk.is_drained, arrays))
        self.turn()
        for one in kept:
            if one.found in (AttemptFate.ENDED, AttemptFate.LOST):
                self.shim_gone((one.spec.id, one.attempt))

    def look_at(self, row: Row) -> Kept:
        """Find what became of an open attempt, as the launcher does."""
        if row.state is QUEUED:
            return row.kept(None, "")
        attempt = (row.spec.id, row.attempt)
        folder, (lease, boot) = self.disk.folders[attempt], self.disk.begun[attempt]
        is_same_boot = boot == self.disk.boot
        if not folder.claim and is_same_boot:
            folder.claim, found = "queue", AttemptFate.NOT_BEGUN
        else:
            found = self.found(
                has_claim=folder.claim == "shim",
                is_locked=folder.is_locked and folder.claim != "queue",
                has_exit=folder.exit is not None,
                is_same_boot=is_same_boot,
            )
        return row.kept(found, lease if is_same_boot else "")

    def die(self) -> None:
        """The queue's process ends; what it has said may be heard or not."""
        self.crashes += 1
        self.engine = None
        self.inbox, self.unwritten = [], []
        self.leases = Leases(self.negotiator)
        heard = self.negotiator.heard
        for message in heard[: int(self.chance.random() * (len(heard) + 1))]:
            self.negotiator.hear(message, was_alone=True)
        self.negotiator.hang_up()
        self.negotiator.keep_only({shim.lease for shim in self.shims if shim.is_bound})
        for shim in [one for one in self.shims if one.step == "ordered"]:
            if self.chance.random() < 0.5:
                self.shims.remove(shim)  # its order never left the queue

    def cut_power(self) -> None:
        """The machine goes down: all processes end, and what was not synced may be lost."""
        self.power_cuts += 1
        if self.engine is not None:
            self.die()
        for shim in self.shims:
            folder = self.disk.folders[shim.attempt]
            folder.is_locked = False
            if self.chance.random() < 0.5:
                folder.claim, folder.exit = "", None
        self.shims.clear()
        self.commands.clear()
        self.negotiator.keep_only(set())
        self.disk.boot += 1

    # --- users ---------------------------------------------------------------------------

    def submit(self) -> None:
        """A user submits, or sends again what was not answered."""
        if not self.wishes or self.chance.random() < 0.5:
            self.wishes.append(Wish(self.chance))
        wish = self.wishes[-1]
        if self.engine is None or self.unwritten:
            return
        while self.inbox and not self.unwritten:
            self.turn()
        if self.unwritten:
            return  # not accepted: the disk is full
        if wish.key not in self.disk.keys:
            self.accept(wish)
        assert wish.key in self.disk.keys, "I10: answered before it was written"
        first = self.disk.keys[wish.key]
        for job in range(first, first + wish.count):
            is_there = job in self.disk.rows or job in self.disk.folded()
            assert is_there or job in self.disk.fates, "I1: an accepted job is lost"
        self.wishes.pop()

    def accept(self, wish: Wish) -> None:
        assert self.engine is not None
        rows, after = self.disk.rows, ()
        if wish.has_after and rows:
            chosen = self.chance.sample(list(rows), min(2, len(rows)))
            after = tuple(After(job, self.chance.random() < 0.7) for job in sorted(chosen))
        ends = tuple(
            (one.job, rows[one.job].reason is EndReason.OK)
            for one in after
            if one.job not in self.engine.jobs
        )
        specs = wish.specs(self.disk.last_id + 1, after)
        if wish.is_array:
            array = KeptArray(specs[0], ((specs[0].id, specs[-1].id),), wish.is_held)
            self.disk.submit_array(wish.key, array)
            self.may_crash(0.01)
            self.tell(ArraySubmitted(self.now, array, ends))
        else:
            self.disk.submit(wish.key, specs, wish.is_held)
            self.may_crash(0.01)
            self.tell(Submitted(self.now, specs, ends, wish.is_held))
        self.turn()

    def steer(self) -> None:
        """A user changes her mind."""
        assert self.engine is not None
        chance, now, jobs = self.chance, self.now, tuple(self.engine.jobs)
        some = tuple(job for job in jobs if chance.random() < 0.2) or (1,)
        what = int(chance.random() * 7)
        if what or chance.random() < 0.5:  # a cancel ends members that are no jobs yet, too
            self.tell(MembersNamed(now, some))
        if what == 0:
            self.tell(CancelAsked(now, some[:3], chance.random() < 0.2))
        elif what == 1:
            self.tell(HoldAsked(now, some))
        elif what in (2, 3):
            self.tell(HoldAsked(now, jobs, is_held=False))
        elif what == 4:
            where = chance.choice((None, True, False))
            priority = int(chance.random() * 4) if where is None or chance.random() < 0.5 else None
            self.tell(MoveAsked(now, some, priority, where))
        else:
            self.tell(DrainAsked(now, what == 5 and chance.random() < 0.5))
        self.turn()

    def clean(self) -> None:
        """A user forgets what has ended; the queue does that, when the disk is well."""
        if self.engine is None or self.unwritten:
            return
        busy = {shim.attempt[0] for shim in self.shims}
        ended = [job for job, row in self.disk.rows.items() if row.reason is not None]
        for job in [job for job in ended if job not in busy]:
            self.disk.forget(job)

    # --- a history -----------------------------------------------------------------------

    def run(self, events: int) -> None:
        """Let things happen until the engine was told so much; then heal, and see it through."""
        until = self.events + events
        while self.events < until:
            self.step()
        self.heal()

    def step(self) -> None:
        self.now += self.chance.random() * 0.2
        try:
            if self.engine is None and self.chance.random() < 0.5:
                self.recover()
            else:
                self.happen(self.chance.random())
            if self.engine is not None and self.inbox and self.chance.random() < 0.7:
                self.turn()
        except Crash:
            self.die()

    def happen(self, what: float) -> None:
        if what < 0.40 and self.shims:
            self.advance(self.shims[int(self.chance.random() * len(self.shims))])
        elif what < 0.75:
            self.negotiate()
        elif what < 0.90:
            if self.engine is None or len(self.engine.jobs) < MAX_ALIVE:
                self.submit()
        elif what < 0.95:
            if self.engine is not None:
                self.steer()
        elif what < 0.97:
            self.clean()
            self.look_around()
        elif what < 0.978:
            if self.shims:
                self.kill(self.chance.choice(self.shims))
        elif what < 0.985:
            self.negotiator.is_up = True
        elif what < 0.991:
            self.lose_negotiator()
        elif what < 0.994:
            self.may_crash(1.0 if self.engine else 0.0)
        elif what > 0.9995:
            self.cut_power()

    def heal(self) -> None:
        """Faults stop and users let go: then every job ends, or says why it waits."""
        self.has_faults = False
        self.negotiator.is_up = True
        if self.engine is None:
            self.recover()
        assert self.engine is not None
        jobs = tuple(self.engine.jobs)
        kept_back = jobs[: self.chance.choice((0, 1))]
        self.tell(DrainAsked(self.now, is_drained=False))
        self.tell(MembersNamed(self.now, jobs))
        self.tell(HoldAsked(self.now, jobs, is_held=False))
        self.tell(HoldAsked(self.now, kept_back))
        for _ in range(60 + 60 * len(jobs)):
            self.now += 0.05
            self.turn()
            self.negotiate()
            for shim in list(self.shims):
                self.advance(shim)
        self.turn()
        self.look_around()
        left = [job for job in self.engine.jobs.values() if not job.is_held and not job.waits_for]
        stuck = {job.spec.id: job.why for job in left}
        assert not stuck, f"G28: they wait for ever: {stuck}"
        assert not self.negotiator.leases, f"leases are left: {self.negotiator.leases}"
        assert not self.shims, "shims are left"

    def look_around(self) -> None:
        """What is believed is what is written, and every wait has a reason."""
        if self.engine is None or self.unwritten or self.inbox:
            return
        self.engine.check()
        alive = self.disk.alive()
        folded = self.disk.folded()
        assert alive.keys() | folded == self.engine.jobs.keys(), "I1: a job is lost"
        assert not alive.keys() & folded, "I2: a job, and folded too"
        for job_id, row in alive.items():
            job = self.engine.jobs[job_id]
            state = STARTING if job.state is RUNNING else job.state
            believed = (state, job.attempt, job.tries_left, job.memory_attempt, job.is_held,
                        job.priority, job.place, job.spared)  # fmt: skip
            assert believed == row.facts(), f"I6: {believed} is believed, {row.facts()} written"
            assert job.why, "I14: it waits and cannot say why"
            assert not job.is_asked or job_id in self.leases.keys, "it waits, and nobody was asked"


def states(engine: QueueEngine) -> dict[int, JobState]:
    return {job_id: job.state for job_id, job in engine._table.jobs.items()}


def check_moves(before: dict[int, JobState], now: dict[int, JobState], event: Event) -> None:
    """Raise AssertionError when an event moved a job otherwise than by one legal step."""
    if before != now:
        for job, was in before.items():
            state = now.get(job, JobState.ENDED)
            assert state is was or state in LEGAL[was], f"{was} became {state} by {event}"
        for job in now.keys() - before.keys():
            assert now[job] is QUEUED or isinstance(event, Recovered), "a new job is not queued"


ACTS: dict[type, Callable[[Simulation, Any], None]] = {
    Launch: Simulation.launch,
    Stop: Simulation.stop,
    PassAsk: Simulation.pass_ask,
    SettleLease: Simulation.settle_lease,
    TellEnded: Simulation.tell_ended,
    ContinueCancel: Simulation.continue_cancel,
    AskLease: lambda world, action: world.leases.ask(action),
    DropAsk: lambda world, action: world.leases.drop(action.job),
    ReturnLease: lambda world, action: world.leases.done(action.lease, None),
}
