"""Whether 1,000 waiting clients slow anybody down: decisions of the engine, and a live check.

The engine is timed alone, event by event, with crowds of several kinds. Live, one process keeps
1,000 connections waiting while another takes and gives back leases that fit at once.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import rig

import grn
from grn import paths, wire
from grn.model.gpu import Gpu, GpuKind, ProcessUse, Reading
from grn.model.job import Holder, Outcome, Request
from grn.model.units import GiB, MiB
from grn.negotiator.actions import Defer
from grn.negotiator.engine import Engine
from grn.negotiator.events import JobStarted, Released, Requested, Resumed, Sampled, Withdrawn

MANY, GPUS = 1000, 8
TARGET_MS = 1.0
EVENTS = 300
LIVE_ROUNDS, LIVE_PER_ROUND = 10, 50


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who waits: all of one type or each of its own, and what each asks for."""

    name: str
    is_one_type: bool = False
    mem_bytes: int | None = None
    is_exclusive: bool = False


CROWDS = (
    Crowd("one type", is_one_type=True, mem_bytes=12 * GiB),
    Crowd("1,000 types", mem_bytes=12 * GiB),
    Crowd("1,000 unseen types"),
    Crowd("1,000 types, exclusive", is_exclusive=True),
)


def measure() -> list[rig.Figure]:
    """Time the engine with each crowd, then a live negotiator."""
    figures: list[rig.Figure] = []
    for crowd in CROWDS:
        for event, took in _decisions(crowd).items():
            what = f"{crowd.name}: {event}"
            figures += [
                rig.Figure(f"{what}, median", statistics.median(took), TARGET_MS, "ms"),
                rig.Figure(f"{what}, p99", rig.percentile(took, 99), TARGET_MS, "ms"),
                rig.Figure(f"{what}, max", max(took), TARGET_MS, "ms", None),
            ]
    return figures + [_live(crowd) for crowd in CROWDS]


# --- the engine alone ----------------------------------------------------------------------


class Clocked:
    """An engine with full GPUs and a crowd that waits; each event is timed, in milliseconds."""

    def __init__(self, crowd: Crowd) -> None:
        self.engine = Engine()
        self._crowd = crowd
        self._count = 0
        self._at = 0.0
        gpus = tuple(
            Gpu(f"GPU-{index}", index, "model", 80 * GiB, GpuKind.VIRTUAL) for index in range(GPUS)
        )
        empty = tuple(Reading(gpu.uuid, used_bytes=0) for gpu in gpus)
        self.engine.handle(JobStarted(self._at, gpus, empty))
        while len(self.engine.view.waitlist) < MANY:
            self.ask()

    def ask(self) -> float:
        """Ask in the name of a new client."""
        self._count += 1
        request = Request(
            key=f"{self._count:08x}",
            lease=f"{self._count:08x}",
            job_type="crowd" if self._crowd.is_one_type else f"crowd {self._count}",
            label="crowd",
            user=1000,
            mem_bytes=self._crowd.mem_bytes,
            is_exclusive=self._crowd.is_exclusive,
            holder=Holder(100_000 + self._count, 1),
        )
        return self._timed(Requested(self._later(0.001), request))

    def leave(self) -> float:
        """Withdraw the request that came last."""
        return self._timed(Withdrawn(self._later(0.001), f"{self._count:08x}"))

    def release(self) -> float:
        """End the oldest lease: the run teaches something and somebody gets its room."""
        oldest = next(iter(self.engine.view.leases))
        return self._timed(Released(self._later(0.001), oldest, Outcome.OK, 9 * GiB))

    def sample(self) -> float:
        """Read all GPUs: every lease uses a little."""
        readings = []
        for uuid, book in self.engine.view.books.items():
            uses = tuple(
                ProcessUse(lease.request.holder.pid, 100 * MiB, (lease.id,))
                for lease in book.leases.values()
                if lease.request.holder
            )
            used = sum(use.used_bytes or 0 for use in uses)
            readings.append(Reading(uuid, used_bytes=used, uses=uses))
        return self._timed(Sampled(self._later(0.1), tuple(readings)))

    def _later(self, by_s: float) -> float:
        self._at += by_s
        return self._at

    def _timed(self, event: Requested | Withdrawn | Released | Sampled) -> float:
        began = time.perf_counter()
        actions = self.engine.handle(event)
        took_ms = (time.perf_counter() - began) * 1000
        while any(isinstance(action, Defer) for action in actions):
            actions = self.engine.handle(Resumed(event.at))  # after the answer; see `scale.py`
        return took_ms


def _decisions(crowd: Crowd) -> dict[str, list[float]]:
    clocked = Clocked(crowd)
    took: dict[str, list[float]] = {"Requested": [], "Withdrawn": [], "Released": [], "Sampled": []}
    for _ in range(EVENTS):
        took["Requested"].append(clocked.ask())
        took["Withdrawn"].append(clocked.leave())
        took["Released"].append(clocked.release())
        took["Sampled"].append(clocked.sample())
        while len(clocked.engine.view.waitlist) < MANY:
            clocked.ask()
    return took


# --- a live negotiator ---------------------------------------------------------------------


def _live(crowd: Crowd) -> rig.Figure:
    """Compare a lease beside the crowd with the same lease when nobody waits."""
    with rig.negotiator(f"virtual:{GPUS}x8GiB"):
        with _aside(_lease_s) as said:
            alone = float(said)
        with _aside(_fill), _aside(lambda: _wait(crowd)), _aside(_lease_s) as said:
            crowded = float(said)
    extra_ms = (crowded - alone) * 1000
    return rig.Figure(f"{crowd.name}: live, extra time of a lease", extra_ms, TARGET_MS, "ms")


def _lease_s() -> float:
    def one() -> float:
        began = time.perf_counter()
        with grn.lease(mem="64MiB", type="benchmark::passer-by"):
            pass
        return time.perf_counter() - began

    return rig.interleaved({"lease": one}, LIVE_ROUNDS, LIVE_PER_ROUND)["lease"]


@contextlib.contextmanager
def _aside(begin: Callable[[], object]) -> Iterator[str]:
    """Do something in a process of its own, which then stays as it is; give what came of it.

    No process here may descend from one that takes leases: it would count as its helper.
    """
    listening, speaking = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            made = begin()
            os.write(speaking, repr(made)[:100].encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(speaking)
    try:
        said = os.read(listening, 100).decode()
        if not said:
            raise SystemExit("a process of this benchmark failed")
        yield said
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(listening)


def _fill() -> object:
    """Take a little of every GPU, so that nobody can have all of one."""
    return grn.lease(gpus=GPUS, mem="64MiB", type="benchmark::filler").acquire()


def _wait(crowd: Crowd) -> object:
    """Ask for whole GPUs 1,000 times, each time on a connection of its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    clients = [socket.socket(socket.AF_UNIX) for _ in range(MANY)]
    for number, client in enumerate(clients):
        client.connect(paths.own_socket())
        message = {
            "op": "lease",
            "id": 1,
            "key": f"{number:08x}",
            "type": "crowd" if crowd.is_one_type else f"crowd {number}",
            "label": "crowd",
            "exclusive": crowd.is_exclusive,
        }
        if not crowd.is_exclusive:
            message["mem"] = 8 * GiB
        client.sendall(wire.encode(message))
        (answer,) = wire.Frames(wire.MAX_REPLY_BYTES).feed(client.recv(65536))
        assert wire.decode(answer)["ev"] == "waiting", answer
    return clients


if __name__ == "__main__":
    rig.main("1,000 waiting", measure)
