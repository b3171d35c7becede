"""Results of runs: read from their output, a file or a reply, and joined in one table."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grn.client import logs, remote_call
from grn.errors import UsageError
from grn.group.task import CommandEnd
from grn.model.text import cut
from grn.sweep.manifest import (
    LOG_FILE,
    SWEEP_FILE,
    About,
    RunManifest,
    RunState,
    SweepFolder,
    plain,
    write_text,
)
from grn.sweep.plan import Plan
from grn.sweep.values import is_number, number_or_text, spelled

TAIL_BYTES = 1 << 20
MAX_LETTERS = 200
MAX_BYTES = 64 << 20
OWN = ("run", "state")  # the first columns
AFTER = ("duration_s", "gpu", "peak_bytes", "attempt", "status", "trouble", "past")
# Names of results that should be large; all others should be small.
_LARGE_IS_GOOD = (
    *("acc", "auc", "bleu", "f1", "iou", "map", "ndcg", "precision", "psnr", "r2", "recall"),
    *("return", "reward", "rouge", "score", "ssim", "throughput", "win"),
)


class NoResult(Exception):
    """A run left no result; the text is the reason."""


def from_output(path: str) -> dict[str, Any]:
    """Return the last line of a log that is a JSON object; nothing if there is none."""
    return _last_object(logs.tail(path, TAIL_BYTES)) or {}


def last_line(path: str) -> str:
    """Return the last line of a log that is not blank, shortened."""
    return cut(logs.last_line(path), MAX_LETTERS)


def from_file(path: str) -> dict[str, Any]:
    """Return the JSON object in a file, or that in its last line."""
    name = os.path.basename(path)
    try:
        if os.path.getsize(path) > MAX_BYTES:
            raise NoResult(f"{name} is too large for a result")
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise NoResult(f"it left no {name}") from None
    except OSError as error:
        raise NoResult(f"{name} cannot be read: {error.strerror}") from None
    found = _object(data) or _last_object(data)
    if found is None:
        raise NoResult(f"{name} holds no JSON object")
    return found


def from_value(value: object) -> dict[str, Any]:
    """Return a function's result: a mapping as it is, any other value as `value`."""
    if value is None:
        return {}
    found = plain(value if isinstance(value, Mapping) else {"value": value})
    assert isinstance(found, dict)
    return found


def judged(plan: Plan, folder: str, run: RunManifest, ended: CommandEnd) -> RunManifest:
    """Return the manifest of a run that has ended, with its result if it left one."""
    run = replace(
        run,
        state=RunState.FAILED,
        status=ended.status,
        started_at=ended.started_at,
        ended_at=ended.started_at + ended.duration_s,
        duration_s=round(ended.duration_s, 6),
        gpu=ended.slot.name,
        peak_bytes=ended.peak_bytes,
    )
    if ended.status != 0:
        return replace(run, trouble=_trouble(folder, ended))
    try:
        result = _result(plan, folder)
    except NoResult as error:
        return replace(run, trouble=str(error))
    return replace(run, state=RunState.FINISHED, result=result, trouble="")


def _trouble(folder: str, ended: CommandEnd) -> str:
    if ended.trouble:
        return ended.trouble
    if ended.is_out_of_memory:
        return f"it {ended.because}" if ended.because else "it ran out of GPU memory"
    if ended.because:
        return f"it {ended.because}"
    if ended.status < 0:
        return f"it was ended by signal {-ended.status}"
    said = last_line(os.path.join(folder, LOG_FILE))
    return said or f"it ended with status {ended.status}"


def _result(plan: Plan, folder: str) -> dict[str, Any]:
    if plan.function is not None:
        return _answer(folder)
    if plan.result_file is not None:
        return from_file(os.path.join(folder, plan.result_file))
    return from_output(os.path.join(folder, LOG_FILE))


def _answer(folder: str) -> dict[str, Any]:
    """Return the result of a function from its answer file, and remove the files of the call."""
    try:
        value = remote_call.take_reply(folder)
    except Exception as error:  # unpickling may fail in any way
        raise NoResult(f"its answer cannot be read: {error!r}") from None
    return from_value(value)


class Table:
    """The runs of a sweep as rows: name and state, parameters, results, time and place."""

    def __init__(self, runs: Sequence[RunManifest], parameters: Sequence[str] = ()) -> None:
        self.runs = tuple(runs)
        seen = dict.fromkeys((*parameters, *(name for run in runs for name in run.params)))
        self.parameters = tuple(seen)
        taken = {*OWN, *AFTER, *self.parameters}
        found = [dict(flat(run.result)) for run in runs]
        names = dict.fromkeys(name for result in found for name in result)
        shown = {name: f"result.{name}" if name in taken else name for name in names}
        self.metrics = tuple(shown.values())
        self.columns = (*OWN, *self.parameters, *self.metrics, *AFTER)
        self.rows = tuple(
            self._row(run, {shown[name]: value for name, value in result.items()})
            for run, result in zip(runs, found, strict=True)
        )

    def _row(self, run: RunManifest, metrics: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: getattr(run, name) for name in (*OWN, *AFTER)}
        row = {**own, **run.params, **metrics, "state": run.state.value}
        return {name: row.get(name) for name in self.columns}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return (
            f"<{len(self)} runs, {len(self.finished)} finished; columns {', '.join(self.columns)}>"
        )

    @property
    def finished(self) -> list[dict[str, Any]]:
        """The rows of successful runs."""
        return [row for row in self.rows if row["state"] == RunState.FINISHED.value]

    @property
    def numeric_metrics(self) -> tuple[str, ...]:
        """The results that have a number in at least one run."""
        return tuple(
            name for name in self.metrics if any(is_number(row[name]) for row in self.finished)
        )

    def best(self, metric: str, *, maximize: bool = False) -> list[dict[str, Any]]:
        """Return the finished rows that have a metric, best first."""
        if metric not in self.metrics:
            known = ", ".join(self.metrics) or "none yet"
            raise UsageError(f"no run has given '{metric}'.", f"There are: {known}.")
        rows = [row for row in self.finished if is_number(row[metric])]
        return sorted(rows, key=lambda row: row[metric], reverse=maximize)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as CSV, and write it to a file if one is named."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow([_cell(row[name]) for name in self.columns])
        return _written(text.getvalue(), path)

    def to_json_lines(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as JSON lines, and write it to a file if one is named."""
        lines = [json.dumps(plain(row), allow_nan=False) + "\n" for row in self.rows]
        return _written("".join(lines), path)

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame, numbers as numbers."""
        try:
            import pandas
        except ImportError as error:
            raise UsageError(
                "pandas is not installed.", "Install it: pip install pandas"
            ) from error
        rows = [{name: number_or_text(value) for name, value in row.items()} for row in self.rows]
        return pandas.DataFrame(rows, columns=list(self.columns))


@dataclass(frozen=True, slots=True)
class Ranking:
    """The metric of a sweep and its finished rows, best first."""

    metric: str
    is_maximized: bool
    rows: tuple[dict[str, Any], ...]

    @property
    def text(self) -> str:
        """Describe the order of the rows."""
        return f"by {self.metric}, {'highest' if self.is_maximized else 'lowest'} first"


def rank(
    table: Table, about: About, metric: str | None = None, is_maximized: bool | None = None
) -> Ranking | None:
    """Sort a table by its metric; None when no run has given a number."""
    chosen = metric or about.metric or next(iter(table.numeric_metrics), None)
    if chosen is None:
        return None
    if metric is None and chosen not in table.metrics:
        return None  # the metric of a search, and no run has reported it yet
    if is_maximized is None:
        is_maximized = about.is_maximized if chosen == about.metric else is_large_good(chosen)
    rows = table.best(chosen, maximize=is_maximized)
    if metric is not None and not rows:
        raise UsageError(f"no run that finished has a number for '{metric}'.")
    return Ranking(chosen, is_maximized, tuple(rows)) if rows else None


def ranked(
    path: str, metric: str | None = None, is_maximized: bool | None = None
) -> tuple[About, Table, Ranking | None]:
    """Read the sweep in a folder, its runs as a table, and their ranking if there is one."""
    folder = SweepFolder(path)
    about = folder.about()
    if about is None:
        raise UsageError(
            f"there is no sweep in {path}.", f"A sweep's folder has a {SWEEP_FILE} in it."
        )
    table = Table(folder.runs(), about.parameters)
    return about, table, rank(table, about, metric, is_maximized)


def is_large_good(name: str) -> bool:
    """Guess from its name whether a result should be large."""
    last = name.lower().rpartition(".")[2]
    words = last.replace("-", "_").replace("@", "_").split("_")
    return any(word.startswith(sign) for word in words for sign in _LARGE_IS_GOOD)


def flat(result: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a result, nested ones under names like `valid.loss`."""
    for name, value in result.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _last_object(data: bytes) -> dict[str, Any] | None:
    for line in reversed(data.splitlines()):
        stripped = line.strip()
        if stripped.startswith(b"{") and stripped.endswith(b"}"):
            found = _object(stripped)
            if found is not None:
                return found
    return None


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return plain(found) if isinstance(found, dict) else None


def _cell(value: Any) -> str:
    return "" if value is None else spelled(value)


def _written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_text(os.fspath(path), text)
    return text
