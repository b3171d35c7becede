"""`grn ls`: the jobs of this user in one list, in the queue or outside it. Without click."""

from __future__ import annotations

import os
import sys
import time

from grn.cli.output import job_text
from grn.cli.output.terminal import echo, print_json, width
from grn.client import negotiator, queue
from grn.errors import GrnError
from grn.protocol.negotiator_rows import LeaseRow, Status, WaitingRow
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import as_json, read, read_all, updated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MAX_FOLDED = 20_000  # jobs that are asked for to show arrays as one row
_BUSY = ("starting", "running", "stopping")


def ls(
    everything: bool, states: tuple[str, ...], name: str | None, job_type: str | None,
    tag: str | None, group: str | None, most: int, expand: bool, quiet: bool, as_json: bool,
) -> int:  # fmt: skip
    """List the jobs that the options select."""
    which = "all" if everything or states else "alive"
    asked: dict[str, Any] = {"op": "list", "which": which, "most": most, "states": list(states)}
    filters = {"name": name, "type": job_type, "group": group, "tag": tag}
    asked |= {key: value for key, value in filters.items() if value}
    is_folded = not (expand or quiet or as_json)
    answer = queue.jobs(asked, folds=is_folded)
    if is_folded and len(answer["jobs"]) == most and answer["jobs"][-1].get("array_index"):
        answer = queue.jobs(asked | {"most": max(most, MAX_FOLDED)}, folds=True)
    rows = [queue.typed(row) for row in answer["jobs"]]
    found = read_all(JobRow, rows)
    if quiet:
        return print_ids([job.id for job in found])
    status = own_status()
    memory = memory_of(found, status)
    others = [] if name or group or tag else outside(status, found)
    others = [row for row in others if _is_wanted(row, states, job_type)]
    if as_json:
        return _print_json(rows, memory, answer["counts"], others)
    shown = [updated(job, memory.get(job.id, {})) for job in found]
    text = job_text.jobs(
        shown, time.time(), width(), has_sites=bool(answer.get("has_sites")),
        is_expanded=not is_folded, most=most, outside=others,
        leases={row.id: row for row in status.leases} if status is not None else None,
    )  # fmt: skip
    if shown or others:
        echo(text)
    is_cut = len(found) >= (MAX_FOLDED if len(found) > most else most)
    count = sum(len(job.ids) for job in found)
    if is_cut and sum(answer["counts"].values()) > count:
        echo(f"{job_text.counts(answer['counts'])} ({count} shown: -n shows more)", err=True)
    elif not shown and not others:
        none = "no job matches" if states or any(filters.values()) else text
        echo(f"{none}: {job_text.counts(answer['counts'])}", err=True)
    if answer.get("drained"):
        echo("the queue is paused: run `grn drain --off` to resume", err=True)
    if answer.get("trouble"):  # a queue of an older version does not say
        echo(f"warning: {answer['trouble']}", err=True)
    return 0


def _print_json(
    rows: Sequence[dict[str, Any]], memory: dict[int, dict[str, int | None]],
    counts: dict[str, int], others: Sequence[LeaseRow | WaitingRow],
) -> int:  # fmt: skip
    jobs = [row | memory.get(row["id"], {}) for row in rows]
    leases = [as_lease_json(row) for row in others]
    return print_json({"schema": 1, "jobs": jobs, "counts": counts, "outside": leases})


def as_lease_json(row: LeaseRow | WaitingRow) -> dict[str, Any]:
    """Return a row of `grn ps --json`: without the fields of the change feed."""
    return {name: value for name, value in as_json(row).items()
            if name not in ("since_at", "tag", "origin", "turn", "idle_since_at")}  # fmt: skip


def own_status() -> Status | None:
    """Return what the negotiator knows; None without one: the list is good without it."""
    try:
        return read(Status, negotiator.status())
    except GrnError:
        return None


def memory_of(jobs: Sequence[JobRow], status: Status | None) -> dict[int, dict[str, int | None]]:
    """Return the memory that running jobs use and reserve, by the negotiator."""
    leases = {row.id: row for row in status.leases} if status is not None else {}
    found = {}
    for job in jobs:
        lease = leases.get(job.lease or "") if job.state == "running" and not job.where else None
        if lease is not None:
            found[job.id] = {"used_bytes": lease.used_bytes,
                             "reserved_bytes": lease.reserved_bytes}  # fmt: skip
    return found


def outside(status: Status | None, jobs: Sequence[JobRow]) -> list[LeaseRow | WaitingRow]:
    """Return what this user runs or waits for without the queue: calls and commands."""
    if status is None:
        return []
    uid, known = os.getuid(), {job.lease for job in jobs}
    leases = [row for row in status.leases if row.user == uid and row.id not in known]
    waiting = [row for row in status.waiting if row.user == uid]
    if not leases and not waiting:
        return []
    try:
        own_pid = queue.ask({"op": "ping"}, may_start=False)["pid"]
        busy = queue.ask({"op": "list", "which": "alive", "most": MAX_FOLDED,
                          "states": list(_BUSY)}, may_start=False)["jobs"]  # fmt: skip
    except GrnError:
        return []  # without the queue nothing tells its jobs from others
    known |= {row["lease"] for row in busy}
    rows: list[LeaseRow | WaitingRow] = [*leases, *waiting]
    return [row for row in rows if row.pid != own_pid and row.id not in known]


def _is_wanted(row: LeaseRow | WaitingRow, states: Sequence[str], job_type: str | None) -> bool:
    if states and row.state not in states and not (row.state == "waiting" and "queued" in states):
        return False
    return job_type is None or job_type in (row.type, row.label)


def print_ids(ids: Sequence[int]) -> int:
    """Print ids, one a line."""
    if ids:
        sys.stdout.write("\n".join(map(str, ids)) + "\n")
    return 0
