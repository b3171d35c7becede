"""A seeded world around the queue's engine: disk, shims, negotiator, users, and every way to fail.

Drives the engine the daemon runs; the loop around it is the daemon's in miniature, and what is
true is kept apart from what the engine believes. Files and processes are plain values here: a
million facts must be told within a test.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from grn.queue import finish
from grn.queue.engine import Engine, Limits
from grn.queue.events import (
    Action,
    After,
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

QUEUED, STARTING, RUNNING, STOPPING, ENDED = JobState
MOST_ALIVE = 14
GPUS = 3
# What may be saved after what: the table of the lifecycle, seen from the disk.
SAVED_MOVES = {
    (QUEUED, QUEUED), (QUEUED, STARTING), (STARTING, QUEUED), (STARTING, STOPPING),
    (STOPPING, STOPPING),
}  # fmt: skip
COUNTED = {EndReason.FAILED, EndReason.LOST, EndReason.OUT_OF_MEMORY}
EXITS = (
    *[Exit(0)] * 6,
    Exit(0, ran_s=9.0),
    Exit(1),
    Exit(None, 9),
    Exit(1, because=EndReason.OUT_OF_MEMORY),
    Exit(127, because=EndReason.NOT_RUNNABLE),
    Exit(None, 15, EndReason.TIMED_OUT),
)
CANCELLED = Exit(None, 15, EndReason.CANCELLED)
SETTLED = Settled()
SHORT_S = 1.0

Attempt = tuple[int, int]
FoundBy = Callable[..., Found]


class Crash(Exception):
    """The queue's process ends here."""


class Row:
    """A job on the disk."""

    __slots__ = ("attempt", "held", "memory", "place", "priority", "reason", "spec", "state",
                 "tries")  # fmt: skip

    def __init__(self, spec: JobSpec, held: bool) -> None:
        self.spec, self.state, self.attempt, self.tries = spec, QUEUED, 0, spec.retries
        self.memory, self.held, self.priority, self.place = 0, held, spec.priority, spec.id
        self.reason: EndReason | None = None

    def kept(self, found: Found | None, lease: str) -> Kept:
        spec = self.spec
        if spec.priority != self.priority:  # the journal has one column for both
            values = {name: getattr(spec, name) for name in JobSpec.__slots__}
            spec = JobSpec(**values | {"priority": self.priority})
        return Kept(spec, self.state, self.attempt, self.tries, self.memory, self.held, self.place,
                    found, lease)  # fmt: skip


class Folder:
    """The files of an attempt."""

    __slots__ = ("claim", "exit", "locked")

    def __init__(self) -> None:
        self.claim = ""
        self.locked = False
        self.exit: Exit | None = None


class Shim:
    """A shim at work: at which of its steps it is, and whose it is."""

    __slots__ = ("attempt", "bound", "exit", "lease", "life", "step", "stop")

    def __init__(self, attempt: Attempt, lease: str, life: int) -> None:
        self.attempt, self.lease, self.life = attempt, lease, life
        self.step = 0  # ordered, locked, claimed, running, ended, written
        self.stop = self.bound = False
        self.exit: Exit | None = None


class Negotiator:
    """Grants leases, keeps them over its own death, and answers later or never."""

    def __init__(self) -> None:
        self.is_up = True
        self.heard: list[tuple[Any, ...]] = []  # what the queue has said to it
        self.says: list[tuple[Any, ...]] = []  # what it has said and the queue has not heard
        self.waiting: dict[str, tuple[int, bool]] = {}  # key -> message, whether it can ever be
        self.leases: dict[str, str] = {}  # lease -> key
        self.bound: set[str] = set()  # held by a command, not by the queue
        self.last = 0

    def hear(self, message: tuple[Any, ...], was_alone: bool) -> None:
        verb, number, *rest = message
        if verb == "lease":
            key, can_be = rest
            for lease, its_key in self.leases.items():
                if its_key == key:
                    self.says.append(("granted", number, lease))
                    return
            if not can_be:
                self.says.append(("refused", number))
            else:
                self.waiting[key] = (number, can_be)
                self.says.append(("waiting", number))
        elif verb == "cancel":
            self.waiting.pop(rest[0], None)
            for lease in [one for one, key in self.leases.items() if key == rest[0]]:
                self.end(lease)
            self.says.append(("ok", number))
        else:
            self.end(rest[0])
            self.says.append(("settled", number, was_alone))

    def grant(self) -> None:
        """Give what is free to those who wait, in order of asking."""
        while self.waiting and len(self.leases) < GPUS:
            key = next(iter(self.waiting))
            number, _ = self.waiting.pop(key)
            self.last += 1
            self.leases[f"L{self.last}"] = key
            self.says.append(("granted", number, f"L{self.last}"))

    def end(self, lease: str) -> None:
        self.leases.pop(lease, None)
        self.bound.discard(lease)

    def queue_gone(self) -> None:
        """All that only the queue's process held is free."""
        self.heard.clear()
        self.says.clear()
        self.waiting.clear()
        for lease in [lease for lease in self.leases if lease not in self.bound]:
            self.end(lease)


class Leases:
    """The queue's line to the negotiator in miniature: keys, messages, and what must be heard."""

    def __init__(self, negotiator: Negotiator, life: int) -> None:
        self.negotiator = negotiator
        self.life = life
        self.jobs: dict[int, int] = {}
        self.keys: dict[int, str] = {}
        self.taken_back: Counter[int] = Counter()
        self.settling: dict[int, Callable[[Settled], None]] = {}
        self.unheard: dict[int, tuple[Any, ...]] = {}
        self.last = 0
        self.is_connected = False

    def send(self, verb: str, *rest: Any) -> int:
        self.last += 1
        if self.is_connected:
            self.negotiator.heard.append((verb, self.last, *rest))
        return self.last

    def insist(self, verb: str, *rest: Any) -> int:
        number = self.send(verb, *rest)
        self.unheard[number] = (verb, *rest)
        return number

    def ask(self, action: AskLease) -> None:
        job = action.spec.id
        if job not in self.keys:
            self.keys[job] = f"{job}.{action.attempt}.{self.taken_back[job]}.{self.life}"
        self.jobs[self.send("lease", self.keys[job], action.spec.gpus < 9)] = job

    def drop(self, job: int) -> None:
        for number in [number for number, asked in self.jobs.items() if asked == job]:
            del self.jobs[number]
        key = self.keys.pop(job, None)
        if key is not None:
            self.insist("cancel", key)
            self.taken_back[job] += 1

    def pass_on(self, job: int, heir: int) -> bool:
        key = self.keys.pop(job, None)
        if key is None:
            return False
        self.keys[heir] = key
        for number, asked in self.jobs.items():
            if asked == job:
                self.jobs[number] = heir
        return True

    def done(self, lease: str, then: Callable[[Settled], None] | None) -> None:
        number = self.insist("done", lease)
        if then is not None:
            if self.is_connected:
                self.settling[number] = then
            else:
                then(SETTLED)

    def connected(self) -> None:
        self.is_connected = True
        unheard, self.unheard = self.unheard, {}
        for message in unheard.values():
            self.insist(*message)

    def lost(self) -> None:
        self.is_connected = False
        self.jobs.clear()
        settling, self.settling = self.settling, {}
        for then in settling.values():
            then(SETTLED)


class Simulation:
    """One world with one queue in it; `checks` fail with AssertionError."""

    def __init__(
        self,
        seed: int,
        engine_type: Callable[[Limits], Engine] = Engine,
        found: FoundBy = finish.found,
        *,
        acts_first: bool = False,
        passes_blindly: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.engine_type, self.found = engine_type, found
        self.acts_first, self.passes_blindly = acts_first, passes_blindly
        self.limits = self.chance.choice([Limits(window=4), Limits(window=64), Limits(3, 2)])
        self.has_faults = True
        self.now = 0.0
        self.events = self.crashes = self.reboots = self.jobs = 0
        # What is on the disk.
        self.rows: dict[int, Row] = {}
        self.fates: dict[int, EndReason] = {}  # how jobs ended, also those cleaned away
        self.begun: dict[Attempt, tuple[str, int]] = {}  # open attempts: their lease, their boot
        self.keys: dict[str, int] = {}
        self.is_drained = False
        self.folders: dict[Attempt, Folder] = {}
        self.bad_ends: Counter[int] = Counter()
        # What runs.
        self.boot = 0
        self.shims: list[Shim] = []
        self.commands: dict[int, Attempt] = {}  # job -> the attempt whose command is alive
        self.negotiator = Negotiator()
        # What users know.
        self.unanswered: list[tuple[str, tuple[Any, ...]]] = []
        self.answered: dict[str, int] = {}
        # The queue's process.
        self.life = 0
        self.engine: Engine | None = None
        self.inbox: list[Event] = []
        self.unwritten: list[Action] = []
        self.held: dict[int, str] = {}
        self.leases = Leases(self.negotiator, 0)

    # --- the loop in miniature -----------------------------------------------------------

    def tell(self, event: Event) -> None:
        self.inbox.append(event)

    def turn(self) -> None:
        """Handle all that was told, write it down, act: the queue may die between any two."""
        engine, inbox = self.engine, self.inbox
        assert engine is not None
        self.inbox = []
        actions = self.unwritten
        for event in inbox:
            self.events += 1
            actions += engine.handle(event)
            if self.events % 8 == 0:
                engine.check()
        self.may_crash()
        if self.acts_first:
            self.act(actions)
        if self.fails(0.004):
            self.unwritten = actions  # the disk is full: nothing is acted on
            return
        self.unwritten = []
        for action in actions:
            write = WRITERS.get(type(action))
            if write is not None:
                write(self, action)
        self.may_crash()
        if not self.acts_first:
            self.act(actions)

    def act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            act = ACTS.get(type(action))
            if act is not None:
                act(self, action)
                if self.fails(0.001):
                    raise Crash

    def fails(self, chance: float) -> bool:
        return self.has_faults and self.chance.random() < chance

    def may_crash(self) -> None:
        if self.has_faults and self.chance.random() < 0.002:
            raise Crash

    # --- writing -------------------------------------------------------------------------

    def save_state(self, action: SaveState) -> None:
        row = self.rows[action.job]
        assert row.reason is None, "I6: an end is final"
        assert (row.state, action.state) in SAVED_MOVES, f"I6: {row.state} to {action.state}"
        assert action.attempt in (row.attempt, row.attempt + 1), "I7: attempts only rise"
        if action.state is QUEUED:
            assert (action.job, action.attempt) not in self.begun, "I2: queued with an open attempt"
        row.state, row.attempt, row.tries = action.state, action.attempt, action.tries_left
        row.memory, row.held = action.memory_attempt, action.is_held
        row.priority, row.place = action.priority, action.place

    def save_begin(self, action: SaveBegin) -> None:
        attempt = (action.job, action.attempt)
        assert attempt not in self.folders, "I3: an attempt is begun again"
        assert (action.job, action.attempt - 1) not in self.begun, "I2: two attempts are open"
        self.begun[attempt] = (action.lease, self.boot)
        self.folders[attempt] = Folder()

    def save_attempt_end(self, action: SaveAttemptEnd) -> None:
        attempt = (action.job, action.attempt)
        assert attempt in self.begun, "I3: an attempt ends twice, or one that never began"
        folder, boot = self.folders[attempt], self.begun.pop(attempt)[1]
        if action.reason is EndReason.LOST:
            assert folder.exit is None, "I3: lost in spite of its record"
            assert folder.claim == "shim", "I3: lost, and never begun"
        elif action.reason is EndReason.INTERRUPTED:
            assert boot != self.boot or folder.claim == "queue", "I3: interrupted by nothing"
        else:
            assert folder.exit is not None, "I3: an end without a record"
            assert folder.exit.status == action.exit.status
        self.bad_ends[action.job] += action.reason in COUNTED

    def save_end(self, action: SaveEnd) -> None:
        row = self.rows[action.job]
        assert row.reason is None, "I6: ended twice"
        assert (action.job, row.attempt) not in self.begun, "I2: ended with an open attempt"
        row.state, row.reason = ENDED, action.reason
        self.fates[action.job] = action.reason
        if action.reason is EndReason.OK:
            exit = self.folders[(action.job, row.attempt)].exit
            assert exit is not None, "I3: ok without a record"
            assert exit.status == 0
        elif action.reason in (EndReason.FAILED, EndReason.LOST):
            tries = self.bad_ends[action.job] - row.memory
            assert tries == row.spec.retries + 1, f"it was tried {tries} times"
        elif action.reason is EndReason.SKIPPED:
            bad = [one for one in row.spec.after if one.must_be_ok]
            assert any(self.fates.get(one.job, 0) is not EndReason.OK for one in bad)

    def save_drain(self, action: SaveDrain) -> None:
        self.is_drained = action.is_drained

    # --- acting: only on what is on the disk -----------------------------------------------

    def launch(self, action: Launch) -> None:
        attempt = (action.job, action.attempt)
        row = self.rows[action.job]
        assert attempt in self.begun, "I10: launched before it was written"
        assert row.state in (STARTING, STOPPING), "I10: launched before it was written"
        assert not row.held
        for after in row.spec.after:
            fate = self.fates.get(after.job)
            assert fate is EndReason.OK or (fate and not after.must_be_ok), "launched too early"
        self.held[action.job] = action.lease
        self.order(Shim(attempt, action.lease, self.life))

    def order(self, shim: Shim) -> None:
        assert self.engine is not None
        self.shims.append(shim)
        self.tell(Started(self.now, *shim.attempt))
        job = self.engine.jobs.get(shim.attempt[0])
        shim.stop = job is not None and job.state is STOPPING

    def stop(self, action: Stop) -> None:
        for shim in self.shims:
            if shim.attempt == (action.job, action.attempt):
                shim.stop = True

    def ask_lease(self, action: AskLease) -> None:
        self.leases.ask(action)

    def drop_ask(self, action: DropAsk) -> None:
        self.leases.drop(action.job)

    def pass_ask(self, action: PassAsk) -> None:
        is_passed = self.leases.pass_on(action.job, action.heir.spec.id)
        if not is_passed and not self.passes_blindly:
            self.leases.ask(action.heir)

    def return_lease(self, action: ReturnLease) -> None:
        self.leases.done(action.lease, None)

    def tell_ended(self, action: TellEnded) -> None:
        assert self.fates.get(action.job) is action.reason, "I10: told before it was written"

    def tell_empty(self, _action: TellEmpty) -> None:
        alive = [row for row in self.rows.values() if row.reason is None]
        assert not alive or self.inbox or self.jobs, "empty, and it is not"

    # --- shims ---------------------------------------------------------------------------

    def advance(self, shim: Shim) -> None:
        """Let a shim do one step, and often the next ones."""
        folder = self.folders[shim.attempt]
        while True:
            if shim.step == 0:
                if folder.locked:
                    self.leave(shim)
                    return
                folder.locked = True
            elif shim.step == 1:
                if folder.claim:
                    folder.locked = False
                    self.leave(shim)
                    return
                folder.claim = "shim"
            elif shim.step == 2:
                job = shim.attempt[0]
                assert job not in self.commands, "I2: two attempts of one job run at once"
                self.commands[job] = shim.attempt
            elif shim.step == 3:
                if not shim.bound and shim.lease in self.negotiator.leases and self.chance.random() < 0.5:
                    shim.bound = True
                    if self.negotiator.is_up:
                        self.negotiator.bound.add(shim.lease)
                exit = EXITS[int(self.chance.random() * len(EXITS))]
                if shim.bound and exit.status == 0:
                    exit = EXITS[6]  # taken over: it was not a short one
                shim.exit = CANCELLED if shim.stop and self.chance.random() < 0.8 else exit
                self.commands.pop(shim.attempt[0], None)
            elif shim.step == 4:
                folder.exit = shim.exit
            else:
                folder.locked = False
                self.leave(shim)
                return
            shim.step += 1
            if self.chance.random() < 0.2:
                return

    def leave(self, shim: Shim) -> None:
        """A shim is done or dead: the queue that watches it is told."""
        self.shims.remove(shim)
        if shim.bound and not self.leases.is_connected:
            self.negotiator.end(shim.lease)  # the negotiator saw its process go
        if self.engine is None:
            return
        folder = self.folders[shim.attempt]
        if not folder.claim:
            if shim.life == self.life:
                self.order(Shim(shim.attempt, shim.lease, self.life))
        elif folder.claim == "shim":
            self.shim_gone(shim.attempt)

    def kill_shim(self, shim: Shim) -> None:
        self.folders[shim.attempt].locked = False
        self.leave(shim)

    def shim_gone(self, attempt: Attempt) -> None:
        exit = self.folders[attempt].exit
        lease = self.held.pop(attempt[0], "")
        if exit is None:
            if self.commands.get(attempt[0]) == attempt:
                del self.commands[attempt[0]]  # what it left behind is ended
            if lease:
                self.leases.done(lease, None)
            self.tell(ShimLost(self.now, *attempt))
        elif lease and exit.status == 0 and exit.ran_s < SHORT_S:
            self.tell(Exited(self.now, *attempt, exit, None))
        elif lease:
            self.leases.done(
                lease, lambda how: self.tell(Exited(self.now, *attempt, exit, how))
            )
        else:
            self.tell(Exited(self.now, *attempt, exit))

    # --- the negotiator ------------------------------------------------------------------

    def negotiate(self) -> None:
        """Both sides hear what was said, grants are made."""
        negotiator = self.negotiator
        if not negotiator.is_up:
            return
        if self.engine is not None and not self.leases.is_connected:
            self.leases.connected()
            self.tell(NegotiatorFound(self.now))
        heard, negotiator.heard = negotiator.heard, []
        for message in heard:
            negotiator.hear(message, self.chance.random() < 0.5)
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
                then(Settled("oom", rest[0]) if rest[0] else Settled("oom", was_alone=False))
        elif job is None:
            if verb == "granted":
                leases.done(rest[0], None)
        elif verb == "refused":
            del leases.jobs[number]
            leases.keys.pop(job, None)
            self.tell(LeaseRefused(now, job, "it never fits"))
        elif verb == "waiting":
            self.tell(LeaseAwaited(now, job, "no room"))
        elif verb == "granted":
            del leases.jobs[number]
            leases.keys.pop(job, None)
            may_pass_on = self.chance.random() < 0.8
            self.tell(LeaseGranted(now, job, rest[0], "0", (0,), 1, may_pass_on))

    def lose_negotiator(self) -> None:
        self.negotiator.is_up = False
        self.negotiator.heard.clear()
        self.negotiator.says.clear()
        self.negotiator.waiting.clear()
        if self.leases.is_connected:
            self.leases.lost()
            self.tell(NegotiatorLost(self.now))

    # --- the queue's life ----------------------------------------------------------------

    def recover(self) -> None:
        """Bring a queue up from what is on the disk."""
        self.life += 1
        self.engine = self.engine_type(self.limits)
        self.leases = Leases(self.negotiator, self.life)
        kept = [self._look(row) for row in self.rows.values() if row.reason is None]
        needed = {after.job for one in kept for after in one.spec.after}
        ends = tuple(
            (job, row.reason is EndReason.OK)
            for job in needed
            if (row := self.rows.get(job)) is not None and row.reason is not None
        )
        self.tell(Recovered(self.now, tuple(kept), ends, self.is_drained))
        self.turn()
        for one in kept:
            if one.found in (Found.ENDED, Found.LOST):
                self.shim_gone((one.spec.id, one.attempt))

    def _look(self, row: Row) -> Kept:
        """Find what became of an open attempt, as the launcher does."""
        if row.state is QUEUED:
            return row.kept(None, "")
        attempt = (row.spec.id, row.attempt)
        folder, (lease, boot) = self.folders[attempt], self.begun[attempt]
        is_same_boot = boot == self.boot
        if not folder.claim and is_same_boot:
            folder.claim = "queue"
            found = Found.NOT_BEGUN
        else:
            found = self.found(
                has_claim=folder.claim == "shim",
                is_locked=folder.locked and folder.claim != "queue",
                has_exit=folder.exit is not None,
                is_same_boot=is_same_boot,
            )
        if is_same_boot and found is not Found.NOT_BEGUN:
            self.held[row.spec.id] = lease
        elif is_same_boot:
            self.leases.done(lease, None)
        return row.kept(found, lease)

    def queue_dies(self) -> None:
        self.crashes += 1
        self.engine = None
        self.inbox, self.unwritten = [], []
        self.held = {}
        self.leases = Leases(self.negotiator, self.life)
        heard = self.negotiator.heard
        for message in heard[: int(self.chance.random() * (len(heard) + 1))]:
            self.negotiator.hear(message, was_alone=True)
        self.negotiator.queue_gone()
        for shim in [one for one in self.shims if one.step == 0 and self.chance.random() < 0.5]:
            self.shims.remove(shim)  # its order never left the queue

    def power_cut(self) -> None:
        """The machine goes down: what was not synced may be lost, all processes are."""
        self.reboots += 1
        if self.engine is not None:
            self.queue_dies()
        for shim in self.shims:
            folder = self.folders[shim.attempt]
            folder.locked = False
            if self.chance.random() < 0.5:
                folder.claim, folder.exit = "", None
        self.shims.clear()
        self.commands.clear()
        self.negotiator.leases.clear()
        self.negotiator.bound.clear()
        self.boot += 1

    # --- users ---------------------------------------------------------------------------

    def submit(self) -> None:
        """A user submits, or sends again what was not answered."""
        chance = self.chance
        if not self.unanswered or chance.random() < 0.5:
            count = chance.choice((1, 1, 2, 3))
            wish = (chance.choice((0, 0, 0, 1, 5)), chance.choice((0, 0, 1, 2)),
                    chance.random() < 0.3, chance.random() < 0.1, chance.random() < 0.02,
                    chance.random() < 0.3, chance.choice("ab"))  # fmt: skip
            self.unanswered.append((f"key{len(self.keys) + len(self.unanswered)}-{self.events}",
                                    (count, *wish)))  # fmt: skip
        key, wish = self.unanswered[-1]
        if self.engine is None or self.unwritten:
            return
        self.turn()
        if key not in self.keys:
            self._accept(key, *wish)
        assert key in self.keys, "I10: answered before it was written"
        self.unanswered.pop()
        assert self.answered.setdefault(key, self.keys[key]) == self.keys[key], "I1"

    def _accept(
        self, key: str, count: int, priority: int, retries: int, may_requeue: bool, held: bool,
        is_impossible: bool, has_after: bool, kind: str,
    ) -> None:  # fmt: skip
        assert self.engine is not None
        after: tuple[After, ...] = ()
        if has_after and self.rows:
            chosen = self.chance.sample(list(self.rows), min(2, len(self.rows)))
            after = tuple(After(job, self.chance.random() < 0.7) for job in sorted(chosen))
        ends = tuple(
            (one.job, self.rows[one.job].reason is EndReason.OK)
            for one in after
            if one.job not in self.engine.jobs
        )
        first = self.jobs + 1
        self.jobs += count
        assert first not in self.fates, "I7: an id is given again"
        gpus = 9 if is_impossible else 1
        specs = tuple(
            JobSpec(job, kind, kind, gpus, None, False, priority, after, retries, may_requeue)
            for job in range(first, first + count)
        )
        self.keys[key] = first
        for spec in specs:
            self.rows[spec.id] = Row(spec, held)
        self.may_crash()
        self.tell(Submitted(self.now, specs, ends, held))
        self.turn()

    def steer(self) -> None:
        """A user changes her mind."""
        assert self.engine is not None
        chance, now = self.chance, self.now
        some = tuple(job for job in self.engine.jobs if chance.random() < 0.2) or (1,)
        what = int(chance.random() * 7)
        if what == 0:
            self.tell(CancelAsked(now, some[:3], chance.random() < 0.2))
        elif what == 1:
            self.tell(HoldAsked(now, some))
        elif what in (2, 3):
            self.tell(HoldAsked(now, tuple(self.engine.jobs), is_held=False))
        elif what == 4:
            where = chance.choice((None, True, False))
            priority = None if where is not None and chance.random() < 0.5 else int(chance.random() * 4)
            self.tell(MoveAsked(now, some, priority, where))
        else:
            self.tell(DrainAsked(now, what == 5 and chance.random() < 0.5))
        self.turn()

    def clean(self) -> None:
        """A user forgets what has ended."""
        for job in [job for job, row in self.rows.items() if row.reason is not None]:
            for number in range(1, self.rows[job].attempt + 1):
                self.folders.pop((job, number), None)
            del self.rows[job]

    # --- a history -----------------------------------------------------------------------

    def run(self, events: int) -> None:
        """Let things happen until the engine has been told so much; then heal and see it through."""
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
                self._happen(self.chance.random())
            if self.engine is not None and self.inbox and self.chance.random() < 0.7:
                self.turn()
        except Crash:
            self.queue_dies()

    def _happen(self, what: float) -> None:
        if what < 0.40:
            if self.shims:
                self.advance(self.shims[int(self.chance.random() * len(self.shims))])
        elif what < 0.75:
            self.negotiate()
        elif what < 0.90:
            if self.engine is None or len(self.engine.jobs) < MOST_ALIVE:
                self.submit()
        elif what < 0.95:
            if self.engine is not None:
                self.steer()
        elif what < 0.97:
            self.clean()
            self.look_around()
        elif self.has_faults:
            self._fail(what)

    def _fail(self, what: float) -> None:
        if what < 0.975:
            if self.shims:
                self.kill_shim(self.chance.choice(self.shims))
        elif what < 0.983:
            self.negotiator.is_up = True
        elif what < 0.990:
            self.lose_negotiator()
        elif what < 0.993 and self.engine is not None:
            raise Crash
        elif what > 0.9995:
            self.power_cut()

    def heal(self) -> None:
        """Faults stop, users let everything go: then every job ends, or says why it waits."""
        self.has_faults = False
        self.negotiator.is_up = True
        if self.engine is None:
            self.recover()
        assert self.engine is not None
        self.tell(DrainAsked(self.now, is_drained=False))
        held = next(iter(self.engine.jobs), 0) if self.chance.random() < 0.5 else 0
        others = tuple(job for job in self.engine.jobs if job != held)
        self.tell(HoldAsked(self.now, others, is_held=False))
        self.tell(HoldAsked(self.now, (held,)))
        for _ in range(60 + 60 * len(self.engine.jobs)):
            self.turn()
            self.negotiate()
            for shim in list(self.shims):
                self.advance(shim)
            self.now += 0.05
        self.turn()
        self.look_around()
        left = [job for job in self.engine.jobs.values() if not job.is_held and not job.waits_for]
        stuck = {job.spec.id: self.engine.why(job) for job in left}
        assert not stuck, f"G28: they wait for ever: {stuck}"
        assert not self.negotiator.leases, f"leases are left: {self.negotiator.leases}"
        assert not self.shims
        self.clean()

    def look_around(self) -> None:
        """What is believed is what is written, and every wait has a reason."""
        if self.engine is None or self.unwritten:
            return
        self.engine.check()
        alive = {job: row for job, row in self.rows.items() if row.reason is None}
        assert alive.keys() == self.engine.jobs.keys(), "I1: a job is lost"
        for job_id, row in alive.items():
            job = self.engine.jobs[job_id]
            state = STARTING if job.state is RUNNING else job.state
            believed = (state, job.attempt, job.tries_left, job.memory_attempt, job.is_held,
                        job.priority, job.place)  # fmt: skip
            assert believed == (row.state, row.attempt, row.tries, row.memory, row.held,
                                row.priority, row.place)  # fmt: skip
            assert self.engine.why(job), "I14: it waits and cannot say why"


WRITERS: dict[type, Callable[[Simulation, Any], None]] = {
    SaveState: Simulation.save_state,
    SaveBegin: Simulation.save_begin,
    SaveAttemptEnd: Simulation.save_attempt_end,
    SaveEnd: Simulation.save_end,
    SaveDrain: Simulation.save_drain,
}
ACTS: dict[type, Callable[[Simulation, Any], None]] = {
    Launch: Simulation.launch,
    Stop: Simulation.stop,
    AskLease: Simulation.ask_lease,
    DropAsk: Simulation.drop_ask,
    PassAsk: Simulation.pass_ask,
    ReturnLease: Simulation.return_lease,
    TellEnded: Simulation.tell_ended,
    TellEmpty: Simulation.tell_empty,
}
