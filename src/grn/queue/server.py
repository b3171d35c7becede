"""Clients of the queue, and the state that all their connections share.

`handlers.py` lists the messages that a client may send.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from grn.client import trust
from grn.daemon.connection import ConnectionSettings, Service, Talk, Verbs
from grn.errors import DaemonError, GrnError, NotAllowed, UnknownJob
from grn.model.tag import tag_of
from grn.protocol import queue_requests
from grn.queue.job import JobView
from grn.queue.loop import QueueLoop
from grn.queue.site import Attempt
from grn.queue.subscribers import QueueSubscribers

log = logging.getLogger(__name__)
DEADLINE_S = 30.0
MAX_REQUEST_BYTES = 32 << 20


class QueueServer:
    """The state that all clients share."""

    def __init__(
        self,
        loop: QueueLoop,
        verbs: Verbs,
        version: str,
        stop: Callable[[], None],
        hold: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.version = version
        self.stop = stop
        self.hold = hold  # raises when another process is this user's queue
        self.followers = QueueSubscribers(loop, self)
        self.connections = 0
        most = 8 * MAX_REQUEST_BYTES  # its one client is the user who runs it
        manners = ConnectionSettings(
            "queue", queue_requests.read, verbs, MAX_REQUEST_BYTES, DEADLINE_S, most, most
        )
        self._service = Service(manners, lambda talk, peer: QueuePeer(self, talk, peer))

    def connection(self) -> Talk:
        """Make the protocol of one new connection."""
        return self._service.talk()

    @property
    def is_idle(self) -> bool:
        """True when no job is left and all connected clients only read."""
        return self.connections == len(self.followers) and not self.loop.engine.jobs

    def rows(self, where: str, values: list[Any], order: str, most: int) -> list[dict[str, Any]]:
        """Return jobs of the journal as rows for people."""
        return [self.shown(row) for row in self.loop.journal.rows(where, values, order, most)]

    def shown(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of the journal for people."""
        job = self.loop.engine.jobs.get(row["id"])
        row["argv"] = _listed(row["argv"], [row["argv"]])
        row["after"] = _listed(row["after"], []) if row["after"] else []
        row["gpus"] = numbers(row["gpus"])
        for name in ("is_exclusive", "may_requeue", "is_held"):
            row[name] = bool(row[name])
        row["group"] = row.pop("group_name")
        row.pop("policy")
        row["why"] = self.why(job) if job is not None else row["text"]
        if job is not None:
            row["state"] = "held" if job.is_held else job.state.value
        folder = self.loop.site.folder(Attempt(row["id"], row["attempt"]))
        row["folder"] = folder if row["attempt"] else None
        return row

    def why(self, job: JobView) -> str:
        """Return why a job does not run yet, or its state."""
        trouble = self.loop.leases.trouble
        is_it = trouble and job.why == "no negotiator answers"
        return f"{job.why}: {trouble}" if is_it else job.why

    def counts(self) -> dict[str, int]:
        """Return how many jobs there are in all."""
        return {**self.loop.engine.counts(), "ended": self.loop.journal.ended}

    @property
    def trouble(self) -> str:
        """Return the current problem of the queue, or an empty text."""
        return self.loop.trouble or self.loop.leases.trouble or self.loop.journal.trouble

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
        }


class ChangeTeller(Protocol):
    """Sends a client the changes of jobs."""

    def tell(self, job_id: int) -> None: ...


class QueuePeer:
    """One client of this user, and the jobs whose ends it waits for."""

    def __init__(self, server: QueueServer, talk: Talk, connection: socket.socket) -> None:
        self.server = server
        self.loop = server.loop
        self.talk = talk
        self.send = talk.send
        self.follows = False
        self._is_lost = False
        self._waits: list[tuple[int, Callable[[int], None]]] = []
        self.changes: ChangeTeller | None = None  # once this client watches jobs
        self._connection = connection
        self.uid = trust.user_of(connection)
        server.connections += 1
        doubt = _doubt(self.uid, connection)
        if doubt is not None:
            talk.turn_away(doubt)

    def when_fresh(self, message_id: int, answer: Callable[[], None]) -> None:
        """Answer a message once the waiting reasons are up to date."""

        def answer_now() -> None:
            try:
                if not self._is_lost:
                    answer()
            except GrnError as error:
                self.talk.refuse(message_id, error)
            except Exception:  # others wait for the same reasons, and this client for an answer
                log.exception("action=answer result=failed")
                text = "the queue failed on this request; see its log."
                self.talk.refuse(message_id, GrnError(text))

        self.loop.leases.refresh(answer_now)

    def lost(self) -> None:
        """Drop the client's waits; its jobs are unaffected."""
        self._is_lost = True
        self.server.connections -= 1
        if self.follows:
            self.server.followers.remove(self.talk)
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
            return self.loop.submitters.watch_peer(self._connection)
        except ConnectionError as error:
            raise DaemonError(f"not accepted: {error}.") from error

    def row(self, job: int) -> dict[str, Any]:
        """Return the row of a job, ended or not."""
        rows = self.loop.journal.rows("jobs.id = ?", [job], "jobs.id", 1)
        if not rows:
            raise UnknownJob(f"there is no job {job}.", "See `grn ls`.")
        return rows[0]


def _doubt(uid: int, connection: socket.socket) -> GrnError | None:
    """Return why a client is refused, or None."""
    if uid != os.getuid():
        return NotAllowed("this queue belongs to another user.")
    try:
        return trust.apart(connection)
    except ConnectionError as error:
        return DaemonError(f"{error}.")


def numbers(text: str | None) -> list[int]:
    """Read the numbers of GPUs as the journal spells them; none where they are damaged."""
    return [int(word) for word in (text or "").split(",") if word.isdecimal()]


def _listed(text: str, otherwise: list[Any]) -> list[Any]:
    """Read a list of the journal; `otherwise` replaces a damaged one."""
    try:
        found = json.loads(text)
    except ValueError:
        return otherwise
    return found if isinstance(found, list) else otherwise
