"""What a client may say to wait for jobs and to steer them, or the queue itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from grn.errors import UnknownJob, UsageError
from grn.protocol import queue_requests
from grn.queue.events import CancelAsked, DrainAsked, HoldAsked, MoveAsked
from grn.queue.server import QueuePeer

log = logging.getLogger(__name__)
MAX_NAMED = 20
_TOGETHER_S = 0.005


def wait(peer: QueuePeer, message: queue_requests.WaitRequest) -> None:
    """Answer once for each job, as it ends; the client counts."""
    ends = Ends(peer, message.id)
    for job_id in message.jobs:
        if job_id in peer.loop.engine.jobs or not _end_of(peer, job_id)["reason"]:
            # The disk may not have taken its end yet.
            peer.wait_for(job_id, ends.tell)
        else:
            ends.tell(job_id)


def cancel(peer: QueuePeer, message: queue_requests.CancelRequest) -> None:
    """End jobs, or take them out of the line."""
    loop = peer.loop
    for job_id in message.jobs:
        if job_id not in loop.engine.jobs:
            peer.row(job_id)  # for the error, if nobody knows it
    alive = [job for job in message.jobs if job in loop.engine.jobs]
    _note(peer, "cancel", alive)
    loop.tell_now(CancelAsked(loop.now(), tuple(alive), message.now))
    peer.send(message.id, {"cancelled": alive})


def hold(peer: QueuePeer, message: queue_requests.HoldRequest) -> None:
    """Keep jobs back, or let them go."""
    _check_queued(peer, message.jobs)
    _note(peer, "hold" if message.held else "release", message.jobs)
    peer.loop.tell_now(HoldAsked(peer.loop.now(), tuple(message.jobs), message.held))
    peer.send(message.id, {"ok": True})


def move(peer: QueuePeer, message: queue_requests.MoveRequest) -> None:
    """Give jobs another place in the line."""
    _check_queued(peer, message.jobs)
    _note(peer, "move", message.jobs)
    now, jobs = peer.loop.now(), tuple(message.jobs)
    peer.loop.tell_now(MoveAsked(now, jobs, message.priority, message.front))
    peer.send(message.id, {"ok": True})


def drain(peer: QueuePeer, message: queue_requests.DrainRequest) -> None:
    """Start no more jobs, or go on."""
    _note(peer, "drain" if message.drained else "drain-off")
    peer.loop.tell_now(DrainAsked(peer.loop.now(), message.drained))
    busy = [job for job in peer.loop.engine.jobs.values() if job.state.value != "queued"]
    peer.send(message.id, {"running": len(busy)})


def clean(peer: QueuePeer, message: queue_requests.CleanRequest) -> None:
    """Forget jobs that have ended, with their files."""
    loop = peer.loop
    if loop.trouble:  # the end of what comes after them may not be written yet
        raise UsageError(f"not now: {loop.trouble}")
    _note(peer, "clean")
    gone = loop.journal.clean(time.time() - message.older_than_s)
    # Many folders take their time: the queue goes on meanwhile.
    asyncio.get_running_loop().run_in_executor(None, loop.launcher.remove, gone)
    peer.send(message.id, {"cleaned": len(gone)})


def stop(peer: QueuePeer, message: queue_requests.StopQueueRequest) -> None:
    """Leave; what runs goes on."""
    _note(peer, "stop")
    peer.send(message.id, peer.loop.engine.counts())
    peer.server.stop()


def _note(peer: QueuePeer, verb: str, jobs: Sequence[int] = ()) -> None:
    """Keep in the log who steered what: this user, or root."""
    some = ",".join(map(str, jobs[:MAX_NAMED]))
    log.info("action=%s uid=%d count=%d jobs=%s", verb, peer.uid, len(jobs), some)


class Ends:
    """The ends that one client waits for: the first is told at once, what follows closely in one.

    Many short jobs would else wake the client for each, at the expense of the next job.
    """

    def __init__(self, peer: QueuePeer, message_id: int) -> None:
        self._peer = peer
        self._message_id = message_id
        self._untold: list[dict[str, Any]] = []
        self._is_pausing = False

    def tell(self, job_id: int) -> None:
        """Tell of the end of a job, now or in a moment."""
        self._untold.append({"ended": _end_of(self._peer, job_id)})
        if not self._is_pausing:
            self._tell_all()

    def _tell_all(self) -> None:
        self._is_pausing = bool(self._untold)
        if self._untold:
            self._peer.talk.send_all(self._message_id, self._untold)
            self._untold = []
            asyncio.get_running_loop().call_later(_TOGETHER_S, self._tell_all)


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
