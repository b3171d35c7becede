"""The list of jobs: which of them a request selects, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
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
    if message.ids_only:
        peer.send(message.id, {"ids": _ids(peer, message)})
        return
    is_counted = message.match is not None
    total = sum(peer.loop.journal.count(*part[:2]) for part in _parts(message) if is_counted)
    if message.which != "ended":
        total += peer.loop.engine.jobs.folded
    has_sites = peer.loop.fleet is not None and bool(peer.loop.fleet.sites)
    peer.send(message.id, {
        "jobs": _rows(peer, message), "counts": peer.server.counts(), "has_sites": has_sites,
        "trouble": peer.loop.trouble or peer.loop.journal.trouble,
        "drained": peer.loop.engine.is_drained,
        **({"total": total} if is_counted else {}),
    })  # fmt: skip


def _rows(peer: QueuePeer, message: queue_requests.ListRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in _parts(message):
        left = message.most - len(found)
        found += peer.server.rows(*part, left) if left else []
    if message.states:
        found = [row for row in found if {row["state"], row["reason"]} & set(message.states)]
    return found


def _ids(peer: QueuePeer, message: queue_requests.ListRequest) -> list[int]:
    if message.states:  # some of which the journal does not distinguish
        return [row["id"] for row in _rows(peer, message)]
    found: list[int] = []
    for part in _parts(message):
        left = message.most - len(found)
        found += peer.loop.journal.ids(*part, left) if left else []
    if not _is_filtered(message) and message.which != "ended":
        found += peer.loop.engine.jobs.folded_first(message.most - len(found))
    return found


def _parts(message: queue_requests.ListRequest) -> Iterator[tuple[str, list[Any], str]]:
    """Yield condition, values and order of each part of a list."""
    where, values = _where(message)
    if message.which in ("alive", "all"):
        for state in ("state IN ('starting','running','stopping')", "state = 'queued'"):
            yield f"{state}{where}", values, "priority DESC, place"
    if message.which in ("ended", "all"):
        order = f"{_SORTS[message.sort]} {'ASC' if message.ascending else 'DESC'}"
        ended = f"state = 'ended' AND jobs.ended_at >= ?{where}"
        yield ended, [message.since, *values], order


def folded(peer: QueuePeer, message: queue_requests.ListRequest) -> list[int]:
    """Return the folded members of arrays that must be jobs of their own in this list."""
    jobs = peer.loop.engine.jobs
    if message.which == "ended" or (message.ids_only and not _is_filtered(message)):
        return []
    is_all = message.match is not None and _is_filtered(message)
    return jobs.folded_before(jobs.folded if is_all else message.most, message.states)


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
