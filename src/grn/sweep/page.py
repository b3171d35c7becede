"""A sweep as one HTML page that needs nothing else: pictures as SVG, in light and in dark."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from grn.sweep.chart_data import Axis, ChartData, number_text
from grn.sweep.css import SCRIPT, STYLE
from grn.sweep.manifest import write_text
from grn.sweep.values import number_or_text, spelled

WIDE, TALL = 340, 240  # a small chart
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
LINES_TALL, LINES_TOP, LINES_BOTTOM, LINES_SIDE = 340, 44, 26, 92

Places = tuple[float | None, ...]


def write_page(picture: ChartData, path: str) -> None:
    """Write the page."""
    write_text(path, page(picture))


def page(picture: ChartData) -> str:
    """Return the page."""
    title = _text(f"{picture.about.name}: {picture.metric}")
    body = "\n".join(_body(picture))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n"
        f"</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _body(picture: ChartData) -> Iterator[str]:
    yield f"<header><h1>{_text(picture.about.name)}</h1>"
    yield f"<p><code>{_text(picture.about.command)}</code></p></header>"
    yield _figures(picture)
    if picture.axes:
        yield _section("All runs at once", _hint(picture), _lines(picture))
        charts = "".join(_chart(picture, one) for one in picture.axes)
        note = f"Each dot is a run; the line joins the {_side(picture)} of each value."
        yield _section(
            f"{picture.metric} by parameter", note, f'<div class="charts">{charts}</div>'
        )
    yield _section("Best runs", "", _table(picture))
    if picture.failed:
        rows = "".join(
            f"<tr><td>{_text(run)}</td><td>{_text(why)}</td></tr>" for run, why in picture.failed
        )
        yield _section("Failed runs", "", f'<div class="scroll"><table>{rows}</table></div>')


def _side(picture: ChartData) -> str:
    return "highest" if picture.is_maximized else "lowest"


def _hint(picture: ChartData) -> str:
    text = "One line for each run; the stronger its colour, the better; the best stands out."
    text += " Point at a run to find it everywhere."
    return text + (" Some runs in the middle are left out." if picture.is_partial else "")


def _section(title: str, note: str, inner: str) -> str:
    said = f'<p class="note">{_text(note)}</p>' if note else ""
    return f"<section><h2>{_text(title)}</h2>{said}{inner}</section>"


def _figures(picture: ChartData) -> str:
    best = picture.best[0]
    counts = dict(picture.counts)
    tiles = [
        (f"best {picture.metric}", number_text(best[picture.metric]), spelled(best["run"])),
        ("finished", str(counts["finished"]), ""),
        ("failed", str(counts["failed"]), "bad" if counts["failed"] else ""),
    ]
    left = counts["interrupted"] + counts["requeued"] + counts["running"]
    tiles += [("not finished", str(left), "")] if left else []
    tiles += [(name, value, "fixed") for name, value in picture.fixed]
    made = [
        f'<div class="tile {"bad" if extra == "bad" else ""}"><span>{_text(name)}</span>'
        f"<b>{_text(value)}</b>"
        f"{f'<small>{_text(extra)}</small>' if extra not in ('', 'bad') else ''}</div>"
        for name, value, extra in tiles
    ]
    return f'<div class="tiles">{"".join(made)}</div>'


# --- parallel coordinates ------------------------------------------------------------------


def _lines(picture: ChartData) -> str:
    axes = (*picture.axes, picture.value_axis)
    gap = max(110, min(220, 900 // max(1, len(axes) - 1)))
    wide = 2 * LINES_SIDE + gap * (len(axes) - 1)
    xs = [LINES_SIDE + gap * number for number in range(len(axes))]
    spread = [*(one.spread for one in picture.axes), picture.value_axis.places]
    parts = [_run_line(picture, number, spread, xs) for number in range(len(picture.rows))]
    parts += [_upright(one, x, one is picture.value_axis) for one, x in zip(axes, xs, strict=True)]
    return _svg(wide, LINES_TALL, "".join(parts), "lines", f"all runs, by {picture.metric}")


def _down(place: float) -> float:
    return LINES_TOP + (1 - place) * (LINES_TALL - LINES_TOP - LINES_BOTTOM)


def _run_line(picture: ChartData, number: int, spread: Sequence[Places], xs: list[int]) -> str:
    spots = [
        (x, _down(place))
        for places, x in zip(spread, xs, strict=True)
        if (place := places[number]) is not None
    ]
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
    heights = picture.value_axis.places
    for number, (place, height) in enumerate(zip(one.spread, heights, strict=True)):
        if place is None or height is None:
            continue
        parts.append(
            f'<circle class="{_colour(picture, number)}" cx="{_across(place):.1f}"'
            f' cy="{_up(height):.1f}" r="4" {_named(picture, number)}</circle>'
        )
    title = f"{one.name} (log)" if one.is_log else one.name
    middle = LEFT + (WIDE - LEFT - RIGHT) / 2
    parts.append(
        f'<text class="name" x="{middle}" y="{TALL - 8}" text-anchor="middle">{_text(title)}</text>'
    )
    return f"<figure>{_svg(WIDE, TALL, ''.join(parts), 'dots', title)}</figure>"


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
    heads = "".join(f"<th>{_text(_column(name))}</th>" for name in ("", *picture.columns))
    lines = []
    for place, row in enumerate(picture.best, 1):
        cells = "".join(_cell(row[name]) for name in picture.columns)
        run = _text(spelled(row["run"]))
        kind = ' class="first"' if place == 1 else ""
        lines.append(f'<tr{kind} data-run="{run}" title="{run}"><td>{place}</td>{cells}</tr>')
    head = f"<thead><tr>{heads}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{"".join(lines)}</tbody></table></div>'


def _column(name: str) -> str:
    return {"duration_s": "time (s)", "gpu": "GPU"}.get(name, name)


def _cell(value: Any) -> str:
    if value is None:
        return "<td>–</td>"
    read = number_or_text(value)
    if isinstance(read, float) and not isinstance(value, str):
        return f'<td class="number">{_text(number_text(read))}</td>'
    kind = "number" if isinstance(read, (int, float)) else "word"
    text = spelled(value)
    return f'<td class="{kind}">{_text(text if len(text) <= 60 else text[:59] + "…")}</td>'


# --- small things --------------------------------------------------------------------------


def _svg(wide: int, tall: int, inner: str, kind: str, label: str) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {wide} {tall}" role="img"'
        f' aria-label="{_text(label)}">{inner}</svg>'
    )


def _colour(picture: ChartData, number: int) -> str:
    is_best = number == len(picture.rows) - 1
    return "run best" if is_best else f"run q{picture.levels[number]}"


def _named(picture: ChartData, number: int) -> str:
    """Return the mark of a run, and what is shown when one points at it."""
    row = picture.rows[number]
    value = number_text(row[picture.metric])
    title = _text(f"{picture.metric} {value}\n{row['run']}")
    return f'data-run="{_text(spelled(row["run"]))}"><title>{title}</title>'


def _text(text: str) -> str:
    """Make a text harmless for a page."""
    clean = "".join(
        char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text
    )
    return html.escape(clean, quote=True)
