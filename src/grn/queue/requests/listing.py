"""The list of jobs: which of them a request selects, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from grn.errors import UsageError
from grn.model.outcome import JOB_OUTCOMES
from grn.protocol import queue_requests
from grn.queue import waiting_jobs
from grn.queue.journal import rows
from grn.queue.server import QueuePeer
from grn.queue.waiting_jobs import Selection

_STATES = {
    "queued": "(state = 'queued' AND NOT is_held)",
    "held": "(state = 'queued' AND is_held)",
    # The journal does not distinguish these: a start is not worth a write.
    "starting": "state IN ('starting','running')",
    "running": "state IN ('starting','running')",
    "stopping": "state = 'stopping'",
    "ended": "state = 'ended'",
}
_QUEUED = "state = 'queued'"
_SORTS = {
    "id": "jobs.id", "name": "lower(CASE name WHEN '' THEN label ELSE name END)", "ran": "ran_s",
    "peak": "peak_bytes", "gpu": "attempts.gpus", "reason": "jobs.reason", "ended": "jobs.ended_at",
}  # fmt: skip
_REASONS = {reason.value for reason in JOB_OUTCOMES}
_ALL_STATES = ", ".join([*_STATES, *(reason.value for reason in JOB_OUTCOMES)])


class _ListPart(NamedTuple):
    """Jobs of some states, in their order."""

    state: str
    where: str  # with the state and all filters
    values: list[Any]
    order: str


def list_jobs(peer: QueuePeer, message: queue_requests.ListRequest) -> None:
    """List jobs: running, then queued, then ended."""
    if message.ids_only:
        peer.send(message.id, {"ids": _ids(peer, message)})
        return
    is_counted = message.match is not None
    total = _count(peer, message) if is_counted else 0
    has_sites = peer.loop.fleet is not None and bool(peer.loop.fleet.sites)
    peer.send(message.id, {
        "jobs": _rows(peer, message), "counts": peer.server.counts(), "has_sites": has_sites,
        "trouble": peer.loop.trouble or peer.loop.journal.trouble,
        "drained": peer.loop.engine.is_drained,
        **({"total": total} if is_counted else {}),
    })  # fmt: skip


def _count(peer: QueuePeer, message: queue_requests.ListRequest) -> int:
    total = sum(peer.loop.journal.count(part.where, part.values) for part in _parts(message))
    if message.which == "ended":
        return total
    return total + waiting_jobs.count_folded(peer.loop, _selection(message))


def _rows(peer: QueuePeer, message: queue_requests.ListRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in _parts(message):
        left = message.most - len(found)
        if left and part.state == _QUEUED:
            found += peer.server.waiting(_selection(message), left, folds=message.folds)
        elif left:
            found += peer.server.rows(part.where, part.values, part.order, left)
    if message.states:
        found = [row for row in found if {row["state"], row["reason"]} & set(message.states)]
    return found


def _ids(peer: QueuePeer, message: queue_requests.ListRequest) -> list[int]:
    if message.states:  # some of which the journal does not distinguish
        return [row["id"] for row in _rows(peer, message)]
    found: list[int] = []
    for part in _parts(message):
        left = message.most - len(found)
        if left and part.state == _QUEUED:
            found += waiting_jobs.ids(peer.loop, _selection(message), left)
        elif left:
            found += peer.loop.journal.ids(part.where, part.values, part.order, left)
    return found


def _parts(message: queue_requests.ListRequest) -> Iterator[_ListPart]:
    """Yield the parts of a list."""
    wanted = _selection(message)
    if message.which in ("alive", "all"):
        for state in ("state IN ('starting','running','stopping')", _QUEUED):
            where = f"{state} AND {wanted.where}"
            yield _ListPart(state, where, wanted.values, waiting_jobs.ORDER)
    if message.which in ("ended", "all"):
        order = f"{_SORTS[message.sort]} {'ASC' if message.ascending else 'DESC'}"
        where = f"state = 'ended' AND jobs.ended_at >= ? AND {wanted.where}"
        yield _ListPart("state = 'ended'", where, [message.since, *wanted.values], order)


def _selection(message: queue_requests.ListRequest) -> Selection:
    """Return the condition that the filters of a list make."""
    where, values = "1", []
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
    return Selection(where + matching, values + words, is_of_members=bool(words))
