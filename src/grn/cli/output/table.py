"""Rows for people: columns that are aligned, coloured by meaning and fit the terminal. Pure.

The name of a column decides how it looks, so that one name looks the same in all lists.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Sequence

from grn.cli.output.style import paint, plain, state_style
from grn.model.outcome import kind_of
from grn.model.text import columns_of, cut, harmless

_GAP = "  "
_MIN_COLUMNS = 12  # columns that an elastic column keeps, if it needs as many
_WANTED_COLUMNS = 20  # columns of it that are worth more than a spare column
_LABEL = 12  # columns before the text of a labelled line
_NARROWEST = 40  # below that, lines are left to the terminal to break

_NUMBERS = frozenset((
    "USED", "RESERVED", "USED/RESERVED", "FREE", "TOTAL", "LOAD", "JOBS", "PID", "FOR", "RAN",
    "PEAK", "TRIES", "WHEN", "AGO", "RUNS", "LARGEST", "ESTIMATE", "USUAL TIME", "WEIGHT",
    "GPU HOURS", "SHARE", "GPUS NOW", "WAITS", "LINE", "TOOK", "FROM", "TO", "ASKED", "HEARD",
    "HOLDS", "IDLE",
))  # fmt: skip
_STATES = frozenset(("STATE", "ENDED", "RESULT"))
_STYLES = {
    **dict.fromkeys(("ID", "LINE", "NODE"), "id"),
    **dict.fromkeys(("WHY", "TROUBLE", "USER", "PID", "WHEN", "AGO", "WHERE"), "reason"),
    "HOW": "failed",
}
_BARS = frozenset(("MEMORY", ""))
_BLOCKS = {
    "█": "used", "#": "used", "▒": "reserved", "=": "reserved",
    "░": "others", "x": "others", "·": "free", ".": "free", "?": "free",
    **dict.fromkeys("▏▎▍▌▋▊▉", "used"),
}  # fmt: skip
_SAME = re.compile(r"([█#▒=░x·.?▏▎▍▌▋▊▉])\1*")


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int = 0,
    *,
    elastic: Collection[str] = (),
    spare: Sequence[str] = (),
    numbers: Collection[int] = (),
) -> str:
    """Align and paint columns, in `width` columns of a terminal; 0 for no limit.

    Where it is too narrow, `spare` columns are left out one by one, then `elastic` ones shrink,
    and an elastic column without any text is not shown. Numbers are aligned to the right: columns
    known by name, and the places in `numbers`.
    """
    if not rows:
        return ""
    columns = [[*map(harmless, cells)] for cells in zip(headers, *rows, strict=True)]
    sizes = {place: max(map(columns_of, cells)) for place, cells in enumerate(columns)}
    if width:
        soft = [place for place, name in enumerate(headers) if name in elastic]
        for place in soft:
            if not any(columns[place][1:]):
                del sizes[place]
        _fit(
            sizes,
            width,
            soft,
            [place for name in spare for place, head in enumerate(headers) if head == name],
        )
    row_styles = _row_styles(headers, columns)
    drawn = []
    for place, size in sizes.items():
        name, *cells = columns[place]
        is_right = place in numbers or name in _NUMBERS
        column = [_padded(name, size, "header", is_right)]
        for cell, row in zip(cells, row_styles, strict=True):
            column.append(_padded(cell, size, _cell_style(name, cell, row), is_right))
        drawn.append(column)
    lines = (_GAP.join(line).rstrip() for line in zip(*drawn, strict=True))
    if width and sum(sizes.values()) > _room(sizes, width):
        lines = (cut(plain(line), width) for line in lines)
    return "\n".join(lines)


def paint_bar(drawn: str) -> str:
    """Paint each part of a bar in the style of its character."""
    return _SAME.sub(lambda part: paint(part[0], _BLOCKS.get(part[1], "")), drawn)


def labelled(label: str, text: str, width: int = 0) -> str:
    """Put a text behind its label; lines that do not fit go on below the text."""
    head = f"  {paint(label, 'header')}{' ' * (_LABEL - 2 - columns_of(label))}"
    return _hanging(head, text, _LABEL, width)


def indented(text: str, width: int = 0) -> str:
    """Put a text below its heading; lines that do not fit go on in the same column."""
    return _hanging(_GAP, text, len(_GAP), width)


def _hanging(head: str, text: str, indent: int, width: int) -> str:
    if width < _NARROWEST:
        return (head + text).rstrip()
    # Wrapped without colours, which textwrap would count; each painted text fits into one line.
    lines = textwrap.wrap(
        plain(text), width - indent, break_long_words=False, break_on_hyphens=False
    )
    if len(lines) == 1:
        lines = [text]
    return f"\n{' ' * indent}".join([head + lines[0], *lines[1:]]) if lines else head.rstrip()


def _fit(sizes: dict[int, int], width: int, soft: Sequence[int], spare: Sequence[int]) -> None:
    """Leave columns out and make others smaller, until the line fits or nothing gives way."""
    for place in spare:
        wanted = (min(size, _WANTED_COLUMNS) if at in soft else size for at, size in sizes.items())
        if sum(wanted) <= _room(sizes, width):
            break
        sizes.pop(place, None)
    for _ in range(sum(sizes.values()) - _room(sizes, width)):
        large = [place for place in soft if sizes.get(place, 0) > _MIN_COLUMNS]
        if not large:
            break
        sizes[max(large, key=lambda place: sizes[place])] -= 1


def _room(sizes: dict[int, int], width: int) -> int:
    return width - len(_GAP) * (len(sizes) - 1)


def _row_styles(headers: Sequence[str], columns: Sequence[Sequence[str]]) -> list[str]:
    """Return a style for each row: where states differ, ended rows step back behind the others."""
    if "STATE" not in headers:
        return [""] * (len(columns[0]) - 1)
    states = columns[list(headers).index("STATE")][1:]
    return ["ended" if kind_of(_bare(state)) else state_style(_bare(state)) for state in states]


def _bare(state: str) -> str:
    """Return a state without the number of jobs before it."""
    return state.lstrip("0123456789 ")


def _cell_style(name: str, cell: str, row: str) -> str:
    if name in _STATES:
        style = state_style(_bare(cell))
        return row if row == "ended" and style == "good" else style
    if name in _BARS:
        return "bar"
    if row == "ended" or (row == "attention" and name == "WHY"):
        return row
    return _STYLES.get(name, "")


def _padded(text: str, size: int, style: str, is_right: bool) -> str:
    shown = cut(text, size)
    blank = " " * (size - columns_of(shown))
    painted = paint_bar(shown) if style == "bar" else paint(shown, style)
    return blank + painted if is_right else painted + blank
