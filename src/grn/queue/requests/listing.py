"""The list of jobs: which of them a request selects, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from grn.errors import UnknownJob, UsageError
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
_MERGED = {"starting", "running"}
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
    ids = _array_ids(peer, message)
    wanted = _selection(message, ids)
    if message.ids_only:
        peer.send(message.id, {"ids": _ids(peer, message, wanted)})
        return
    found = _rows(peer, message, wanted)
    counted: dict[str, Any] = {}
    if message.match is not None or ids is not None:
        is_whole = len(found) < message.most and not (message.skip or message.folds)
        counted["total"] = len(found) if is_whole else _count(peer, message, wanted)
    if ids is not None:
        counted["array"] = {
            "first": ids[0],
            "count": len(ids),
            "states": _states(peer, ids),
        }
    has_sites = peer.loop.fleet is not None and bool(peer.loop.fleet.sites)
    peer.send(message.id, {
        "jobs": found, "counts": peer.server.counts(), "has_sites": has_sites,
        "trouble": peer.loop.trouble or peer.loop.journal.trouble,
        "drained": peer.loop.engine.is_drained,
        **counted,
    })  # fmt: skip


def _array_ids(peer: QueuePeer, message: queue_requests.ListRequest) -> range | None:
    """Return the ids of the array that is asked for."""
    if message.array is None:
        return None
    ids = peer.loop.journal.array_of(message.array)
    if ids is None:
        raise UnknownJob(
            f"the array of job {message.array} is not known any more.", "See `grn ls`."
        )
    return ids


def _states(peer: QueuePeer, ids: range) -> dict[str, int]:
    """Return how many jobs of an array are in each state."""
    found = peer.loop.journal.states("id >= ? AND id < ?", (ids.start, ids.stop))
    jobs = peer.loop.engine.jobs
    for folded in jobs.folded_arrays():
        if folded.array == ids[0]:
            state = "held" if jobs[next(folded.ids)].is_held else "queued"
            found[state] = found.get(state, 0) + len(list(folded.ids))
    return found


def _count(peer: QueuePeer, message: queue_requests.ListRequest, wanted: Selection) -> int:
    return sum(_size(peer, part, wanted) for part in _parts(message, wanted))


def _size(peer: QueuePeer, part: _ListPart, wanted: Selection) -> int:
    size = peer.loop.journal.count(part.where, part.values)
    is_waiting = part.state == _QUEUED
    return size + (waiting_jobs.count_folded(peer.loop, wanted) if is_waiting else 0)


def _rows(
    peer: QueuePeer, message: queue_requests.ListRequest, wanted: Selection
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    skip = message.skip
    for part in _parts(message, wanted):
        left = message.most - len(found)
        size = _size(peer, part, wanted) if skip else 0
        if skip and skip >= size:
            skip -= size
            continue
        if left and part.state != _QUEUED:
            found += peer.server.rows(part.where, part.values, part.order, left, skip)
        elif left and skip:
            found += peer.server.waiting_after(wanted, left, skip)
        elif left:
            found += peer.server.waiting(wanted, left, folds=message.folds)
        skip = 0
    if message.states:
        found = [row for row in found if {row["state"], row["reason"]} & set(message.states)]
    return found


def _ids(peer: QueuePeer, message: queue_requests.ListRequest, wanted: Selection) -> list[int]:
    if _MERGED & set(message.states):  # the journal does not distinguish them
        return [row["id"] for row in _rows(peer, message, wanted)]
    found: list[int] = []
    for part in _parts(message, wanted):
        left = message.most - len(found)
        if left and part.state == _QUEUED:
            found += waiting_jobs.ids(peer.loop, wanted, left)
        elif left:
            found += peer.loop.journal.ids(part.where, part.values, part.order, left)
    return found


def _parts(message: queue_requests.ListRequest, wanted: Selection) -> Iterator[_ListPart]:
    """Yield the parts of a list."""
    if message.which in ("alive", "all"):
        for state in ("state IN ('starting','running','stopping')", _QUEUED):
            yield _ListPart(state, *wanted.of_journal(state), waiting_jobs.ORDER)
    if message.which in ("ended", "all"):
        order = f"{_SORTS[message.sort]} {'ASC' if message.ascending else 'DESC'}"
        where, values = wanted.of_journal("state = 'ended' AND jobs.ended_at >= ?")
        yield _ListPart("state = 'ended'", where, [message.since, *values], order)


def _selection(message: queue_requests.ListRequest, ids: range | None) -> Selection:
    """Return the condition that the filters of a list make."""
    where, values = "1", list[Any]()
    if ids is not None:
        where += " AND jobs.id >= ? AND jobs.id < ?"
        values += [ids.start, ids.stop]
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
    words = tuple((message.match or "").split()[: rows.MAX_WORDS])
    return Selection(where, values, array=None if ids is None else ids[0], words=words)
