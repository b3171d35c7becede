"""Makers of test values, with defaults for all that is not the point, and `Story`.

A story holds an engine, a clock and what is true of the GPUs; each step tells one fact.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from grn.model.gpu import ComputeMode, Gpu, GpuHealth, GpuKind, ProcessUse, Reading
from grn.model.host import HostReading, HostShare
from grn.model.job import Holder, Outcome, Profile, Request, Run
from grn.model.units import GiB
from grn.negotiator.actions import Action, Defer, Grant, Refuse
from grn.negotiator.engine import Engine
from grn.negotiator.events import (
    Event,
    HolderGone,
    JobStarted,
    Lease,
    LeaseState,
    Released,
    Requested,
    Resumed,
    Sampled,
    TimerFired,
    WaitReason,
    Withdrawn,
)
from grn.negotiator.schedule.room.ledger import Book, Guard, Rules

MODEL = "Card 24"
NO_GUARD = Guard(fraction=0.0, fixed_bytes=0)
PLAIN_RULES = Rules(guard=NO_GUARD)  # round numbers: all of a GPU may be promised


def a_gpu(index: int = 0, total_bytes: int = 24 * GiB, **changes: Any) -> Gpu:
    return Gpu(**{"uuid": f"GPU-{index}", "index": index, "model": MODEL,
                  "total_bytes": total_bytes} | changes)  # fmt: skip


def a_virtual_gpu(index: int = 0, total_bytes: int = 24 * GiB) -> Gpu:
    return a_gpu(index, total_bytes, kind=GpuKind.VIRTUAL)


def some_gpus(count: int, total_bytes: int = 24 * GiB) -> list[Gpu]:
    return [a_gpu(index, total_bytes) for index in range(count)]


def a_use(pid: int, used_bytes: int | None, *leases: str) -> ProcessUse:
    return ProcessUse(pid, used_bytes, leases)


def a_reading(gpu: int | Gpu = 0, *uses: ProcessUse, **changes: Any) -> Reading:
    """Return a reading in which the processes explain all that is used, unless told otherwise."""
    uuid = gpu.uuid if isinstance(gpu, Gpu) else f"GPU-{gpu}"
    used = sum(use.used_bytes or 0 for use in uses)
    return Reading(**{"uuid": uuid, "used_bytes": used, "uses": uses} | changes)


def a_holder(pid: int = 100) -> Holder:
    return Holder(pid, started_ticks=7 * pid)


def a_request(key: str = "a", pid: int | None = None, **changes: Any) -> Request:
    values = {"key": key, "lease": f"lease-{key}", "job_type": "train.py", "label": "train.py",
              "user": 1000, "holder": a_holder(pid) if pid else None}  # fmt: skip
    return Request(**values | changes)


def a_lease(key: str = "a", reserved_bytes: int = 4 * GiB, **changes: Any) -> Lease:
    """Return a lease; words it does not know are for its request."""
    own = {name: changes.pop(name) for name in tuple(changes) if name in Lease.__slots__}
    gpus = own.pop("gpus", ("GPU-0",))
    values = {"request": a_request(key, **changes), "gpus": gpus, "is_probe": False,
              "reserved": (reserved_bytes,) * len(gpus), "granted_at": 0.0}  # fmt: skip
    return Lease(**values | own)


def a_book(
    gpu: Gpu | None = None,
    leases: Sequence[Lease] = (),
    reading: Reading | None = None,
    guard_bytes: int = 0,
) -> Book:
    gpu = gpu or a_gpu()
    book = Book(gpu, guard_bytes, a_reading(gpu))
    for lease in leases:
        book.put(lease)
    book.read(reading or a_reading(gpu))
    return book


def a_run(peak_bytes: int = 4 * GiB, outcome: Outcome = Outcome.OK, **changes: Any) -> Run:
    values = {"outcome": outcome, "peak_bytes": peak_bytes, "duration_s": 100.0, "ended_at": 0.0}
    return Run(**values | changes)


def a_profile(*runs: Run | int, job_type: str = "train.py", model: str = MODEL) -> Profile:
    """Return a profile; a run given as a number is a good one with that peak."""
    full = tuple(a_run(run) if isinstance(run, int) else run for run in runs)
    return Profile(job_type, model, job_type, 1000, full)


def an_engine(
    gpus: Sequence[Gpu] | None = None,
    rules: Rules = PLAIN_RULES,
    waiting: Sequence[str] = (),
    **remembered: Any,
) -> Engine:
    """Return an engine that has started at 0 with empty GPUs and what it is to remember."""
    gpus = tuple(gpus or [a_gpu()])
    values = {"at": 0.0, "gpus": gpus, "readings": tuple(a_reading(gpu) for gpu in gpus)}
    engine = Engine(rules)
    places = tuple((key, place) for place, key in enumerate(waiting))
    engine.handle(JobStarted(**values | remembered, waiting=places))
    engine.check()
    return engine


Made = TypeVar("Made")


def result_of(pieces: Generator[None, None, Made]) -> Made:
    """Make an answer that comes in pieces, to its end, and return it."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            made: Made = end.value
            return made


class Story:
    """An engine, a clock and the truth about the GPUs. Steps return the keys they got granted."""

    def __init__(
        self, gpus: Sequence[Gpu] | None = None, rules: Rules = PLAIN_RULES, **remembered: Any
    ) -> None:
        self.engine = an_engine(gpus, rules, **remembered)
        self.at = float(remembered.get("at", 0.0))
        self.leases: dict[str, Lease] = {}  # key -> its lease, as it was granted
        self.actions: list[Action] = []  # of the latest step
        self.memory: dict[str, int | None] = {}  # key -> what its process has on each of its GPUs
        self.strangers: dict[int, list[ProcessUse]] = {}  # GPU index -> processes without a lease
        self.unexplained: dict[int, int] = {}
        self.health: dict[int, GpuHealth] = {}
        self.modes: dict[int, ComputeMode] = {}
        self.lists_processes = True
        self.load_pct: dict[int, float | None] = {}  # GPU index -> its load
        self.own_pct: dict[str, float] = {}  # key -> the load of its process, where it is known
        self.ram: dict[str, int] = {}  # key -> host memory of its processes
        self.cores: dict[str, float] = {}
        self.foreign_ram, self.foreign_cores = 0, 0.0
        for lease in self.engine.view.leases.values():
            self.leases[lease.request.key] = lease

    # --- steps ---------------------------------------------------------------------------

    def tell(self, event: Event) -> list[str]:
        """Tell the engine one fact, check its books, and return whom it granted."""
        self.at = event.at
        self.actions = actions = self.engine.handle(event)
        while Defer(is_soon=True) in actions:
            actions = self.engine.handle(Resumed(event.at))
            self.actions = [*self.actions, *actions]
        self.engine.check()
        grants = [action for action in self.actions if isinstance(action, Grant)]
        self.leases.update({grant.key: grant.lease for grant in grants})
        return [grant.key for grant in grants]

    def asks(self, key: str = "a", after_s: float = 0.0, **changes: Any) -> list[str]:
        return self.tell(Requested(self.at + after_s, a_request(key, **changes)))

    def gives_up(self, key: str) -> list[str]:
        return self.tell(Withdrawn(self.at, key))

    def ends(
        self, key: str, outcome: Outcome = Outcome.OK, after_s: float = 1.0, **told: Any
    ) -> list[str]:
        """The job lets go of its lease; what its process keeps is for the next look to show."""
        return self.tell(Released(self.at + after_s, self.leases[key].id, outcome, **told))

    def dies(self, key: str, after_s: float = 1.0) -> list[str]:
        """The holder is gone without a word; its memory is still in `memory`."""
        lease = self.leases[key].id
        granted = self.tell(HolderGone(self.at + after_s, lease))
        if self.engine.view.leases[lease].state is LeaseState.HELD:  # it waits for a report
            granted += self.tell(TimerFired(self.at + 2.0))
        return granted

    def looks(self, after_s: float = 1.0) -> list[str]:
        """Read all GPUs as they truly are."""
        readings = [self.reading(book.gpu) for book in self.engine.view.books.values()]
        strangers = {use.pid for uses in self.strangers.values() for use in uses}
        owners = tuple((pid, pid % 1000) for pid in strangers)
        host = self.host_reading()
        return self.tell(Sampled(self.at + after_s, tuple(readings), host=host, owners=owners))

    def passes(self, seconds: float, every_s: float = 10.0) -> list[str]:
        """Let time go by, with a look every few seconds."""
        granted: list[str] = []
        until = self.at + seconds
        while self.at < until:
            granted += self.looks(min(every_s, until - self.at))
        return granted

    # --- what is true and what is so -----------------------------------------------------

    def reading(self, gpu: Gpu) -> Reading:
        """Return what a true driver would say of one GPU."""
        health = self.health.get(gpu.index, GpuHealth.OK)
        if health is not GpuHealth.OK:
            return Reading(gpu.uuid, health)
        uses = [*self._own_uses(gpu), *self.strangers.get(gpu.index, [])]
        known = sum(use.used_bytes or 0 for use in uses)
        used = known + self.unexplained.get(gpu.index, 0)
        mode, shown = self.modes.get(gpu.index), uses if self.lists_processes else ()
        more = {"mode": mode, "lists_processes": self.lists_processes}
        more["load_pct"] = self.load_pct.get(gpu.index)
        own = {self.leases[key].id: pct for key, pct in self.own_pct.items()}
        more["process_loads"] = tuple(
            (use.pid, own[one]) for use in uses for one in use.leases if one in own
        )
        return a_reading(gpu, *shown, used_bytes=used, **more)

    def host_reading(self) -> HostReading | None:
        """Return what is true of the host; None where the engine does not limit it."""
        if self.engine.view.host.size is None:
            return None
        held = {key: lease.id for key, lease in self.leases.items()}
        live = [key for key in held if held[key] in self.engine.view.leases]
        uses = tuple(
            HostShare(held[key], self.ram.get(key, 0), self.cores.get(key, 0.0)) for key in live
        )
        return HostReading(
            sum(use.ram_bytes or 0 for use in uses) + self.foreign_ram,
            sum(use.cpus or 0.0 for use in uses) + self.foreign_cores,
            uses,
        )

    def _own_uses(self, gpu: Gpu) -> list[ProcessUse]:
        by_pid: dict[int, tuple[int | None, tuple[str, ...]]] = {}
        for number, (key, size) in enumerate(self.memory.items()):
            lease = self.leases[key]
            if gpu.uuid not in lease.gpus:
                continue
            pid = lease.request.holder.pid if lease.request.holder else 10_000 + number
            before, ids = by_pid.get(pid, (0, ()))
            total = None if size is None or before is None else before + size
            by_pid[pid] = (total, (*ids, lease.id))
        return [ProcessUse(pid, size, ids) for pid, (size, ids) in by_pid.items()]

    def why(self, key: str) -> WaitReason | None:
        """Return the reason why a request waits, None when it does not."""
        wait = self.engine.view.why(key, self.at)
        assert wait is None or wait.text
        return wait.reason if wait else None

    def text(self, key: str) -> str:
        """Return the sentence about why a request waits."""
        wait = self.engine.view.why(key, self.at)
        assert wait is not None
        return wait.text

    def reserved(self, key: str) -> int:
        """Return what a lease has reserved now, on any one GPU."""
        return self.engine.view.leases[self.leases[key].id].reserved_bytes

    def gpus(self, key: str) -> list[int]:
        """Return the GPUs a job was given, by index."""
        return [self.engine.view.books[uuid].gpu.index for uuid in self.leases[key].gpus]

    def free(self, index: int = 0) -> int:
        """Return what the ledger says is free on one GPU."""
        return self.engine.view.books[f"GPU-{index}"].free_bytes

    @property
    def refusals(self) -> list[Refuse]:
        return [action for action in self.actions if isinstance(action, Refuse)]
