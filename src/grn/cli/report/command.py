"""`grn report`: a period, or a sweep, as one HTML file to mail or to keep."""

from __future__ import annotations

import os
import socket
import time

import click

from grn import paths
from grn.cli.help import command, flag
from grn.cli.report import period_page, sweep_chart, sweep_page
from grn.cli.report.usage import GpuName, Period, idle_hours, inside
from grn.cli.web import queries
from grn.client.state_mirror import StateMirror
from grn.errors import DaemonError, UsageError
from grn.model.units import parse_time
from grn.sweep.manifest import write_text
from grn.sweep.results import ranked

MAX_JOBS = 20_000  # ended jobs of one's own queue


@command()
@flag("--since", default="7d", metavar="TIME", help="Period to report: 90m, 12h, 7d or 4w.")
@flag("--sweep", metavar="DIR", help="Report this sweep instead.")
@flag("--out", default="grn-report.html", metavar="FILE", help="Write the report to FILE.")
def report(since: str, sweep: str | None, out: str) -> int:
    """Write a report as one HTML file: GPU use by job and user, unused memory, failures."""
    text = _of_sweep(sweep) if sweep is not None else _of_period(since)
    write_text(out, text)
    click.echo(out)
    return 0


def _of_period(since: str) -> str:
    now = time.time()
    period = Period(now - parse_time(since, needs_unit=True), now)
    began = time.monotonic()
    _warn_of_gaps()
    with StateMirror() as watch:
        while not queries.settle(watch.picture, began):
            watch.wait(0.1)
        own = queries.past(period.since, MAX_JOBS)
        spans = inside(queries.spans(watch.picture, period.since, own), period)
        gaps = queries.gaps(watch.picture, period.since)
        idle = idle_hours(queries.idle_uses(watch.picture, period))
        known = {gpu.index for gpu in watch.picture.gpus.values()}
        nodes = watch.picture.nodes.values()
        elsewhere = {f"{node.node}:{gpu.index}" for node in nodes for gpu in node.gpus}
    if len(own) == MAX_JOBS:
        gaps.append(f"Of your own jobs the latest {MAX_JOBS} are in this report.")
    past = {place for span in spans for place in span.places}
    here = sorted(known | {place for place in past if isinstance(place, int)})
    there = sorted({*elsewhere, *(place for place in past if isinstance(place, str))})
    indices: list[GpuName] = [*here, *there]
    return period_page.page(spans, indices, period, socket.gethostname(), gaps, idle)


def _warn_of_gaps() -> None:
    """Say when a queue was used here and cannot be asked: its jobs would seem not to have run."""
    if not os.path.isdir(os.path.join(paths.state_dir(), "queue")):
        return
    try:
        queries.check_queue()
    except DaemonError as error:
        click.echo(f"warning: {error.message} {error.hint}", err=True)


def _of_sweep(path: str) -> str:
    about, table, ranking = ranked(path)
    if ranking is None:
        raise UsageError(f"no run in {path} has given a number.", "See `grn sweep show`.")
    return sweep_page.page(sweep_chart.draw(about, table, ranking))
