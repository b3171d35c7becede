"""A sweep in words: a line for each end while it runs, and a table of its results."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from grn.cli.output.progress import ProgressLine
from grn.cli.output.style import paint, state_style
from grn.cli.output.table import table
from grn.group.roles import Progress
from grn.model.text import cut, harmless
from grn.model.units import show_size, show_time
from grn.sweep.manifest import RunManifest, RunState, SweepFolder
from grn.sweep.plan import Plan
from grn.sweep.results import Ranking, Table, flat, is_large_good
from grn.sweep.values import is_number, number_or_text, spelled

LONGEST_CELL = 32
LONGEST_BEST = 48
BAR, BLOCK, EIGHTHS = 10, "█", ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
SHORT = 6  # letters of a number that needs no rounding
MAX_FAILURES = 10


class SweepProgress:
    """Shows a sweep on a progress line, with its best result so far."""

    def __init__(self, line: ProgressLine, plan: Plan) -> None:
        self._line = line
        self._earlier: SweepFolder | None = SweepFolder(plan.out)
        self._metric = plan.metric
        self._is_maximized = plan.is_maximized
        self._best: float | None = None

    def __call__(self, now: Progress, run: RunManifest | None) -> None:
        """Say how a run ended: all of them where there is no terminal, else what went wrong."""
        is_end = run is not None and run.state is not RunState.RUNNING
        if self._earlier is not None:
            for one in self._earlier.runs():
                self._count(one)
            self._earlier = None
        if run is not None:
            self._count(run)
        if run is not None and is_end and not self._line.is_terminal:
            self._line.say(_ended_line(now, run))
        elif run is not None and run.state in (RunState.FAILED, RunState.REQUEUED):
            how = "requeued: " if run.state is RunState.REQUEUED else ""
            name = paint(harmless(run.run), "failed")
            self._line.say(f"{name}: {how}{harmless(run.trouble)}")
        self._line.tell(now)

    def _count(self, run: RunManifest) -> None:
        """Show the result of a finished run if none was better."""
        if run.state is not RunState.FINISHED:
            return
        result = {name: value for name, value in flat(run.result) if is_number(value)}
        if not self._metric and result:  # the first result that is a number, as the table takes it
            self._metric = next(iter(result))
            self._is_maximized = is_large_good(self._metric)
        value = result.get(self._metric)
        if value is None or math.isnan(value):
            return
        if self._best is None or (value > self._best if self._is_maximized else value < self._best):
            self._best = value
            point = ", ".join(f"{name}={spelled(one)}" for name, one in run.params.items())
            text = f"{self._metric} {value:.4g} ({point})"
            self._line.best = cut(harmless(text), LONGEST_BEST)


def _ended_line(now: Progress, run: RunManifest) -> str:
    how = run.state.value + (f": {harmless(run.trouble)}" if run.trouble else "")
    count = f"[{now.done}/{now.total}]" if now.total is not None else f"[{now.done}]"
    return (
        f"{count} {harmless(run.run)}  {how}  {show_time(run.duration_s)} on GPU {run.gpu or '-'}"
    )


def results(
    found: Table, ranking: Ranking | None, columns: int, most: int, is_ascii: bool = False
) -> str:
    """Lay the runs out as a table, best first, with those that did not finish after them."""
    if not len(found):
        return "no run yet"
    rows = list(ranking.rows) if ranking else found.finished
    ranked = {row["run"] for row in rows}
    others = [row for row in found.finished if row["run"] not in ranked]
    shown = [*rows, *others][: most or None]
    lines = _table(found, ranking, shown, columns)
    if is_ascii:
        ascii_bar = str.maketrans({BLOCK: "#"} | dict.fromkeys(EIGHTHS[1:], "-"))
        lines = [line.translate(ascii_bar) for line in lines]
    hidden = len(rows) + len(others) - len(shown)
    if hidden:
        lines.append(f"… and {hidden} more; -n 0 shows all")
    lines += _unfinished(found)
    return "\n".join(lines)


def _table(
    found: Table, ranking: Ranking | None, shown: Sequence[dict[str, Any]], columns: int
) -> list[str]:
    if not shown:
        return []
    metrics = [name for name in found.metrics if not ranking or name != ranking.metric]
    first = [ranking.metric] if ranking else []
    names = [*first, *found.parameters, *metrics]
    shown_names = [harmless(name) for name in names]
    headers = [*(["", "#"] if ranking else []), *shown_names, "time", "peak", "gpu"]
    drawn: list[list[str]] = []
    numbers = [] if ranking is None else [1]
    if ranking is not None:
        drawn += [[_bar(ranking, row) for row in shown], [*map(str, range(1, len(shown) + 1))]]
    for name in names:
        values = [row[name] for row in shown]
        if all(value is None or is_number(number_or_text(value)) for value in values):
            numbers.append(len(drawn))
        drawn.append(column(values))
    numbers += [len(drawn), len(drawn) + 1]
    drawn += [
        [show_time(row["duration_s"]) for row in shown],
        [show_size(row["peak_bytes"]) for row in shown],
        [row["gpu"] or "-" for row in shown],
    ]
    lines = [*zip(*drawn, strict=True)]
    text = table(headers, lines, columns, numbers=numbers)
    return ([paint(harmless(ranking.text), "strong")] if ranking else []) + text.split("\n")


def column(values: Sequence[Any]) -> list[str]:
    """Spell measured and sampled numbers alike, and values that somebody wrote as they are."""
    if all(value is None or is_number(value) for value in values):
        return numbers_alike(values)
    if _are_drawn(values):
        return numbers_alike([None if value is None else float(value) for value in values])
    return [*map(_cell, values)]


def _are_drawn(values: Sequence[Any]) -> bool:
    """True for numbers sampled from a range; others are shown as they were written."""
    numbers = [number_or_text(value) for value in values if value is not None]
    return all(map(is_number, numbers)) and any(_digits(value) > SHORT - 2 for value in values)


def _digits(value: Any) -> int:
    mantissa = str(value).lower().partition("e")[0]
    return len(re.sub(r"[^0-9]", "", mantissa).lstrip("0")) if isinstance(value, str) else 0


def _bar(ranking: Ranking | None, row: dict[str, Any]) -> str:
    """Draw how near a run is to the best one."""
    if ranking is None or not is_number(row[ranking.metric]):
        return ""
    # A few runs that diverged must not make all others look alike: they count as none.
    last = max(1, len(ranking.rows) * 4 // 5)
    best, worst = ranking.rows[0][ranking.metric], ranking.rows[: last + 1][-1][ranking.metric]
    share = 1.0 if best == worst else (row[ranking.metric] - worst) / (best - worst)
    eighths = max(1, round(BAR * 8 * min(1.0, share)))
    return BLOCK * (eighths // 8) + EIGHTHS[eighths % 8]


def numbers_alike(values: Sequence[float | None]) -> list[str]:
    """Spell the numbers of a column in one way: short as they are, or with as many digits each."""
    known = [value for value in values if value is not None]
    spell: Callable[[float], str] = "{:g}".format
    if all(isinstance(value, int) for value in known):
        spell = str
    elif any("e" in spell(value) for value in known):
        spell = "{:.3e}".format
    elif max((len(spell(value)) for value in known), default=0) > SHORT:
        least = min((abs(value) for value in known if 0 < abs(value) < math.inf), default=1.0)
        decimals = min(5, max(0, 3 - math.floor(math.log10(least))))
        spell = f"{{:.{decimals}f}}".format
    return ["-" if value is None else spell(value) for value in values]


def _unfinished(found: Table) -> list[str]:
    shown = (RunState.FINISHED.value, RunState.INTERRUPTED.value)  # the summary counts these
    bad = [row for row in found if row["state"] not in shown]
    lines = [
        f"{paint(row['state'], state_style(row['state']))}  {harmless(row['run'])}"
        + (f": {harmless(row['trouble'])}" if row["trouble"] else "")
        for row in bad[:MAX_FAILURES]
    ]
    if len(bad) > MAX_FAILURES:
        lines.append(f"… and {len(bad) - MAX_FAILURES} more that did not finish")
    return lines


def summary(now: Progress, found: Table, out: str) -> str:
    """Return the counts of a sweep and the paths of its results, in two lines."""
    stopped = sum(row["state"] == RunState.INTERRUPTED.value for row in found)
    left = max(0, (now.total or 0) - now.done - stopped)
    parts = [
        paint(f"{now.finished} finished", "good"),
        *([paint(f"{now.failed} failed", "failed")] if now.failed else []),
        *([paint(f"{stopped} interrupted", "attention")] if stopped else []),
        *([f"{left} not begun"] if left else []),
        *([f"{now.skipped} had finished before"] if now.skipped else []),
    ]
    hint = "; run the same command again to go on" if now.failed or stopped or left else ""
    table_path = os.path.join(out, "results.csv")
    return f"{', '.join(parts)}{hint}\ntable {table_path}, logs in {os.path.join(out, 'runs')}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.5g}" if isinstance(value, float) else harmless(spelled(value))
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
