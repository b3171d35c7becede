"""What a client may say to look at jobs."""

from __future__ import annotations

import os
from typing import Any

from grn.errors import UnknownJob, UsageError
from grn.model.outcome import JOB_OUTCOMES
from grn.protocol import queue_requests
from grn.queue.rows import BadRow
from grn.queue.server import QueuePeer, numbers

_STATES = {
    "queued": "(state = 'queued' AND NOT is_held)",
    "held": "(state = 'queued' AND is_held)",
    # The journal does not tell these apart: a start is not worth a write.
    "starting": "state IN ('starting','running')",
    "running": "state IN ('starting','running')",
    "stopping": "state = 'stopping'",
    "ended": "state = 'ended'",
}
_REASONS = {reason.value for reason in JOB_OUTCOMES}
_ALL_STATES = ", ".join([*_STATES, *(reason.value for reason in JOB_OUTCOMES)])


def listing(peer: QueuePeer, message: queue_requests.ListRequest) -> None:
    """List jobs: those that run, then those in line, then those that ended."""
    rows: list[dict[str, Any]] = []
    where, values = _where(message)
    journal = peer.loop.journal
    if message.which in ("alive", "all"):
        order = "priority DESC, place"
        for state in ("state IN ('starting','running','stopping')", "state = 'queued'"):
            left = message.most - len(rows)
            rows += journal.rows(f"{state}{where}", values, order, left) if left else []
    if message.which in ("ended", "all") and len(rows) < message.most:
        sql = f"state = 'ended' AND jobs.ended_at >= ?{where}"
        left = message.most - len(rows)
        rows += journal.rows(sql, [message.since, *values], "jobs.ended_at DESC", left)
    shown = [peer.server.shown(row) for row in rows]
    if message.states:
        shown = [row for row in shown if _matches(row, message.states)]
    peer.send(message.id, {"jobs": shown, "counts": peer.server.counts()})


def show(peer: QueuePeer, message: queue_requests.ShowRequest) -> None:
    """Show all of one job, with its attempts; of its environment the names alone."""
    row = peer.server.shown(peer.row(message.job))
    row["attempts"] = peer.loop.journal.attempts(message.job)
    for one in row["attempts"]:
        one["gpus"] = numbers(one["gpus"])
    try:
        command = peer.loop.journal.command(message.job)
        row["environment"] = sorted({*command.environment, *command.extra})
    except BadRow as error:
        row["environment"] = []
        row["text"] = row["text"] or str(error)
    peer.send(message.id, {"job": row})


def follow(peer: QueuePeer, message: queue_requests.FollowQueueRequest) -> None:
    """Tell all there is, and from then on what changes."""
    if peer.follows:
        raise UsageError("this connection follows already.")
    peer.server.followers.add(peer.talk, message.id)
    peer.follows = True


def names(peer: QueuePeer, message: queue_requests.NamesRequest) -> None:
    """Say which jobs are meant by ids that may be cut short."""
    peer.send(message.id, {"jobs": [_meant(peer, name) for name in message.names]})


def count(peer: QueuePeer, message: queue_requests.CountRequest) -> None:
    """Say how many jobs there are."""
    peer.send(message.id, {"counts": peer.server.counts()})


def ping(peer: QueuePeer, message: queue_requests.PingQueueRequest) -> None:
    """Say who we are."""
    said = {"version": peer.server.version, "pid": os.getpid(), "uid": os.getuid()}
    peer.send(message.id, {**said, "trouble": peer.server.trouble})


def _meant(peer: QueuePeer, name: str) -> int:
    """Return the job of that id, else the only one not ended whose id begins so."""
    jobs = peer.loop.engine.jobs
    if int(name) in jobs or peer.loop.journal.end_of(int(name)):
        return int(name)
    found = [job for job in jobs if str(job).startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        text = f"{len(found)} jobs begin with {name}."
        raise UnknownJob(text, "Write the whole id; see `grn ls`.")
    raise UnknownJob(f"there is no job {name}.", "See `grn ls`.")


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
    if message.type is not None:
        where += " AND (label = ? OR job_type = ?)"
        values += [message.type, message.type]
    return where, values


def _matches(row: dict[str, Any], states: list[str]) -> bool:
    return row["state"] in states or row["reason"] in states
