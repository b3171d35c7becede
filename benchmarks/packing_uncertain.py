"""Workloads whose memory is uncertain: runs of a type differ, and no argument tells why.

Each world is drawn from its seed: the GPUs, the types and their sizes, loads, times and arrivals.
Only draws jobs; `packing.py --uncertain` replays them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grn.model.job import Argument
from grn.simulate.workload import SimulatedJob, parse_gpus

_GPUS = (2, 3, 4, 4, 8)
_SIZES_MB = (24000, 40000, 80000)
_LARGEST = 0.85  # of a GPU: no peak is larger
_SMALLEST_MB = 300
_STEADY = 0.03  # runs differ by so much where nothing else is said


@dataclass(frozen=True, slots=True)
class UncertainWorld:
    """One workload and its GPUs."""

    gpus: str
    jobs: tuple[SimulatedJob, ...]


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    mb: float  # the usual peak
    load: float
    solo_s: float
    leak: float  # how many times its first memory a leaking run has in the end
    arguments: tuple[tuple[Argument, ...], ...]  # that runs are called with


_Draw = Callable[[random.Random], float]
_AROUND: dict[str, _Draw] = {
    "runs differ by 20 %": lambda draw: math.exp(draw.gauss(0, 0.2)),
    "runs differ by 40 %": lambda draw: math.exp(draw.gauss(0, 0.4)),
    "heavy tails, lognormal": lambda draw: 0.6 * math.exp(draw.gauss(0, 1.0)),
    "heavy tails, Pareto": lambda draw: 0.5 * min(20.0, draw.paretovariate(1.3)),
    "two modes": lambda draw: (
        (3.0 if draw.random() < 0.3 else 1.0) * 0.7 * math.exp(draw.gauss(0, _STEADY))
    ),
    "types seen once": lambda draw: math.exp(draw.gauss(0, _STEADY)),
    "slow leaks": lambda draw: math.exp(draw.gauss(0, _STEADY)),
}
KINDS = tuple(_AROUND)


def uncertain(kind: str, seed: int, count: int) -> UncertainWorld:
    """Return one world of a kind."""
    draw = random.Random(f"uncertain {kind} {seed}")
    gpus, size_mb = draw.choice(_GPUS), draw.choice(_SIZES_MB)
    types = _types(draw, kind, count, size_mb)
    picked = _picked(draw, kind, types, count)
    peaks = [_peak_mb(draw, kind, one, size_mb) for one in picked]
    times = [one.solo_s * math.exp(draw.gauss(0, 0.1)) for one in picked]
    arrivals = _arrivals(draw, gpus, size_mb, list(zip(picked, peaks, times, strict=True)))
    jobs = tuple(
        SimulatedJob(
            f"job{number}", one.name, at, solo_s, int(mb * 1e6), 1, one.load,
            number % 3, draw.choice(one.arguments),
            starts_with=1.0 / one.leak if kind == "slow leaks" else 1.0,
            grown_at=1.0 if kind == "slow leaks" else 0.0,
        )
        for number, (one, mb, solo_s, at) in enumerate(
            zip(picked, peaks, times, arrivals, strict=True)
        )
    )  # fmt: skip
    text = f"{gpus}x{size_mb}MB"
    assert all(job.peak_bytes <= _LARGEST * parse_gpus(text)[0].total_bytes for job in jobs)
    return UncertainWorld(text, jobs)


def _types(draw: random.Random, kind: str, count: int, size_mb: int) -> list[_Type]:
    number = (2 * count) // 3 if kind == "types seen once" else draw.randint(4, 12)
    usual = draw.choice((0.08, 0.13, 0.2))  # of a GPU
    light, heavy = draw.choice(((0.05, 0.2), (0.1, 0.4), (0.2, 0.7)))
    minutes = draw.choice((10, 25, 50))
    has_arguments = draw.random() < 0.3
    widths: tuple[tuple[Argument, ...], ...] = tuple((("width", float(n)),) for n in (1, 2, 4))
    return [
        _Type(
            f"type{place}.py",
            max(_SMALLEST_MB, min(0.5, usual * math.exp(draw.gauss(0, 0.6))) * size_mb),
            draw.uniform(light, heavy),
            60 * minutes * math.exp(draw.gauss(0, 0.5)),
            draw.uniform(1.5, 3.0),
            widths if has_arguments else ((),),
        )
        for place in range(number)
    ]


def _picked(draw: random.Random, kind: str, types: Sequence[_Type], count: int) -> list[_Type]:
    if kind != "types seen once":
        return [draw.choice(types) for _ in range(count)]
    again = draw.sample(types, count - len(types))
    return draw.sample([*types, *again], count)


def _peak_mb(draw: random.Random, kind: str, one: _Type, size_mb: int) -> float:
    mb = one.mb * _AROUND[kind](draw)
    return min(_LARGEST * size_mb, max(_SMALLEST_MB, mb))


def _arrivals(
    draw: random.Random, gpus: int, size_mb: int, runs: Sequence[tuple[_Type, float, float]]
) -> list[float]:
    """Return times in order: a batch within minutes, or one by one at what the GPUs can take."""
    if draw.random() < 0.5:
        return sorted(draw.uniform(0, 300) for _ in runs)
    area = sum(mb * solo_s for _, mb, solo_s in runs) / (0.8 * gpus * size_mb)
    work = sum(one.load * solo_s for one, _, solo_s in runs) / (1.2 * gpus)
    busy_s = max(area, work)
    gap_s = busy_s / len(runs) / draw.choice((1.1, 1.5))
    found, at = [], 0.0
    for _ in runs:
        found.append(at)
        at += draw.expovariate(1 / gap_s)
    return found
