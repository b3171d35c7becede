"""The outcome of replays as a table, a timeline for a terminal, and a picture. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from grn.cli.output import html
from grn.cli.output.table import table as text_table
from grn.model.text import counted
from grn.model.units import decimal_time, show_size
from grn.simulate.policies import POLICIES, PolicyFigures
from grn.simulate.replay import Stay
from grn.simulate.workload import Assumptions, SimulatedJob

_HEADERS = (
    *("policy", "makespan", "ratio", "mean", "ratio", "p95", "deaths", "known", "waste", "fair"),
    "first runs",
)


def table(figures: Sequence[PolicyFigures], bound_s: float, width: int = 0) -> str:
    """Draw the policies side by side; ratios are against the first of them.

    Columns that do not fit into `width` columns of a terminal are left out, the last first.
    """
    base = figures[0]
    longest_s = max(each.makespan_s for each in figures)
    rows = [_row(each, base, longest_s) for each in figures]
    least = bound_s / base.makespan_s if base.makespan_s else 0.0
    rows.append(("lower bound", decimal_time(bound_s, longest_s), f"{least:.2f}", *[""] * 8))
    spare = _HEADERS[:1:-1]  # the last column goes first; makespan stays
    return text_table(_HEADERS, rows, width, spare=spare, numbers=range(1, len(_HEADERS)))


def legend(assumed: Assumptions, names: Sequence[str], width: int = 0) -> str:
    """Say what the columns and the policies mean and what was assumed."""
    lines = [f"{name}: {POLICIES[name]}" for name in names]
    lines += [
        "ratio: against the first row; mean, p95: time from arrival to end; deaths: out of "
        "memory (known: of types seen before)",
        "waste: memory reserved and not used, for each byte used; fair: Jain's index of the users' "
        "stretch; first runs: the longest measuring of one",
        *(f"assumed: {sentence}" for sentence in assumed.sentences()),
    ]
    if width:
        lines = [textwrap.fill(line, max(20, width), subsequent_indent="  ") for line in lines]
    return "\n".join(lines)


def _row(each: PolicyFigures, base: PolicyFigures, longest_s: float) -> tuple[str, ...]:
    return (
        each.policy,
        decimal_time(each.makespan_s, longest_s),
        f"{each.makespan_s / base.makespan_s:.2f}" if base.makespan_s else "-",
        decimal_time(each.mean_s, longest_s),
        f"{each.mean_s / base.mean_s:.2f}" if base.mean_s else "-",
        decimal_time(each.p95_s, longest_s),
        str(each.deaths),
        str(each.known_deaths),
        "-" if each.waste is None else f"{each.waste:.2f}",
        f"{each.fairness:.2f}",
        "-" if each.probe_s is None else f"{each.probe_s:.0f} s",
    )


def workload(jobs: Sequence[SimulatedJob], source: str) -> str:
    """Say in one line what is replayed."""
    types = {job.job_type for job in jobs}
    users = {job.user for job in jobs}
    most = max(job.peak_bytes for job in jobs)
    alone_s = sum(job.solo_s * job.gpus for job in jobs)
    text = f"{source}: {counted(len(jobs), 'job')} of {counted(len(types), 'type')}"
    text += f" and {counted(len(users), 'user')}"
    return f"{text}, {decimal_time(alone_s, alone_s)} on a GPU alone, the largest {show_size(most)}"


def timeline(stays: Sequence[Stay], gpus: int, width: int = 72) -> str:
    """Draw how many jobs each GPU has over time: a line for each GPU, `x` where one died."""
    end = max((stay.ended_at for stay in stays), default=0.0)
    if not end:
        return ""
    step, lines = end / width, []
    for gpu in range(gpus):
        cells = []
        for place in range(width):
            began, ended = place * step, (place + 1) * step
            here = [s for s in stays if gpu in s.gpus and s.began_at < ended and s.ended_at > began]
            died = any(s.died and began <= s.ended_at < ended for s in here)
            middle = (began + ended) / 2
            count = sum(s.began_at <= middle < s.ended_at for s in here)
            cells.append("x" if died else "." if not count else str(count) if count < 10 else "+")
        lines.append(f"GPU {gpu:<3} {''.join(cells)}")
    lines.append(f"{'':7} 0{decimal_time(end, end):>{width - 1}}")
    return "\n".join(lines)


def picture(stays: Sequence[Stay], gpus: int, label: str) -> str:
    """Draw the runs as SVG: a row for each GPU, a bar for each run, out-of-memory ends in red."""
    end = max((stay.ended_at for stay in stays), default=1.0) or 1.0
    ordered = sorted(stays, key=lambda stay: stay.began_at)
    rows = [(gpu, [_bar(stay, end) for stay in ordered if gpu in stay.gpus]) for gpu in range(gpus)]
    return html.timeline(rows, 0.0, end, [(0.0, "0"), (end, decimal_time(end, end))], label)


def page(svg: str, title: str, text: str) -> str:
    """Put a picture and the table below it on a page."""
    parts = [html.header("grn simulate", html.text(title)), html.section("Runs", svg)]
    return html.page("grn simulate", [*parts, html.section("Figures", _preformatted(text))])


def _bar(stay: Stay, end: float) -> html.Bar:
    job = stay.job
    hue = sum((place + 1) * ord(char) for place, char in enumerate(job.job_type)) * 47 % 360
    title = f"{job.job_type} {job.name}, {show_size(job.peak_bytes)}, "
    title += f"{decimal_time(stay.began_at, end)} to {decimal_time(stay.ended_at, end)}"
    fill = "#d33" if stay.died else f"hsl({hue},55%,60%)"
    return html.Bar(stay.began_at, stay.ended_at, fill, title)


def _preformatted(text: str) -> str:
    return f"<pre>{html.text(text)}</pre>"
