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
    right_from: int | None = None,
) -> str:
    """Align columns, in `width` columns of a terminal; 0 for no limit.

    Where it is too narrow, `spare` columns are left out one by one, then `elastic` ones shrink,
    and an elastic column without any text is not shown. Columns from `right_from` on are aligned
    to the right.
    """
    if not rows:
        return ""
    columns = [list(cells) for cells in zip(headers, *rows, strict=True)]
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
    right = len(headers) if right_from is None else right_from
    cells = [
        [_padded(cell, size, is_right=place >= right) for cell in columns[place]]
        for place, size in sizes.items()
    ]
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


def _fit(sizes: dict[int, int], width: int, soft: Sequence[int], spare: Sequence[int]) -> None:
    """Leave columns out and make others smaller, until the line fits or nothing gives way."""
    for place in spare:
        least = sum(min(size, _LEAST) if at in soft else size for at, size in sizes.items())
        if least <= _room(sizes, width):
            break
        sizes.pop(place, None)
    for _ in range(sum(sizes.values()) - _room(sizes, width)):
        large = [place for place in soft if sizes.get(place, 0) > _LEAST]
        if not large:
            break
        sizes[max(large, key=lambda place: sizes[place])] -= 1


def _room(sizes: dict[int, int], width: int) -> int:
    return width - len(_GAP) * (len(sizes) - 1)


def _padded(text: str, size: int, *, is_right: bool) -> str:
    shown = cut(text, size)
    blank = " " * (size - columns_of(shown))
    return blank + shown if is_right else shown + blank
