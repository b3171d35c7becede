"""Handlers of client messages, and their table; every decision about jobs is the engine's.

New jobs are written first, then told to the engine, then answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from grn.errors import MachineError, UsageError
from grn.protocol import queue_requests
from grn.queue.events import CancelAsked, DrainAsked, Edited, HoldAsked, MoveAsked
from grn.queue.jobs.job import JobState
from grn.queue.journal.rows import DamagedRow
from grn.queue.requests import naming, submissions
from grn.queue.requests.listing import list_jobs
from grn.queue.requests.members import with_members
from grn.queue.server import Changes, Ends, QueuePeer, numbers
from grn.queue.sites.leases.remote_lease import node_of

log = logging.getLogger(__name__)
MAX_NAMED = 20
FIRST_CONTACT_S, LOOK_S = 3.0, 0.1
CANCEL_LOOK_S = 0.02


def submit(peer: QueuePeer, message: queue_requests.SubmitRequest) -> None:
    """Accept new jobs, all or none."""
    peer.server.hold()
    if not _is_known(peer, message, lambda: submissions.count(message)):
        _tell_accepted(peer, message.id, submissions.new_jobs(peer, message), is_new=True)


def retry(peer: QueuePeer, message: queue_requests.RetryRequest) -> None:
    """Submit ended jobs again."""
    peer.server.hold()
    if _is_known(peer, message, lambda: len(message.jobs)):
        return
    first = peer.loop.journal.next_id
    jobs = [
        submissions.again(peer, job_id, new_id) for new_id, job_id in enumerate(message.jobs, first)
    ]
    _tell_accepted(peer, message.id, submissions.accept(peer.loop, message.key, jobs, {}))


def wait(peer: QueuePeer, message: queue_requests.WaitRequest) -> None:
    """Answer once for each job, as it ends; the client counts."""
    ends = Ends(peer, message.id)
    for job_id in message.jobs:
        if job_id in peer.loop.engine.jobs or not peer.end_of(job_id)["reason"]:
            # Its end may not be on disk yet.
            peer.wait_for(job_id, ends.tell)
        else:
            ends.tell(job_id)


def watch(peer: QueuePeer, message: queue_requests.WatchJobsRequest) -> None:
    """Report changes of jobs from now on, also of jobs that this connection submits later."""
    peer.changes = Changes(peer, message.id)
    peer.watch(message.jobs)


def cancel(peer: QueuePeer, message: queue_requests.CancelRequest) -> None:
    """Cancel jobs, running or queued; members of arrays have ended before it is answered."""
    loop = peer.loop
    alive = [job for job in message.jobs if job in loop.engine.jobs]
    for job in sorted(set(message.jobs).difference(alive)):
        peer.state(job)  # raises when there is no such job
    if message.queued:
        folded = set(loop.engine.jobs.folded_among(alive))
        alive = [
            job for job in alive if job in folded or loop.engine.jobs[job].state is JobState.QUEUED
        ]
    _note(peer, "cancel", alive)
    loop.tell_now(CancelAsked(loop.now(), tuple(alive), message.now))

    def answer() -> None:
        if loop.engine.jobs.is_cancelling and not loop.trouble:
            asyncio.get_running_loop().call_later(CANCEL_LOOK_S, answer)
        else:
            peer.send(message.id, {"cancelled": alive, "trouble": loop.trouble or ""})

    answer()


def hold(peer: QueuePeer, message: queue_requests.HoldRequest) -> None:
    """Hold jobs, or release them."""
    _check_queued(peer, message.jobs)
    _note(peer, "hold" if message.held else "release", message.jobs)
    peer.loop.tell_now(HoldAsked(peer.loop.now(), tuple(message.jobs), message.held))
    peer.send(message.id, {"ok": True, "trouble": peer.loop.trouble or ""})


def move(peer: QueuePeer, message: queue_requests.MoveRequest) -> None:
    """Give jobs another position in the queue."""
    _check_queued(peer, message.jobs)
    _note(peer, "move", message.jobs)
    now, jobs = peer.loop.now(), tuple(message.jobs)
    peer.loop.tell_now(MoveAsked(now, jobs, message.priority, message.front))
    peer.send(message.id, {"ok": True, "trouble": peer.loop.trouble or ""})


def edit(peer: QueuePeer, message: queue_requests.EditRequest) -> None:
    """Give a queued job other options; all of them, or none when one is refused."""
    loop = peer.loop
    loop.catch_up()  # it may have begun just now
    _check_queued(peer, [message.job])
    submissions.check_disk(loop)
    try:
        job = submissions.edited(loop.journal.as_submitted(message.job), message)
    except DamagedRow as error:
        raise MachineError(f"job {message.job} cannot be edited: {error}.") from error
    submissions.check_spec(job.spec, loop)
    _note(peer, "edit", [message.job])
    loop.journal.edit(job)
    loop.tell_now(Edited(loop.now(), job.spec))
    peer.send(message.id, {"ok": True, "trouble": loop.trouble or ""})


def drain(peer: QueuePeer, message: queue_requests.DrainRequest) -> None:
    """Stop starting jobs, or resume."""
    _note(peer, "drain" if message.drained else "drain-off")
    peer.loop.tell_now(DrainAsked(peer.loop.now(), message.drained))
    running = peer.loop.engine.counts()["running"]
    peer.send(message.id, {"running": running, "trouble": peer.loop.trouble or ""})


def clean(peer: QueuePeer, message: queue_requests.CleanRequest) -> None:
    """Forget jobs that have ended, with their files."""
    loop = peer.loop
    if loop.trouble:  # the ends of their dependents may not be written yet
        raise UsageError(f"not now: {loop.trouble}")
    _note(peer, "clean")
    gone = loop.journal.clean(time.time() - message.older_than_s)
    # Removing many folders takes time: do it in a thread.
    asyncio.get_running_loop().run_in_executor(None, loop.site.remove, gone)
    loop.site.remove_elsewhere(gone)
    peer.send(message.id, {"cleaned": len(gone)})


def stop(peer: QueuePeer, message: queue_requests.StopQueueRequest) -> None:
    """Stop the queue; running jobs continue."""
    _note(peer, "stop")
    peer.send(message.id, peer.loop.engine.counts())
    peer.server.stop()


def show(peer: QueuePeer, message: queue_requests.ShowRequest) -> None:
    """Show one job with its attempts; of its environment only the names."""
    row = peer.row(message.job)
    row["attempts"] = peer.loop.journal.attempts(message.job)
    for one in row["attempts"]:
        one["gpus"] = numbers(one["gpus"])
        one["where"] = node_of(one["lease"])
    try:
        command = peer.loop.journal.command(message.job)
        row["environment"] = sorted({*command.environment, *command.extra})
    except DamagedRow as error:
        row["environment"] = []
        row["text"] = row["text"] or str(error)
    peer.send(message.id, {"job": row})


def follow(peer: QueuePeer, message: queue_requests.FollowQueueRequest) -> None:
    """Send a snapshot, then changes."""
    if peer.follows:
        raise UsageError("this connection follows already.")
    peer.server.subscribers.add(peer.connection, peer.uid, message.id)
    peer.follows = True


def names(peer: QueuePeer, message: queue_requests.NamesRequest) -> None:
    """Resolve what people call jobs; each job once, in the order they are named."""
    found: dict[int, None] = {}
    for name in message.names:
        found.update(dict.fromkeys(naming.resolve(peer, name, message)))
    peer.send(message.id, {"jobs": list(found)})


def count(peer: QueuePeer, message: queue_requests.CountRequest) -> None:
    """Answer with the number of jobs."""
    peer.send(message.id, {"counts": peer.server.counts()})


def ping(peer: QueuePeer, message: queue_requests.PingQueueRequest) -> None:
    """Answer with version, process and user of the queue."""
    said = {"version": peer.server.version, "pid": os.getpid(), "uid": os.getuid()}
    drained = peer.loop.engine.is_drained
    peer.send(message.id, {**said, "trouble": peer.server.trouble, "drained": drained})


def _fresh(verb: Callable[[QueuePeer, Any], None]) -> Callable[[QueuePeer, Any], None]:
    """Make a handler answer with up-to-date waiting reasons."""
    return lambda peer, message: peer.when_fresh(message.id, lambda: verb(peer, message))


def sites(peer: QueuePeer, message: queue_requests.SitesRequest) -> None:
    """Show the nodes of all sites, after reading the settings again if that is wanted."""
    if message.reload:
        peer.server.load_sites()
    peer.loop.leases.retry()
    until = peer.loop.now() + FIRST_CONTACT_S

    def answer() -> None:
        """Give nodes that are being reached a moment: somebody has just added them."""
        nodes = peer.server.nodes()
        is_soon = any(
            node["state"] == "connecting" or (node["state"] == "up" and not node["gpu_bytes"])
            for node in nodes
        )
        if is_soon and peer.loop.now() < until:
            asyncio.get_running_loop().call_later(LOOK_S, peer.when_fresh, message.id, answer)
        else:
            peer.send(message.id, {"nodes": nodes})

    peer.when_fresh(message.id, answer)


VERBS = with_members(
    {
        queue_requests.SubmitRequest: submit,
        queue_requests.RetryRequest: retry,
        queue_requests.ListRequest: _fresh(list_jobs),
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
        queue_requests.EditRequest: edit,
        queue_requests.DrainRequest: drain,
        queue_requests.CleanRequest: clean,
        queue_requests.SitesRequest: sites,
        queue_requests.StopQueueRequest: stop,
    }
)


def _note(peer: QueuePeer, verb: str, jobs: Sequence[int] = ()) -> None:
    """Log an action with the user who asked for it: the owner, or root."""
    some = ",".join(map(str, jobs[:MAX_NAMED]))
    log.info("action=%s uid=%d count=%d jobs=%s", verb, peer.uid, len(jobs), some)


def _is_known(
    peer: QueuePeer,
    message: queue_requests.SubmitRequest | queue_requests.RetryRequest,
    count: Callable[[], int],
) -> bool:
    """Answer a repeated submit as accepted, whatever has changed since."""
    first = peer.loop.journal.first_of(message.key)
    if first is not None:
        _tell_accepted(peer, message.id, range(first, first + count()))
    return first is not None


def _tell_accepted(peer: QueuePeer, message_id: int, jobs: range, *, is_new: bool = False) -> None:
    trouble = peer.server.trouble
    peer.send(message_id, {"first": jobs.start, "count": len(jobs), "trouble": trouble})
    peer.watch(jobs, is_new=is_new)


def _check_queued(peer: QueuePeer, jobs: list[int]) -> None:
    for job_id in jobs:
        job = peer.loop.engine.jobs.get(job_id)
        state = job.state.value if job is not None else peer.state(job_id)
        if state != "queued":
            now = "has already ended" if state == "ended" else f"is {state} already"
            raise UsageError(f"job {job_id} {now}.")
