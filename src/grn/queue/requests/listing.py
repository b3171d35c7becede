"""The list of jobs: which of them a request selects, and in which order."""

from __future__ import annotations

from typing import Any

from grn.errors import UsageError
from grn.model.outcome import JOB_OUTCOMES
from grn.protocol import queue_requests
from grn.queue.journal import rows
from grn.queue.server import QueuePeer

_STATES = {
    "queued": "(state = 'queued' AND NOT is_held)",
    "held": "(state = 'queued' AND is_held)",
    # The journal does not distinguish these: a start is not worth a write.
    "starting": "state IN ('starting','running')",
    "running": "state IN ('starting','running')",
    "stopping": "state = 'stopping'",
    "ended": "state = 'ended'",
}
_SORTS = {
    "id": "jobs.id", "name": "lower(CASE name WHEN '' THEN label ELSE name END)", "ran": "ran_s",
    "peak": "peak_bytes", "gpu": "attempts.gpus", "reason": "jobs.reason", "ended": "jobs.ended_at",
}  # fmt: skip
_REASONS = {reason.value for reason in JOB_OUTCOMES}
_ALL_STATES = ", ".join([*_STATES, *(reason.value for reason in JOB_OUTCOMES)])


def list_jobs(peer: QueuePeer, message: queue_requests.ListRequest) -> None:
    """List jobs: running, then queued, then ended."""
    found: list[dict[str, Any]] = []
    where, values = _where(message)
    read, total, is_counted = peer.server.rows, 0, message.match is not None
    if message.which in ("alive", "all"):
        order = "priority DESC, place"
        for state in ("state IN ('starting','running','stopping')", "state = 'queued'"):
            left = message.most - len(found)
            found += read(f"{state}{where}", values, order, left) if left else []
            total += peer.loop.journal.count(f"{state}{where}", values) if is_counted else 0
        total += peer.loop.engine.jobs.folded
    if message.which in ("ended", "all"):
        sql, all_values = f"state = 'ended' AND jobs.ended_at >= ?{where}", [message.since, *values]
        order = f"{_SORTS[message.sort]} {'ASC' if message.ascending else 'DESC'}"
        left = message.most - len(found)
        found += read(sql, all_values, order, left) if left else []
        total += peer.loop.journal.count(sql, all_values) if is_counted else 0
    if message.states:
        found = [row for row in found if {row["state"], row["reason"]} & set(message.states)]
    has_sites = peer.loop.fleet is not None and bool(peer.loop.fleet.sites)
    peer.send(message.id, {
        "jobs": found, "counts": peer.server.counts(), "has_sites": has_sites,
        "trouble": peer.loop.trouble or peer.loop.journal.trouble,
        "drained": peer.loop.engine.is_drained,
        **({"total": total} if is_counted else {}),
    })  # fmt: skip


def folded(peer: QueuePeer, message: queue_requests.ListRequest) -> list[int]:
    """Return the folded members of arrays that must be jobs of their own in this list."""
    jobs = peer.loop.engine.jobs
    if message.which == "ended":
        return []
    is_all = message.match is not None and _is_filtered(message)
    return jobs.folded_before(jobs.folded if is_all else message.most)


def _is_filtered(message: queue_requests.ListRequest) -> bool:
    wanted = (message.states, message.name, message.group, message.tag, message.type)
    return bool(message.match) or any(wanted)


def _where(message: queue_requests.ListRequest) -> tuple[str, list[Any]]:
    where, values = "", []
    if message.states:
        unknown = set(message.states) - _STATES.keys() - _REASONS
        if unknown:
            raise UsageError(f"there is no state '{min(unknown)}'.", f"There are {_ALL_STATES}.")
        states = [_STATES[state] for state in message.states if state in _STATES]
        reasons = [state for state in message.states if state in _REASONS]
        marks = ",".join("?" * len(reasons))
        where += f" AND ({' OR '.join([*states, f'jobs.reason IN ({marks})'])})"
        values += reasons
    if message.name is not None:
        where += " AND name = ?"
        values.append(message.name)
    if message.group is not None:
        where += " AND group_name = ?"
        values.append(message.group)
    if message.tag is not None:
        where += " AND instr(tags, ?)"
        values.append(rows.show_tags([message.tag]))
    if message.type is not None:
        where += " AND (label = ? OR job_type = ?)"
        values += [message.type, message.type]
    matching, words = rows.matching(message.match or "")
    return where + matching, values + words
