"""Handlers of client messages, and their table.

New jobs are accepted in submit_handlers.py; every decision about jobs is the engine's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from grn.daemon.connection import Verbs
from grn.errors import UnknownJob, UsageError
from grn.model.outcome import JOB_OUTCOMES
from grn.protocol import queue_requests
from grn.queue import submit_handlers
from grn.queue.events import (
    CancelAsked,
    DrainAsked,
    HoldAsked,
    MoveAsked,
)
from grn.queue.job import JobState
from grn.queue.journal.rows import BadRow
from grn.queue.server import QueuePeer, numbers

log = logging.getLogger(__name__)
MAX_NAMED = 20
_TOGETHER_S = 0.005
_BEGIN_S = 0.05
_STATES = {
    "queued": "(state = 'queued' AND NOT is_held)",
    "held": "(state = 'queued' AND is_held)",
    # The journal does not distinguish these: a start is not worth a write.
    "starting": "state IN ('starting','running')",
    "running": "state IN ('starting','running')",
    "stopping": "state = 'stopping'",
    "ended": "state = 'ended'",
}
_REASONS = {reason.value for reason in JOB_OUTCOMES}
_ALL_STATES = ", ".join([*_STATES, *(reason.value for reason in JOB_OUTCOMES)])


def wait(peer: QueuePeer, message: queue_requests.WaitRequest) -> None:
    """Answer once for each job, as it ends; the client counts."""
    ends = Ends(peer, message.id)
    for job_id in message.jobs:
        if job_id in peer.loop.engine.jobs or not _end_of(peer, job_id)["reason"]:
            # Its end may not be on disk yet.
            peer.wait_for(job_id, ends.tell)
        else:
            ends.tell(job_id)


def watch(peer: QueuePeer, message: queue_requests.WatchJobsRequest) -> None:
    """Report changes of jobs from now on, also of jobs that this connection submits later."""
    peer.changes = Changes(peer, message.id)
    peer.watch(message.jobs)


def cancel(peer: QueuePeer, message: queue_requests.CancelRequest) -> None:
    """Cancel jobs, running or queued."""
    loop = peer.loop
    for job_id in message.jobs:
        if job_id not in loop.engine.jobs:
            peer.row(job_id)  # raises when there is no such job
    alive = [job for job in message.jobs if job in loop.engine.jobs]
    if message.queued:
        alive = [job for job in alive if loop.engine.jobs[job].state is JobState.QUEUED]
    _note(peer, "cancel", alive)
    loop.tell_now(CancelAsked(loop.now(), tuple(alive), message.now))
    peer.send(message.id, {"cancelled": alive})


def hold(peer: QueuePeer, message: queue_requests.HoldRequest) -> None:
    """Hold jobs, or release them."""
    _check_queued(peer, message.jobs)
    _note(peer, "hold" if message.held else "release", message.jobs)
    peer.loop.tell_now(HoldAsked(peer.loop.now(), tuple(message.jobs), message.held))
    peer.send(message.id, {"ok": True})


def move(peer: QueuePeer, message: queue_requests.MoveRequest) -> None:
    """Give jobs another position in the queue."""
    _check_queued(peer, message.jobs)
    _note(peer, "move", message.jobs)
    now, jobs = peer.loop.now(), tuple(message.jobs)
    peer.loop.tell_now(MoveAsked(now, jobs, message.priority, message.front))
    peer.send(message.id, {"ok": True})


def drain(peer: QueuePeer, message: queue_requests.DrainRequest) -> None:
    """Stop starting jobs, or resume."""
    _note(peer, "drain" if message.drained else "drain-off")
    peer.loop.tell_now(DrainAsked(peer.loop.now(), message.drained))
    peer.send(message.id, {"running": peer.loop.engine.counts()["running"]})


def clean(peer: QueuePeer, message: queue_requests.CleanRequest) -> None:
    """Forget jobs that have ended, with their files."""
    loop = peer.loop
    if loop.trouble:  # the ends of their dependents may not be written yet
        raise UsageError(f"not now: {loop.trouble}")
    _note(peer, "clean")
    gone = loop.journal.clean(time.time() - message.older_than_s)
    # Removing many folders takes time: do it in a thread.
    asyncio.get_running_loop().run_in_executor(None, loop.site.remove, gone)
    peer.send(message.id, {"cleaned": len(gone)})


def stop(peer: QueuePeer, message: queue_requests.StopQueueRequest) -> None:
    """Stop the queue; running jobs continue."""
    _note(peer, "stop")
    peer.send(message.id, peer.loop.engine.counts())
    peer.server.stop()


def listing(peer: QueuePeer, message: queue_requests.ListRequest) -> None:
    """List jobs: running, then queued, then ended."""
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
    """Show one job with its attempts; of its environment only the names."""
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
    """Send a snapshot, then changes."""
    if peer.follows:
        raise UsageError("this connection follows already.")
    peer.server.followers.add(peer.talk, peer.uid, message.id)
    peer.follows = True


def names(peer: QueuePeer, message: queue_requests.NamesRequest) -> None:
    """Resolve ids that may be abbreviated."""
    peer.send(message.id, {"jobs": [_meant(peer, name) for name in message.names]})


def count(peer: QueuePeer, message: queue_requests.CountRequest) -> None:
    """Answer with the number of jobs."""
    peer.send(message.id, {"counts": peer.server.counts()})


def ping(peer: QueuePeer, message: queue_requests.PingQueueRequest) -> None:
    """Answer with version, process and user of the queue."""
    said = {"version": peer.server.version, "pid": os.getpid(), "uid": os.getuid()}
    peer.send(message.id, {**said, "trouble": peer.server.trouble})


def _fresh(verb: Callable[[QueuePeer, Any], None]) -> Callable[[QueuePeer, Any], None]:
    """Make a handler answer with up-to-date waiting reasons."""
    return lambda peer, message: peer.when_fresh(message.id, lambda: verb(peer, message))


VERBS: Verbs = {
    queue_requests.SubmitRequest: submit_handlers.submit,
    queue_requests.RetryRequest: submit_handlers.retry,
    queue_requests.ListRequest: _fresh(listing),
    queue_requests.ShowRequest: _fresh(show),
    queue_requests.NamesRequest: names,
    queue_requests.CountRequest: count,
    queue_requests.FollowQueueRequest: _fresh(follow),
    queue_requests.PingQueueRequest: ping,
    queue_requests.WaitRequest: wait,
    queue_requests.WatchJobsRequest: watch,
    queue_requests.CancelRequest: cancel,
    queue_requests.HoldRequest: hold,
    queue_requests.MoveRequest: move,
    queue_requests.DrainRequest: drain,
    queue_requests.CleanRequest: clean,
    queue_requests.StopQueueRequest: stop,
}


def _note(peer: QueuePeer, verb: str, jobs: Sequence[int] = ()) -> None:
    """Log an action with the user who asked for it: the owner, or root."""
    some = ",".join(map(str, jobs[:MAX_NAMED]))
    log.info("action=%s uid=%d count=%d jobs=%s", verb, peer.uid, len(jobs), some)


class Ends:
    """The ends that one client waits for: the first is sent at once, close ones together.

    Otherwise many short jobs would wake the client for each, at the expense of the next job.
    """

    def __init__(self, peer: QueuePeer, message_id: int) -> None:
        self._peer = peer
        self._message_id = message_id
        self._untold: list[dict[str, Any]] = []
        self._is_pausing = False

    def tell(self, job_id: int) -> None:
        """Send the end of a job, now or in a moment."""
        self._untold.append({"ended": _end_of(self._peer, job_id)})
        if not self._is_pausing:
            self._tell_all()

    def _tell_all(self) -> None:
        self._is_pausing = bool(self._untold)
        if self._untold:
            self._peer.talk.send_all(self._message_id, self._untold)
            self._untold = []
            asyncio.get_running_loop().call_later(_TOGETHER_S, self._tell_all)


class Changes:
    """Changes of the jobs that one client watches: close changes are sent in one message."""

    def __init__(self, peer: QueuePeer, message_id: int) -> None:
        self._peer = peer
        self._message_id = message_id
        self._untold: dict[int, float] = {}  # job -> when to send its change

    def tell(self, job_id: int) -> None:
        """Send a job's state in a moment; of several changes until then the latest counts.

        A start can wait a little longer: a short job has ended by then.
        """
        job = self._peer.loop.engine.jobs.get(job_id)
        has_begun = job is not None and job.state is not JobState.QUEUED
        pause_s = _BEGIN_S if has_begun else _TOGETHER_S
        due = self._peer.loop.now() + pause_s
        if job_id not in self._untold or due < self._untold[job_id]:
            if due < min(self._untold.values(), default=due + 1):
                asyncio.get_running_loop().call_later(pause_s, self._tell_what_is_due)
            self._untold[job_id] = due

    def _tell_what_is_due(self) -> None:
        now, journal = self._peer.loop.now(), self._peer.loop.journal
        due = [job for job, at in self._untold.items() if at <= now + _TOGETHER_S / 2]
        for job in due:
            del self._untold[job]
        if due:
            rows = [journal.progress_of(job) or {"id": job, "state": "unknown"} for job in due]
            self._peer.talk.send_all(self._message_id, [{"progress": row} for row in rows])
        if self._untold:
            next_s = max(0.0, min(self._untold.values()) - now)
            asyncio.get_running_loop().call_later(next_s, self._tell_what_is_due)


def _end_of(peer: QueuePeer, job_id: int) -> dict[str, Any]:
    ended = peer.loop.journal.end_of(job_id)
    if ended is None:
        raise UnknownJob(f"there is no job {job_id}.", "See `grn ls`.")
    return ended


def _check_queued(peer: QueuePeer, jobs: list[int]) -> None:
    for job_id in jobs:
        job = peer.loop.engine.jobs.get(job_id)
        state = job.state.value if job is not None else peer.row(job_id)["state"]
        if state != "queued":
            raise UsageError(f"job {job_id} is not queued any more: it is {state}.")


def _meant(peer: QueuePeer, name: str) -> int:
    """Return the job of that id, else the only unended job whose id begins so."""
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
    if message.group is not None:
        where += " AND group_name = ?"
        values.append(message.group)
    if message.type is not None:
        where += " AND (label = ? OR job_type = ?)"
        values += [message.type, message.type]
    return where, values


def _matches(row: dict[str, Any], states: list[str]) -> bool:
    return row["state"] in states or row["reason"] in states
