"""Clients of the negotiator, identified by the kernel, and the state they share.

A client's identity never comes from its messages; `handlers.py` lists what it may send.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from grn import wire
from grn.daemon.connection import (
    MAX_KEPT_BYTES,
    MAX_KEPT_BYTES_PER_USER,
    ConnectionSettings,
    ServerConnection,
    Service,
    Verbs,
)
from grn.errors import GrnError, NotAllowed, UnknownJob, UsageError, from_code
from grn.model.job import Holder, Outcome, Policy
from grn.model.text import harmless
from grn.negotiator.actions import AskYield, Grant, Refuse, Settle, TellIdle, TellWaiting
from grn.negotiator.events import Lease, LeaseSettled, Released, ReporterLost, Withdrawn
from grn.negotiator.loop import ClientAction, Loop
from grn.negotiator.queries import views
from grn.negotiator.queries.forecast import inside
from grn.negotiator.queries.pages import Pages
from grn.negotiator.schedule.memory_cap import memory_cap
from grn.negotiator.storage.audit import Audit
from grn.negotiator.subscribers import Subscribers
from grn.proc.identity import peer_of
from grn.proc.processes import inner_pids
from grn.protocol import negotiator_requests

MAX_REFUSALS_NOTED = 1000  # of one user
MAX_WITHDRAWN_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds per user and in total, and what a context adds to a framework's own figure."""

    connections_per_user: int = 4096
    waiting_per_user: int = 10000
    context_bytes: int = 512 << 20
    connections: int = 1 << 20  # of all users together
    policy: Policy | None = None  # for all jobs, overriding theirs
    has_memory_caps: bool = True  # jobs are told what their framework may take
    deadline_s: float = 10.0  # to complete a frame, and to read answers
    kept_bytes_per_user: int = MAX_KEPT_BYTES_PER_USER  # of unfinished frames and unread answers,
    kept_bytes: int = MAX_KEPT_BYTES  # and of all users together


class Server:
    """The state that all clients share."""

    def __init__(
        self, loop: Loop, limits: ServerLimits, verbs: Verbs, version: str, stop: Callable[[], None]
    ) -> None:
        self.loop = loop
        self.audit = Audit(os.path.dirname(loop.store.path))
        self.limits = limits
        self.version = version
        self.stop = stop
        self.pages = Pages(loop.view, loop.forecasts)
        self.subscribers = Subscribers(loop, self.facts_to_follow)
        loop.sampler.is_followed = lambda: len(self.subscribers) > 0
        self.started_at = time.time()
        self.asking: dict[str, Peer] = {}  # request key -> the client that waits for the answer
        self.reporters: dict[str, Peer] = {}  # lease -> the client that reports its end
        # lease -> clients that ended it, and the messages to answer
        self.ending: dict[str, list[tuple[Peer, int | None]]] = {}
        loop.deliver = self.deliver
        self.connections: Counter[int] = Counter()
        self.waiting: Counter[int] = Counter()
        self.refusals: Counter[int] = Counter()
        self.namespaces = len(inner_pids(os.getpid()))
        self._leaving: deque[Peer] = deque()  # lost clients with requests to withdraw
        settings = ConnectionSettings(
            "negotiator", negotiator_requests.read, verbs, wire.MAX_REQUEST_BYTES,
            limits.deadline_s, limits.kept_bytes_per_user, limits.kept_bytes,
        )  # fmt: skip
        self._service = Service(settings, lambda connection, peer: Peer(self, connection, peer))

    def connection(self) -> ServerConnection:
        """Make the protocol of one new connection."""
        return self._service.connection()

    def close(self) -> None:
        """Close all connections; clients reconnect to the next negotiator."""
        self._service.is_closed = True

    @property
    def kept_bytes(self) -> int:
        """Return the size of unfinished frames and unread answers."""
        return self._service.kept.in_all

    @property
    def is_idle(self) -> bool:
        """True when no lease is held and all connected clients only read."""
        others = self.connections.total() - len(self.subscribers)
        return not others and not self.loop.view.leases

    def facts(self) -> dict[str, Any]:
        """Return version, process, user and warnings of the negotiator."""
        self.loop.sampler.refresh_host()
        return {
            "version": self.version,
            "pid": os.getpid(),
            "uid": os.getuid(),
            "trouble": self.loop.trouble,
            "host": views.host(self.loop.view),
            "starts_told": len(self.loop.forecasts.starts),
            "starts_inside": inside(self.loop.forecasts.starts),
            "types_dropped": sum(self.loop.view.types_dropped.values()),
        }

    def facts_to_follow(self) -> dict[str, Any]:
        """Return these facts, the number of ended leases by outcome, and all bookings."""
        return {
            **self.facts(), "started_at": self.started_at,
            "outcomes": self.loop.history.outcomes(),
            "bookings": views.bookings(self.loop.view, self.loop.now()),
        }  # fmt: skip

    def deliver(self, action: ClientAction) -> None:
        """Pass on an action to the clients it is for."""
        if isinstance(action, AskYield):
            reporter = self.reporters.get(action.lease.id)
            if reporter is not None:
                reporter.ask_yield(action.lease)
            return
        if isinstance(action, TellIdle):
            reporter = self.reporters.get(action.lease.id)
            if reporter is not None:
                reporter.tell_idle(action)
            return
        if isinstance(action, Settle):
            lease_id = action.lease.id
            for peer, message_id in self.ending.pop(lease_id, ()):
                peer.tell_end(message_id, lease_id, action.settled)
            if self.reporters.pop(lease_id, None) is not None:  # it will report the end as well
                self.loop.history.lost(lease_id, action.settled)
            return
        asking = self.asking.get(action.key)
        if asking is not None:
            if not isinstance(action, TellWaiting):
                del self.asking[action.key]
            asking.answer(action)

    def withdraw_all_of(self, peer: Peer) -> None:
        """Withdraw a lost client's requests, after those of clients that were lost before."""
        self._leaving.append(peer)
        if len(self._leaving) == 1:
            self._withdraw_some()

    def _withdraw_some(self) -> None:
        """Withdraw a limited number of requests per turn of the event loop."""
        peer = self._leaving[0]
        try:
            peer.withdraw(MAX_WITHDRAWN_AT_ONCE)
        finally:  # a failure must not keep the requests of all others
            if not peer.asked:
                self._leaving.popleft()
            if self._leaving:
                asyncio.get_running_loop().call_soon(self._withdraw_some)


class Peer:
    """One client: its identity, its waiting requests, and its leases."""

    def __init__(self, server: Server, connection: ServerConnection, sock: socket.socket) -> None:
        self.server = server
        self.loop = server.loop
        self.send = connection.send
        self.push = connection.push
        self.holder: Holder | None = None
        self.asked: dict[str, int] = {}  # request key -> id of the message to answer
        self.granted: set[str] = set()  # leases this connection asked for
        self._heard: list[str] = []  # leases it ended quietly, to be told with the next grant
        self.follows = False
        self.is_queue = False  # it can end its jobs and run them again
        self._connection = connection
        self._is_contained: bool | None = None  # not looked up yet
        holder, self.uid, pidfd = peer_of(sock)
        server.connections[self.uid] += 1
        if holder is not None and self.loop.holders.watch(holder, pidfd):
            self.holder = holder
        limits, open_now = server.limits, server.connections
        if open_now[self.uid] > limits.connections_per_user:
            most = limits.connections_per_user
            connection.turn_away(UsageError(f"this user has {most} connections already."))
        elif open_now.total() > limits.connections:
            connection.turn_away(UsageError(f"there are {limits.connections} connections already."))

    @property
    def is_stuffed(self) -> bool:
        """True while the client reads too few of its answers."""
        return self._connection.is_stuffed

    def lost(self) -> None:
        """Withdraw the client's requests; its leases stay with their processes."""
        if self.follows:
            self.server.subscribers.remove(self)
        self.server.connections[self.uid] -= 1
        if self.asked:
            self.server.withdraw_all_of(self)
        loop = self.loop
        for lease_id in self.granted:
            if self.server.reporters.get(lease_id) is self:
                del self.server.reporters[lease_id]
        for lease_id in self.granted & loop.view.leases.keys():
            loop.line_lost(lease_id)
            if loop.view.leases[lease_id].request.holder is None:
                # Only this connection proved that such a holder is alive.
                loop.release(Released(loop.now(), lease_id, Outcome.FAILED))
            else:
                loop.tell(ReporterLost(loop.now(), lease_id))
        if self.holder is not None:
            self.loop.holders.unwatch(self.holder)

    def withdraw(self, most: int) -> None:
        """Withdraw some requests of this client."""
        for key in list(islice(self.asked, most)):
            self._answered(key)
            if self.server.asking.get(key) is self:  # else another connection has taken it over
                del self.server.asking[key]
                self.loop.tell(Withdrawn(self.loop.now(), key))

    def refused(self, message: Any, error: GrnError) -> None:
        """Log an attempt to change what belongs to others."""
        refusals = self.server.refusals
        if isinstance(error, NotAllowed) and refusals[self.uid] < MAX_REFUSALS_NOTED:
            refusals[self.uid] += 1  # a flood must not displace other users' lines
            verb = message.__struct_config__.tag
            names = (getattr(message, name, "") for name in ("lease", "key", "type", "booking"))
            thing = next(filter(None, names), "")
            self.note(verb, str(thing), "refused")

    def note(self, verb: str, thing: str, result: str = "done") -> None:
        """Log an action of this client that concerns others."""
        pid = self.holder.pid if self.holder is not None else None
        self.server.audit.note(self.uid, pid, verb, thing, result)

    def answer(self, action: Grant | Refuse | TellWaiting) -> None:
        """Send the engine's answer to a request."""
        message_id = self.asked.get(action.key)
        if message_id is None:
            return
        if isinstance(action, TellWaiting):
            wait = action.wait
            text = {"reason": wait.reason.value, "text": harmless(wait.text)}
            self.send(message_id, {"ev": "waiting", **text})
            return
        self._answered(action.key)
        if isinstance(action, Refuse):
            self._connection.refuse(message_id, from_code(action.code, action.message, action.hint))
            return
        self.granted.add(action.lease.id)
        if action.lease.request.yields or self.is_queue:
            self.server.reporters[action.lease.id] = self
        may_end_quietly = not self.loop.view.is_measured_at_its_end(action.lease.id)
        grant = views.granted(action, self.indices_hold(), self.cap(action), may_end_quietly)
        if self._heard:
            grant["heard"], self._heard = self._heard, []
        self.send(message_id, grant)
        self._connection.flush()  # a GPU is idle until it is read
        request = action.lease.request
        if request.holder is not None and request.holder == self.holder and not request.is_command:
            self.loop.survivors.line_open(action.lease.id)

    def cap(self, grant: Grant) -> float | None:
        """Return the part of its GPUs that a job's framework may take, None without a cap."""
        limits = self.server.limits
        if not limits.has_memory_caps:
            return None
        return memory_cap(grant.lease, grant.gpus, limits.context_bytes)

    def ask_yield(self, lease: Lease) -> None:
        """Ask this client to end the job of a lease; clients of earlier versions ignore it."""
        idle = {} if lease.request.yields else {"idle": True}
        self.send(None, {"ev": "yield", "lease": lease.id, **idle})

    def tell_idle(self, told: TellIdle) -> None:
        """Tell this client that the job of a lease is idle; earlier versions ignore it."""
        message = {"ev": "idle", "lease": told.lease.id, "idle_s": round(told.idle_s, 3)}
        self.send(None, message | {"held": told.held_bytes, "end": told.is_to_end})

    def tell_end(self, message_id: int | None, lease_id: str, settled: LeaseSettled) -> None:
        """Answer with the outcome of a lease that this client ended; quietly if it has no id."""
        if message_id is None:
            self._heard.append(lease_id)
            return
        ended = settled.outcome.lease_word if settled.outcome else None
        facts: dict[str, Any] = {"alone": settled.was_alone, "peak": settled.peak_bytes}
        if settled.because:
            facts |= {"victim": settled.is_victim, "because": harmless(settled.because)}
            facts["larger"] = settled.has_larger
        self.send(message_id, {"ok": True, "ended": ended, **facts})

    def _answered(self, key: str) -> None:
        if self.asked.pop(key, None) is not None:
            self.server.waiting[self.uid] -= 1

    def own(self, lease_id: str, verb: str) -> Lease:
        """Return a lease that this client may change; log it when it is another user's."""
        lease = self.loop.view.leases.get(lease_id)
        if lease is None:
            raise UnknownJob(f"there is no lease {lease_id}.", "See `grn ps`.")
        if lease.request.user != self.uid:
            if not self.is_root:
                raise NotAllowed(f"lease {lease_id} belongs to another user.")
            self.note(verb, lease_id)
        return lease

    def held_by_key(self, key: str) -> Lease | None:
        """Return the lease that was granted to a request and is held."""
        return self.loop.view.held_by_key(key)

    def owner_of(self, key: str) -> int | None:
        """Return the owner of a lease or request, None when there is none."""
        lease = self.held_by_key(key)
        if lease is not None:
            return lease.request.user
        group = self.loop.view.waitlist.group_of(key)
        return group.members[key].request.user if group is not None else None

    @property
    def is_contained(self) -> bool:
        """True in a child pid namespace, or where the kernel does not show the process."""
        if self._is_contained is None:
            pids = inner_pids(self.holder.pid) if self.holder else []
            self._is_contained = not pids or len(pids) > self.server.namespaces
        return self._is_contained

    @property
    def is_root(self) -> bool:
        """True for root of the machine; root of a container has no more rights than any user."""
        return self.uid == 0 and not self.is_contained

    @property
    def is_keeper(self) -> bool:
        """True for root and the user who runs the negotiator, outside of containers."""
        return self.uid in (0, os.getuid()) and not self.is_contained

    def indices_hold(self) -> bool:
        """True when indices name the same GPUs for this client: not inside a container."""
        return not self.is_contained and self.loop.indices_hold
