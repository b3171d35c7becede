"""Clients of the queue, and the state that all their connections share.

`handlers.py` lists the messages that a client may send.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from grn.client import queue
from grn.daemon.connection import ConnectionSettings, ServerConnection, Service, Verbs
from grn.errors import DaemonError, GrnError, NotAllowed, UnknownJob
from grn.model.job import tag_of
from grn.proc import pidfd
from grn.protocol import queue_requests
from grn.queue import waiting_jobs
from grn.queue.jobs.job import JobState, JobView
from grn.queue.jobs.job_views import NO_NEGOTIATOR
from grn.queue.journal.journal import Journal
from grn.queue.loop import QueueLoop
from grn.queue.site import Attempt
from grn.queue.sites.leases.remote_lease import node_of
from grn.queue.subscribers import QueueSubscribers
from grn.queue.waiting_jobs import Selection

log = logging.getLogger(__name__)
DEADLINE_S = 30.0
MAX_REQUEST_BYTES = 32 << 20
_TOGETHER_S, _MANY_S, _MANY = (
    0.005,
    0.025,
    100,
)  # the longer pause while at least _MANY jobs are left
_BEGIN_S = 0.05
# Options that few jobs set, which a row has then.
_FEW = ("on", "without", "array_limit", "begin_at", "only", "yields", "is_urgent", "at_least_s",
        "idle_limit_s", "cpus", "ram_bytes", "fetch")  # fmt: skip


class QueueServer:
    """The state that all clients share."""

    def __init__(
        self,
        loop: QueueLoop,
        verbs: Verbs,
        version: str,
        stop: Callable[[], None],
        hold: Callable[[], None],
        load_sites: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.load_sites = load_sites
        self.version = version
        self.stop = stop
        self.hold = hold  # raises when another process is this user's queue
        self.subscribers = QueueSubscribers(loop, self)
        most = 8 * MAX_REQUEST_BYTES  # its one client is the user who runs it
        settings = ConnectionSettings(
            "queue", queue_requests.read, verbs, MAX_REQUEST_BYTES, DEADLINE_S, most, most
        )
        self._service = Service(
            settings, lambda connection, peer: QueuePeer(self, connection, peer)
        )

    def connection(self) -> ServerConnection:
        """Make the protocol of one new connection."""
        return self._service.connection()

    def rows(
        self, where: str, values: list[Any], order: str, most: int, skip: int = 0
    ) -> list[dict[str, Any]]:
        """Return jobs of the journal as rows for people."""
        found = self.loop.journal.rows(where, values, order, most, skip)
        return [self._shown(row) for row in found]

    def waiting(self, wanted: Selection, most: int, *, folds: bool = False) -> list[dict[str, Any]]:
        """Return the first jobs that wait; with `folds` one row for the rest of each array."""
        where, values = wanted.of_journal("state = 'queued'")
        rows = self.rows(where, values, waiting_jobs.ORDER, most)
        find = waiting_jobs.folded_arrays if folds else waiting_jobs.folded_rows
        rows += map(self._shown, find(self.loop, wanted, most))
        return sorted(rows, key=lambda row: self.loop.engine.jobs.turn(row["id"]))[:most]

    def waiting_after(self, wanted: Selection, most: int, skip: int) -> list[dict[str, Any]]:
        """Return jobs that wait, without the first ones."""
        ids = waiting_jobs.ids(self.loop, wanted, skip + most)[skip:]
        return sorted(self.alive(ids), key=lambda row: self.loop.engine.jobs.turn(row["id"]))

    def alive(self, jobs: list[int]) -> list[dict[str, Any]]:
        """Return jobs that have not ended, by their ids."""
        where = f"jobs.id IN ({','.join('?' * len(jobs))})"
        found = self.rows(where, jobs, "jobs.id", len(jobs))
        missing = sorted(set(jobs) - {row["id"] for row in found})
        return found + [self._shown(row) for row in waiting_jobs.rows_of(self.loop, missing)]

    def _shown(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of the journal for people."""
        job = self.loop.engine.jobs.get(row["id"])
        row["argv"] = _listed(row["argv"], [row["argv"]])
        row["after"] = _listed(row["after"], []) if row["after"] else []
        row["gpus"] = numbers(row["gpus"])
        for name in ("is_exclusive", "may_requeue", "is_held"):
            row[name] = bool(row[name])
        row["group"] = row.pop("group_name")
        row["tags"] = row["tags"].split()
        row |= _rarely_set(row)
        row["why"] = self.why(job) if job is not None else row["text"]
        if job is not None:
            row["state"] = "held" if job.is_held else job.state.value
        is_waiting = job is not None and job.state is JobState.QUEUED
        row["tag"] = self.tag(row["id"]) if is_waiting else None
        row["place"] = job.place if job is not None else 0
        row["where"] = "" if is_waiting else node_of(row["lease"])
        if row["where"] and job is not None:
            lease = self.loop.site.lease_seen(row["lease"])
            row["used_bytes"] = None if lease is None else lease.used_bytes
            row["reserved_bytes"] = row["reserved_bytes"] if lease is None else lease.reserved_bytes
        folder = self.loop.site.folder(Attempt(row["id"], row["attempt"]))
        row["folder"] = folder if row["attempt"] else None
        return row

    def tag(self, job_id: int) -> str | None:
        """Return the public name of a job's lease request, None if it has none."""
        key = self.loop.leases.key_of(job_id)
        return None if key is None else tag_of(key)

    def why(self, job: JobView) -> str:
        """Return why a job does not run yet, its state, or since when its node is not heard of."""
        if job.state is not JobState.QUEUED:
            return self.loop.site.doubt(Attempt(job.id, job.attempt)) or job.why
        trouble = self.loop.leases.trouble
        is_it = trouble and job.why == NO_NEGOTIATOR
        return f"no negotiator answers: {trouble}" if is_it else job.why

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in all."""
        return {**self.loop.engine.counts(), "ended": self.loop.journal.ended}

    @property
    def trouble(self) -> str:
        """Return the current problem of the queue, or an empty text."""
        return self.loop.trouble or self.loop.leases.trouble or self.loop.journal.trouble

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of all sites as rows for people."""
        return [] if self.loop.fleet is None else self.loop.fleet.rows()

    def facts(self) -> dict[str, Any]:
        """Return version and process, the current trouble, and the counts of jobs."""
        return {
            "version": self.version,
            "pid": os.getpid(),
            "uid": os.getuid(),
            "trouble": self.trouble,
            "drained": self.loop.engine.is_drained,
            "origin": tag_of(self.loop.leases.queue_id),
            "counts": self.counts(),
            "folded": waiting_jobs.summaries(self.loop),
        }


class QueuePeer:
    """One client of this user, and the jobs whose ends it waits for."""

    def __init__(
        self, server: QueueServer, connection: ServerConnection, sock: socket.socket
    ) -> None:
        self.server = server
        self.loop = server.loop
        self.connection = connection
        self.send = connection.send
        self.follows = False
        self._is_lost = False
        self._waits: list[tuple[int, Callable[[int], None]]] = []
        self.changes: Changes | None = None  # once this client watches jobs
        self._socket = sock
        self.uid = pidfd.credentials(sock)[1]
        doubt = _doubt(self.uid, sock)
        if doubt is not None:
            connection.turn_away(doubt)

    def when_fresh(self, message_id: int, answer: Callable[[], None]) -> None:
        """Answer a message once the waiting reasons are up to date."""

        def answer_now() -> None:
            try:
                if not self._is_lost:
                    answer()
            except GrnError as error:
                self.connection.refuse(message_id, error)
            except Exception:  # others wait for the same reasons, and this client for an answer
                log.exception("action=answer result=failed")
                text = "the queue failed on this request; see its log."
                self.connection.refuse(message_id, GrnError(text))

        self.loop.leases.refresh(answer_now)

    def lost(self) -> None:
        """Drop the client's waits; its jobs are unaffected."""
        self._is_lost = True
        if self.follows:
            self.server.subscribers.remove(self.connection)
        for job, waiter in self._waits:
            self.loop.notifications.forget(job, waiter)

    def refused(self, message: Any, error: GrnError) -> None:
        """Ignore a refusal: all jobs here are this user's own."""

    def wait_for(self, job: int, waiter: Callable[[int], None]) -> None:
        """Call `waiter` when a job has ended, unless the client is gone by then."""
        self._waits.append((job, waiter))
        self.loop.notifications.when_ended(job, waiter)

    def watch(self, jobs: Iterable[int], *, is_new: bool = False) -> None:
        """Report jobs at each change, and now unless they are new, if the client watches any."""
        if self.changes is None:
            return
        tell = self.changes.tell
        for job in jobs:
            if not is_new or job not in self.loop.engine.jobs:
                tell(job)
            self._waits.append((job, tell))
            if job in self.loop.engine.jobs:
                self.loop.notifications.when_changed(job, tell)

    def tie(self) -> str:
        """Return the name of this client's process; its jobs are cancelled when that ends."""
        try:
            return self.loop.submitters.watch_peer(self._socket)
        except ConnectionError as error:
            raise DaemonError(f"not accepted: {error}.") from error

    def row(self, job: int) -> dict[str, Any]:
        """Return a job, ended or not, as a row for people."""
        rows = self.server.rows("jobs.id = ?", [job], "jobs.id", 1)
        return rows[0] if rows else _unknown(job)

    def state(self, job: int) -> str:
        """Return the state of a job, ended or not, as the journal has it."""
        found = self.loop.journal.state_of(job)
        return _unknown(job) if found is None else found

    def end_of(self, job: int) -> dict[str, Any]:
        """Return how a job ended."""
        return self.loop.journal.end_of(job) or _unknown(job)


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
        self._untold.append({"ended": self._peer.end_of(job_id)})
        if not self._is_pausing:
            self._tell_all()

    def _tell_all(self) -> None:
        self._is_pausing = bool(self._untold)
        if self._untold:
            self._peer.connection.send_all(self._message_id, self._untold)
            self._untold = []
            asyncio.get_running_loop().call_later(_pause_s(self._peer), self._tell_all)


class Changes:
    """Changes of the jobs that one client watches: close changes are sent in one message."""

    def __init__(self, peer: QueuePeer, message_id: int) -> None:
        self._peer = peer
        self._message_id = message_id
        self._untold: dict[int, float] = {}  # job -> when to send its change
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0  # when that fires

    def tell(self, job_id: int) -> None:
        """Send a job's state in a moment; of several changes until then the latest counts.

        A start can wait a little longer: a short job has ended by then.
        """
        job = self._peer.loop.engine.jobs.get(job_id)
        has_begun = job is not None and job.state is not JobState.QUEUED
        due = self._peer.loop.now() + (_BEGIN_S if has_begun else _pause_s(self._peer))
        if job_id not in self._untold or due < self._untold[job_id]:
            self._untold[job_id] = due
            self._wake(due)

    def _wake(self, at: float) -> None:
        """Send what is due at a time; with one timer, or each message would be sent in parts."""
        if self._timer is not None:
            if self._wakes_at <= at:
                return
            self._timer.cancel()
        self._wakes_at = at
        delay_s = max(0.0, at - self._peer.loop.now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tell_what_is_due)

    def _tell_what_is_due(self) -> None:
        self._timer = None
        soon = self._peer.loop.now() + _pause_s(self._peer)  # all that have ended until now
        due = [job for job, at in self._untold.items() if at <= soon]
        for job in due:
            del self._untold[job]
        if due:
            rows = [_progress(self._peer.loop.journal, job) for job in due]
            self._peer.connection.send_all(self._message_id, [{"progress": row} for row in rows])
        if self._untold:
            self._wake(min(self._untold.values()))


def _pause_s(peer: QueuePeer) -> float:
    """Return how long ends are collected: each message wakes a client beside the next jobs."""
    return _MANY_S if len(peer.loop.engine.jobs) >= _MANY else _TOGETHER_S


def _progress(journal: Journal, job: int) -> dict[str, Any]:
    row = journal.progress_of(job)
    if row is None:
        return {"id": job, "state": "unknown"}
    row["where"] = node_of(row.pop("lease"))
    return row


def _unknown(job: int) -> NoReturn:
    raise UnknownJob(f"there is no job {job}.", "See `grn ls`.")


def _doubt(uid: int, sock: socket.socket) -> GrnError | None:
    """Return why a client is refused, or None."""
    if uid != os.getuid():
        return NotAllowed("this queue belongs to another user.")
    try:
        return queue.apart(sock)
    except ConnectionError as error:
        return DaemonError(f"{error}.")


def numbers(text: str | None) -> list[int]:
    """Read the numbers of GPUs as the journal spells them; none where they are damaged."""
    return [int(word) for word in (text or "").split(",") if word.isdecimal()]


def _rarely_set(row: dict[str, Any]) -> dict[str, Any]:
    """Take what few jobs set out of a row; return what this one sets."""
    extra, options, notify = row.pop("extra"), row.pop("options"), row.pop("notify")
    if extra == "{}" and not options and not notify:
        return {}
    asked = _object(options)
    given = {name: value for name, value in asked.items() if name in _FEW}
    given |= {"sends": bool(asked.get("send"))} | _ending(asked.get("ending"))
    given |= {"array_index": _object(extra).get("GRN_ARRAY_INDEX"), "notify": notify}
    return {name: value for name, value in given.items() if value}


def _ending(rules: Any) -> dict[str, Any]:
    """Name how a job is asked to end, where that was stated."""
    stated = rules if isinstance(rules, dict) else {}
    names: dict[Any, str] = {one.value: one.name for one in signal.Signals}
    return {"stop_signal": names.get(stated.get("signal")), "grace_s": stated.get("grace_s"),
            "again": stated.get("again")}  # fmt: skip


def _object(text: str) -> dict[str, Any]:
    """Read an object of the journal; a damaged one is empty."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _listed(text: str, otherwise: list[Any]) -> list[Any]:
    """Read a list of the journal; `otherwise` replaces a damaged one."""
    try:
        found = json.loads(text)
    except ValueError:
        return otherwise
    return found if isinstance(found, list) else otherwise
