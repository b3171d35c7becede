"""How soon the next waiter has its GPU: from a release, and from a holder's SIGKILL.

Both ends are real processes and read the same clock. A hand-over is timed from just before the
release (or the kill) to the moment the waiter's `acquire` has returned. On virtual GPUs, and for
short waits through NVML with the tests' stand-in for the driver.
"""

from __future__ import annotations

import os
import random
import select
import signal
import statistics
import time
from dataclasses import dataclass

import rig

import grn

TARGET_MS, TARGET_P99_MS = 5.0, 20.0
SHORT_WAIT_S, LONG_WAIT_S = 0.01, 5.0
HANDOVERS = 120  # of each kind; a hundredth of them is the p99


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that takes the GPU, says when it had it, and gives it back when told."""

    pid: int
    orders: int
    words: int

    def word(self) -> float:
        """Wait for the next time this worker tells."""
        return float(os.read(self.words, 64))

    def give(self) -> float:
        """Have it release; return when it began to."""
        os.write(self.orders, b"give\n")
        return self.word()

    def kill(self) -> float:
        """Kill it; return when that was."""
        at = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)
        return at

    def bury(self) -> None:
        """Wait for its end and let go of it."""
        os.waitpid(self.pid, 0)
        os.close(self.orders)
        os.close(self.words)


def measure() -> list[rig.Figure]:
    """Hand over after short waits and long ones, by release and by kill."""
    figures: list[rig.Figure] = []
    for is_kill, how in ((False, "release"), (True, "SIGKILL")):
        with rig.negotiator("virtual:1x8GiB"):
            short = _short_waits(is_kill)
            long = _chain(HANDOVERS, LONG_WAIT_S, is_kill)
        figures += _figures(f"{how} to grant, waited {SHORT_WAIT_S:g} s", short)
        figures += _figures(f"{how} to grant, waited {LONG_WAIT_S:g} s", long)
        with rig.stand_in(gpus=1) as machine:
            if machine is not None:
                with rig.negotiator("nvml", machine.env()):
                    short = _short_waits(is_kill)
                figures += _figures(f"{how} to grant, stand-in NVML", short)
    return figures


def _figures(what: str, took: list[float]) -> list[rig.Figure]:
    return [
        rig.Figure(f"{what}, median", statistics.median(took), TARGET_MS, "ms"),
        rig.Figure(f"{what}, p99", rig.percentile(took, 99), TARGET_P99_MS, "ms"),
    ]


def _short_waits(is_kill: bool) -> list[float]:
    took: list[float] = []
    for _ in range(HANDOVERS):
        took += _chain(1, SHORT_WAIT_S, is_kill)
    return took


def _chain(handovers: int, wait_s: float, is_kill: bool) -> list[float]:
    """Let workers queue up, wait, and pass the GPU down the line; return milliseconds."""
    workers = [_start()]
    workers[0].word()
    workers += [_start() for _ in range(handovers)]
    time.sleep(wait_s)
    waiting = workers[1:]
    took: list[float] = []
    holder = workers[0]
    while waiting:
        # Not in step with the negotiator's own looks at the GPUs.
        time.sleep(random.uniform(0.0, 0.05))
        began = holder.kill() if is_kill else holder.give()
        next_one = _who_has_it(waiting)
        took.append((next_one.word() - began) * 1000)
        waiting.remove(next_one)
        holder = next_one
    holder.give()
    for worker in workers:
        worker.bury()
    return took


def _who_has_it(waiting: list[Worker]) -> Worker:
    """Return the worker that has it now; those who asked in one moment came in any order."""
    ready, _, _ = select.select([worker.words for worker in waiting], [], [], 30)
    return next(worker for worker in waiting if worker.words in ready)


def _start() -> Worker:
    """Fork a worker: grn is imported already, so starting one is cheap."""
    orders, ours = os.pipe()
    words, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(orders)
        os.close(theirs)
        return Worker(pid, ours, words)
    try:
        _work(orders, theirs)
    finally:
        os._exit(0)


def _work(orders: int, words: int) -> None:
    lease = grn.lease(exclusive=True, type="benchmark::handover").acquire()
    os.write(words, str(time.monotonic()).encode())
    os.read(orders, 64)
    began = time.monotonic()
    lease.release()
    os.write(words, str(began).encode())


if __name__ == "__main__":
    rig.main("hand-over", measure)
