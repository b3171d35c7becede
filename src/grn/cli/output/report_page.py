"""A period as one HTML page that needs nothing else: to mail or to keep.

Pure: figures in, text out. Every text of a user's goes through `_text`.
"""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from typing import Any

from grn.cli.output.usage_report import (
    UNFINISHED,
    Period,
    UserShare,
    count,
    gpu_hours,
    held_share,
    is_bad,
    shares,
    slices,
    wasted_gib_hours,
)
from grn.model.outcome import OutcomeKind
from grn.model.text import harmless
from grn.model.units import show_size, show_time

Row = dict[str, Any]
WIDTH, LEFT, ROW, GAP = 1060, 60, 14, 10
MAX_FAILURES, MAX_SHARES, MAX_BARS = 50, 20, 4000
PARTS = 48  # of the period, in the picture of how busy GPUs were
COLOURS = ("#2f6fde", "#26a17b", "#e08a1e", "#9a5bd4", "#d4517a", "#2aa5b8", "#8a8f2a", "#c96a3a")
STYLE = """
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--ink:#1b2330;--soft:#5d6878;
  --line:#dde2ea;--track:#e9edf3;--bad:#c4373f;--good:#1f8f6b}
@media(prefers-color-scheme:dark){:root{--back:#12161d;--card:#1a2029;--ink:#e6eaf1;
  --soft:#97a3b5;--line:#2b3442;--track:#252d39;--bad:#ff7b80;--good:#4cc79c}
}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
  font:15px/1.45 system-ui,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:1.4rem}
h1{font-size:1.5rem;margin:0}
h2{font-size:1.05rem;margin:1.8rem 0 .6rem}
.soft{color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8rem;
  margin-top:1.2rem}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:12px;
  padding:.8rem 1rem}
.tile b{display:block;font-size:1.5rem}
.card{overflow-x:auto}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.35rem .7rem;border-bottom:1px solid var(--line);
  overflow-wrap:anywhere}
th{font-size:.78rem;text-transform:uppercase;letter-spacing:.04em;color:var(--soft)}
td.n,th.n{text-align:right;white-space:nowrap}
tr:last-child td{border-bottom:0}
.bad{color:var(--bad)}
@media print{body{background:#fff}
.card,.tile{break-inside:avoid}
}
"""


def page(
    spans: Sequence[Row], gpus: Sequence[Row], period: Period, host: str, gaps: Sequence[str] = ()
) -> str:
    """Return the report of a period; `gaps` say what of it is not known."""
    span_text = f"{_day(period.since)} to {_day(period.until)}"
    parts = [
        f"<h1>GPUs of {_text(host)}</h1><p class='soft'>{span_text}</p>",
        _tiles(spans, gpus, period),
        _section("Who was where", _timeline(spans, gpus, period)),
        _section("How busy the GPUs were", _busy(spans, gpus, period)),
        _section("Hours per user", _shares(shares(spans, period, "user"))),
        _section("Hours per job type", _shares(shares(spans, period, "type"))),
        _section("What failed", _failures([span for span in spans if is_bad(span)])),
        *(f"<p class='soft'>{_text(gap)}</p>" for gap in gaps),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>GPUs of {_text(host)}, {span_text}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(spans: Sequence[Row], gpus: Sequence[Row], period: Period) -> str:
    hours = sum(gpu_hours(span, period) for span in spans)
    indices = [gpu["index"] for gpu in gpus]
    held = [held_share(spans, index, period) for index in indices]
    waste = sum(wasted_gib_hours(span, period) for span in spans)
    tiles = [
        (str(count(spans)), "jobs"),
        (f"{hours:.1f}", "GPU hours held by jobs"),
        (f"{sum(held) / len(held):.0%}" if held else "?", "of the time a GPU had a job"),
        (str(count(spans, OutcomeKind.BAD)), "failed"),
        (str(count(spans, *UNFINISHED)), "cancelled or interrupted"),
        (f"{waste:.1f}", "GiB hours reserved and not used"),
    ]
    cells = "".join(f"<div class='tile'><b>{one}</b>{text}</div>" for one, text in tiles)
    return f"<div class='tiles'>{cells}</div>"


def _timeline(spans: Sequence[Row], gpus: Sequence[Row], period: Period) -> str:
    shapes: list[str] = []
    top = 6
    for gpu in gpus:
        placed = _lanes(
            [span for span in spans if gpu["index"] in span["gpus"]][-MAX_BARS:], period
        )
        tall = max([lane + 1 for _, lane in placed], default=1) * ROW
        shapes.append(
            _box(LEFT, top, WIDTH - LEFT, tall, "fill='var(--track)'")
            + f"<text x='2' y='{top + 11}'>GPU {gpu['index']}</text>"
        )
        for span, lane in placed:
            left, right = _x(span["from"], period), _x(span["ended_at"] or period.until, period)
            title = f"{span['label']} ({span['user']}), {_span_text(span, period)}"
            look = f"fill='{_colour(span['label'])}'"
            place = top + lane * ROW + 1
            shapes.append(_box(left, place, max(1.5, right - left), ROW - 2, look, title))
        top += tall + GAP
    for part in range(6):
        at = period.since + period.length_s * part / 5
        anchor = "start" if part == 0 else "end" if part == 5 else "middle"
        shapes.append(
            f"<text x='{_x(at, period):.1f}' y='{top + 8}' text-anchor='{anchor}'>{_day(at)}</text>"
        )
    most = max((sum(gpu["index"] in span["gpus"] for span in spans) for gpu in gpus), default=0)
    cut = f"<p class='soft'>The latest {MAX_BARS} of each GPU are shown.</p>"
    drawn = f"<svg viewBox='0 0 {WIDTH} {top + 14}' role='img'>{''.join(shapes)}</svg>"
    return drawn + (cut if most > MAX_BARS else "")


def _busy(spans: Sequence[Row], gpus: Sequence[Row], period: Period) -> str:
    """Draw a row of cells for each GPU, the darker the longer it had a job."""
    shapes = []
    wide = (WIDTH - LEFT) / PARTS
    for place, gpu in enumerate(gpus):
        shapes.append(f"<text x='2' y='{place * 24 + 16}'>GPU {gpu['index']}</text>")
        for number, part in enumerate(slices(period, PARTS)):
            share = held_share(spans, gpu["index"], part)
            look = f"fill='var(--good)' fill-opacity='{0.08 + 0.92 * share:.2f}'"
            title = f"{_day(part.since)}: {share:.0%}"
            left = LEFT + number * wide
            shapes.append(_box(left, place * 24 + 2, wide - 2, 20, look, title))
    return f"<svg viewBox='0 0 {WIDTH} {len(gpus) * 24 + 4}' role='img'>{''.join(shapes)}</svg>"


def _shares(found: Sequence[UserShare]) -> str:
    rows = [
        (
            _text(share.name),
            f"{share.jobs}",
            f"{share.failed}",
            f"{share.cancelled}",
            f"{share.gpu_hours:.2f}",
            f"{share.wasted_gib_hours:.2f}",
        )
        for share in found[:MAX_SHARES]
    ]
    names = ("Name", "Jobs", "Failed", "Cancelled", "GPU hours", "GiB hours not used")
    return _table(names, rows, first=1) + _cut(len(rows), len(found))


def _failures(spans: Sequence[Row]) -> str:
    rows = [
        (
            _day(span["from"]),
            *(_text(span[name]) for name in ("label", "user", "outcome")),
            show_time((span["ended_at"] or span["from"]) - span["from"]),
            show_size(span["peak_bytes"]),
        )
        for span in list(reversed(spans))[:MAX_FAILURES]
    ]
    names = ("Began", "Job", "User", "Outcome", "After", "Peak")
    return _table(names, rows, first=4) + _cut(len(rows), len(spans))


def _cut(shown: int, total: int) -> str:
    """Say how many there are where not all are shown."""
    return f"<p class='soft'>{shown} of {total} shown.</p>" if shown < total else ""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], first: int) -> str:
    """Draw a table; the columns from `first` on are numbers."""
    if not rows:
        return "<p class='soft'>None.</p>"

    def line(cells: Sequence[str], kind: str) -> str:
        marked = (
            f"<{kind}{' class=n' if place >= first else ''}>{cell}</{kind}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"  # fmt: skip

    return f"<table>{line(names, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


def _box(left: float, top: float, wide: float, tall: float, look: str, title: str = "") -> str:
    place = f"x='{left:.1f}' y='{top:.1f}' width='{wide:.1f}' height='{tall:.1f}' rx='3'"
    return f"<rect {place} {look}><title>{_text(title)}</title></rect>"


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2><div class='card'>{body}</div>"


def _lanes(spans: Sequence[Row], period: Period) -> list[tuple[Row, int]]:
    """Put spans that overlap below each other."""
    free: list[float] = []
    placed = []
    for span in spans:
        lane = next((place for place, until in enumerate(free) if until <= span["from"]), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = span["ended_at"] or period.until
        placed.append((span, lane))
    return placed


def _x(at: float, period: Period) -> float:
    share = (min(max(at, period.since), period.until) - period.since) / period.length_s
    return LEFT + share * (WIDTH - LEFT)


def _span_text(span: Row, period: Period) -> str:
    took = show_time((span["ended_at"] or period.until) - span["from"])
    how = span["outcome"] or ("ended" if span["ended_at"] else "running")
    peak, reserved = show_size(span["peak_bytes"]), show_size(span["reserved_bytes"])
    return f"{_day(span['from'])}, {took}, {how}, peak {peak} of {reserved}"


def _colour(text: str) -> str:
    return COLOURS[sum(map(ord, str(text))) % len(COLOURS)]


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _text(text: object) -> str:
    return html.escape(harmless(str(text)))
