"""`grn.jobs`, `grn.gpus` and `grn.profiles`: what the daemons know, as typed rows.

Each is a list; in a notebook it shows as a table.
"""

from __future__ import annotations

import html
from typing import Generic, TypeVar

from grn.client import negotiator, queue
from grn.model.text import columns_of, harmless
from grn.model.units import show_size, show_time
from grn.protocol.negotiator_rows import GpuRow, ProfileRow
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import read_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

Row = TypeVar("Row")
MAX_JOBS = 1_000_000
MAX_SHOWN = 200  # rows of a table; the list has all


class Rows(list[Row], Generic[Row]):
    """Rows of one kind, with the columns that a notebook shows."""

    def __init__(self, rows: Iterable[Row], columns: Mapping[str, Callable[[Row], Any]]) -> None:
        super().__init__(rows)
        self._columns = columns

    def __repr__(self) -> str:
        """Return the rows as a table of text; each row is a value with all its fields."""
        lines = [list(self._columns)]
        lines += [[_text(get(row)) for get in self._columns.values()] for row in self[:MAX_SHOWN]]
        widths = [max(map(columns_of, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(
                cell + " " * (width - columns_of(cell))
                for cell, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*table, *filter(None, [self._rest()])])

    def _repr_html_(self) -> str:
        """Return the rows as an HTML table."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{_cell(get(row))}</td>" for get in self._columns.values())
            + "</tr>"
            for row in self[:MAX_SHOWN]
        )  # fmt: skip
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        rest = self._rest()
        return f"{table}<p>{rest}</p>" if rest else table

    def _rest(self) -> str:
        """Say what the table does not show."""
        more = len(self) - MAX_SHOWN
        return "(none)" if not self else f"(and {more:,} more)" if more > 0 else ""


def jobs(*, everything: bool = False, name: str = "", tag: str = "") -> Rows[JobRow]:
    """Return the jobs of this user's queue that run or wait, or with `everything` all of them."""
    asked = {"op": "list", "which": "all" if everything else "alive", "most": MAX_JOBS}
    asked |= {key: value for key, value in (("name", name), ("tag", tag)) if value}
    rows = queue.ask({**asked, "states": []})["jobs"]
    return Rows(read_all(JobRow, map(queue.typed, rows)), _JOB)


def gpus() -> Rows[GpuRow]:
    """Return the GPUs of this machine as the negotiator sees them."""
    return Rows(read_all(GpuRow, negotiator.ask_once({"op": "status"})["status"]["gpus"]), _GPU)


def profiles(job_type: str = "") -> Rows[ProfileRow]:
    """Return what was learned of job types, or of one of them."""
    asked = {"op": "profiles", **({"type": job_type} if job_type else {})}
    return Rows(read_all(ProfileRow, negotiator.ask_all(asked)["profiles"]), _PROFILE)


def _cell(value: Any) -> str:
    return html.escape("" if value is None else str(value))


def _text(value: Any) -> str:
    return harmless("" if value is None else str(value))


_JOB: Mapping[str, Callable[[JobRow], Any]] = {
    "id": lambda job: job.id,
    "state": lambda job: job.reason or job.state,
    "name": lambda job: job.name or job.label,
    "command": lambda job: " ".join(job.argv),
    "GPU": lambda job: ", ".join(map(str, job.gpus)),
    "peak": lambda job: show_size(job.peak_bytes) if job.peak_bytes is not None else "",
    "ran": lambda job: show_time(job.ran_s) if job.ran_s is not None else "",
    "why": lambda job: job.why,
}
_GPU: Mapping[str, Callable[[GpuRow], Any]] = {
    "GPU": lambda gpu: gpu.index,
    "model": lambda gpu: gpu.model,
    "used": lambda gpu: show_size(gpu.used_bytes),
    "reserved": lambda gpu: show_size(gpu.reserved_bytes),
    "free": lambda gpu: show_size(gpu.free_bytes),
    "total": lambda gpu: show_size(gpu.total_bytes),
    "load": lambda gpu: "?" if gpu.load_pct is None else f"{gpu.load_pct:.0f}%",
    "jobs": lambda gpu: len(gpu.leases),
}
_PROFILE: Mapping[str, Callable[[ProfileRow], Any]] = {
    "type": lambda one: one.label,
    "GPU model": lambda one: one.model,
    "runs": lambda one: one.runs,
    "largest": lambda one: show_size(one.largest_bytes),
    "estimate": lambda one: show_size(one.estimate_bytes),
    "usual time": lambda one: show_time(one.usual_duration_s),
}
