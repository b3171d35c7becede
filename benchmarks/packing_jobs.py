"""The workloads of the packing benchmark: generated ones, and published traces where they are.

Reads and draws jobs only; nothing is replayed here.
"""

from __future__ import annotations

import csv
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grn.simulate.sources import arriving, generate
from grn.simulate.workload import SimulatedJob, parse_gpus

LARGE, SMALL = "4x40000MB", "4x24000MB"
_IMAGE_NET = ("Inception", "Xception", "resnet", "vgg")
_SHIFT_S = 120.0  # by so much the arrivals of a trace are shaken, all but the first time
_STRETCH = 0.03  # and the times of its jobs


@dataclass(frozen=True, slots=True)
class Case:
    """Workloads of one kind on the same GPUs: one row of figures is their mean."""

    title: str
    gpus: str
    many: tuple[tuple[SimulatedJob, ...], ...]
    clashing: float = 0.0  # the share of pairs of types that slow each other


def generated(count: int, seeds: int, gpus: str) -> Case:
    """Return workloads of our own making."""
    many = tuple(tuple(_fitting(generate(count, seed), gpus)) for seed in range(seeds))
    return Case(f"{count} generated jobs, {seeds} seeds", gpus, many)


def trace(folder: Path, name: str, seeds: int) -> Case:
    """Return a published trace as it is, and shaken a little: of 60 jobs the order is luck."""
    kinds = catalogue(folder)
    rows = _rows(folder / f"carma_trace_{name}.csv")
    jobs = [replace(kinds[row["job"]], arrival_s=float(row["arrival_s"])) for row in rows]
    many = tuple(tuple(_named(_shaken(jobs, seed))) for seed in range(seeds))
    return Case(
        f"trace {name}, {len(jobs)} jobs, as it is and shaken {seeds - 1} times", LARGE, many
    )


def drawn(folder: Path, count: int, seeds: int, gpus: str) -> Case:
    """Draw jobs of the traces that come one by one, with times that vary by a tenth."""
    kinds = _fitting(list(catalogue(folder).values()), gpus)
    many = []
    for seed in range(seeds):
        draw = random.Random(f"drawn {seed}")
        jobs = [
            replace(kind, solo_s=kind.solo_s * draw.lognormvariate(0, 0.1))
            for kind in draw.choices(kinds, k=count)
        ]
        many.append(tuple(_named(arriving(jobs, 0.35, seed))))
    return Case(f"{count} drawn from the traces, {seeds} seeds", gpus, tuple(many))


def catalogue(folder: Path) -> dict[str, SimulatedJob]:
    """Read what jobs there are; the type of a job is its script, as it is for a command."""
    jobs = {}
    for row in _rows(folder / "carma_jobs.csv"):
        if row["solo_minutes"]:
            jobs[row["job"]] = SimulatedJob(
                row["job"],
                row["script"],
                0.0,
                60 * float(row["solo_minutes"]),
                int(row["peak_mem_mb"]) * 10**6,
                int(row["gpus"]),
                _load(row["job"], int(row["batch"])),
                arguments=(("batch", float(row["batch"])), ("epochs", float(row["epochs"]))),
            )
    return jobs


def _shaken(jobs: Sequence[SimulatedJob], seed: int) -> list[SimulatedJob]:
    if not seed:
        return list(jobs)
    draw = random.Random(f"shaken {seed}")
    moved = [
        replace(
            job,
            arrival_s=max(0.0, job.arrival_s + draw.gauss(0, _SHIFT_S)),
            solo_s=job.solo_s * math.exp(draw.gauss(0, _STRETCH)),
        )
        for job in jobs
    ]
    return sorted(moved, key=lambda job: job.arrival_s)


def _named(jobs: Sequence[SimulatedJob]) -> list[SimulatedJob]:
    """Give each job a name of its own: only so can each be told apart by one who knows all."""
    return [replace(job, name=f"{job.name}#{number}") for number, job in enumerate(jobs)]


def _load(name: str, batch: int) -> float:
    """Return the assumed load of a job: nobody has published it."""
    place = {32: 0, 64: 1}.get(batch, 2)
    if "cifar" in name:
        return (0.30, 0.35, 0.45)[place]
    if name.startswith(("mobilenet", "efficientNet")):
        return (0.55, 0.75, 0.85)[place]
    if name.startswith(_IMAGE_NET):
        return (0.75, 0.90, 0.95)[place]
    return 0.2 if name.startswith("dlrm") else 0.9


def _fitting(jobs: Sequence[SimulatedJob], gpus: str) -> list[SimulatedJob]:
    """Leave out what these GPUs cannot take beside their guard."""
    least = min(gpu.total_bytes for gpu in parse_gpus(gpus))
    return [job for job in jobs if job.peak_bytes < 0.9 * least]


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
