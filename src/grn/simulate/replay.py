"""Virtual time: jobs arrive, run at a speed that depends on their neighbours, and end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from grn.errors import UsageError
from grn.model.gpu import Gpu, ProcessUse, Reading
from grn.model.host import HostReading, HostShare
from grn.model.job import Outcome
from grn.simulate.schedulers import Scheduler, SimulatedEnd, SimulatedGrant, pid_of
from grn.simulate.workload import Assumptions, SimulatedJob, speed_of

_STUCK_S = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Stay:
    """One run of one job on its GPUs, as the timeline draws it."""

    job: SimulatedJob
    gpus: tuple[int, ...]
    began_at: float
    ended_at: float
    died: bool


@dataclass(slots=True)
class Replayed:
    """The result of a replay."""

    ends: dict[int, float] = field(default_factory=dict)  # place of the job -> its end
    stays: list[Stay] = field(default_factory=list)
    deaths: int = 0
    ram_deaths: int = 0  # of them, those killed since the host's memory was full
    known_deaths: int = 0  # of types with an earlier successful run
    used_byte_s: float = 0.0
    wasted_byte_s: float = 0.0
    refused: int = 0
    yielded: int = 0  # runs that gave way


@dataclass(slots=True)
class _Running:
    place: int
    job: SimulatedJob
    lease: str
    attempt: int
    gpus: tuple[int, ...]
    began_at: float
    done_s: float = 0.0
    held_bytes: int = 0
    resident_bytes: int = 0  # on the host


class World:
    """Jobs on GPUs in virtual time, under one scheduler."""

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        gpus: Sequence[Gpu],
        scheduler: Scheduler,
        assumed: Assumptions,
    ) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.arrival_s)
        self._gpus, self._scheduler, self._assumed = gpus, scheduler, assumed
        self._fast = [speed_of(gpu) for gpu in gpus]
        self._now = 0.0
        self._running: dict[str, _Running] = {}
        self._asked: dict[str, tuple[int, int]] = {}  # lease -> place of the job, attempt
        self._good: set[str] = set()
        self._saved_s: dict[int, float] = {}  # place of a job -> work that it did before
        self._leases = 0
        self.result = Replayed()

    def run(self) -> Replayed:
        """Play until all jobs have ended."""
        coming, tick = 0, 0.0
        while coming < len(self._jobs) or self._running or self._waits():
            arrival = self._jobs[coming].arrival_s if coming < len(self._jobs) else math.inf
            first, when = self._next_end()
            is_busy = bool(self._running or self._waits())
            tick = max(tick, self._now)
            until = min(arrival, when, tick if is_busy else math.inf)
            self._advance(until)
            if until == arrival:
                self._come(coming, 0)
                coming += 1
            elif first is not None and until == when:
                self._end(first, Outcome.OK)
            else:
                self._look()
                tick = self._now + self._pause_s()
            self._give_way()
            if self._now > _STUCK_S + self._jobs[-1].arrival_s:
                raise UsageError("the jobs of this workload do not end within a month.")
        self.result.refused = len(self._scheduler.refused)
        return self.result

    def _pause_s(self) -> float:
        """Return the time to the next reading: longer while no job is new."""
        runs = self._running.values()
        if any(self._now - run.began_at < self._assumed.new_s for run in runs):
            return self._assumed.tick_s
        is_growing = any(run.held_bytes < run.job.peak_bytes for run in runs)
        return self._assumed.calm_s / 2 if is_growing else self._assumed.calm_s

    def _waits(self) -> bool:
        return len(self._asked) > len(self._running) + len(self._scheduler.refused)

    def _speeds(self) -> list[float]:
        loads = [0.0] * len(self._gpus)
        for run in self._running.values():
            for gpu in run.gpus:
                loads[gpu] += run.job.load
        of_host = self._host_speed()
        return [
            self._assumed.speed(load) * fast * of_host
            for load, fast in zip(loads, self._fast, strict=True)
        ]

    def _host_speed(self) -> float:
        if self._assumed.host is None:
            return 1.0
        return self._assumed.host_speed(sum(run.job.cpus for run in self._running.values()))

    def _speed(self, run: _Running, speeds: Sequence[float]) -> float:
        """Return the speed of a job: that of its slowest GPU, less the interference of types."""
        speed = min(speeds[gpu] for gpu in run.gpus)
        if self._assumed.interfering:
            for other in self._running.values():
                if other is not run and not set(other.gpus).isdisjoint(run.gpus):
                    speed /= self._assumed.slower_beside(run.job, other.job)
        return speed

    def _next_end(self) -> tuple[_Running | None, float]:
        speeds, best, when = self._speeds(), None, math.inf
        for run in self._running.values():
            speed = self._speed(run, speeds)
            end = self._now + max(0.0, run.job.solo_s - run.done_s) / speed
            if end < when:
                best, when = run, end
        return best, when

    def _advance(self, until: float) -> None:
        passed = until - self._now
        if passed > 0:
            speeds = self._speeds()
            for run in self._running.values():
                run.done_s += passed * self._speed(run, speeds)
                used = run.held_bytes * len(run.gpus)
                reserved = self._scheduler.reserved_bytes(run.lease) * len(run.gpus)
                self.result.used_byte_s += used * passed
                self.result.wasted_byte_s += max(0, reserved - used) * passed
        self._now = until

    def _come(self, place: int, attempt: int) -> None:
        self._leases += 1
        lease = f"{self._leases}-{self._jobs[place].name}"
        self._asked[lease] = (place, attempt)
        job = self._jobs[place]
        self._start(self._scheduler.comes(self._now, lease, job, attempt))

    def _start(self, granted: Sequence[SimulatedGrant]) -> None:
        for one in granted:
            place, attempt = self._asked[one.lease]
            job = self._jobs[place]
            self._running[one.lease] = _Running(
                place, job, one.lease, attempt, one.gpus, self._now,
                done_s=self._saved_s.get(place, 0.0), held_bytes=0,
            )  # fmt: skip

    def _give_way(self) -> None:
        """End the runs that were asked to give way; each comes again at once."""
        while asked := self._scheduler.asked_to_yield():
            for run in [self._running[lease] for lease in asked if lease in self._running]:
                if run.job.saves_work:
                    self._saved_s[run.place] = run.done_s
                self._end(run, Outcome.YIELDED)

    def _look(self) -> None:
        self._grow()
        self._fill_host()
        self._start(self._scheduler.looks(self._now, self._readings(), self._host_reading()))

    def _grow(self) -> None:
        """Grow the memory of jobs; a job that needs more than is left runs out of memory."""
        for run in sorted(self._running.values(), key=lambda run: run.began_at):
            want = run.job.memory_bytes(self._now - run.began_at, run.done_s / run.job.solo_s)
            if want <= run.held_bytes:
                continue
            if all(self._used(gpu) - run.held_bytes + want <= self._total(gpu) for gpu in run.gpus):
                run.held_bytes = want
            else:
                self._end(run, Outcome.OUT_OF_MEMORY, want - run.held_bytes)

    def _fill_host(self) -> None:
        """Grow the memory of jobs on the host; when it is full the largest job is killed."""
        host = self._assumed.host
        if host is None:
            return
        for run in self._running.values():
            run.resident_bytes = run.job.resident_bytes(self._now - run.began_at)
        while sum(run.resident_bytes for run in self._running.values()) > host.ram_bytes:
            runs = self._running.values()
            self._end(max(runs, key=lambda run: run.resident_bytes), Outcome.OUT_OF_RAM)

    def _host_reading(self) -> HostReading | None:
        if self._assumed.host is None:
            return None
        runs, share = self._running.values(), self._host_speed()
        return HostReading(
            sum(run.resident_bytes for run in runs),
            sum(run.job.cpus for run in runs) * share,
            tuple(HostShare(run.lease, run.resident_bytes, run.job.cpus * share) for run in runs),
        )

    def _end(self, run: _Running, outcome: Outcome, asked_bytes: int | None = None) -> None:
        del self._running[run.lease], self._asked[run.lease]
        gave_way = outcome is Outcome.YIELDED
        died = outcome is not Outcome.OK and not gave_way
        self.result.stays.append(Stay(run.job, run.gpus, run.began_at, self._now, died))
        if died:
            self.result.deaths += 1
            self.result.ram_deaths += outcome is Outcome.OUT_OF_RAM
            self.result.known_deaths += run.job.job_type in self._good
        elif gave_way:
            self.result.yielded += 1
        else:
            self._good.add(run.job.job_type)
            self.result.ends[run.place] = self._now
            run.held_bytes = max(run.held_bytes, run.job.peak_bytes)  # shorter than a tick
        ended = SimulatedEnd(
            run.lease, outcome, run.held_bytes, asked_bytes, run.resident_bytes or None
        )
        self._start(self._scheduler.ends(self._now, ended, self._readings(), self._host_reading()))
        if died or gave_way:
            self._come(run.place, run.attempt + (outcome is Outcome.OUT_OF_MEMORY))

    def _used(self, gpu: int) -> int:
        return sum(run.held_bytes for run in self._running.values() if gpu in run.gpus)

    def _total(self, gpu: int) -> int:
        return self._gpus[gpu].total_bytes

    def _readings(self) -> list[Reading]:
        uses: list[list[ProcessUse]] = [[] for _ in self._gpus]
        loads = [0.0] * len(self._gpus)
        for run in self._running.values():
            use = ProcessUse(pid_of(run.lease), run.held_bytes, (run.lease,))
            for gpu in run.gpus:
                uses[gpu].append(use)
                loads[gpu] += 100.0 * run.job.load
        return [
            Reading(
                gpu.uuid,
                used_bytes=sum(use.used_bytes or 0 for use in uses[place]),
                load_pct=min(100.0, loads[place]),
                uses=tuple(uses[place]),
            )
            for place, gpu in enumerate(self._gpus)
        ]
