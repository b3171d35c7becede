"""A makespan that no policy can beat, so that ratios are honest."""

from __future__ import annotations

from collections.abc import Sequence

from grn.model.gpu import Gpu
from grn.negotiator.learn.slowdown import (
    MAX_CAP,  # no policy here shares a GPU beyond this summed load
)
from grn.simulate.workload import Assumptions, SimulatedJob, speed_of


def lower_bound_s(jobs: Sequence[SimulatedJob], gpus: Sequence[Gpu], assumed: Assumptions) -> float:
    """Return the largest of the bounds by time, memory, load, large jobs and wide jobs."""
    if not jobs:
        return 0.0
    count, largest = len(gpus), max(gpu.total_bytes for gpu in gpus)
    memory = sum(gpu.total_bytes for gpu in gpus)
    gain = MAX_CAP ** (1 - assumed.beta) if assumed.beta < 1 else 1.0
    speeds = [speed_of(gpu) for gpu in gpus]
    fastest, all_speeds = max(speeds), sum(speeds)
    best = max(job.arrival_s + job.solo_s / fastest for job in jobs)
    area = load = big = wide = 0.0
    for job in sorted(jobs, key=lambda job: -job.arrival_s):  # all that come later and this one
        area += job.gpus * job.peak_bytes * job.solo_s
        load += job.gpus * job.load * job.solo_s
        if job.peak_bytes > largest / 2:  # no two of these on one GPU
            big += job.gpus * job.solo_s
            wide += job.solo_s if job.gpus > count / 2 else 0.0
        by_memory, by_load = area / (memory * fastest), load / (all_speeds * gain)
        most = max(by_memory, by_load, big / all_speeds, wide / fastest)
        best = max(best, job.arrival_s + most)
    return best
