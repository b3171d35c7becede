"""A generated workload, the same for the same seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grn.model.units import MiB
from grn.simulate.workload import SimulatedJob

PER_MINUTE = 0.35


@dataclass(frozen=True, slots=True)
class _Family:
    """Job types alike: memory = fixed + per item of a batch, loads and minutes by batch size."""

    script: str
    fixed_mib: int
    item_mib: float
    batches: tuple[int, ...]
    loads: tuple[float, ...]
    minutes: tuple[float, ...]
    gpus: int = 1
    starts_with: float = 1.0
    grown_at: float = 0.0
    is_jump: bool = False


_FAMILIES = (
    _Family("tiny_images.py", 560, 0.8, (32, 64, 128), (0.3, 0.35, 0.45), (18, 10, 6)),
    _Family("small_images.py", 760, 2.2, (32, 64, 128), (0.3, 0.35, 0.45), (40, 22, 12)),
    _Family("mobile_net.py", 700, 83.0, (32, 64, 128), (0.55, 0.75, 0.85), (30, 26, 25)),
    _Family("residual.py", 900, 96.0, (32, 64, 128), (0.75, 0.9, 0.95), (35, 33, 31)),
    _Family("deep_images.py", 1700, 157.0, (32, 64, 128), (0.75, 0.9, 0.95), (51, 47, 45)),
    _Family("detect.py", 6000, 110.0, (128,), (0.9,), (95,), 1, 0.7, 0.1),
    _Family("segment.py", 2500, 230.0, (16, 32), (0.8, 0.9), (32, 30), 1, 0.6, 0.5, True),
    _Family("words_base.py", 3000, 520.0, (8, 16, 32), (0.9, 0.9, 0.9), (40, 25, 15)),
    _Family("words_large.py", 9000, 1200.0, (8,), (0.9,), (60,), 2),
    _Family("clicks.py", 1400, 0.002, (32768,), (0.2,), (25,), 1, 0.5, 0.6),
    _Family("replay_game.py", 2200, 9.0, (64, 256), (0.4, 0.5), (50, 45), 1, 0.4, 0.9),
)
_WEIGHTS = (16, 16, 12, 14, 10, 4, 6, 8, 4, 4, 6)
_USERS = (0, 0, 0, 1, 1, 2, 3)  # some submit more than others


def generate(count: int, seed: int = 0, per_minute: float = PER_MINUTE) -> list[SimulatedJob]:
    """Return a mixed batch whose jobs arrive one by one; an eighth of the types grow."""
    draw = random.Random(f"grn workload {seed}")
    jobs, at = [], 0.0
    for number in range(count):
        family = draw.choices(_FAMILIES, _WEIGHTS)[0]
        place = draw.randrange(len(family.batches))
        batch = family.batches[place]
        peak = (family.fixed_mib + family.item_mib * batch) * math.exp(draw.gauss(0, 0.01))
        jobs.append(
            SimulatedJob(
                f"job{number}",
                family.script,
                at,
                60 * family.minutes[place] * math.exp(draw.gauss(0, 0.1)),
                int(peak * MiB),
                family.gpus,
                family.loads[place],
                draw.choice(_USERS),
                (("batch", float(batch)),),
                family.starts_with,
                family.grown_at,
                family.is_jump,
            )
        )
        at += draw.expovariate(per_minute / 60)
    return jobs


def arriving(jobs: Sequence[SimulatedJob], per_minute: float, seed: int = 0) -> list[SimulatedJob]:
    """Give jobs independent arrival times, in their order."""
    draw, at, coming = random.Random(f"grn arrivals {seed}"), 0.0, []
    for job in jobs:
        coming.append(replace(job, arrival_s=at))
        at += draw.expovariate(per_minute / 60)
    return coming
