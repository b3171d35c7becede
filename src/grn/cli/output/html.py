"""HTML pages that need nothing else: frame, style sheet, escaping, tables and SVG pictures. Pure.

Every text of a user goes through `text`. The live page of `grn web` has its own files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from grn.model.text import cut, harmless

WIDTH, LEFT = 1060, 60  # of a picture with one row for each GPU
_LONGEST_NAME = 9  # characters of a GPU's name that LEFT has room for
LANE, GAP = 14, 10  # height of one bar; distance between two GPUs
MAX_LANES = 6  # of one GPU; more bars, and short ones, are counted in cells below
THIN, CELL = 6.0, 6.0  # widths: of a bar that is too short to see; of a cell
LETTER = 6.0  # width of a letter on a bar
AXIS = 18  # height of the times above the rows
STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1a2230; --soft: #5d6878; --line: #dde2ea;
  --track: #e9edf3; --accent: #d9480f; --bad: #c92a2a; --good: #1f8f6b; --link: #2f6fde;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #11151c; --card: #1a202a; --ink: #e6ebf2; --soft: #97a3b4; --line: #2d3644;
    --track: #252d39; --accent: #ffa94d; --bad: #ff8787; --good: #4cc79c; --link: #6ea0ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1180px; margin: 0 auto; padding: 36px 24px 64px; }
h1 { font-size: 28px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 18px; margin: 0 0 2px; }
header p { margin: 0; overflow-wrap: anywhere; }
code, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
code, .note { color: var(--soft); }
.note { font-size: 13px; margin: 0 0 12px; }
section, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
section { padding: 20px 22px; margin-top: 20px; overflow-x: auto; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 22px; }
.tile { padding: 12px 18px; min-width: 108px; max-width: 100%; }
.tile { color: var(--soft); font-size: 12px; }
.tile b, .tile small { display: block; overflow-wrap: anywhere; }
.tile b { color: var(--ink); font-size: 24px; font-variant-numeric: tabular-nums; }
.tile.best b { color: var(--accent); }
.tile.bad b { color: var(--bad); }
svg { display: block; width: 100%; height: auto; }
svg.wide { min-width: 960px; }
a { color: var(--link); }
svg text { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
svg text.on { fill: #fff; font-size: 10px; paint-order: stroke; stroke: #0004; stroke-width: 1.5px;
  pointer-events: none; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin-top: 8px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 12px; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; min-width: 4.5em; }
td:not(.n) { min-width: 9em; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
@media (max-width: 720px) {
  main { padding: 20px 12px 40px; }
  section { padding: 16px 14px; }
  h1 { font-size: 22px; }
  th, td { padding: 6px; min-width: 0; }
}
@media print { section { break-inside: avoid; } body { background: none; } }
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of a page in large letters."""

    value: str
    name: str
    extra: str = ""
    is_bad: bool = False
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One run on a GPU, in a picture of time."""

    begin: float
    end: float
    fill: str
    title: str
    name: str = ""  # shown on a bar that is wide enough


def text(value: object) -> str:
    """Escape a text for a page; control characters are spelled out, line ends are kept."""
    return escape("\n".join(map(harmless, str(value).split("\n"))))


def page(title: str, parts: Sequence[str], *, style: str = "", script: str = "") -> str:
    """Put parts, which are HTML, on a page; `style` is added to the shared style sheet."""
    body = "\n".join(parts)
    scripts = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{scripts}</body>\n</html>\n"
    )


def header(title: str, below: str) -> str:
    """Return the top of a page; `below` is HTML."""
    return f"<header><h1>{text(title)}</h1><p>{below}</p></header>"


def section(title: str, body: str, said: str = "") -> str:
    """Return a card with a heading, a remark and a body, which is HTML."""
    return f"<section><h2>{text(title)}</h2>{note(said)}{body}</section>"


def note(said: str) -> str:
    """Return a remark in small letters; nothing for no remark."""
    return f'<p class="note">{text(said)}</p>' if said else ""


def tiles(found: Sequence[Tile]) -> str:
    """Return numbers side by side."""
    made = (
        f'<div class="tile{" bad" * one.is_bad}{" best" * one.is_best}">'
        f"<b>{text(one.value)}</b>{text(one.name)}"
        f"{f'<small>{text(one.extra)}</small>' if one.extra else ''}</div>"
        for one in found
    )
    return f'<div class="tiles">{"".join(made)}</div>'


def table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers_from: int | None = None,
    attributes: Sequence[str] = (),
    links: Sequence[str] = (),
    is_sortable: bool = False,
) -> str:
    """Return a table; columns from `numbers_from` on are numbers, `attributes` belong to rows.

    The first cell of a row leads to its link. A script of the page sorts a sortable table.
    """
    if not rows:
        return note("None.")
    first = len(names) if numbers_from is None else numbers_from

    def line(cells: Sequence[str], kind: str, attribute: str = "", link: str = "") -> str:
        marked = []
        for place, cell in enumerate(cells):
            shown = text(cell)
            if link and not place:
                shown = f'<a href="{text(link)}">{shown}</a>'
            marks = " class=n" if place >= first else ""
            marks += " tabindex=0" if is_sortable and kind == "th" else ""
            marked.append(f"<{kind}{marks}>{shown}</{kind}>")
        return f"<tr{attribute}>{''.join(marked)}</tr>"

    own, to = attributes or [""] * len(rows), links or [""] * len(rows)
    body = (line(row, "td", *more) for row, *more in zip(rows, own, to, strict=True))
    head = f"<thead>{line(names, 'th')}</thead>" if any(names) else ""
    kind = " class=sortable" if is_sortable else ""
    return f"<table{kind}>{head}<tbody>{''.join(body)}</tbody></table>"


def svg(wide: float, tall: float, inner: str, label: str, kind: str = "") -> str:
    """Return a picture; `inner` is SVG."""
    size = f'class="{kind}" viewBox="0 0 {wide:.0f} {tall:.0f}"'
    return f'<svg {size} role="img" aria-label="{text(label)}">{inner}</svg>'


def svg_file(picture: str) -> str:
    """Make a picture of a page a file of its own, with a white background."""
    own = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="11" '
    head, mark, rest = picture.partition(">")
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    return f"{head.replace('<svg ', own, 1)}{mark}{white}{rest}\n"


def box(left: float, top: float, wide: float, tall: float, look: str, title: str = "") -> str:
    """Return a rectangle; `look` is its fill, as attributes."""
    place = f'x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="3"'
    return f"<rect {place} {look}><title>{text(title)}</title></rect>"


def timeline(
    gpus: Sequence[tuple[int | str, Sequence[Bar]]],
    since: float,
    until: float,
    marks: Sequence[tuple[float, str]],
    label: str,
) -> str:
    """Draw a row for each GPU with its bars, below each other where they overlap."""

    def across(at: float) -> float:
        share = (min(max(at, since), until) - since) / (until - since)
        return LEFT + share * (WIDTH - LEFT)

    shapes: list[str] = []
    for at, mark in marks:
        x = across(at)
        anchor = "start" if x < LEFT + 20 else "end" if x > WIDTH - 40 else "middle"
        shapes.append(f'<text x="{x:.1f}" y="11" text-anchor="{anchor}">{text(mark)}</text>')
    top = AXIS
    for index, bars in gpus:
        seen = [bar for bar in bars if across(bar.end) - across(bar.begin) >= THIN]
        placed = list(zip(seen, lanes(seen), strict=True))
        drawn = [(bar, lane) for bar, lane in placed if lane < MAX_LANES]
        shown = {id(bar) for bar, _ in drawn}
        cells = _cells([bar for bar in bars if id(bar) not in shown], across)
        tall = LANE * max((lane + 1 for _, lane in drawn), default=1) + LANE * bool(cells)
        shapes.append(box(LEFT, top, WIDTH - LEFT, tall, 'fill="var(--track, #e9edf3)"'))
        shapes.append(f'<text x="2" y="{top + 11}">{gpu_name(index)}</text>')
        for bar, lane in drawn:
            left, right = across(bar.begin), across(bar.end)
            look = f'fill="{bar.fill}"'
            shapes.append(box(left, top + lane * LANE + 1, right - left, LANE - 2, look, bar.title))
            letters = int((right - left - 8) / LETTER)
            if bar.name and letters >= 4:
                shapes.append(
                    f'<text class="on" x="{left + 4:.1f}" y="{top + lane * LANE + 10.5}">'
                    f"{text(cut(harmless(bar.name), letters, '…'))}</text>"
                )
        shapes += _strip(cells, top + tall - LANE + 1)
        top += tall + GAP
    return svg(WIDTH, top, "".join(shapes), label, "wide")


def _cells(bars: Sequence[Bar], across: Callable[[float], float]) -> dict[int, list[Bar]]:
    """Return the bars of each cell that they begin in."""
    cells: dict[int, list[Bar]] = {}
    for bar in bars:
        cells.setdefault(int(across(bar.begin) // CELL), []).append(bar)
    return cells


def _strip(cells: dict[int, list[Bar]], top: float) -> Iterator[str]:
    """Draw cells, the stronger the more bars they stand for."""
    most = max(map(len, cells.values()), default=1)
    for cell, bars in sorted(cells.items()):
        share = 0.3 + 0.7 * len(bars) / most
        look = f'fill="{bars[0].fill}" fill-opacity="{share:.2f}"'
        title = bars[0].title if len(bars) == 1 else f"{len(bars)} jobs, first {bars[0].title}"
        yield box(cell * CELL, top, CELL - 1, LANE - 2, look, title)


def gpu_name(gpu: int | str) -> str:
    """Name a GPU beside its row: by its index, or by its node and its index there."""
    return f"GPU {gpu}" if isinstance(gpu, int) else text(cut(gpu, _LONGEST_NAME, "…"))


def lanes(bars: Sequence[Bar]) -> list[int]:
    """Return for each bar, sorted by begin, the first lane that is free all its time."""
    free: list[float] = []
    found = []
    for bar in bars:
        lane = next((place for place, until in enumerate(free) if until <= bar.begin), len(free))
        free[lane : lane + 1] = [bar.end]
        found.append(lane)
    return found
