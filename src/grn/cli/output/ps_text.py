"""What runs and what waits, as `grn ps` lists it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from grn.cli.output.job_text import shown_name
from grn.cli.output.table import table
from grn.model.text import harmless, with_job_ids
from grn.model.units import show_size, show_time
from grn.protocol.negotiator_rows import GpuRow, LeaseRow, StrangerRow, WaitingRow
from grn.protocol.queue_rows import JobRow

UserName = Callable[[int], str]


class MachineRows(NamedTuple):
    """What a negotiator shows: that of this machine, `local`, or that of a node."""

    name: str
    rows: Sequence[LeaseRow | WaitingRow] = ()
    gpus: Sequence[GpuRow] = ()


def ps(
    places: Sequence[MachineRows], user_name: UserName, width: int = 0,
    jobs: Mapping[tuple[str, str], JobRow] | None = None,
) -> str:  # fmt: skip
    """List what runs and what waits, with reasons; jobs of one's queue by their ids and names.

    Idle processes without a lease follow. Users of nodes are shown by their numbers, which belong
    to other machines.
    """
    own, rows = jobs or {}, []
    for place in places:
        named = user_name if place.name == "local" else str
        where = [harmless(place.name)] if len(places) > 1 else []
        ids = {lease: job.id for (name, lease), job in own.items() if name == place.name}
        of_place = [_job_row(row, named, own.get((place.name, row.id)), ids) for row in place.rows]
        of_place += [
            _stranger_row(one, gpu, named) for gpu in place.gpus for one in gpu.idle_strangers
        ]
        rows += [(*row[:4], *where, *row[4:]) for row in of_place]
    if not rows:
        return "nothing runs and nothing waits"
    at = ["WHERE"] if len(places) > 1 else []
    headers = ("ID", "STATE", "USER", "PID", *at, "GPU", "USED/RESERVED", "FOR", "TYPE", "WHY")
    return table(headers, rows, width, elastic=("TYPE", "WHY"), spare=("PID", "USED/RESERVED"))


def _job_row(
    row: LeaseRow | WaitingRow, user_name: UserName, job: JobRow | None, ids: Mapping[str, int]
) -> tuple[str, ...]:
    if isinstance(row, WaitingRow):
        state, places, memory = row.state, f"({row.gpus_asked})", ""
        why = with_job_ids(row.why, ids.get)
    else:
        state = (
            "first run" if row.first_run else "idle" if row.idle_for_s is not None else row.state
        )
        places = ",".join(map(str, row.gpus))
        memory = f"{show_size(row.used_bytes)}/{show_size(row.reserved_bytes)}"
        why = row.why if row.state == "draining" else idle_text(row)
    user, pid = user_name(row.user), str(row.pid or "?")
    shown = (row.id, row.label) if job is None else (str(job.id), shown_name(job) or row.label)
    return (shown[0], state, user, pid, places, memory, show_time(row.for_s), shown[1], why)


def _stranger_row(row: StrangerRow, gpu: GpuRow, user_name: UserName) -> tuple[str, ...]:
    user = "?" if row.user is None else user_name(row.user)
    why = f"no lease; {_idle_on(str(gpu.index), row.idle_for_s)}"
    used = f"{show_size(row.used_bytes)}/"
    return ("-", "idle", user, str(row.pid), str(gpu.index), used, "", "", why)


def _idle_on(gpus: str, idle_for_s: float | None) -> str:
    return f"has used less than 5% of GPU {gpus} for {show_time(idle_for_s)}"


def idle_text(row: LeaseRow) -> str:
    """Say for how long a lease is idle; empty when it is not."""
    if row.idle_for_s is None:
        return ""
    return _idle_on(", ".join(map(str, row.gpus)), row.idle_for_s)
