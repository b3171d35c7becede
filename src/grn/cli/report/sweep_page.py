"""A sweep as one HTML page: parallel coordinates, a chart for each parameter, tables. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from grn.cli.output import html
from grn.cli.output.html import Tile
from grn.cli.output.html import text as _text
from grn.cli.report.sweep_chart import Axis, ChartData, column_name, number_text
from grn.sweep.values import spelled

WIDE, TALL = 340, 240  # a small chart
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
LINES_TALL, LINES_TOP, LINES_BOTTOM, LINES_SIDE = 340, 44, 26, 92

STYLE = """
:root {
  --q0: #ccd5e2; --q1: #b4c5dd; --q2: #97b3d9; --q3: #769fd3;
  --q4: #558ac9; --q5: #3a74ba; --q6: #245da4; --q7: #134787;
}
@media (prefers-color-scheme: dark) {
  :root {
    --q0: #323d4f; --q1: #364a68; --q2: #3c5a84; --q3: #446ca1;
    --q4: #5080bd; --q5: #6496d4; --q6: #80aee6; --q7: #a5c8f5;
  }
}
.charts {
  display: grid; gap: 8px 18px;
  grid-template-columns: repeat(auto-fit, minmax(300px, 1fr));
}
figure { margin: 0; max-width: 560px; }
svg .name { fill: var(--ink); font-size: 12.5px; font-weight: 600; }
svg .name.metric { fill: var(--accent); }
svg .halo { paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
.axis { stroke: var(--soft); stroke-width: 1; }
.tick { stroke: var(--soft); stroke-width: 1; }
.grid { stroke: var(--line); stroke-width: 1; }
.bests { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 4; }
path.run { fill: none; stroke-width: 1.6; stroke-opacity: 0.75; }
path.best { stroke: var(--accent); stroke-width: 3; stroke-opacity: 1; }
circle.run { stroke: var(--card); stroke-width: 1; }
circle.best { fill: var(--accent); r: 5.5px; }
path.q0 { stroke: var(--q0); } path.q1 { stroke: var(--q1); } path.q2 { stroke: var(--q2); }
path.q3 { stroke: var(--q3); } path.q4 { stroke: var(--q4); } path.q5 { stroke: var(--q5); }
path.q6 { stroke: var(--q6); } path.q7 { stroke: var(--q7); }
circle.q0 { fill: var(--q0); } circle.q1 { fill: var(--q1); } circle.q2 { fill: var(--q2); }
circle.q3 { fill: var(--q3); } circle.q4 { fill: var(--q4); } circle.q5 { fill: var(--q5); }
circle.q6 { fill: var(--q6); } circle.q7 { fill: var(--q7); }
.pointed .run { opacity: 0.15; }
.pointed .run.here { opacity: 1; }
.pointed path.here { stroke: var(--ink); stroke-width: 3.5; stroke-opacity: 1; }
.pointed circle.here { fill: var(--ink); r: 7px; }
tr.here td { background: var(--line); }
tr[data-run] td { white-space: nowrap; max-width: 240px; }
tr[data-run] td { overflow: hidden; text-overflow: ellipsis; }
td:first-child { color: var(--soft); }
tr.first td { font-weight: 600; }
@media (max-width: 720px) { section { overflow-x: auto; } svg.lines { min-width: 760px; } }
tr.first td:nth-child(2) { color: var(--accent); }
"""
SCRIPT = """
(function () {
  var runs = {};
  document.querySelectorAll("[data-run]").forEach(function (one) {
    (runs[one.dataset.run] = runs[one.dataset.run] || []).push(one);
  });
  function mark(event, is_on) {
    var one = event.target.closest && event.target.closest("[data-run]");
    if (!one) { return; }
    document.body.classList.toggle("pointed", is_on);
    runs[one.dataset.run].forEach(function (other) { other.classList.toggle("here", is_on); });
  }
  document.addEventListener("mouseover", function (event) { mark(event, true); });
  document.addEventListener("mouseout", function (event) { mark(event, false); });
})();
"""


def page(picture: ChartData) -> str:
    """Return the page."""
    title = f"{picture.about.name}: {picture.metric}"
    return html.page(title, list(_body(picture)), style=STYLE, script=SCRIPT)


def body(picture: ChartData) -> str:
    """Return the content of the page, for a page that has a frame of its own."""
    return "\n".join(_body(picture))


def _body(picture: ChartData) -> Iterator[str]:
    yield html.header(picture.about.name, f"<code>{_text(picture.about.command)}</code>")
    yield _figures(picture)
    if picture.axes:
        yield html.section("All runs at once", _lines(picture), _hint(picture))
        charts = "".join(_chart(picture, one) for one in picture.axes)
        note = f"Each dot is a run; the line joins the {_side(picture)} of each value."
        name = f"{picture.metric} by parameter"
        yield html.section(name, f'<div class="charts">{charts}</div>', note)
    yield html.section("Best runs", _table(picture))
    if picture.failed:
        yield html.section("Failed runs", html.table((), picture.failed))


def _side(picture: ChartData) -> str:
    return "highest" if picture.is_maximized else "lowest"


def _hint(picture: ChartData) -> str:
    text = "One line for each run; the stronger its colour, the better; the best stands out."
    text += " Point at a run to find it everywhere."
    return text + (" Some runs in the middle are left out." if picture.is_partial else "")


def _figures(picture: ChartData) -> str:
    best = picture.best[0]
    counts = dict(picture.counts)
    value, run = number_text(best[picture.metric]), spelled(best["run"])
    left = counts["interrupted"] + counts["requeued"] + counts["running"]
    return html.tiles([
        Tile(value, f"best {picture.metric}", run),
        Tile(str(counts["finished"]), "finished"),
        Tile(str(counts["failed"]), "failed", is_bad=bool(counts["failed"])),
        *([Tile(str(left), "not finished")] if left else []),
        *(Tile(value, name, "fixed") for name, value in picture.fixed),
    ])  # fmt: skip


# --- parallel coordinates ------------------------------------------------------------------


def _lines(picture: ChartData) -> str:
    axes = picture.uprights
    gap = max(110, min(450, 900 // max(1, len(axes) - 1)))
    wide = 2 * LINES_SIDE + gap * (len(axes) - 1)
    xs = [LINES_SIDE + gap * number for number in range(len(axes))]
    parts = [
        _run_line(picture, number, [(xs[upright], _down(place)) for upright, place in line])
        for number, line in enumerate(picture.lines())
    ]
    parts += [_upright(one, x, one is picture.value_axis) for one, x in zip(axes, xs, strict=True)]
    return html.svg(wide, LINES_TALL, "".join(parts), f"all runs, by {picture.metric}", "lines")


def _down(place: float) -> float:
    return LINES_TOP + (1 - place) * (LINES_TALL - LINES_TOP - LINES_BOTTOM)


def _run_line(picture: ChartData, number: int, spots: Sequence[tuple[int, float]]) -> str:
    path = f"M{spots[0][0]} {spots[0][1]:.1f}"
    for (x, y), (next_x, next_y) in itertools.pairwise(spots):
        middle = (x + next_x) / 2
        path += f"C{middle:.0f} {y:.1f} {middle:.0f} {next_y:.1f} {next_x} {next_y:.1f}"
    return f'<path class="{_colour(picture, number)}" d="{path}" {_named(picture, number)}</path>'


def _upright(one: Axis, x: int, is_metric: bool) -> str:
    top, bottom = LINES_TOP, LINES_TALL - LINES_BOTTOM
    name = one.name if len(one.name) <= 18 else one.name[:17] + "…"
    marks = "".join(
        f'<line class="tick" x1="{x - 4}" x2="{x}" y1="{_down(tick.at):.1f}"'
        f' y2="{_down(tick.at):.1f}"/>'
        f'<text class="halo" x="{x - 7}" y="{_down(tick.at) + 3.5:.1f}" text-anchor="end">'
        f"{_text(tick.text)}</text>"
        for tick in one.ticks
    )
    kind = "name metric" if is_metric else "name"
    return (
        f'<line class="axis" x1="{x}" x2="{x}" y1="{top - 8}" y2="{bottom + 8}"/>{marks}'
        f'<text class="{kind}" x="{x}" y="{top - 20}" text-anchor="middle">{_text(name)}</text>'
    )


# --- one chart for each parameter ----------------------------------------------------------


def _chart(picture: ChartData, one: Axis) -> str:
    parts = [_frame(one, picture.value_axis)]
    parts.append(_best_line(picture, one))
    for number, place, height in picture.dots(one):
        parts.append(
            f'<circle class="{_colour(picture, number)}" cx="{_across(place):.1f}"'
            f' cy="{_up(height):.1f}" r="4" {_named(picture, number)}</circle>'
        )
    middle = LEFT + (WIDE - LEFT - RIGHT) / 2
    parts.append(
        f'<text class="name" x="{middle}" y="{TALL - 8}" text-anchor="middle">'
        f"{_text(one.title)}</text>"
    )
    return f"<figure>{html.svg(WIDE, TALL, ''.join(parts), one.title, 'dots')}</figure>"


def _across(place: float) -> float:
    return LEFT + place * (WIDE - LEFT - RIGHT)


def _up(place: float) -> float:
    return TOP + (1 - place) * (TALL - TOP - BOTTOM)


def _frame(one: Axis, values: Axis) -> str:
    parts = []
    for tick in values.ticks:
        y = _up(tick.at)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{_text(tick.text)}</text>'
        )
    base = TALL - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{base}" y2="{base}"/>')
    for tick in one.ticks:
        x = _across(tick.at)
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 4}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{base + 16}" text-anchor="middle">{_text(tick.text)}</text>'
        )
    return "".join(parts)


def _best_line(picture: ChartData, one: Axis) -> str:
    """Join the best run of each value, where a value has several runs."""
    found: dict[float, float] = {}
    for place, height in zip(one.places, picture.value_axis.places, strict=True):
        if place is not None and height is not None:
            pick = max if picture.is_maximized else min
            found[place] = pick(height, found.get(place, height))
    if not 1 < len(found) <= len(picture.rows) // 2:
        return ""
    spots = " ".join(f"{_across(place):.1f},{_up(found[place]):.1f}" for place in sorted(found))
    return f'<polyline class="bests" points="{spots}"/>'


# --- the table -----------------------------------------------------------------------------


def _table(picture: ChartData) -> str:
    names = ("", *map(column_name, picture.columns))
    rows, attributes = [], []
    for place, row in enumerate(picture.best, 1):
        run = _text(spelled(row["run"]))
        rows.append((str(place), *(_cell(row[name]) for name in picture.columns)))
        attributes.append(
            f' class="{"first" if place == 1 else ""}" data-run="{run}" title="{run}"'
        )
    return html.table(names, rows, attributes=attributes)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    text = number_text(value) if isinstance(value, float) else spelled(value)
    return text if len(text) <= 60 else text[:59] + "…"


# --- small things --------------------------------------------------------------------------


def _colour(picture: ChartData, number: int) -> str:
    is_best = number == len(picture.rows) - 1
    return "run best" if is_best else f"run q{picture.levels[number]}"


def _named(picture: ChartData, number: int) -> str:
    """Return the mark of a run, and what is shown when one points at it."""
    row = picture.rows[number]
    value = number_text(row[picture.metric])
    title = _text(f"{picture.metric} {value}\n{row['run']}")
    return f'data-run="{_text(spelled(row["run"]))}"><title>{title}</title>'
