"""The parts of a simulated world: what is on the disk, shims, a negotiator and the line to it.

Plain values instead of files and processes. The disk checks all that is written on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from grn.queue.events import (
    AskLease,
    SaveAttemptEnd,
    SaveBegin,
    SaveDrain,
    SaveEnd,
    SaveMembers,
    SaveState,
)
from grn.queue.jobs.job import (
    AttemptFate,
    EndReason,
    Exit,
    JobSpec,
    JobState,
    Kept,
    KeptArray,
    Settlement,
)

QUEUED, STARTING, RUNNING, STOPPING, ENDED = JobState
GPUS = 3
# What may be saved after what: the table of the lifecycle, seen from the disk.
SAVED_MOVES = {
    (QUEUED, QUEUED), (QUEUED, STARTING), (STARTING, QUEUED), (STARTING, STOPPING),
    (STOPPING, STOPPING),
}  # fmt: skip
COUNTED = {EndReason.FAILED, EndReason.LOST, EndReason.OUT_OF_MEMORY}
SETTLED = Settlement()

Attempt = tuple[int, int]


class Row:
    """A job on the disk."""

    __slots__ = ("attempt", "held", "memory", "place", "priority", "reason", "spared", "spec",
                 "state", "tries")  # fmt: skip

    def __init__(self, spec: JobSpec, held: bool) -> None:
        self.spec, self.state, self.attempt, self.tries = spec, QUEUED, 0, spec.retries
        self.memory, self.held, self.priority, self.place = 0, held, spec.priority, spec.id
        self.spared = 0
        self.reason: EndReason | None = None

    def facts(self) -> tuple[object, ...]:
        return (self.state, self.attempt, self.tries, self.memory, self.held, self.priority,
                self.place, self.spared)  # fmt: skip

    def kept(self, found: AttemptFate | None, lease: str) -> Kept:
        spec = self.spec._replace(priority=self.priority)  # the journal has one column for both
        return Kept(spec, self.state, self.attempt, self.tries, self.memory, self.held, self.place,
                    found, lease, self.spared)  # fmt: skip


class Folder:
    """The files of an attempt."""

    __slots__ = ("claim", "exit", "is_locked")

    def __init__(self) -> None:
        self.claim = ""
        self.is_locked = False
        self.exit: Exit | None = None


class Disk:
    """All that outlives every process; whoever writes on it is checked."""

    def __init__(self) -> None:
        self.boot = 0
        self.rows: dict[int, Row] = {}
        self.fates: dict[int, EndReason] = {}  # how jobs ended, also those cleaned away
        self.begun: dict[Attempt, tuple[str, int]] = {}  # open attempts: their lease, their boot
        self.keys: dict[str, int] = {}  # submit key -> first id
        self.arrays: dict[int, KeptArray] = {}  # with folded members
        self.last_id = 0
        self.is_drained = False
        self.folders: dict[Attempt, Folder] = {}
        self.bad_ends: Counter[int] = Counter()

    def submit(self, key: str, specs: tuple[JobSpec, ...], is_held: bool) -> None:
        for spec in specs:
            assert spec.id > self.last_id, "I7: an id is given again"
            self.last_id = spec.id
            self.rows[spec.id] = Row(spec, is_held)
        assert key not in self.keys, "I1: one key, two submits"
        self.keys[key] = specs[0].id

    def submit_array(self, key: str, array: KeptArray) -> None:
        ((first, last),) = array.left
        assert first > self.last_id, "I7: an id is given again"
        assert key not in self.keys, "I1: one key, two submits"
        self.last_id, self.arrays[first], self.keys[key] = last, array, first

    def folded(self) -> set[int]:
        """Return the members of arrays that are not jobs of their own."""
        return {
            job for array in self.arrays.values() for first, last in array.left
            for job in range(first, last + 1)
        }  # fmt: skip

    def save_members(self, action: SaveMembers) -> None:
        array, before = self.arrays.pop(action.array), self.folded()
        for job in action.jobs:
            assert job not in self.rows, "I2: a member becomes a job twice"
            self.rows[job] = Row(array.spec._replace(id=job), array.is_held)
        if action.left:
            self.arrays[action.array] = array._replace(left=action.left)
        left = {job for first, last in array.left for job in range(first, last + 1)}
        assert self.folded() - before == left - set(action.jobs), "I1: a member is lost"

    def alive(self) -> dict[int, Row]:
        return {job: row for job, row in self.rows.items() if row.reason is None}

    def forget(self, job: int) -> None:
        row = self.rows.pop(job)
        for number in range(1, row.attempt + 1):
            self.folders.pop((job, number), None)

    def save_state(self, action: SaveState) -> None:
        row = self.rows[action.job]
        assert row.reason is None, "I6: an end is final"
        assert (row.state, action.state) in SAVED_MOVES, f"I6: {row.state} to {action.state}"
        assert action.attempt in (row.attempt, row.attempt + 1), "I7: attempts only rise"
        if action.state is QUEUED:
            assert (action.job, action.attempt) not in self.begun, "I2: queued with an open attempt"
        row.state, row.attempt, row.tries = action.state, action.attempt, action.tries_left
        row.memory, row.held = action.memory_attempt, action.is_held
        row.priority, row.place, row.spared = action.priority, action.place, action.spared

    def save_begin(self, action: SaveBegin) -> None:
        attempt = (action.job, action.attempt)
        assert attempt not in self.folders, "I3: an attempt is begun again"
        assert (action.job, action.attempt - 1) not in self.begun, "I2: two attempts are open"
        self.begun[attempt] = (action.lease, self.boot)
        self.folders[attempt] = Folder()

    def save_attempt_end(self, action: SaveAttemptEnd) -> None:
        attempt = (action.job, action.attempt)
        assert attempt in self.begun, "I3: an attempt ends twice, or one that never began"
        folder, (_, boot) = self.folders[attempt], self.begun.pop(attempt)
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
        elif action.reason in COUNTED:
            tries = self.bad_ends[action.job] - row.memory - row.spared
            assert tries == row.spec.retries + 1, f"it was tried {tries} times"
        elif action.reason is EndReason.SKIPPED:
            needed = [one.job for one in row.spec.after if one.must_be_ok]
            assert any(self.fates.get(job) not in (None, EndReason.OK) for job in needed)

    def save_drain(self, action: SaveDrain) -> None:
        self.is_drained = action.is_drained


class Shim:
    """A shim at work: at which of its steps it is, and which life of the queue gave the order."""

    __slots__ = ("attempt", "exit", "is_bound", "is_stopped", "lease", "life", "step")

    def __init__(self, attempt: Attempt, lease: str, life: int) -> None:
        self.attempt, self.lease, self.life = attempt, lease, life
        self.step = "ordered"  # then locked, claimed, running, ended, written
        self.is_bound = self.is_stopped = False
        self.exit: Exit | None = None


class Negotiator:
    """Grants leases, keeps them over its own death, and answers later or never."""

    def __init__(self) -> None:
        self.is_up = True
        self.heard: list[tuple[Any, ...]] = []  # what the queue has said to it
        self.says: list[tuple[Any, ...]] = []  # what it has said and the queue has not heard
        self.waiting: dict[str, int] = {}  # key -> message
        self.leases: dict[str, str] = {}  # lease -> key
        self.last = 0

    def hear(self, message: tuple[Any, ...], was_alone: bool, is_victim: bool = False) -> None:
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
                self.waiting[key] = number
                self.says.append(("waiting", number))
        elif verb == "cancel":
            self.waiting.pop(rest[0], None)
            for lease in [one for one, key in self.leases.items() if key == rest[0]]:
                self.end(lease)
            self.says.append(("ok", number))
        else:
            self.end(rest[0])
            self.says.append(("settled", number, was_alone, is_victim))

    def grant(self) -> None:
        """Give what is free to those who wait, in order of asking."""
        while self.waiting and len(self.leases) < GPUS:
            key = next(iter(self.waiting))
            number = self.waiting.pop(key)
            self.last += 1
            self.leases[f"L{self.last}"] = key
            self.says.append(("granted", number, f"L{self.last}"))

    def end(self, lease: str) -> None:
        self.leases.pop(lease, None)

    def hang_up(self) -> None:
        """The line is cut: nothing that was said on it is heard any more."""
        self.heard.clear()
        self.says.clear()
        self.waiting.clear()

    def keep_only(self, leases: set[str]) -> None:
        """Free all but what living processes hold."""
        for lease in self.leases.keys() - leases:
            self.end(lease)


class Leases:
    """The queue's line to the negotiator in miniature: keys, messages, and what must be heard."""

    def __init__(self, negotiator: Negotiator) -> None:
        self.negotiator = negotiator
        self.jobs: dict[int, int] = {}  # message -> job it asks for
        self.keys: dict[int, str] = {}  # job -> the key it is asked for under
        self.can_be: dict[str, bool] = {}  # by key
        self.taken_back: Counter[int] = Counter()
        self.settling: dict[int, Callable[[Settlement], None]] = {}
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
            self.keys[job] = f"{job}.{action.attempt}.{self.taken_back[job]}"
        self.can_be[self.keys[job]] = action.spec.gpus < 9
        self._request(job)

    def _request(self, job: int) -> None:
        key = self.keys[job]
        self.jobs[self.send("lease", key, self.can_be[key])] = job

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

    def done(self, lease: str, then: Callable[[Settlement], None] | None) -> None:
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
        for job in self.keys:
            self._request(job)

    def lost(self) -> None:
        self.is_connected = False
        self.jobs.clear()
        settling, self.settling = self.settling, {}
        for then in settling.values():
            then(SETTLED)


WRITERS: dict[type, Callable[[Disk, Any], None]] = {
    SaveMembers: Disk.save_members,
    SaveState: Disk.save_state,
    SaveBegin: Disk.save_begin,
    SaveAttemptEnd: Disk.save_attempt_end,
    SaveEnd: Disk.save_end,
    SaveDrain: Disk.save_drain,
}
