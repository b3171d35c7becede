"""The pane beside the tables: one job with its reason, its memory over time and its log. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from grn.cli.top import draw
from grn.cli.top.draw import Line, Marks
from grn.cli.top.rows import Row, Section
from grn.model.units import short_size, show_expected

MIN_LOG = 10  # lines, before the chart grows
MAX_REASON = 6
_SCALE = 7  # columns of the scale beside the chart
_CHART = (3, 10)  # its least and greatest height


@dataclass(frozen=True, slots=True)
class Detail:
    """What is read of the selected job beyond its row."""

    row: tuple[Section, str] | None = None  # which row it belongs to
    used_bytes: tuple[int | None, ...] = ()
    step_s: float = 0.0
    log: tuple[Line, ...] | None = None  # its last lines; None: it has no log here


def pane(
    row: Row | None, detail: Detail, size: tuple[int, int], now: float, marks: Marks, user: str,
    *, is_following: bool = False,
) -> list[Line]:  # fmt: skip
    """Draw a job in the given columns and lines; only its log while that is followed."""
    width, height = size
    if row is None:
        return _filled([[(" nothing is selected", "dim")]], size, marks)
    if detail.row != (row.part, row.id):
        detail = Detail()  # of the row that was selected before
    if is_following:
        return _filled(_log(detail, height, marks), size, marks)
    lines = _head(row, now, width, user)
    left = height - len(lines)
    chart_height = min(_CHART[1], left - MIN_LOG - 5)
    if row.part is not Section.WAITING and chart_height >= _CHART[0]:
        lines += [[("", "plain")], *memory(row, detail, (width, chart_height), marks)]
    if row.job is not None and row.part is not Section.WAITING:
        lines += [[("", "plain")], [(" LOG", "heading")]]
        lines += _log(detail, height - len(lines), marks)
    return _filled(lines, size, marks)


def chart(
    used: Sequence[int | None], reserved_bytes: int | None, size: tuple[int, int], marks: Marks
) -> list[Line]:
    """Draw memory over time with its scale; a line shows the reservation."""
    width, height = size
    columns = width - _SCALE
    shown = draw.squeezed(used, columns)
    if shown:
        shown = [shown[place * len(shown) // columns] for place in range(columns)]
    most = max((*(value for value in shown if value), reserved_bytes or 0, 1))
    steps = len(marks.spark) - 1
    filled = [_eighths(value, most, height * steps) for value in shown]
    at = None if not reserved_bytes else max(0, height - round(height * reserved_bytes / most))
    lines: list[Line] = []
    for place in range(height):
        below = (height - 1 - place) * steps
        is_limit = at is not None and place == min(at, height - 1)
        text = "".join(
            marks.spark[min(steps, parts - below)] if parts > below
            else marks.rule if is_limit else " "
            for parts in filled
        )  # fmt: skip
        label = most if place == 0 else reserved_bytes if is_limit else None
        scale = "0" if place == height - 1 and label is None else ""
        scale = short_size(label) if label is not None else scale
        style = "limit" if is_limit else "spark"
        lines.append([(f"{scale:>{_SCALE - 1}} ", "dim"), (text, style)])
    return lines


def _eighths(value: int | None, most: int, steps: int) -> int:
    return 0 if not value else max(1, round(steps * value / most))


def _head(row: Row, now: float, width: int, user: str) -> list[Line]:
    lines: list[Line] = [
        [(f" {text}", "bold")] for text in textwrap.wrap(row.what, max(8, width - 2))[:2]
    ]
    lines.append([(f" {_state(row, now)}, {user}", "plain")])
    if row.on_host:
        lines.append([(f" {row.on_host}", "plain")])
    style = "note" if row.state == "held" else "plain"
    is_known = row.why.startswith("runs on GPU ") or row.why == row.state  # the line above says so
    told = "" if is_known else row.why
    if row.expected_at is not None:
        low, high = (max(0.0, at - now) for at in row.expected_at)
        verb = "starts" if row.part is Section.WAITING else "ends"
        lines.append([(f" {show_expected(verb, (low, high))}", "plain")])
    why = textwrap.wrap(told, max(8, width - 2))[:MAX_REASON]
    return lines + [[(f" {text}", style)] for text in why]


def _state(row: Row, now: float) -> str:
    where = f" of {row.where}" if row.where else ""
    on = f" on GPU {', '.join(map(str, row.gpus))}{where}" if row.gpus else ""
    if row.part is Section.ENDED:
        ran = draw.age(row.ended_at - row.since_at)
        return f"{row.state} after {ran}{on}, {draw.age(now - row.ended_at)} ago"
    idle = ""
    if row.idle_since_at is not None:
        idle = f", less than 5% busy for {draw.age(now - row.idle_since_at)}"
    return f"{row.state}{on} for {draw.age(now - row.since_at)}{idle}"


def memory(row: Row, detail: Detail, size: tuple[int, int], marks: Marks) -> list[Line]:
    """Draw the memory of a job over time, with a heading and the times below."""
    width, height = size
    used = detail.used_bytes
    most = max((value for value in used if value is not None), default=row.used_bytes)
    facts = [f"peak {short_size(most)}" if most is not None else "peak unknown"]
    if row.reserved_bytes:
        facts.append(f"{short_size(row.reserved_bytes)} reserved")
    lines: list[Line] = [[(" MEMORY", "heading"), (f"  {', '.join(facts)}", "dim")]]
    if not any(value is not None for value in used):
        return [*lines, [(" no samples are kept", "dim")]]
    lines += chart(used, row.reserved_bytes, (width - 1, height), marks)
    span = draw.age(len(used) * detail.step_s)
    end = "its end" if row.part is Section.ENDED else "now"
    began = f"{span} ago" if end == "now" else f"{span} before"
    room = width - 1 - _SCALE - len(began)
    return [*lines, [(" " * _SCALE + began + end.rjust(max(1, room)), "dim")]]


def _log(detail: Detail, room: int, marks: Marks) -> list[Line]:
    if detail.log is None:
        return [[(" no log here", "dim")]] if detail.row is not None else []
    return [[(" ", "plain"), *line] for line in detail.log[-room:]] if room > 0 else []


def _filled(lines: list[Line], size: tuple[int, int], marks: Marks) -> list[Line]:
    width, height = size
    shown = [draw.clipped(line, width, marks) for line in lines[:height]]
    return shown + [[(" " * width, "plain")]] * (height - len(shown))
