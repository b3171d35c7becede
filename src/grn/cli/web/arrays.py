"""One array, however long: a page of its jobs, counts of all of them, and their ids for actions.

The queue counts, filters and cuts; no more than one page of rows is made.
"""

from __future__ import annotations

from typing import Any

from grn.cli.output.job_text import spelled_command
from grn.cli.web import job_list
from grn.client import queue
from grn.model.outcome import JOB_OUTCOMES, OutcomeKind, kind_of
from grn.model.ranges import show_ranges
from grn.protocol.queue_rows import JobRow
from grn.protocol.rows import read
from grn.protocol.snapshot import Snapshot

Row = dict[str, Any]
MAX_IDS = 1_000_000
_BAD = [one.value for one in JOB_OUTCOMES if kind_of(one.value) is OutcomeKind.BAD]
# What an action is for, among the jobs of an array.
ACTS: dict[str, Row] = {
    "cancel": {"which": "alive"},
    "hold": {"which": "alive", "states": ["queued"]},
    "release": {"which": "alive", "states": ["held"]},
    "retry": {"which": "ended", "states": _BAD},
}


def page(picture: Snapshot, job: int, match: str, state: str, skip: int, most: int) -> Row:
    """Return a page of the array that a job belongs to: those that run, wait and have ended."""
    asked = _asked(job, match) | {"sort": "id", "ascending": True, "skip": skip, "most": most}
    answer = queue.ask(asked | {"states": _states(state)}, may_start=False)
    rows = [read(JobRow, queue.typed(row)) for row in answer["jobs"]]
    first = rows[0] if rows else read(JobRow, queue.show(answer["array"]["first"], may_start=False))
    states: dict[str, int] = answer["array"]["states"]
    starting = states.pop("starting", 0)  # the journal does not tell these from running ones
    if starting:
        states["running"] = states.get("running", 0) + starting
    return {
        "name": first.name or first.label,
        "command": spelled_command(first.argv),
        "first": answer["array"]["first"],
        "count": answer["array"]["count"],
        "states": states,
        "total": answer["total"],
        "jobs": [_member(row, picture) for row in rows],
    }


def ids_for(job: int, act: str, match: str, state: str) -> Row:
    """Return the jobs of the array that match and that an action is for."""
    asked = _asked(job, match) | ACTS[act] | {"ids_only": True, "most": MAX_IDS}
    if state:
        allowed = ACTS[act].get("states")
        chosen = _states(state)
        asked["states"] = [one for one in chosen if allowed is None or one in allowed]
        if not asked["states"]:
            return {"jobs": "", "count": 0}
    found = queue.ask(asked, may_start=False)["ids"]
    return {"jobs": show_ranges(found, len(found) or 1), "count": len(found)}


def _asked(job: int, match: str) -> Row:
    return {"op": "list", "which": "all", "array": job, "match": match}


def _states(state: str) -> list[str]:
    return ["starting", "running"] if state == "running" else [state] if state else []


def _member(row: JobRow, picture: Snapshot) -> Row:
    lease = picture.leases.get(row.lease or "")
    return {
        "id": row.id,
        "name": job_list.job_name(row),
        "state": row.state,
        "reason": row.reason,
        "is_held": row.is_held,
        "priority": row.priority,
        "gpus": list(row.gpus) if not row.is_waiting else [],
        "where": row.where,
        "submitted_at": row.submitted_at,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
        "ran_s": row.ran_s,
        "used_bytes": lease.used_bytes if lease is not None else row.used_bytes,
        "reserved_bytes": None if lease is None else lease.reserved_bytes,
        "peak_bytes": row.peak_bytes,
        "why": row.why if row.is_waiting else (row.text or "") if row.text != row.reason else "",
    }
