"""A sweep in words: a line for each end while it runs, and a table of its results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from grn.cli.output.progress import ProgressLine
from grn.cli.output.table import table
from grn.group.roles import Progress
from grn.model.text import harmless
from grn.model.units import show_size, show_time
from grn.sweep.manifest import RunManifest, RunState
from grn.sweep.results import Ranking, Table
from grn.sweep.values import is_number, spelled

LONGEST_CELL = 32
BAR, BLOCK = 10, "█"
MAX_FAILURES = 10


def tell(line: ProgressLine, now: Progress, run: RunManifest | None) -> None:
    """Say how a run ended: all of them where there is no terminal, else what went wrong."""
    is_end = run is not None and run.state is not RunState.RUNNING
    if run is not None and is_end and not line.is_terminal:
        line.say(_ended_line(now, run))
    elif run is not None and run.state in (RunState.FAILED, RunState.REQUEUED):
        how = "requeued: " if run.state is RunState.REQUEUED else ""
        line.say(f"{harmless(run.run)}: {how}{harmless(run.trouble)}")
    line.tell(now)


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
        lines = [line.replace(BLOCK, "#") for line in lines]
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
    lines = []
    for place, row in enumerate(shown, 1):
        own = [show_time(row["duration_s"]), show_size(row["peak_bytes"]), row["gpu"] or "-"]
        cells = [*(_cell(row[name]) for name in names), *own]
        lines.append([*([_bar(ranking, row), str(place)] if ranking else []), *cells])
    text = table(headers, lines, columns)
    return ([harmless(ranking.text)] if ranking else []) + text.split("\n")


def _bar(ranking: Ranking | None, row: dict[str, Any]) -> str:
    """Draw how near a run is to the best one."""
    if ranking is None or not is_number(row[ranking.metric]):
        return ""
    best, worst = ranking.rows[0][ranking.metric], ranking.rows[-1][ranking.metric]
    share = 1.0 if best == worst else (row[ranking.metric] - worst) / (best - worst)
    return BLOCK * max(1, round(BAR * share))


def _unfinished(found: Table) -> list[str]:
    bad = [row for row in found if row["state"] != RunState.FINISHED.value]
    lines = [
        f"{row['state']}  {harmless(row['run'])}"
        + (f": {harmless(row['trouble'])}" if row["trouble"] else "")
        for row in bad[:MAX_FAILURES]
    ]
    if len(bad) > MAX_FAILURES:
        lines.append(f"… and {len(bad) - MAX_FAILURES} more that did not finish")
    return lines


def summary(now: Progress, found: Table, out: str) -> str:
    """Return the counts of a sweep and the paths of its results, in two lines."""
    parts = [f"{now.finished} finished"]
    parts += [f"{now.failed} failed"] if now.failed else []
    left = sum(row["state"] == RunState.INTERRUPTED.value for row in found)
    parts += [f"{left} interrupted"] if left else []
    parts += [f"{now.skipped} had finished before"] if now.skipped else []
    again = now.failed or (now.total or 0) > now.done
    hint = "; the same command again runs what is left" if again else ""
    table_path = os.path.join(out, "results.csv")
    return f"{', '.join(parts)}{hint}\ntable {table_path}, logs in {os.path.join(out, 'runs')}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.5g}" if isinstance(value, float) else harmless(spelled(value))
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
