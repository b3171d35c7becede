"""Packing by replay: makespan and mean completion of each policy against one job per GPU.

Run with the path of a folder of traces to replay those as well (docs/packing.md says which files).
Each table is followed by what was to be reached, and whether it was. With `--starts` it prints only
how well starts are forecast.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from packing_jobs import LARGE, SMALL, Case, drawn, generated, trace
from packing_uncertain import KINDS, UncertainWorld, uncertain

from grn.model.units import GiB, show_time
from grn.negotiator.queries.forecast import inside
from grn.negotiator.schedule.room.ledger import Rules
from grn.simulate.policies import POLICIES, lower_bound_s, play
from grn.simulate.replay import Stay, World
from grn.simulate.schedulers import OfEngine
from grn.simulate.workload import Assumptions, SimulatedJob, parse_gpus, parse_host

BETAS = (1.0, 0.6)
BASE, OURS, BEST = "exclusive", "grn", "clairvoyant"
MAX_MAKESPAN, MAX_MEAN = 1.03, 1.05  # against one who knows everything beforehand
MAX_DEATHS = 1.0  # in 300 jobs, cold, on small GPUs
MAX_WASTE = 0.23
MAX_FIRST_S = 120.0  # until the first sibling of an unknown type may start
MAX_UNCERTAIN_JOBS = 120  # in a world of uncertain memory: enough, and fast
MAX_UNCERTAIN = 1.15  # makespan against the same one, where memory is uncertain
MAX_HOST = 1.1  # makespan against the same one, where host memory and cores are short
MAX_UNCERTAIN_DEATHS = 0.5  # of known types in 200 jobs, there


@dataclass(frozen=True, slots=True)
class Result:
    """What one replay gave."""

    makespan_s: float
    mean_s: float
    deaths: int = 0
    known_deaths: int = 0
    waste: float = 0.0
    first_s: float = 0.0
    inside: float = 0.0  # the share of starts within the range that was told
    width: float = 0.0  # the median of range over wait
    told: float = 0.0  # the share of jobs that had to wait and were told a range


@dataclass(frozen=True, slots=True)
class Row:
    """The mean over the workloads of a case: times as fractions of one job per GPU."""

    makespan: float
    mean: float
    deaths: float
    known_deaths: float
    waste: float
    first_s: float
    inside: float
    width: float
    told: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="?", type=Path, help="a folder with carma_jobs.csv")
    parser.add_argument("--seeds", type=int, default=5, help="of each workload (5)")
    parser.add_argument("--jobs", type=int, default=300, help="in each that is drawn (300)")
    parser.add_argument("--policy", action="append", choices=list(POLICIES))
    parser.add_argument("--gpus", action="append", help="of generated workloads")
    parser.add_argument("--clashing", type=float, default=0.0, help="share of pairs that clash (0)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--uncertain", action="store_true", help="only worlds of uncertain memory")
    parser.add_argument("--first-seed", type=int, default=0, help="of these worlds (0)")
    parser.add_argument("--starts", action="store_true", help="only how starts are forecast")
    options = parser.parse_args()
    for sentence in Assumptions(interfering=options.clashing).sentences():
        print(f"assumed: {sentence}")
    print("times are fractions of one job per GPU, the mean over all workloads of a table")
    if options.starts:
        _starts(options)
        return
    names = list(dict.fromkeys([BASE, *(options.policy or POLICIES)]))
    began, met = time.monotonic(), []
    with ProcessPoolExecutor(options.workers) as workers:
        for case in () if options.uncertain else _cases(options):
            met += _report(replace(case, clashing=options.clashing), names, workers)
        met += _uncertain(options, workers)
        met += _on_small_host()
    if not options.uncertain:
        _giving_way()
    print(f"\n{sum(met)} of {len(met)} targets met, in {time.monotonic() - began:.0f} s")


def _starts(options: argparse.Namespace) -> None:
    """Print how many starts were told a range, and how it held, for every workload."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    loads = {f"{case.title}, {case.gpus}": [(jobs, case.gpus) for jobs in case.many]
             for case in _cases(options)}  # fmt: skip
    for kind in KINDS:
        worlds = [uncertain(kind, seed, min(options.jobs, MAX_UNCERTAIN_JOBS)) for seed in seeds]
        loads[kind] = [(world.jobs, world.gpus) for world in worlds]
    print("\n| workload | β | told | inside | least inside | median of range over wait |")
    print("|---" * 6 + "|")
    with ProcessPoolExecutor(options.workers) as workers:
        tasks = {
            (name, beta): [
                workers.submit(_replay, OURS, jobs, gpus, Assumptions(beta)) for jobs, gpus in many
            ]
            for name, many in loads.items()
            for beta in BETAS
        }
        for (name, beta), each in tasks.items():
            found = [task.result() for task in each]
            told, within, width = (
                sum(values) / len(found)
                for values in zip(
                    *((one.told, one.inside, one.width) for one in found), strict=True
                )
            )
            least = min(one.inside for one in found)
            cells = (f"{told:.0%}", f"{within:.0%}", f"{least:.0%}", f"{width:.1f}")
            print(f"| {name} | {beta:g} | {' | '.join(cells)} |", flush=True)


def _uncertain(options: argparse.Namespace, workers: ProcessPoolExecutor) -> list[bool]:
    """Print how the engine does where memory is uncertain, against one who knows it."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    count = min(options.jobs, MAX_UNCERTAIN_JOBS)
    tasks = {
        (kind, beta): [
            [workers.submit(_in_world, name, world, beta) for name in (OURS, BEST)]
            for world in (uncertain(kind, seed, count) for seed in seeds)
        ]
        for kind in KINDS
        for beta in BETAS
    }
    print(f"\n## Uncertain memory, {count} jobs, seeds {seeds[0]} to {seeds[-1]}, over {BEST}\n")
    print("| world | β | makespan | worst | mean | deaths in 200 jobs | of known types | |")
    print("|---" * 8 + "|")
    met = []
    for (kind, beta), pairs in tasks.items():
        found = [(ours.result(), best.result()) for ours, best in pairs]
        spans = [ours.makespan_s / best.makespan_s for ours, best in found]
        mean = sum(ours.mean_s / best.mean_s for ours, best in found) / len(found)
        deaths, known = (
            200 * sum(each) / (count * len(found))
            for each in zip(*((ours.deaths, ours.known_deaths) for ours, _ in found), strict=True)
        )
        span = sum(spans) / len(spans)
        is_met = span <= MAX_UNCERTAIN and known <= MAX_UNCERTAIN_DEATHS
        cells = (kind, f"{beta:g}", f"{span:.2f}", f"{max(spans):.2f}", f"{mean:.2f}")
        verdict = "met" if is_met else "MISSED"
        print(f"| {' | '.join(cells)} | {deaths:.1f} | {known:.1f} | {verdict} |", flush=True)
        met.append(is_met)
    return met


def _host_cases() -> Iterator[tuple[str, list[SimulatedJob]]]:
    """Yield jobs that fill the memory and the cores of a host long before their GPUs."""

    def jobs(count: int, types: int, gap_s: float = 0.0) -> list[SimulatedJob]:
        return [
            SimulatedJob(
                f"job{number}", f"type{number % types}.py", number * gap_s, 1800.0, 2 * GiB,
                load=0.2, ram_bytes=16 * 10**9, cpus=6.0,
            )
            for number in range(count)
        ]  # fmt: skip

    yield "8 jobs of one type, at once", jobs(8, 1)
    yield "8 jobs of one type, one each 20 s", jobs(8, 1, 20.0)
    yield "8 jobs of 8 types, at once", jobs(8, 8)
    yield "24 jobs of 3 types, one a minute", jobs(24, 3, 60.0)


def _on_small_host() -> list[bool]:
    """Print how the engine does where host memory and cores are short."""
    assumed = Assumptions(host=parse_host("16x64GB"))
    print("\n## 16 GB and 6 cores each, on a host of 64 GB and 16 cores with 4 x 40 GB, β=1\n")
    print(f"| jobs | makespan over {BEST} | killed for host memory | |\n|---|---|---|---|")
    met = []
    for name, jobs in _host_cases():
        ours, best = (play(who, jobs, parse_gpus(LARGE), assumed) for who in (OURS, BEST))
        span = ours.makespan_s / best.makespan_s
        met.append(span <= MAX_HOST and not ours.ram_deaths)
        verdict = "met" if met[-1] else "MISSED"
        print(f"| {name} | {span:.2f} | {ours.ram_deaths} | {verdict} |", flush=True)
    return met


def _in_world(policy: str, world: UncertainWorld, beta: float) -> Result:
    """Play one such world under one policy, in a process of its own."""
    found = play(policy, world.jobs, parse_gpus(world.gpus), Assumptions(beta))
    return Result(found.makespan_s, found.mean_s, found.deaths, found.known_deaths)


def _urgent_jobs(seed: int, yields: bool, saves_work: bool) -> list[SimulatedJob]:
    """Return long jobs that fill four GPUs for two days, and urgent ones that come in between."""
    chance = random.Random(seed)
    whole = 30 * GiB
    long = [
        SimulatedJob(
            f"long{number}", f"long{number % 6}.py", chance.uniform(0, 3600),
            chance.uniform(1, 3) * 3600, whole, user=1, yields=yields, saves_work=saves_work,
        )
        for number in range(96)
    ]  # fmt: skip
    urgent = [
        SimulatedJob(
            f"urgent{number}", "urgent.py", chance.uniform(2, 40) * 3600,
            chance.uniform(10, 20) * 60, whole, is_urgent=yields,
        )
        for number in range(40)
    ]  # fmt: skip
    return long + urgent


def _giving_way() -> None:
    """Print what giving way does to the waits of urgent jobs and to the makespan."""
    print("\n## Urgent jobs among long ones, 4 x 40 GB, β=1\n")
    print("| long jobs | median wait of urgent jobs | longest | makespan | gave way |")
    print("|---|---|---|---|---|")
    gpus = parse_gpus("4x40GB")
    ways = {
        "do not yield": (False, False),
        "yield, start over": (True, False),
        "yield, go on from saved state": (True, True),
    }
    for name, way in ways.items():
        waits, spans, yielded = [], [], 0
        for seed in range(3):
            scheduler = OfEngine(gpus, Rules(urgent_per_user=8))
            result = World(_urgent_jobs(seed, *way), gpus, scheduler, Assumptions()).run()
            began: dict[str, Stay] = {}
            for stay in result.stays:
                began.setdefault(stay.job.name, stay)
            urgent = [one for one in began.values() if one.job.name.startswith("urgent")]
            waits += [one.began_at - one.job.arrival_s for one in urgent]
            spans.append(max(result.ends.values()))
            yielded += result.yielded
        cells = (show_time(median(waits)), show_time(max(waits)), f"{median(spans) / 3600:.1f} h")
        print(f"| {name} | {' | '.join(cells)} | {yielded / 3:.0f} |")
    sys.stdout.flush()


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for gpus in options.gpus or (LARGE, SMALL):
        yield generated(options.jobs, options.seeds, gpus)
    if options.traces is not None:
        for name in ("t1", "t2"):
            yield trace(options.traces, name, options.seeds)
        for gpus in (LARGE, SMALL):
            yield drawn(options.traces, options.jobs, options.seeds, gpus)


def _replay(policy: str, jobs: Sequence[SimulatedJob], gpus: str, assumed: Assumptions) -> Result:
    """Play one workload under one policy, in a process of its own."""
    if policy == "lower bound":
        return Result(lower_bound_s(jobs, parse_gpus(gpus), assumed), 0.0)
    found = play(policy, jobs, parse_gpus(gpus), assumed, has_forecasts=policy == OURS)
    widths = [(one.high_s - one.low_s) / max(1.0, one.waited_s) for one in found.starts]
    return Result(
        found.makespan_s,
        found.mean_s,
        found.deaths,
        found.known_deaths,
        found.waste or 0.0,
        found.probe_s or 0.0,
        inside(found.starts) / max(1, len(found.starts)),
        median(widths) if widths else 0.0,
        found.told,
    )


def _report(case: Case, names: Sequence[str], workers: ProcessPoolExecutor) -> list[bool]:
    """Print the table of one case and what is to be said of it."""
    found = _rows(case, [*names, "lower bound"], workers)
    print(f"\n## {case.title}, on {case.gpus}\n")
    heads = "".join(f" makespan β={beta:g} | mean β={beta:g} |" for beta in BETAS)
    print(f"| policy |{heads} deaths | of known types | waste | first runs |")
    print("|---" * (2 * len(BETAS) + 5) + "|")
    for name in names:
        rows = [found[name, beta] for beta in BETAS]
        times = [f"{each:.3f}" for row in rows for each in (row.makespan, row.mean)]
        deaths = "/".join(f"{row.deaths:.1f}" for row in rows)
        known = "/".join(f"{row.known_deaths:.1f}" for row in rows)
        waste = f"{sum(row.waste for row in rows) / len(rows):.2f}"
        first_s = max(row.first_s for row in rows)
        cells = [name, *times, deaths, known, waste, f"{first_s:.0f} s" if first_s else "-"]
        print("| " + " | ".join(cells) + " |")
    bounds = [text for beta in BETAS for text in (f"{found['lower bound', beta].makespan:.3f}", "")]
    print("| " + " | ".join(["lower bound", *bounds, "", "", "", ""]) + " |\n")
    verdicts = list(_verdicts(case, found)) if {OURS, BEST} <= set(names) else []
    for beta in BETAS if OURS in names else ():
        row = found[OURS, beta]
        text = f"{row.inside:.0%}, and the median range is {row.width:.1f} times the wait"
        text += f"; {row.told:.0%} of the jobs that waited were told one"
        print(f"- starts within the range that was told, β={beta:g}: {text}")
    for what, value, most in verdicts:
        print(f"- {what}: {value:.4g}, at most {most:g}: {'met' if value <= most else 'MISSED'}")
    sys.stdout.flush()
    return [value <= most for _, value, most in verdicts]


def _rows(
    case: Case, names: Sequence[str], workers: ProcessPoolExecutor
) -> dict[tuple[str, float], Row]:
    """Replay all at once and take means."""
    tasks = {
        (name, beta): [
            workers.submit(
                _replay, name, jobs, case.gpus, Assumptions(beta, interfering=case.clashing)
            )
            for jobs in case.many
        ]
        for name in names
        for beta in BETAS
    }
    results = {key: [task.result() for task in each] for key, each in tasks.items()}
    return {
        (name, beta): _mean(each, results[BASE, beta]) for (name, beta), each in results.items()
    }


def _mean(results: Sequence[Result], base: Sequence[Result]) -> Row:
    count, pairs = len(results), list(zip(results, base, strict=True))
    return Row(
        sum(one.makespan_s / alone.makespan_s for one, alone in pairs) / count,
        sum(one.mean_s / alone.mean_s for one, alone in pairs) / count,
        sum(one.deaths for one in results) / count,
        sum(one.known_deaths for one in results) / count,
        sum(one.waste for one in results) / count,
        max(one.first_s for one in results),
        sum(one.inside for one in results) / count,
        sum(one.width for one in results) / count,
        sum(one.told for one in results) / count,
    )


def _verdicts(
    case: Case, found: dict[tuple[str, float], Row]
) -> Iterator[tuple[str, float, float]]:
    """Say what was to be reached: a name, the figure, and the most it may be."""
    jobs = sum(map(len, case.many)) / len(case.many)
    for beta in BETAS:
        ours, best = found[OURS, beta], found[BEST, beta]
        yield f"makespan over {BEST}, β={beta:g}", ours.makespan / best.makespan, MAX_MAKESPAN
        yield f"mean completion over {BEST}, β={beta:g}", ours.mean / best.mean, MAX_MEAN
    rows = [found[OURS, beta] for beta in BETAS]
    yield "deaths of known types", max(row.known_deaths for row in rows), 0.0
    if case.gpus == SMALL:
        yield "deaths in 300 jobs", max(row.deaths for row in rows) * 300 / jobs, MAX_DEATHS
    yield "wasted for each byte used", sum(row.waste for row in rows) / len(rows), MAX_WASTE
    yield "longest wait for a first run, s", max(row.first_s for row in rows), MAX_FIRST_S


if __name__ == "__main__":
    main()
