"""A sweep as one HTML page: parallel coordinates, a chart for each parameter, tables. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

from grn.cli.output import html
from grn.cli.output.html import Tile
from grn.cli.output.html import text as _text
from grn.cli.report.sweep_chart import Axis, ChartData, column_name, column_texts, number_text
from grn.sweep.manifest import LOG_FILE
from grn.sweep.values import spelled

WIDE, TALL = 340, 240  # a small chart
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
LINES_TALL, LINES_TOP, LINES_BOTTOM, LINES_SIDE = 340, 44, 26, 92
NARROW_WIDE, NARROW_SIDE, NARROW_GAP = 340, 50, 80  # of the parallel coordinates on a phone
FEW = 2  # small charts that share a row are large

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
path.run { fill: none; stroke-width: 1.6; stroke-opacity: 0.75; vector-effect: non-scaling-stroke; }
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
tr[data-run] td:first-child { min-width: 2em; }
tr.first td { font-weight: 600; }
table.sortable th { cursor: pointer; }
th[aria-sort=ascending]::after { content: " ▲"; } th[aria-sort=descending]::after { content: " ▼"; }
svg.narrow { display: none; width: auto; height: 340px; }
@media (max-width: 720px) {
  section { overflow-x: auto; } svg.lines { display: none; } svg.narrow { display: block; }
}
@media (min-width: 900px) {
  .few svg text { font-size: 7.5px; } .few svg .name { font-size: 8.5px; }
  .few circle.run { r: 3px; } .few circle.best { r: 4px; }
}
tr.first td:nth-child(2) { color: var(--accent); }
"""
SCRIPT = """
function sweepPage(root, content) {
  function mark(event, isOn) {
    const run = event.target.closest?.("[data-run]")?.dataset.run;
    if (run === undefined) return;
    content.classList.toggle("pointed", isOn);
    for (const one of root.querySelectorAll(`[data-run="${CSS.escape(run)}"]`))
      one.classList.toggle("here", isOn);
  }
  const SECONDS = { d: 86400, h: 3600, m: 60, s: 1 };
  function worth(text) {
    if (text.trim() !== "" && !Number.isNaN(Number(text))) return Number(text);
    const parts = text.match(/[\\d.]+[dhms]/g);
    if (!parts || parts.join("") !== text) return text === "–" ? null : text;
    return parts.reduce((sum, part) => sum + parseFloat(part) * SECONDS[part.slice(-1)], 0);
  }
  function order(one, other) {
    if (one === null || other === null) return (one === null) - (other === null);
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    return one < other ? -1 : one > other ? 1 : 0;
  }
  function sort(event) {
    const head = event.target.closest?.("table.sortable th");
    if (!head || (event.type === "keydown" && event.key !== "Enter")) return;
    const place = head.cellIndex, isUp = head.getAttribute("aria-sort") !== "ascending";
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [worth(row.cells[place].textContent), row]);
    rows.sort(([one], [other]) => (isUp ? order(one, other) : order(other, one)));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
  }
  root.addEventListener("mouseover", (event) => mark(event, true));
  root.addEventListener("mouseout", (event) => mark(event, false));
  root.addEventListener("click", sort);
  root.addEventListener("keydown", sort);
}
"""


def page(picture: ChartData, folder: str = ".") -> str:
    """Return the page; `folder` is the sweep's, seen from where the page is."""
    title = f"{picture.about.name}: {picture.metric}"

    def log(run: str) -> str:
        return f"{quote(folder)}/runs/{quote(run, safe='')}/{LOG_FILE}"

    script = f"{SCRIPT}sweepPage(document, document.body);\n"
    return html.page(title, list(_body(picture, log)), style=STYLE, script=script)


def body(picture: ChartData) -> str:
    """Return the content for `grn web`, which has a frame of its own and the jobs of the runs."""
    return "\n".join(_body(picture, lambda run: f"#/history/{quote(run, safe='')}"))


def _body(picture: ChartData, log: Callable[[str], str]) -> Iterator[str]:
    yield html.header(picture.about.name, f"<code>{_text(picture.about.command)}</code>")
    yield _figures(picture)
    if picture.axes:
        yield html.section("All runs at once", _lines(picture), _hint(picture))
        charts = "".join(_chart(picture, one) for one in picture.axes)
        kind = "charts few" if len(picture.axes) <= FEW else "charts"
        note = f"Each dot is a run; the line joins the {_side(picture)} of each value."
        name = f"{picture.metric} by parameter"
        yield html.section(name, f'<div class="{kind}">{charts}</div>', note)
    yield html.section("Best runs", _table(picture))
    if picture.failed:
        links = [log(run) for run, _ in picture.failed]
        failed = html.table(("Run", "Reason"), picture.failed, links=links)
        yield html.section("Failed runs", failed, "A run leads to its output.")


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
        Tile(value, f"best {picture.metric}", run, is_best=True),
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
    label = f"all runs, by {picture.metric}"
    marks = "".join(_upright(one, x, picture, 18) for one, x in zip(axes, xs, strict=True))
    runs = f'<g id="all-runs">{"".join(parts)}</g>'
    drawn = html.svg(wide, LINES_TALL, runs + marks, label, "lines")
    return drawn + _narrow_lines(picture, gap, label)


def _narrow_lines(picture: ChartData, wide_gap: float, label: str) -> str:
    """Draw the same closer together, for a phone: letters keep their size."""
    axes = picture.uprights
    gap = max(NARROW_GAP, (NARROW_WIDE - 2 * NARROW_SIDE) // max(1, len(axes) - 1))
    by = gap / wide_gap
    move = f"translate({NARROW_SIDE - LINES_SIDE * by:.2f} 0) scale({by:.4f} 1)"
    runs = f'<use href="#all-runs" transform="{move}"/>'
    xs = (NARROW_SIDE + gap * number for number in range(len(axes)))
    marks = "".join(_upright(one, x, picture, 11) for one, x in zip(axes, xs, strict=False))
    wide = 2 * NARROW_SIDE + gap * (len(axes) - 1)
    return html.svg(wide, LINES_TALL, runs + marks, label, "lines narrow")


def _down(place: float) -> float:
    return LINES_TOP + (1 - place) * (LINES_TALL - LINES_TOP - LINES_BOTTOM)


def _run_line(picture: ChartData, number: int, spots: Sequence[tuple[int, float]]) -> str:
    path = f"M{spots[0][0]} {spots[0][1]:.1f}"
    for (x, y), (next_x, next_y) in itertools.pairwise(spots):
        middle = (x + next_x) / 2
        path += f"C{middle:.0f} {y:.1f} {middle:.0f} {next_y:.1f} {next_x} {next_y:.1f}"
    return f'<path class="{_colour(picture, number)}" d="{path}" {_named(picture, number)}</path>'


def _upright(one: Axis, x: float, picture: ChartData, letters: int) -> str:
    top, bottom = LINES_TOP, LINES_TALL - LINES_BOTTOM
    name = one.name if len(one.name) <= letters else one.name[: letters - 1] + "…"
    marks = "".join(
        f'<line class="tick" x1="{x - 4}" x2="{x}" y1="{_down(tick.at):.1f}"'
        f' y2="{_down(tick.at):.1f}"/>'
        f'<text class="halo" x="{x - 7}" y="{_down(tick.at) + 3.5:.1f}" text-anchor="end">'
        f"{_text(tick.text)}</text>"
        for tick in one.ticks
    )
    kind = "name metric" if one is picture.value_axis else "name"
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
    places = [*map(str, range(1, len(picture.best) + 1))]
    columns = [
        column_texts(name, [row[name] for row in picture.best], 60) for name in picture.columns
    ]
    rows, attributes = [*zip(places, *columns, strict=True)], []
    for place, row in enumerate(picture.best, 1):
        run = _text(spelled(row["run"]))
        attributes.append(
            f' class="{"first" if place == 1 else ""}" data-run="{run}" title="{run}"'
        )
    return html.table(names, rows, numbers_from=1, attributes=attributes, is_sortable=True)


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
