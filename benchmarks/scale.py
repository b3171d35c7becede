"""Decisions when very many wait: 8 GPUs and 10,000 requests, 1,000 GPUs and 100,000 of 20 users.

The engine alone. Each event is timed: a job ends and what it used is learned, the next ones start;
a newcomer asks; somebody gives up; all GPUs are sampled. What the engine leaves for after the
answers is done then, and each piece of it is timed, too. First while nobody has waited long, then
after time has passed and GPUs are reserved for starving requests, and again when they may not be
backfilled any more; at last while users have booked GPUs for now and for later. Garbage is
collected as in a negotiator, after each event; what that takes is a row of its own.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import rig

from grn.model.gpu import Gpu, GpuHealth, ProcessUse, Reading
from grn.model.job import Holder, Outcome, Profile, Request, Run
from grn.model.units import GiB, MiB
from grn.negotiator.actions import Action, Defer, Grant
from grn.negotiator.engine import Engine
from grn.negotiator.events import (
    Booking,
    BookingMade,
    Event,
    JobStarted,
    Released,
    Requested,
    Resumed,
    Sampled,
    Withdrawn,
)
from grn.negotiator.garbage import Garbage
from grn.negotiator.schedule.room.ledger import Rules

USERS, EVENTS, SAMPLES = 20, 1_000, 20
TARGET_MS, SAMPLE_MS, STALL_MS = 1.0, 10.0, 10.0
CHANGING = 0.02  # of the GPUs: their memory differs from one sample to the next
PASSING_S = 5.0  # between two samples while time passes
BOOKED_FROM_S = (0.0, 0.0, 100.0, 500.0, 1_500.0, 5_000.0)  # for an hour, by two users


@dataclass(frozen=True, slots=True)
class Size:
    """A machine and its line; some types want several GPUs or a whole one, some are unknown."""

    gpus: int
    waiting: int
    types: int

    def __str__(self) -> str:
        return f"{self.gpus:,} GPUs, {self.waiting:,} wait"


SIZES = (Size(8, 10_000, 500), Size(1_000, 100_000, 5_000))


class Crowd:
    """An engine with all that, and a clock around each event."""

    def __init__(self, size: Size) -> None:
        self.engine = Engine()
        self.size = size
        self._count, self._at = 0, 0.0
        self._running: list[str] = []
        self._waiting: list[str] = []
        self.spent_ms: list[float] = []  # time of the processor, whoever else wants it
        self.pieces_ms: list[float] = []  # the same of each piece of work after the answers,
        self.all_ms: list[float] = []  # and of an event with all of its pieces
        self._soon: list[Callable[[], None]] = []
        self._garbage = Garbage(self._soon.append)
        self._garbage.begin()
        gpus = tuple(Gpu(f"GPU-{n}", n, "model", 40 * GiB) for n in range(size.gpus))
        self._draw = random.Random(1)
        empty = tuple(Reading(gpu.uuid, used_bytes=0, load_pct=0.0) for gpu in gpus)
        known = tuple(
            Profile(_type(n), "model", _type(n), 1000, (_run(n, size), _run(n, size)))
            for n in range(size.types)
            if n % 100 != 9
        )
        self.engine.handle(JobStarted(0.0, gpus, empty, profiles=known))

    def ask(self) -> float:
        """A newcomer asks."""
        self._count += 1
        key = f"{self._count:08x}"
        number = self._count * 7919 % self.size.types
        kind, user = _type(number), 1000 + number % USERS
        holder = Holder(100_000 + self._count, 1)
        gpus = 1 if number % 10 else 2 + number // 10 % 3
        request = Request(key, key, kind, kind, user, gpus=gpus, holder=holder, is_command=True,
                          is_exclusive=number % 50 == 7)  # fmt: skip
        self._waiting.append(key)
        return self._timed(Requested(self._later(), request))

    def end(self) -> float:
        """The job that runs longest ends."""
        lease = self._running.pop(0)
        peak = self.engine.view.leases[lease].reserved_bytes * 2 // 3
        return self._timed(Released(self._later(), lease, Outcome.OK, peak))

    def leave(self) -> float:
        """Somebody who waits gives up."""
        key = self._waiting.pop(len(self._waiting) // 2)
        while key not in self.engine.view.waitlist:
            key = self._waiting.pop(len(self._waiting) // 2)
        return self._timed(Withdrawn(self._later(), key))

    def sample(self) -> float:
        """All GPUs are read."""
        return self._timed(Sampled(self._later(), self._readings()))

    def _readings(self) -> tuple[Reading, ...]:
        """Show another load of each GPU, and another memory of the jobs of one in fifty."""
        readings = []
        for uuid, book in self.engine.view.books.items():
            more = MiB * (self._draw.random() < CHANGING)
            uses = tuple(
                ProcessUse(200_000 + int(one, 16), lease.reserved_on(uuid) * 2 // 3 + more, (one,))
                for one, lease in book.leases.items()
            )
            used = sum(use.used_bytes or 0 for use in uses)
            readings.append(Reading(uuid, GpuHealth.OK, used, self._draw.randrange(100), uses))
        return tuple(readings)

    def book(self) -> None:
        """Users who wait, and others, book GPUs for now and for later."""
        view = self.engine.view
        for number, from_s in enumerate(BOOKED_FROM_S):
            for user in (1000 + number, 5000 + number):
                start_at = self._at + from_s
                wish = Booking(
                    0, user, str(user), max(1, self.size.gpus // 20), start_at, start_at + 3600.0
                )
                self._timed(BookingMade(self._later(), view.admitted(wish, self._at)))

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with samples, while all jobs go on."""
        until = self._at + seconds
        while self._at < until:
            self._at = min(until, self._at + PASSING_S)
            self.sample()

    def _later(self) -> float:
        self._at += 0.001
        return self._at

    def _timed(self, event: Event) -> float:
        took_ms, actions = self._handled(event)
        all_ms = self.spent_ms[-1]
        while any(isinstance(action, Defer) for action in actions):
            _, actions = self._handled(Resumed(self._at))
            self.pieces_ms.append(self.spent_ms.pop())
            all_ms += self.pieces_ms[-1]
        self.all_ms.append(all_ms)
        return took_ms

    def _handled(self, event: Event) -> tuple[float, list[Action]]:
        began, spent = time.perf_counter(), time.thread_time()
        actions = self.engine.handle(event)
        self.spent_ms.append(1000 * (time.thread_time() - spent))
        took_ms = 1000 * (time.perf_counter() - began)
        self._garbage.after_event()
        while self._soon:
            self._soon.pop()()
        self._running += [action.lease.id for action in actions if isinstance(action, Grant)]
        return took_ms, actions


def _type(number: int) -> str:
    return f"type {number}"


def _run(number: int, size: Size) -> Run:
    """One run of 2 to 15 GiB; some types are short enough to backfill."""
    peak = 2 * GiB + number * 5_000 // size.types * 5 * MiB // 2
    return Run(Outcome.OK, peak, 60.0 if number % 4 == 0 else 1_000.0, 0.0)


def measure() -> list[rig.Figure]:
    """Fill each machine and its line, then time each kind of event in each state."""
    stalls: list[float] = []
    gc.callbacks.append(_watch(stalls))
    figures: list[rig.Figure] = []
    for size in SIZES:
        gc.collect()
        began = time.monotonic()
        crowd = Crowd(size)
        while len(crowd.engine.view.waitlist) < size.waiting:
            crowd.ask()
        stalls.clear()
        view = crowd.engine.view
        print(f"{size}, {len(view.leases)} run; filled in {time.monotonic() - began:.0f} s",
              file=sys.stderr)  # fmt: skip
        patience_s = Rules().patience_s
        for state, passes_s in (("", 0.0), (" while others starve", patience_s),
                                (" long after", 4 * patience_s)):  # fmt: skip
            crowd.pass_time(passes_s)
            figures += _state(crowd, state)
        if size.gpus > len(BOOKED_FROM_S) * 2:
            crowd.book()
            figures += _state(crowd, " with bookings")
        crowd.engine.check()
        stall = rig.Figure(
            f"{size}: longest garbage collection", max(stalls, default=0), STALL_MS, "ms"
        )
        figures.append(stall)
    gc.callbacks.pop()
    return figures


def _state(crowd: Crowd, state: str) -> list[rig.Figure]:
    figures: list[rig.Figure] = []
    for what, step, times, target_ms in (
        ("a job ends", crowd.end, EVENTS, TARGET_MS),
        ("one more asks", crowd.ask, EVENTS, TARGET_MS),
        ("one gives up", crowd.leave, EVENTS, TARGET_MS),
        ("a sample", crowd.sample, SAMPLES, SAMPLE_MS),
    ):
        for each in (crowd.spent_ms, crowd.pieces_ms, crowd.all_ms):
            each.clear()
        took = [step() for _ in range(times)]
        spent = rig.percentile(crowd.spent_ms, 99)
        name = f"{crowd.size}: {what}{state}"
        figures += [
            rig.Figure(f"{name}, median", statistics.median(took), target_ms, "ms", None),
            rig.Figure(f"{name}, p99", rig.percentile(took, 99), target_ms, "ms"),
            rig.Figure(f"{name}, p99 of processor time", spent, target_ms, "ms", None),
            rig.Figure(f"{name}, max", max(took), target_ms, "ms", None),
        ]
        if crowd.pieces_ms:
            pieces = rig.percentile(crowd.pieces_ms, 99)
            in_all = rig.percentile(crowd.all_ms, 99)
            figures += [
                rig.Figure(f"{name}, p99 of the pieces that follow", pieces, TARGET_MS, "ms", None),
                rig.Figure(f"{name}, p99 with all that follows", in_all, target_ms, "ms", None),
            ]
    return figures


def _watch(stalls: list[float]):  # type: ignore[no-untyped-def]
    began = [0.0]

    def note(phase: str, _info: object) -> None:
        if phase == "start":
            began[0] = time.perf_counter()
        else:
            stalls.append(1000 * (time.perf_counter() - began[0]))

    return note


if __name__ == "__main__":
    rig.main("decisions when very many wait", measure)
