"""Rows for people: columns that are aligned and keep to the width of a terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from grn.model.text import columns_of, cut

_GAP = "  "
_LEAST = 12  # columns that an elastic column keeps, if it needs as many
_LABEL = 12  # columns before the text of a labelled line
_NARROWEST = 40  # below that, lines are left to the terminal to break


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int = 0,
    *,
    elastic: Collection[str] = (),
    spare: Sequence[str] = (),
) -> str:
    """Align columns, in `width` columns of a terminal; 0 for no limit.

    Where it is too narrow, `spare` columns are left out one by one, then `elastic` ones shrink,
    and an elastic column without any text is not shown.
    """
    if not rows:
        return ""
    columns = dict(zip(headers, zip(*rows, strict=True), strict=True))
    sizes = {name: max(map(columns_of, (name, *cells))) for name, cells in columns.items()}
    if width:
        for name in elastic:
            if not any(columns[name]):
                del sizes[name]
        _fit(sizes, width, elastic, spare)
    cells = [[_padded(cell, size) for cell in (name, *columns[name])]
             for name, size in sizes.items()]  # fmt: skip
    lines = (_GAP.join(line).rstrip() for line in zip(*cells, strict=True))
    return "\n".join(cut(line, width) if width else line for line in lines)


def labelled(label: str, text: str, width: int = 0) -> str:
    """Put a text behind its label; lines that do not fit go on below the text."""
    head = f"  {label:{_LABEL - 3}} "
    if width < _NARROWEST:
        return (head + text).rstrip()
    lines = textwrap.wrap(
        text, width, initial_indent=head, subsequent_indent=" " * _LABEL,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines) or head.rstrip()


def _fit(sizes: dict[str, int], width: int, elastic: Collection[str], spare: Sequence[str]) -> None:
    """Leave columns out and make others smaller, until the line fits or nothing gives way."""
    for name in spare:
        if sum(min(s, _LEAST) if n in elastic else s for n, s in sizes.items()) <= _room(
            sizes, width
        ):
            break
        sizes.pop(name, None)
    for _ in range(sum(sizes.values()) - _room(sizes, width)):
        large = [name for name in elastic if sizes.get(name, 0) > _LEAST]
        if not large:
            break
        sizes[max(large, key=lambda name: sizes[name])] -= 1


def _room(sizes: dict[str, int], width: int) -> int:
    return width - len(_GAP) * (len(sizes) - 1)


def _padded(text: str, size: int) -> str:
    shown = cut(text, size)
    return shown + " " * (size - columns_of(shown))
