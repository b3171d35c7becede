"""`grn simulate`: what a set of GPUs would make of a workload, policy by policy."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence

import click

from grn import settings
from grn.cli.help import command, flag
from grn.cli.options import json_flag
from grn.cli.output import html
from grn.cli.output.style import plain
from grn.cli.output.terminal import echo, print_json, width
from grn.cli.report import replay_charts
from grn.client import negotiator
from grn.client.leasing.job_request import command_arguments
from grn.errors import GrnError, MachineError, UsageError
from grn.model.gpu import Gpu
from grn.model.host import HostSize
from grn.model.text import counted
from grn.protocol.negotiator_rows import ProfileRow
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import read_all
from grn.simulate import sources
from grn.simulate.policies import POLICIES, PolicyFigures, lower_bound_s, play, rules
from grn.simulate.sources import PER_MINUTE, arriving, generate
from grn.simulate.workload import Assumptions, SimulatedJob, parse_gpus, parse_host

_PLAIN = ("policy", "makespan_s", "mean_s", "p95_s", "deaths", "known_deaths", "waste")


@command()
@flag(
    "--gpus", "gpus_text", required=True, metavar="NxSIZE", help="GPUs to simulate, such as 4x40GB."
)
@flag("--host", "host_text", metavar="CORESxSIZE", help="Limit the host, such as 16x64GB.")
@flag("--jobs", "jobs_file", metavar="FILE", help="Read the workload from this CSV file.")
@flag("--generate", "count", type=click.IntRange(1, 100_000), metavar="N",
              help="Generate N jobs instead (default: 300).")  # fmt: skip
@flag("--arrivals", metavar="FILE|RATE",
              help="Arrivals: a CSV file, a number per minute, or at-once.")  # fmt: skip
@flag("--policy", "policies", multiple=True, type=click.Choice(list(POLICIES)),
              help="Compare these (repeatable); ratios are relative to the first.")  # fmt: skip
@flag("--beta", type=click.FloatRange(0, 2), default=1.0, show_default=True, metavar="X",
              help="Slowdown by sharing: speed = min(1, U^-beta).")  # fmt: skip
@flag("--clashing", type=click.FloatRange(0, 1), default=0.0, metavar="SHARE",
              help="Share of type pairs that slow each other beyond their load.")  # fmt: skip
@flag("--seed", type=int, default=0, metavar="S", help="Seed for generated jobs and arrivals.")
@flag("--sample", "tick_s", type=click.FloatRange(0.5, 600), default=5.0, metavar="S",
              help="Seconds between readings of the GPUs.")  # fmt: skip
@flag("--picture", metavar="FILE", help="Draw the runs: FILE.svg or FILE.html.")
@flag("--save", metavar="FILE", help="Write the workload as CSV.")
@json_flag
def simulate(
    gpus_text: str,
    host_text: str | None,
    jobs_file: str | None,
    count: int | None,
    arrivals: str | None,
    policies: tuple[str, ...],
    beta: float,
    clashing: float,
    seed: int,
    tick_s: float,
    picture: str | None,
    save: str | None,
    as_json: bool,
) -> int:
    """Replay a workload in virtual time and compare policies."""
    if picture is not None and not picture.endswith((".svg", ".html")):
        raise UsageError(
            f"'{picture}' is not a picture file.", "Name a file that ends in .svg or .html."
        )
    gpus = parse_gpus(gpus_text)
    jobs = _jobs(jobs_file, count, arrivals, seed)
    host = parse_host(host_text) if host_text is not None else None
    _check(jobs, gpus, host)
    assumed = Assumptions(beta=beta, tick_s=tick_s, interfering=clashing, host=host)
    chosen = settings.load()
    guard = (chosen.guard_fraction, chosen.guard_bytes)
    names = ("flat_s", "patience_s", "load_cap", "short_s", "share_half_life_s")
    ours = rules(guard, **{name: getattr(chosen, name) for name in names})
    figures = [play(name, jobs, gpus, assumed, ours) for name in policies or POLICIES]
    bound_s = lower_bound_s(jobs, gpus, assumed)
    if save is not None:
        _write(save, sources.write_jobs(jobs))
    played = [each.policy for each in figures]
    drawn = next((each for each in figures if each.policy == "grn"), figures[-1])
    if picture is not None:
        title = f"{drawn.policy} on {gpus_text}"
        svg = replay_charts.picture(drawn.replayed.stays, len(gpus), title)
        legend = replay_charts.legend(assumed, played)
        text = f"{plain(replay_charts.table(figures, bound_s))}\n\n{legend}"
        is_page = picture.endswith(".html")
        _write(picture, replay_charts.page(svg, title, text) if is_page else html.svg_file(svg))
    if as_json:
        rows = [_plain(each) for each in figures]
        return print_json({"schema": 1, "policies": rows, "lower_bound_s": bound_s,
                           "assumed": assumed.sentences()})  # fmt: skip
    source = os.path.basename(jobs_file) if jobs_file else f"generated, seed {seed}"
    click.echo(f"{replay_charts.workload(jobs, source)}; on {gpus_text}\n")
    echo(f"{replay_charts.table(figures, bound_s, width())}\n")
    click.echo(replay_charts.legend(assumed, played, width()))
    click.echo(f"\njobs at once on each GPU over time, {drawn.policy}:")
    click.echo(replay_charts.timeline(drawn.replayed.stays, len(gpus)))
    return 0


def _check(jobs: Sequence[SimulatedJob], gpus: Sequence[Gpu], host: HostSize | None) -> None:
    """Refuse a workload that could never run."""
    if max(job.gpus for job in jobs) > len(gpus):
        raise UsageError(
            f"a job needs more GPUs than the {len(gpus)} there are.", "Name more with --gpus."
        )
    if max(job.peak_bytes for job in jobs) > max(gpu.total_bytes for gpu in gpus):
        text = "a job needs more memory than any of the GPUs has."
        raise UsageError(text, "Name larger ones with --gpus.")
    if host is not None and max(job.ram_bytes for job in jobs) > host.ram_bytes:
        text = "a job needs more host memory than the host has."
        raise UsageError(text, "Name a larger one with --host.")


def _jobs(
    jobs_file: str | None, count: int | None, arrivals: str | None, seed: int
) -> list[SimulatedJob]:
    if jobs_file is not None and count is not None:
        raise UsageError("there are two workloads.", "Use --jobs or --generate.")
    jobs = (
        sources.read_jobs(_read(jobs_file), jobs_file)
        if jobs_file is not None
        else generate(count or 300, seed, PER_MINUTE)
    )
    if arrivals is None:
        return jobs
    if arrivals == "at-once":
        return [dataclasses.replace(job, arrival_s=0.0) for job in jobs]
    try:
        rate = float(arrivals)
    except ValueError:
        return sources.read_arrivals(_read(arrivals), arrivals, jobs)
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"{arrivals} jobs a minute make no sense.")
    return arriving(jobs, rate, seed)


def _plain(figures: PolicyFigures) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(figures, name) for name in _PLAIN}
    return row | {"fairness": figures.fairness, "first_run_s": figures.probe_s,
                  "ram_deaths": figures.ram_deaths}  # fmt: skip


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not text.") from error


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        hint = "Name a file in another folder."
        raise MachineError(f"{path} cannot be written: {error.strerror}.", hint) from error


# --- the way back: `grn history --export` ----------------------------------------------------


def export(rows: Sequence[JobRow], path: str) -> int:
    """Write the jobs that ended well and were measured as a workload; print both counts."""
    loads = _loads()
    good = [row for row in rows if row.reason == "ok" and row.ran_s and row.peak_bytes]
    good.sort(key=lambda row: row.submitted_at)
    began = good[0].submitted_at if good else 0.0
    text = sources.write_jobs(_exported(row, began, loads) for row in good)
    if path == "-":
        click.echo(text, nl=False)
    else:
        _write(path, text)
    left = len(rows) - len(good)
    click.echo(
        f"{counted(len(good), 'job')} written, {left} left out (failed or not measured)", err=True
    )
    return 0


def _exported(row: JobRow, began: float, loads: dict[str, float]) -> SimulatedJob:
    return SimulatedJob(
        name=str(row.id),
        job_type=row.label,
        arrival_s=row.submitted_at - began,
        solo_s=row.ran_s or 0.0,
        peak_bytes=row.peak_bytes or 0,
        gpus=max(1, len(row.gpus)),
        load=loads.get(row.label, 0.9),
        user=os.getuid(),
        arguments=tuple(sorted(command_arguments(row.argv).items())),
    )


def _loads() -> dict[str, float]:
    """Return the load of each job type, as the negotiator has measured it."""
    try:
        profiles = read_all(ProfileRow, negotiator.ask_all({"op": "profiles"})["profiles"])
    except GrnError:
        return {}  # the file is good without it
    return {row.label: row.load for row in profiles if row.load is not None}
