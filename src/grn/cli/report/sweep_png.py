"""A sweep as a PNG, drawn by matplotlib where that is installed."""

from __future__ import annotations

import itertools
import os
from typing import Any

from grn.cli.report.sweep_chart import (
    LEVELS,
    Axis,
    ChartData,
    column_name,
    column_texts,
    number_text,
)
from grn.errors import MachineError, UsageError

HOW_TO_DRAW = "matplotlib is not installed; pip install matplotlib"
COLOURS = (
    *("#ccd5e2", "#b4c5dd", "#97b3d9", "#769fd3", "#558ac9", "#3a74ba", "#245da4", "#134787"),
)
ACCENT, INK, SOFT, LINE = "#d9480f", "#1a2230", "#5d6878", "#dde2ea"
ACROSS = 3  # small charts in a row at most
TABLE_ROWS = 8
assert len(COLOURS) == LEVELS


def write_png(picture: ChartData, path: str, *, is_needed: bool = False) -> bool:
    """Write the picture; False when matplotlib is missing and the picture is optional."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        if is_needed:
            raise UsageError(f"there is no way to draw a PNG: {HOW_TO_DRAW}.") from error
        return False
    looks = {"font.size": 9, "font.family": "sans-serif", "axes.edgecolor": SOFT}
    with matplotlib.rc_context(looks):
        figure = _figure(Figure, picture)
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            figure.savefig(temporary, format="png", dpi=150)
            os.replace(temporary, path)
        except OSError as error:
            raise MachineError(f"{path} cannot be written: {error.strerror}.") from error
    return True


def _figure(kind: Any, picture: ChartData) -> Any:
    across = {1: 1, 2: 2, 4: 2}.get(len(picture.axes), ACROSS)  # no row ends in a gap
    rows = -(-len(picture.axes) // across)
    heights = [0.75, *([3.4] if picture.axes else []), *[2.5] * rows, _table_inches(picture)]
    figure = kind(figsize=(12, sum(heights) + 0.4), facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    grid = figure.add_gridspec(len(heights), across, height_ratios=heights)
    _title(figure.add_subplot(grid[0, :]), picture)
    if picture.axes:
        _lines(figure.add_subplot(grid[1, :]), picture)
    for number, one in enumerate(picture.axes):
        place = grid[2 + number // across, number % across]
        _chart(figure.add_subplot(place), picture, one)
    _table(figure.add_subplot(grid[len(heights) - 1, :]), picture)
    return figure


def _title(axes: Any, picture: ChartData) -> None:
    axes.axis("off")
    best = picture.best[0]
    counts = ", ".join(f"{count} {state}" for state, count in picture.counts if count)
    command = _shown(picture.about.command, 150)
    axes.text(0, 0.78, _shown(picture.about.name, 80), fontsize=17, weight="bold", color=INK,
              va="center")  # fmt: skip
    axes.text(0, 0.34, command, fontsize=8.5, color=SOFT, family="monospace", va="center")
    axes.text(0, 0.0, counts, fontsize=9, color=SOFT, va="center")
    value = f"best {picture.metric}  {number_text(best[picture.metric])}"
    axes.text(1, 0.78, _shown(value, 60), fontsize=15, weight="bold", color=ACCENT, ha="right",
              va="center", transform=axes.transAxes)  # fmt: skip


def _lines(axes: Any, picture: ChartData) -> None:
    """Draw the parallel coordinates."""
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path

    uprights, curves = picture.uprights, [_curve(line) for line in picture.lines()]
    paths = [Path(curve, [1] + [4] * (len(curve) - 1)) for curve in curves]  # move, then curves
    look: dict[str, Any] = {
        "edgecolors": _colours(picture),
        "linewidths": [1.1] * (len(curves) - 1) + [2.6],
    }
    axes.add_collection(PathCollection(paths, facecolors="none", alpha=0.85, **look))
    for x, one in enumerate(uprights):
        axes.plot([x, x], [-0.02, 1.02], color=SOFT, linewidth=0.8, zorder=5000)
        is_metric = one is picture.value_axis
        axes.text(x, 1.06, _shown(one.name, 18), ha="center", weight="bold",
                  color=ACCENT if is_metric else INK)  # fmt: skip
        for tick in one.ticks:
            axes.text(x - 0.015, tick.at, _shown(tick.text, 14), ha="right", va="center",
                      fontsize=7.5, color=SOFT, zorder=5001,
                      bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6},
                      )  # fmt: skip
    axes.set_xlim(-0.25, len(uprights) - 0.75)
    axes.set_ylim(-0.03, 1.14)
    axes.axis("off")


def _curve(spots: list[tuple[int, float]]) -> list[tuple[float, float]]:
    """Join places by cubic curves that leave and reach each axis level."""
    curve = [(float(spots[0][0]), spots[0][1])]
    for (x, y), (next_x, next_y) in itertools.pairwise(spots):
        middle = (x + next_x) / 2
        curve += [(middle, y), (middle, next_y), (next_x, next_y)]
    return curve


def _chart(axes: Any, picture: ChartData, one: Axis) -> None:
    colours, best = _colours(picture), len(picture.rows) - 1
    dots = [(x, y, colours[n], 60 if n == best else 26) for n, x, y in picture.dots(one)]
    if dots:
        xs, ys, shown, sizes = zip(*dots, strict=True)
        axes.scatter(xs, ys, s=sizes, c=shown, edgecolors="white", linewidths=0.6, zorder=3,
                     clip_on=False)  # fmt: skip
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xticks([tick.at for tick in one.ticks], [_shown(tick.text, 14) for tick in one.ticks])
    values = picture.value_axis.ticks
    axes.set_yticks([tick.at for tick in values], [tick.text for tick in values])
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.tick_params(colors=SOFT, labelsize=8, length=3)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel(_shown(one.title, 30), weight="bold", color=INK)
    axes.set_ylabel(_shown(picture.metric, 24), color=SOFT, fontsize=8)


def _table_inches(picture: ChartData) -> float:
    return 0.5 + 0.26 * (1 + min(TABLE_ROWS, len(picture.best)))


def _table(axes: Any, picture: ChartData) -> None:
    axes.axis("off")
    columns = picture.columns[:9]
    best = picture.best[:TABLE_ROWS]
    made = [[*map(_cell, column_texts(name, [row[name] for row in best], 18))] for name in columns]
    rows = [*zip(*made, strict=True)]
    heads = [_shown(column_name(one), 16) for one in columns]
    drawn = axes.table(cellText=rows, colLabels=heads, loc="upper center", cellLoc="left",
                       colLoc="left", edges="horizontal")  # fmt: skip
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8.5)
    drawn.scale(1, 1.25)
    for (row, column), cell in drawn.get_celld().items():
        cell.set_edgecolor(LINE)
        is_best = row == 1
        colour = SOFT if row == 0 else ACCENT if is_best and column == 0 else INK
        cell.set_text_props(color=colour, weight="bold" if row == 0 or is_best else "normal")


def _cell(text: str) -> str:
    return _shown(text, 18)


def _colours(picture: ChartData) -> list[str]:
    """Return the colour of each run; the last is the best."""
    return [*(COLOURS[level] for level in picture.levels[:-1]), ACCENT]


def _shown(text: str, most: int) -> str:
    """Cut a text, and keep matplotlib from reading formulas or unprintable characters in it."""
    clean = "".join(char if char.isprintable() else "?" for char in text).replace("$", r"\$")
    return clean if len(clean) <= most else clean[: most - 1] + "…"
