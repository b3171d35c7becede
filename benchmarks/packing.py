"""Packing by replay: makespan and mean completion of each policy against one job per GPU.

Run with the path of a folder of traces to replay those as well (docs/packing.md says which files).
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from grn.simulate.bound import lower_bound_s
from grn.simulate.generate import arriving, generate
from grn.simulate.policies import POLICIES, Figures, play
from grn.simulate.workload import Assumptions, Job, parse_gpus

BETAS = (1.0, 0.6)
_IMAGE_NET = ("Inception", "Xception", "resnet", "vgg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="?", type=Path, help="a folder with carma_jobs.csv")
    parser.add_argument("--seeds", type=int, default=3, help="of generated workloads (3)")
    parser.add_argument("--jobs", type=int, default=300, help="in each of those (300)")
    parser.add_argument("--policy", action="append", choices=list(POLICIES))
    parser.add_argument("--gpus", action="append", help="of generated workloads")
    options = parser.parse_args()
    names = options.policy or list(POLICIES)
    for sentence in Assumptions().sentences():
        print(f"assumed: {sentence}")
    for gpus in options.gpus or ("4x40000MB", "4x24GB"):
        many = [_fitting(generate(options.jobs, seed), gpus) for seed in range(options.seeds)]
        _table(f"{options.jobs} generated jobs, {options.seeds} seeds", many, gpus, names)
    if options.traces is not None:
        for name in ("t1", "t2"):
            jobs = trace(options.traces, name)
            _table(f"trace {name}, {len(jobs)} jobs", [jobs], "4x40000MB", names)
        for gpus in ("4x40000MB", "4x24000MB"):
            drawn = [drawn_jobs(options.traces, seed, gpus) for seed in range(options.seeds)]
            _table(f"300 drawn from the traces, {options.seeds} seeds", drawn, gpus, names)


def trace(folder: Path, name: str) -> list[Job]:
    """Read one of the published traces."""
    kinds = catalogue(folder)
    rows = _rows(folder / f"carma_trace_{name}.csv")
    return [replace(kinds[row["job"]], arrival_s=float(row["arrival_s"])) for row in rows]


def catalogue(folder: Path) -> dict[str, Job]:
    """Read what jobs there are; the type of a job is its script, as it is for a command."""
    jobs = {}
    for row in _rows(folder / "carma_jobs.csv"):
        if row["solo_minutes"]:
            jobs[row["job"]] = Job(
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


def drawn_jobs(folder: Path, seed: int, gpus: str) -> list[Job]:
    """Draw 300 jobs of the catalogue that come one by one, with times that vary by a tenth."""
    import random

    draw = random.Random(f"drawn {seed}")
    kinds = _fitting(list(catalogue(folder).values()), gpus)
    jobs = [
        replace(kind, solo_s=kind.solo_s * draw.lognormvariate(0, 0.1))
        for kind in draw.choices(kinds, k=300)
    ]
    return arriving(jobs, 0.35, seed)


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


def _fitting(jobs: Sequence[Job], gpus: str) -> list[Job]:
    """Leave out what these GPUs cannot take beside their guard."""
    least = min(gpu.total_bytes for gpu in parse_gpus(gpus))
    return [job for job in jobs if job.peak_bytes < 0.9 * least]


def _table(title: str, many: Sequence[Sequence[Job]], gpus: str, names: Sequence[str]) -> None:
    print(f"\n## {title}, on {gpus}\n")
    heads = "".join(f" makespan β={beta:g} | mean β={beta:g} |" for beta in BETAS)
    print(f"| policy |{heads} deaths | of known types | waste | first runs |")
    print("|---" * (2 * len(BETAS) + 5) + "|")
    found = {beta: _replays(many, gpus, names, beta) for beta in BETAS}
    for name in names:
        cells = [name]
        for beta in BETAS:
            base, ours = found[beta]["exclusive"], found[beta][name]
            cells.append(f"{_ratio(ours, base, lambda f: f.makespan_s):.3f}")
            cells.append(f"{_ratio(ours, base, lambda f: f.mean_s):.3f}")
        print("| " + " | ".join([*cells, *_last_cells(found, name, len(many))]) + " |", flush=True)
    bounds = []
    for beta in BETAS:
        lows = [lower_bound_s(jobs, parse_gpus(gpus), Assumptions(beta=beta)) for jobs in many]
        bases = [figures.makespan_s for figures in found[beta]["exclusive"]]
        bounds += [f"{sum(map(_over, lows, bases)) / len(lows):.3f}", ""]
    print("| " + " | ".join(["lower bound", *bounds, "", "", "", ""]) + " |", flush=True)


def _replays(
    many: Sequence[Sequence[Job]], gpus: str, names: Sequence[str], beta: float
) -> dict[str, list[Figures]]:
    found = {}
    for name in dict.fromkeys(["exclusive", *names]):
        began = time.monotonic()
        assumed = Assumptions(beta=beta)
        found[name] = [play(name, jobs, parse_gpus(gpus), assumed) for jobs in many]
        print(f"... {name} β={beta:g} {time.monotonic() - began:.1f} s", file=sys.stderr)
    return found


def _ratio(
    ours: Sequence[Figures], base: Sequence[Figures], figure: Callable[[Figures], float]
) -> float:
    return sum(figure(a) / figure(b) for a, b in zip(ours, base, strict=True)) / len(ours)


def _last_cells(
    found: dict[float, dict[str, list[Figures]]], name: str, seeds: int
) -> tuple[str, ...]:
    both = [figures for beta in BETAS for figures in found[beta][name]]
    deaths = "/".join(f"{sum(f.deaths for f in found[b][name]) / seeds:.1f}" for b in BETAS)
    known = "/".join(f"{sum(f.known_deaths for f in found[b][name]) / seeds:.1f}" for b in BETAS)
    waste = sum(figures.waste or 0.0 for figures in both) / len(both)
    probes = [figures.probe_s for figures in both if figures.probe_s is not None]
    return deaths, known, f"{waste:.2f}", f"{max(probes):.0f} s" if probes else "-"


def _over(one: float, other: float) -> float:
    return one / other


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")


if __name__ == "__main__":
    main()
