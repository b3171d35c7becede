"""Schedulers of a replay: the negotiator's own engine, or one of the simple policies beside it.

A scheduler gets events and returns grants; the replay carries them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from grn.model.gpu import Gpu, Reading
from grn.model.host import HostReading, HostSize
from grn.model.job import Argument, Holder, Outcome, Profile, Request, Run
from grn.negotiator.actions import Action, AskYield, Defer, Grant, Refuse
from grn.negotiator.engine import Engine
from grn.negotiator.events import Event, JobStarted, Released, Requested, Resumed, Sampled
from grn.negotiator.learn.host_profiles import HostProfiles
from grn.negotiator.learn.interference import cap_of
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory.margin import Margin
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.queries.forecast import Forecasts, at_once
from grn.negotiator.schedule.placement import Need, Size
from grn.negotiator.schedule.room.host_ledger import HostNeed
from grn.negotiator.schedule.room.ledger import Rules
from grn.simulate.workload import Assumptions, SimulatedJob, speed_of_model


@dataclass(frozen=True, slots=True)
class SimulatedGrant:
    """A job may start: its lease and the GPUs by place."""

    lease: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SimulatedEnd:
    """How a run ended."""

    lease: str
    outcome: Outcome
    peak_bytes: int
    asked_bytes: int | None = None
    resident_bytes: int | None = None  # on the host


class Scheduler(Protocol):
    """The interface of a scheduler in a replay."""

    refused: list[str]

    def comes(
        self, at: float, lease: str, job: SimulatedJob, attempt: int
    ) -> list[SimulatedGrant]: ...

    def ends(
        self,
        at: float,
        ended: SimulatedEnd,
        readings: Sequence[Reading],
        host: HostReading | None = None,
    ) -> list[SimulatedGrant]: ...

    def looks(
        self, at: float, readings: Sequence[Reading], host: HostReading | None = None
    ) -> list[SimulatedGrant]: ...

    def reserved_bytes(self, lease: str) -> int: ...

    def asked_to_yield(self) -> list[str]:
        """Return the leases asked to give way since the last call."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The exact values: jobs that are each their own type, and how they share GPUs."""

    jobs: Sequence[SimulatedJob]
    assumed: Assumptions


class SimulatedAnswer(TypeProfiles):
    """Profiles with the exact need of every job: types are named after jobs."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._jobs = {job.name: job for job in truth.jobs}

    def knows(self, job_type: str, model: str) -> bool:
        """Return True: every need is told."""
        return True

    def usual_s(self, job_type: str, model: str) -> float | None:
        """Return the truth."""
        return self._jobs[job_type].solo_s

    def alone_s(self, request: Request, model: str, power: float) -> float | None:
        """Return the truth."""
        return self._jobs[request.job_type].solo_s / speed_of_model(model)

    def most_of_alike(self, request: Request, model: str) -> int | None:
        """Return None, unknown: no reservation is shrunk, since the exact need is reserved."""
        return None


class ToldNeeds(TypeNeeds):
    """The exact memory of every job."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(SimulatedAnswer(truth))
        self._jobs = {job.name: job for job in truth.jobs}

    def of(
        self, request: Request, sizes: Mapping[str, Size], reach: Mapping[str, int] | None = None
    ) -> dict[str, Need]:
        """Return the truth."""
        need = Need(self._jobs[request.job_type].peak_bytes, False, "told")
        return dict.fromkeys(sizes, need)


class ToldLoads(Loads):
    """Exact loads and durations; interference is neither known nor learned."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._jobs = {job.name: job for job in truth.jobs}
        self._assumed = truth.assumed

    def of(self, job_type: str, model: str, arguments: tuple[Argument, ...] = ()) -> float | None:
        """Return the truth."""
        return self._jobs[job_type].load

    def ended(self, request: Request, model: str, run: Run | None) -> Run | None:
        """Return the run unchanged: nothing is learned."""
        return run


class ToldSharing(ToldLoads):
    """Exact loads, durations and interference."""

    def __init__(self, truth: Truth) -> None:
        super().__init__(truth)
        self._beside: dict[str, dict[str, float]] = {}

    def cap(self, model: str) -> float:
        """Return the cap by the exact power."""
        return cap_of(self._assumed.beta)

    def power(self, model: str) -> float:
        """Return the truth."""
        return self._assumed.beta

    def slower_beside(self, job_type: str, model: str) -> Mapping[str, float] | None:
        """Return the truth."""
        if not self._assumed.interfering:
            return None
        if job_type not in self._beside:
            one = self._jobs[job_type]
            self._beside[job_type] = {
                name: slower
                for name, other in self._jobs.items()
                if (slower := self._assumed.slower_beside(one, other)) > 1
            }
        return self._beside[job_type]


class ToldHost(HostProfiles):
    """The exact host memory and cores of every job."""

    def __init__(self, woken: set[str], truth: Truth) -> None:
        super().__init__(woken)
        self._jobs = {job.name: job for job in truth.jobs}

    def need(self, request: Request, capacity_bytes: int, margin: Margin) -> HostNeed:
        """Return the truth."""
        job = self._jobs[request.job_type]
        return HostNeed(job.ram_bytes, job.cpus, "told", "told")


def _told_engine(rules: Rules, truth: Truth, loads: Loads) -> Engine:
    needs = ToldNeeds(truth)
    return Engine(rules, needs, loads, ToldHost(needs.profiles.woken, truth))


class OfEngine:
    """The real engine, with the events of a negotiator in virtual time."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        rules: Rules,
        profiles: Sequence[Profile] = (),
        told: tuple[Truth, Loads] | None = None,
        host: HostSize | None = None,
    ) -> None:
        self.engine = _told_engine(rules, *told) if told else Engine(rules)
        self.forecasts: Forecasts | None = None  # where each job is told when it starts
        self.waited = self.told = 0  # jobs that had to wait, and those that were told
        self.refused: list[str] = []
        self.probe_s: list[float] = []  # how long first runs kept their siblings waiting
        self._probes: dict[str, float] = {}
        self._asked: list[str] = []
        self._index = {gpu.uuid: place for place, gpu in enumerate(gpus)}
        empty = tuple(Reading(gpu.uuid, used_bytes=0, load_pct=0.0) for gpu in gpus)
        self.engine.handle(JobStarted(0.0, tuple(gpus), empty, profiles=tuple(profiles), host=host))

    def comes(self, at: float, lease: str, job: SimulatedJob, attempt: int) -> list[SimulatedGrant]:
        """Handle a job's request."""
        request = Request(
            key=lease,
            lease=lease,
            job_type=job.job_type,
            label=job.job_type,
            user=job.user,
            gpus=job.gpus,
            holder=Holder(pid_of(lease), 1),
            arguments=job.arguments,
            is_command=True,
            attempt=attempt,
            yields=job.yields,
            is_urgent=job.is_urgent,
        )
        granted = self._tell(Requested(at, request))
        if self.forecasts is not None and lease in self.engine.view.waitlist:
            self.waited += 1
            at_once(self.forecasts.current(at))  # as for a user who asks when it will start
        return granted

    def ends(
        self,
        at: float,
        ended: SimulatedEnd,
        readings: Sequence[Reading],
        host: HostReading | None = None,
    ) -> list[SimulatedGrant]:
        """Handle a job's end; the GPUs are read again at once, as by a negotiator."""
        event = Released(
            at,
            ended.lease,
            ended.outcome,
            ended.peak_bytes,
            ended.asked_bytes,
            resident_bytes=ended.resident_bytes,
        )
        granted = self._tell(event)
        return granted + self.looks(at, readings, host)

    def looks(
        self, at: float, readings: Sequence[Reading], host: HostReading | None = None
    ) -> list[SimulatedGrant]:
        """Handle a reading of the GPUs and of the host."""
        return self._tell(Sampled(at, tuple(readings), host=host))

    def reserved_bytes(self, lease: str) -> int:
        """Return what a running job has reserved on each of its GPUs."""
        held = self.engine.view.leases.get(lease)
        return held.reserved_bytes if held else 0

    def asked_to_yield(self) -> list[str]:
        """Return the leases asked to give way since the last call."""
        asked, self._asked = self._asked, []
        return asked

    def _tell(self, event: Event) -> list[SimulatedGrant]:
        """Give the engine an event, and let it do what it defers, at the same time."""
        actions = self.engine.handle(event)
        granted = self._told(event.at, actions)
        while Defer(is_soon=True) in actions:
            actions = self.engine.handle(Resumed(event.at))
            granted += self._told(event.at, actions)
        return granted

    def _told(self, at: float, actions: Sequence[Action]) -> list[SimulatedGrant]:
        granted = []
        for action in actions:
            if isinstance(action, Grant):
                if self.forecasts is not None:
                    self.told += self.forecasts.granted(action.key, at) is not None
                places = tuple(self._index[uuid] for uuid in action.lease.gpus)
                granted.append(SimulatedGrant(action.lease.id, places))
            elif isinstance(action, Refuse):
                self.refused.append(action.key)
            elif isinstance(action, AskYield):
                self._asked.append(action.lease.id)
        self._time_first_runs(at)
        return granted

    def _time_first_runs(self, at: float) -> None:
        """Note how long each first run keeps its siblings from starting."""
        measured = set(self.engine.view.first_runs.values())
        for lease in [lease for lease in self._probes if lease not in measured]:
            self.probe_s.append(at - self._probes.pop(lease))
        for lease in measured:
            self._probes.setdefault(lease, at)


@dataclass(slots=True)
class _SimulatedLease:
    job: SimulatedJob
    gpus: tuple[int, ...]
    is_alone: bool


@dataclass(slots=True)
class Simple:
    """One of the simple policies: strictly in order, or past jobs that wait for a first run.

    `alone`: each job has its GPUs to itself. `first`: only the first of each type, until it has
    ended; then its peak is known. `gate`: memory is known beforehand. The latter two share a
    GPU up to a summed load.
    """

    gpus: Sequence[Gpu]
    assumed: Assumptions
    mode: str
    refused: list[str] = field(default_factory=list)
    _line: list[tuple[str, SimulatedJob]] = field(default_factory=list)
    _held: dict[str, _SimulatedLease] = field(default_factory=dict)
    _peaks: dict[str, int] = field(default_factory=dict)

    def comes(self, at: float, lease: str, job: SimulatedJob, attempt: int) -> list[SimulatedGrant]:
        """Queue a job; one that ran out of memory goes first."""
        self._line.insert(0 if attempt else len(self._line), (lease, job))
        return self._round()

    def ends(
        self,
        at: float,
        ended: SimulatedEnd,
        readings: Sequence[Reading],
        host: HostReading | None = None,
    ) -> list[SimulatedGrant]:
        """Handle a job's end; its peak is known from now on."""
        job = self._held.pop(ended.lease).job
        asked = ended.peak_bytes + (ended.asked_bytes or 0)
        self._peaks[job.job_type] = max(self._peaks.get(job.job_type, 0), asked)
        return self._round()

    def looks(
        self, at: float, readings: Sequence[Reading], host: HostReading | None = None
    ) -> list[SimulatedGrant]:
        """Do nothing: readings do not matter here."""
        return []

    def reserved_bytes(self, lease: str) -> int:
        """Return what a running job has reserved on each of its GPUs."""
        held = self._held[lease]
        if held.is_alone:
            return min(self.gpus[place].total_bytes for place in held.gpus)
        return self._need(held.job)

    def asked_to_yield(self) -> list[str]:
        """Return none: these policies let every job run to its end."""
        return []

    def _need(self, job: SimulatedJob) -> int:
        return job.peak_bytes if self.mode == "gate" else self._peaks.get(job.job_type, 0)

    def _round(self) -> list[SimulatedGrant]:
        granted: list[SimulatedGrant] = []
        for lease, job in list(self._line):
            is_first = self.mode == "first" and job.job_type not in self._peaks
            kin = (held.job.job_type for held in self._held.values())
            if is_first and job.job_type in kin:
                continue  # its sibling is measured; others may pass
            is_alone = self.mode == "alone" or is_first
            chosen = self._fitting(job, is_alone)
            if len(chosen) < job.gpus:
                break
            self._line.remove((lease, job))
            self._held[lease] = _SimulatedLease(job, tuple(chosen), is_alone)
            granted.append(SimulatedGrant(lease, tuple(chosen)))
        return granted

    def _fitting(self, job: SimulatedJob, is_alone: bool) -> list[int]:
        ranked = []
        for place, gpu in enumerate(self.gpus):
            here = [held for held in self._held.values() if place in held.gpus]
            load = sum(held.job.load for held in here)
            if here and (is_alone or any(held.is_alone for held in here)):
                continue
            free = gpu.total_bytes - sum(self._need(held.job) for held in here)
            if here and (load + job.load > self.assumed.cap or self._need(job) > free):
                continue
            ranked.append((load, -free, place))
        return [place for _, _, place in sorted(ranked)[: job.gpus]]


def pid_of(lease: str) -> int:
    """Return the pid that a simulated job runs under."""
    return 1000 + int(lease.partition("-")[0])
