"""A period as one HTML page: who had which GPU, hours per user, waste, failures. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from grn.cli.output import html
from grn.cli.output.html import LEFT, WIDTH, Bar, Tile
from grn.cli.report.usage import (
    UNFINISHED,
    GpuName,
    Period,
    Span,
    UserShare,
    count,
    gpu_hours,
    held_share,
    is_bad,
    memory_used,
    shares,
    slices,
)
from grn.model.outcome import OutcomeKind
from grn.model.units import show_size, show_time

MAX_FAILURES, MAX_SHARES = 50, 20
DAY_S = 86400
STEPS_S = (60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, DAY_S, 2 * DAY_S, 7 * DAY_S)
MAX_MARKS = 10
PARTS = 48  # of the period, in the picture of how busy GPUs were
COLOURS = ("#2f6fde", "#26a17b", "#e08a1e", "#9a5bd4", "#d4517a", "#2aa5b8", "#8a8f2a", "#c96a3a")


def page(
    spans: Sequence[Span],
    indices: Sequence[GpuName],
    period: Period,
    host: str,
    gaps: Sequence[str] = (),
    idle: Sequence[tuple[str, float]] = (),
) -> str:
    """Return the report of a period; `gaps` say which part of it is unknown.

    `idle` are the hours for which each user held a GPU and did not use it.
    """
    span_text = f"{_day(period.since)} to {_day(period.until)}"
    drawn = _from_first_job(spans, period)
    parts = [
        html.header(f"GPUs of {host}", span_text),
        _tiles(spans, indices, period),
        html.section(
            "Jobs on each GPU", _timeline(spans, indices, drawn), _first_text(drawn, period)
        ),
        html.section("How busy the GPUs were", _busy(spans, indices, drawn)),
        html.section("Hours per user", _shares(shares(spans, period, "user"))),
        html.section("Idle GPU hours per user", _idle(idle)),
        html.section("Hours per job type", _shares(shares(spans, period, "type"))),
        html.section(
            "What failed",
            _failures([span for span in spans if is_bad(span)], any(span.where for span in spans)),
        ),
        *([html.section("Not known", "".join(map(html.note, gaps)))] if gaps else []),
    ]
    return html.page(f"GPUs of {host}, {span_text}", parts)


def _tiles(spans: Sequence[Span], indices: Sequence[GpuName], period: Period) -> str:
    hours = sum(gpu_hours(span, period) for span in spans)
    held = [held_share(spans, index, period) for index in indices]
    failed = count(spans, OutcomeKind.BAD)
    used = memory_used(spans, period)
    return html.tiles([
        Tile(f"{count(spans):,}", "jobs"),
        Tile(f"{hours:,.1f}", "GPU hours"),
        Tile(_percent(sum(held) / len(held)) if held else "?", "of the time a GPU had a job"),
        Tile(f"{failed:,}", "failed", is_bad=failed > 0),
        Tile(f"{count(spans, *UNFINISHED):,}", "cancelled or interrupted"),
        Tile("?" if used is None else f"{used:.0%}", "of reserved memory was used"),
    ])  # fmt: skip


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _timeline(spans: Sequence[Span], indices: Sequence[GpuName], period: Period) -> str:
    bands = [
        (index, [_bar(span, period) for span in spans if index in span.places]) for index in indices
    ]
    until = period.since + period.length_s
    marks = _round_times(period)
    return html.timeline(bands, period.since, until, marks, "jobs on each GPU over time")


def _bar(span: Span, period: Period) -> Bar:
    end = span.ended_at or period.until
    how = span.outcome or ("ended" if span.ended_at else "running")
    memory = f"peak {show_size(span.peak_bytes)} of {show_size(span.reserved_bytes)}"
    title = f"{span.label} ({span.user}), {_day(span.began_at)}"
    title += f", {show_time(end - span.began_at)}, {how}, {memory}"
    colour = COLOURS[sum(map(ord, str(span.label))) % len(COLOURS)]
    return Bar(span.began_at, end, colour, title, span.label)


def _busy(spans: Sequence[Span], indices: Sequence[GpuName], period: Period) -> str:
    """Draw a row of cells for each GPU, the darker the longer it had a job."""
    shapes = []
    wide = (WIDTH - LEFT) / PARTS
    for place, index in enumerate(indices):
        shapes.append(f'<text x="2" y="{place * 24 + 16}">{html.gpu_name(index)}</text>')
        for number, part in enumerate(slices(period, PARTS)):
            share = held_share(spans, index, part)
            look = f'fill="var(--good)" fill-opacity="{0.08 + 0.92 * share:.2f}"'
            title = f"{_day(part.since)}: {share:.0%}"
            shapes.append(html.box(LEFT + number * wide, place * 24 + 2, wide - 2, 20, look, title))
    return html.svg(
        WIDTH, len(indices) * 24 + 4, "".join(shapes), "share of time with a job", "wide"
    )


def _shares(found: Sequence[UserShare]) -> str:
    rows = [
        (
            share.name,
            f"{share.jobs:,}",
            f"{share.failed:,}",
            f"{share.cancelled:,}",
            f"{share.gpu_hours:,.2f}",
            "?" if share.memory_used is None else f"{share.memory_used:.0%}",
        )
        for share in found[:MAX_SHARES]
    ]
    names = ("Name", "Jobs", "Failed", "Cancelled", "GPU hours", "Memory used")
    return html.table(names, rows, numbers_from=1) + _cut(len(rows), len(found))


def _idle(found: Sequence[tuple[str, float]]) -> str:
    if not found:
        return html.note("No lease and no process was idle.")
    rows = [(user, f"{hours:.2f}") for user, hours in found[:MAX_SHARES]]
    return html.table(("Name", "Idle GPU hours"), rows, numbers_from=1) + _cut(
        len(rows), len(found)
    )


def _failures(spans: Sequence[Span], has_nodes: bool) -> str:
    rows = [
        (
            span.label if span.command in ("", span.label) else f"{span.label}: {span.command}",
            str(span.job or span.lease or ""),
            f"{span.outcome}: {span.text}" if span.text else span.outcome,
            *([span.where or "local"] if has_nodes else []),
            span.user,
            _day(span.began_at),
            show_time((span.ended_at or span.began_at) - span.began_at),
            show_size(span.peak_bytes),
        )
        for span in list(reversed(spans))[:MAX_FAILURES]
    ]
    where = ["Where"] if has_nodes else []
    names = ["Job", "Id", "Reason", *where, "User", "Began", "After", "Peak"]
    return html.table(names, rows, numbers_from=len(names) - 2) + _cut(len(rows), len(spans))


def _from_first_job(spans: Sequence[Span], period: Period) -> Period:
    """Return the part of a period that is drawn: it begins shortly before the first job."""
    first = min((span.began_at for span in spans), default=period.since)
    since = first - 0.01 * (period.until - first)
    return Period(max(period.since, since), period.until)


def _first_text(drawn: Period, period: Period) -> str:
    is_cut = drawn.since - period.since > 0.05 * period.length_s
    return f"The first job of this period began at {_day(drawn.since)}." if is_cut else ""


def _round_times(period: Period) -> list[tuple[float, str]]:
    """Return full minutes, hours or days of the local clock, as many as have room."""
    step_s = next((one for one in STEPS_S if period.length_s / one <= MAX_MARKS), STEPS_S[-1])
    offset_s = time.localtime(period.since).tm_gmtoff
    number = int((period.since + offset_s) // step_s) + 1
    form = "%b %d" if step_s >= DAY_S else "%b %d %H:%M" if period.length_s > DAY_S else "%H:%M"
    found: list[tuple[float, str]] = []
    while (at := number * step_s - offset_s) <= period.until:
        found.append((at, time.strftime(form, time.localtime(at))))
        number += 1
    return found


def _cut(shown: int, total: int) -> str:
    """Say how many there are where not all are shown."""
    return html.note(f"{shown} of {total} shown." if shown < total else "")


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
