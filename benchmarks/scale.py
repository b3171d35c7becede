"""Decisions when very many wait: 100,000 requests of 5,000 classes and 20 users, 1,000 GPUs.

The engine alone. Each event is timed: a job ends and what it used is learned, the next ones start;
a newcomer asks; somebody gives up. The garbage collector runs as it does in a negotiator.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time

import rig

from grn.model.gpu import Gpu, Reading
from grn.model.job import Holder, Outcome, Profile, Request, Run
from grn.model.units import GiB, MiB
from grn.negotiator.engine import Engine
from grn.negotiator.events import Grant, JobStarted, Released, Requested, Withdrawn

WAITING, GPUS, TYPES, USERS, EVENTS = 100_000, 1_000, 5_000, 20, 1_000
TARGET_MS, STALL_MS = 1.0, 20.0


class Crowd:
    """An engine with all that, and a clock around each event."""

    def __init__(self) -> None:
        self.engine = Engine()
        self._count, self._at = 0, 0.0
        self._running: list[str] = []
        self._waiting: list[str] = []
        self.spent_ms: list[float] = []  # time of the processor, whoever else wants it
        gpus = tuple(Gpu(f"GPU-{n}", n, "model", 40 * GiB) for n in range(GPUS))
        empty = tuple(Reading(gpu.uuid, used_bytes=0, load_pct=0.0) for gpu in gpus)
        known = tuple(
            Profile(_type(n), "model", _type(n), 1000, (_run(n), _run(n))) for n in range(TYPES)
        )
        self.engine.handle(JobStarted(0.0, gpus, empty, profiles=known))

    def ask(self) -> float:
        """A newcomer asks."""
        self._count += 1
        key = f"{self._count:08x}"
        number = self._count * 7919 % TYPES
        kind, user = _type(number), 1000 + number % USERS
        holder = Holder(100_000 + self._count, 1)
        request = Request(key, key, kind, kind, user, holder=holder, is_command=True)
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

    def _later(self) -> float:
        self._at += 0.001
        return self._at

    def _timed(self, event: Released | Requested | Withdrawn) -> float:
        began, spent = time.perf_counter(), time.thread_time()
        actions = self.engine.handle(event)
        self.spent_ms.append(1000 * (time.thread_time() - spent))
        took_ms = 1000 * (time.perf_counter() - began)
        self._running += [action.lease.id for action in actions if isinstance(action, Grant)]
        return took_ms


def _type(number: int) -> str:
    return f"type {number}"


def _run(number: int) -> Run:
    return Run(Outcome.OK, 2 * GiB + number * 5 * MiB // 2, 600.0, 0.0)


def measure() -> list[rig.Figure]:
    """Fill the machine and the line, then time each kind of event."""
    began = time.monotonic()
    crowd = Crowd()
    gc.collect()
    gc.freeze()  # both as the negotiator does it
    gc.set_threshold(1_000, 5, 1_000_000)
    while len(crowd.engine.view.waitlist) < WAITING:
        crowd.ask()
    print(f"{len(crowd.engine.view.leases)} run, {len(crowd.engine.view.waitlist)} wait; "
          f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)  # fmt: skip
    stalls: list[float] = []
    gc.callbacks.append(_watch(stalls))
    figures: list[rig.Figure] = []
    for what, step in (("a job ends", crowd.end), ("one more asks", crowd.ask),
                       ("one gives up", crowd.leave)):  # fmt: skip
        crowd.spent_ms.clear()
        took = [step() for _ in range(EVENTS)]
        spent = rig.percentile(crowd.spent_ms, 99)
        figures += [
            rig.Figure(f"{what}, median", statistics.median(took), TARGET_MS, "ms", None),
            rig.Figure(f"{what}, p99", rig.percentile(took, 99), TARGET_MS, "ms"),
            rig.Figure(f"{what}, p99 of processor time", spent, TARGET_MS, "ms", None),
            rig.Figure(f"{what}, max", max(took), TARGET_MS, "ms", None),
        ]
    gc.callbacks.pop()
    figures.append(rig.Figure("longest garbage collection", max(stalls, default=0), STALL_MS, "ms"))
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
    rig.main("100,000 waiting, 1,000 GPUs, 5,000 classes", measure)
