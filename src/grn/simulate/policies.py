"""The policies that a replay compares, by name, and the figures of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from grn.model.gpu import Gpu
from grn.model.job import Outcome, Profile, Run
from grn.negotiator.actions import SaveStart
from grn.negotiator.learn.interference import MAX_CAP  # no policy shares a GPU beyond this load
from grn.negotiator.queries.forecast import Forecasts
from grn.negotiator.schedule.room.ledger import Guard, Rules
from grn.simulate.replay import Replayed, World
from grn.simulate.schedulers import OfEngine, Scheduler, Simple, ToldLoads, ToldSharing, Truth
from grn.simulate.workload import Assumptions, SimulatedJob, speed_of

POLICIES: Mapping[str, str] = {
    "exclusive": "one job per GPU, in turn",
    "first-run": "the first run of each type alone to its end, then shared up to a load of 1.4",
    "fifo-gate": "in turn, memory known, shared up to a load of 1.4",
    "grn": "the engine of grn, which knows nothing at first",
    "grn-warm": "the engine of grn, which has seen three runs of each type",
    "clairvoyant": "the engine of grn, told the memory, load and time of every job",
    "all-knowing": "the same, told as well how GPUs share their time among jobs",
}

_TOLD = {"clairvoyant": ToldLoads, "all-knowing": ToldSharing}


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """The figures of one policy."""

    policy: str
    makespan_s: float
    mean_s: float  # from arrival to end
    p95_s: float
    deaths: int
    known_deaths: int
    waste: float | None  # reserved and not used, for each byte used
    fairness: float  # Jain's index over users of their mean stretch
    probe_s: float | None  # the longest that a first run kept its siblings waiting
    replayed: Replayed
    ram_deaths: int = 0  # of all deaths, those by the host's memory
    starts: tuple[SaveStart, ...] = ()  # the last starts and the ranges that were told for them
    told: float = 0.0  # the share of jobs that had to wait and were told a range


def play(
    policy: str,
    jobs: Sequence[SimulatedJob],
    gpus: Sequence[Gpu],
    assumed: Assumptions,
    chosen: Rules | None = None,
    has_forecasts: bool = False,
) -> PolicyFigures:
    """Replay a workload under one policy; with forecasts, `grn` tells each job when it starts."""
    scheduler = _scheduler(policy, jobs, gpus, assumed, chosen or Rules())
    if has_forecasts and isinstance(scheduler, OfEngine):
        scheduler.forecasts = Forecasts(scheduler.engine.view)
    told = [_by_name(job) for job in jobs] if policy in _TOLD else jobs
    replayed = World(told, gpus, scheduler, assumed).run()
    probes = scheduler.probe_s if isinstance(scheduler, OfEngine) else []
    found = _figures(policy, sorted(jobs, key=lambda job: job.arrival_s), replayed, probes)
    if not isinstance(scheduler, OfEngine) or scheduler.forecasts is None:
        return found
    share = scheduler.told / max(1, scheduler.waited)
    return replace(found, starts=tuple(scheduler.forecasts.starts), told=share)


def _by_name(job: SimulatedJob) -> SimulatedJob:
    """Return a job that is its own type, so that its needs can be given exactly."""
    return replace(job, job_type=job.name, kind=job.job_type)


def rules(guard: tuple[float, int], **numbers: float) -> Rules:
    """Return the engine's rules as an administrator has set them; all users weigh the same."""
    return replace(Rules(Guard(*guard)), **numbers)  # type: ignore[arg-type]


def _scheduler(
    policy: str,
    jobs: Sequence[SimulatedJob],
    gpus: Sequence[Gpu],
    assumed: Assumptions,
    chosen: Rules,
) -> Scheduler:
    modes = {"exclusive": "alone", "first-run": "first", "fifo-gate": "gate"}
    if policy in modes:
        return Simple(gpus, assumed, modes[policy])
    models = {gpu.model for gpu in gpus}
    if policy in _TOLD:
        truth = Truth([_by_name(job) for job in jobs], assumed)
        return OfEngine(gpus, chosen, told=(truth, _TOLD[policy](truth)), host=assumed.host)
    if policy == "grn-warm":
        by_type: dict[str, list[SimulatedJob]] = {}
        for job in jobs:
            by_type.setdefault(job.job_type, []).append(job)
        some = [seen[:3] for seen in by_type.values()]
        profiles = [_profile(seen, model) for seen in some for model in models]
        return OfEngine(gpus, chosen, profiles, host=assumed.host)
    return OfEngine(gpus, chosen, host=assumed.host)


def _profile(jobs: Sequence[SimulatedJob], model: str) -> Profile:
    good = Outcome.OK
    runs = tuple(
        Run(
            good,
            job.peak_bytes,
            job.solo_s,
            0.0,
            0,
            job.arguments,
            load=job.load,
            crowd=0.0,
            ram_bytes=job.ram_bytes or None,
            cpus=job.cpus or None,
        )
        for job in jobs
    )
    return Profile(jobs[0].job_type, model, jobs[0].job_type, jobs[0].user, runs)


def _figures(
    policy: str, jobs: Sequence[SimulatedJob], replayed: Replayed, probes: Sequence[float]
) -> PolicyFigures:
    times = sorted(end - jobs[place].arrival_s for place, end in replayed.ends.items())
    stretches: dict[int, list[float]] = {}
    for place, end in replayed.ends.items():
        job = jobs[place]
        stretches.setdefault(job.user, []).append((end - job.arrival_s) / job.solo_s)
    means = [sum(each) / len(each) for each in stretches.values()]
    squares = len(means) * sum(mean * mean for mean in means)
    return PolicyFigures(
        policy,
        max(replayed.ends.values(), default=0.0),
        sum(times) / len(times) if times else 0.0,
        times[math.ceil(0.95 * len(times)) - 1] if times else 0.0,
        replayed.deaths,
        replayed.known_deaths,
        replayed.wasted_byte_s / replayed.used_byte_s if replayed.used_byte_s else None,
        sum(means) ** 2 / squares if squares else 1.0,
        max(probes, default=None),
        replayed,
        replayed.ram_deaths,
    )


def lower_bound_s(jobs: Sequence[SimulatedJob], gpus: Sequence[Gpu], assumed: Assumptions) -> float:
    """Return a makespan that no policy can beat: by time, memory, load, large and wide jobs."""
    if not jobs:
        return 0.0
    count, largest = len(gpus), max(gpu.total_bytes for gpu in gpus)
    memory = sum(gpu.total_bytes for gpu in gpus)
    gain = MAX_CAP ** (1 - assumed.beta) if assumed.beta < 1 else 1.0
    speeds = [speed_of(gpu) for gpu in gpus]
    fastest, all_speeds = max(speeds), sum(speeds)
    best = max(job.arrival_s + job.solo_s / fastest for job in jobs)
    area = load = big = wide = 0.0
    for job in sorted(jobs, key=lambda job: -job.arrival_s):  # this one and all later ones
        area += job.gpus * job.peak_bytes * job.solo_s
        load += job.gpus * job.load * job.solo_s
        if job.peak_bytes > largest / 2:  # no two of these on one GPU
            big += job.gpus * job.solo_s
            wide += job.solo_s if job.gpus > count / 2 else 0.0
        by_memory, by_load = area / (memory * fastest), load / (all_speeds * gain)
        most = max(by_memory, by_load, big / all_speeds, wide / fastest)
        best = max(best, job.arrival_s + most)
    return best
