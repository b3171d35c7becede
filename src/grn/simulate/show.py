"""The outcome of replays as a table, a timeline for a terminal, and a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

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

    What does not fit into `width` columns of a terminal is left out, the last first.
    """
    base = figures[0]
    longest_s = max(each.makespan_s for each in figures)
    rows = [_row(each, base, longest_s) for each in figures]
    least = bound_s / base.makespan_s if base.makespan_s else 0.0
    rows.append(("lower bound", decimal_time(bound_s, longest_s), f"{least:.2f}", *[""] * 8))
    sizes = [max(len(line[i]) for line in [_HEADERS, *rows]) for i in range(len(_HEADERS))]
    while width and sum(sizes) + 2 * (len(sizes) - 1) > width and len(sizes) > 2:
        sizes.pop()
    lines = []
    for line in [_HEADERS, *rows]:
        cells = [line[0].ljust(sizes[0])]
        cells += [cell.rjust(size) for cell, size in zip(line[1:], sizes[1:], strict=False)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


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


def picture(stays: Sequence[Stay], gpus: int, title: str) -> str:
    """Draw the runs as SVG: a band for each GPU, a bar for each run, deaths in red."""
    end = max((stay.ended_at for stay in stays), default=1.0) or 1.0
    lanes = [_lanes([stay for stay in stays if gpu in stay.gpus]) for gpu in range(gpus)]
    parts, top, width = [], 30.0, 1000.0
    for gpu, placed in enumerate(lanes):
        depth = 1 + max((lane for lane, _ in placed), default=0)
        parts.append(f'<text x="4" y="{top + 11:.0f}">GPU {gpu}</text>')
        for lane, stay in placed:
            x, y = 60 + width * stay.began_at / end, top + 14 * lane
            wide = max(1.0, width * (stay.ended_at - stay.began_at) / end - 0.5)
            color = "#d33" if stay.died else _color(stay.job.job_type)
            tip = f"{stay.job.job_type} {stay.job.name}, {show_size(stay.job.peak_bytes)}, "
            tip += f"{decimal_time(stay.began_at, end)} to {decimal_time(stay.ended_at, end)}"
            box = f'x="{x:.1f}" y="{y:.0f}" width="{wide:.1f}" height="12" fill="{color}"'
            parts.append(f"<rect {box}><title>{_safe(tip)}</title></rect>")
        top += 14 * depth + 8
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1070 {top + 20:.0f}" '
    head += 'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
    texts = [f'<text x="4" y="16" font-size="13">{_safe(title)}</text>']
    texts.append(f'<text x="60" y="{top + 12:.0f}">0</text>')
    texts.append(
        f'<text x="1060" y="{top + 12:.0f}" text-anchor="end">{decimal_time(end, end)}</text>'
    )
    return "\n".join([head, *texts, *parts, "</svg>\n"])


def page(svg: str, text: str) -> str:
    """Put a picture and the table below it on a page that needs nothing else."""
    style = "body{font-family:sans-serif;margin:2em}svg{max-width:100%}"
    head = f'<!doctype html><meta charset="utf-8"><title>grn simulate</title><style>{style}</style>'
    return f"{head}\n{svg}<pre>{_safe(text)}</pre>\n"


def _lanes(stays: Sequence[Stay]) -> list[tuple[int, Stay]]:
    """Give each run the first line of its GPU's band that is free all its time."""
    free: list[float] = []
    placed = []
    for stay in sorted(stays, key=lambda stay: stay.began_at):
        lane = next((n for n, until in enumerate(free) if until <= stay.began_at), len(free))
        free[lane : lane + 1] = [stay.ended_at]
        placed.append((lane, stay))
    return placed


def _color(name: str) -> str:
    hue = sum((place + 1) * ord(char) for place, char in enumerate(name)) * 47 % 360
    return f"hsl({hue},55%,60%)"


def _safe(text: str) -> str:
    plain = "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
