"""The socket: who speaks, whether the message is one of ours, and the replies.

Bad input ends here, as an error for that client alone; only facts go on to the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from grn import schemas, wire
from grn.errors import (
    GrnError,
    NotAllowed,
    ProtocolError,
    UnknownJob,
    UsageError,
    from_code,
)
from grn.gpus import trees
from grn.model.job import Argument, Holder, Outcome, Policy, Request
from grn.negotiator import messages, picture, report
from grn.negotiator.events import (
    Grant,
    HolderChanged,
    Lease,
    LeaseState,
    ProfileForgotten,
    Refuse,
    Requested,
    TellWaiting,
    Withdrawn,
)
from grn.negotiator.followers import Followers
from grn.negotiator.holders import peer_of
from grn.negotiator.loop import Ending, Loop, Settled

log = logging.getLogger(__name__)
MOST_UNREAD_BYTES = 64 << 10
MOST_ASKED_AT_ONCE = 1024
TURN_S = 0.005
AWAKE_S = 0.0002

_encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Limits:
    """What one user may take up, and what a context adds to a framework's own figure."""

    connections_per_user: int = 4096
    waiting_per_user: int = 10000
    context_bytes: int = 512 << 20
    connections: int = 1 << 20  # of all users together
    deadline_s: float = 10.0  # to end a frame once begun, and to read what was answered


class Server:
    """All connections, and the table of what they may say."""

    def __init__(self, loop: Loop, limits: Limits, version: str, stop: Callable[[], None]) -> None:
        self.loop = loop
        self.limits = limits
        self.version = version
        self.stop = stop
        self.followers = Followers(loop, self.facts_to_follow)
        self.started_at = time.time()
        self.connections: Counter[int] = Counter()
        self.waiting: Counter[int] = Counter()
        # What a client sent, until it is cut into frames at once. One for all: asyncio's own way
        # is a new block of 256 KiB for each message, which the system maps and unmaps.
        self.arrived = bytearray(1 << 16)
        self.namespaces = len(trees.inner_pids(os.getpid()))
        self._is_awake = False
        self._awake_until = 0.0
        self.is_closed = False  # what clients do from now on is for the next negotiator to hear

    @property
    def is_idle(self) -> bool:
        """True when nothing is leased and nobody is connected but to look on."""
        others = self.connections.total() - len(self.followers)
        return not others and not self.loop.engine.leases

    def facts(self) -> dict[str, Any]:
        """Return who we are and what troubles us."""
        return {
            "version": self.version,
            "pid": os.getpid(),
            "uid": os.getuid(),
            "trouble": self.loop.store.trouble,
        }

    def facts_to_follow(self) -> dict[str, Any]:
        """Return these and how many leases have ended how, for those who count."""
        outcomes = self.loop.history.outcomes()
        return {**self.facts(), "started_at": self.started_at, "outcomes": outcomes}

    def stay_awake(self) -> None:
        """Listen on for a moment without falling asleep: who has asked often asks again at once.

        A short lease is two messages, and to wake up takes as long as to answer.
        """
        self._awake_until = self.loop.now() + AWAKE_S
        if not self._is_awake:
            self._is_awake = True
            asyncio.get_running_loop().call_soon(self._linger)

    def _linger(self) -> None:
        self._is_awake = self.loop.now() < self._awake_until
        if self._is_awake:
            os.sched_yield()  # others first
            asyncio.get_running_loop().call_soon(self._linger)

    def connection(self) -> Connection:
        """Make the protocol of one new connection."""
        return Connection(self)

    def may_change(self, uid: int, owner: int) -> bool:
        """True for the owner, root, and whoever runs the negotiator."""
        return uid in (owner, 0, os.getuid())


class Connection(asyncio.BufferedProtocol):
    """One client. Its identity comes from the kernel, never from what it says."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = server.loop
        self._frames = wire.Frames(wire.MAX_REQUEST_BYTES)
        self._transport: asyncio.Transport | None = None
        self._holder: Holder | None = None
        self._uid = -1
        self._asked: dict[str, int] = {}  # request key -> id of the message to answer
        self._granted: set[str] = set()  # leases this connection asked for
        self._is_contained: bool | None = None  # not looked up yet
        self._todo: deque[bytes] = deque()  # frames that wait for their turn
        self._is_stuffed = False  # it has more answers than it reads
        self._follows = False
        self._frame_deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None

    # --- the life of a connection --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MOST_UNREAD_BYTES)
        peer: socket.socket = transport.get_extra_info("socket")
        holder, self._uid, pidfd = peer_of(peer)
        self._server.connections[self._uid] += 1
        if holder is not None and self._loop.holders.watch(holder, pidfd):
            self._holder = holder
        limits, open_now = self._server.limits, self._server.connections
        if open_now[self._uid] > limits.connections_per_user:
            self._turn_away(f"this user has {limits.connections_per_user} connections already.")
        elif open_now.total() > limits.connections:
            self._turn_away(f"there are {limits.connections} connections already.")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._server.is_closed:
            return
        if self._follows:
            self._server.followers.remove(self)
        self._server.connections[self._uid] -= 1
        self._transport = None
        self._todo.clear()
        for timer in filter(None, (self._frame_deadline, self._read_deadline)):
            timer.cancel()
        for key in list(self._asked):
            self._answered(key)
            if self._loop.forget(key, self._answer):  # else another connection asks by now
                self._loop.tell(Withdrawn(self._loop.now(), key))
        for lease_id in self._granted & self._loop.engine.leases.keys():
            if self._loop.engine.leases[lease_id].request.holder is None:
                # Nothing but this connection ever proved that such a holder is alive.
                self._loop.release(lease_id, Ending(Outcome.FAILED), _nobody_cares)
            else:
                self._loop.no_report(lease_id)
        if self._holder is not None:
            self._loop.holders.unwatch(self._holder)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._server.arrived

    def buffer_updated(self, nbytes: int) -> None:
        try:
            bodies = self._frames.feed(self._server.arrived[:nbytes])
        except ProtocolError as error:
            self._todo.clear()
            self._turn_away(error.message, ProtocolError)
            return
        if bodies and self._frame_deadline is not None:
            self._frame_deadline.cancel()
            self._frame_deadline = None
        self._todo.extend(bodies)
        self._work()

    def _work(self) -> None:
        """Answer for a moment what was asked; the rest comes after the turn of all others."""
        turn_ends_at = self._loop.now() + TURN_S
        while self._todo and self._transport is not None:
            if self._transport.is_closing() or self._server.is_closed:
                return
            if self._is_stuffed or self._loop.now() > turn_ends_at:
                self._transport.pause_reading()
                if not self._is_stuffed:
                    asyncio.get_running_loop().call_soon(self._work)
                return
            self._read(self._todo.popleft())
        if self._transport is not None and not self._is_stuffed:
            self._transport.resume_reading()
            if self._frames.is_mid_frame and self._frame_deadline is None:
                # So long from its first byte to its last, however slowly they drip; but it does
                # not count while we do not listen.
                self._frame_deadline = self._drop_later("half-a-frame")

    def pause_writing(self) -> None:
        """Hear a client no further until it reads its answers; drop one that never does."""
        self._is_stuffed = True
        self._read_deadline = self._drop_later("not-reading")

    def resume_writing(self) -> None:
        self._is_stuffed = False
        if self._read_deadline is not None:
            self._read_deadline.cancel()
        self._work()

    def _drop_later(self, reason: str) -> asyncio.TimerHandle:
        def drop() -> None:
            if self._transport is not None:
                log.warning("action=drop-connection uid=%d reason=%s", self._uid, reason)
                self._transport.abort()

        return asyncio.get_running_loop().call_later(self._server.limits.deadline_s, drop)

    @property
    def uid(self) -> int:
        """Return whose connection this is."""
        return self._uid

    @property
    def is_stuffed(self) -> bool:
        """True while there are more answers than are read."""
        return self._is_stuffed

    def push(self, body: bytes) -> None:
        """Send what is a message already."""
        if self._transport is not None:
            self._transport.write(wire.HEADER.pack(len(body)) + body)

    def _turn_away(self, text: str, kind: type[GrnError] = UsageError) -> None:
        self._refuse(None, kind(text))
        if self._transport is not None:
            self._transport.close()

    def _read(self, body: bytes) -> None:
        message_id: int | None = None
        try:
            message = messages.read(body)
            message_id = message.id
            _TABLE[type(message)](self, message)
        except schemas.Rejected as rejected:
            self._refuse(rejected.message_id, rejected.error)
        except GrnError as error:
            self._refuse(message_id, error)
        except Exception:
            # A request that breaks something must not end the negotiator for all others; the
            # client is told and the traceback is kept.
            log.exception("action=answer uid=%d result=failed", self._uid)
            self._refuse(
                message_id, GrnError("the negotiator failed on this request; see its log.")
            )

    def _send(self, message_id: int | None, message: dict[str, Any]) -> None:
        if self._transport is not None:
            body = _encode_json({"id": message_id, **message})
            self._transport.write(wire.HEADER.pack(len(body)) + body)

    def _refuse(self, message_id: int | None, error: GrnError) -> None:
        message, hint = report.harmless(error.message), report.harmless(error.hint)
        text = {"code": type(error).__name__, "message": message, "hint": hint}
        self._send(message_id, {"error": text})

    # --- what a client may say -----------------------------------------------------------

    def lease(self, message: messages.LeaseAsked) -> None:
        if message.within and self._nested(message.id, message.within):
            return
        if len(self._asked) >= MOST_ASKED_AT_ONCE:
            raise UsageError(f"{MOST_ASKED_AT_ONCE} requests wait on this connection already.")
        most = self._server.limits.waiting_per_user
        if self._server.waiting[self._uid] >= most:
            raise UsageError(f"{most} requests of this user wait already.")
        if message.key in self._asked:
            raise UsageError("a request with this key waits already.")
        if self._owner_of(message.key) not in (None, self._uid):
            raise NotAllowed("a request with this key belongs to another user.")
        self._asked[message.key] = message.id
        self._server.waiting[self._uid] += 1
        self._loop.expect(message.key, self._answer)
        self._loop.tell(Requested(self._loop.now(), self._request(message)))
        if not message.command:  # a command has a process to start before it is over
            self._server.stay_awake()

    def hold(self, message: messages.HoldAsked) -> None:
        lease = self._own(message.lease)
        if lease.state is not LeaseState.HELD:
            raise UnknownJob(f"lease {lease.id} has ended: its process is gone.")
        holder = self._holder
        if message.pid is not None and holder is not None:
            speaker = holder.pid
            holder = trees.child_of(speaker, message.pid)
            holder = holder or trees.ancestor_of(speaker, message.pid, self._uid)
        if holder is None:
            raise UsageError("the kernel does not show this process; it cannot hold a lease.")
        before = lease.request.holder
        if holder != before and self._loop.holders.watch(holder):
            if before is not None:
                self._loop.holders.unwatch(before)
            self._loop.tell(HolderChanged(self._loop.now(), lease.id, holder))
            if lease.id not in self._granted or message.pid is not None:
                self._loop.expect_report(lease.id)  # the parent will know how it ended
        self._send(message.id, {"ok": True})

    def done(self, message: messages.DoneSaid) -> None:
        ended = self._loop.end_of(message.lease)
        if ended is not None or message.lease not in self._loop.engine.leases:
            self._ended(message.id, ended or Settled(None))
            return
        lease = self._own(message.lease)
        self._granted.discard(lease.id)
        context = self._server.limits.context_bytes
        gpu_peak = message.peak + context if message.peak is not None else None
        outcome = Outcome(message.outcome)
        ending = Ending(outcome, gpu_peak, message.resident, message.asked)
        is_command = lease.request.is_command or lease.request.has_parent
        self._loop.release(lease.id, ending, lambda how: self._ended(message.id, how))
        if not is_command:
            self._server.stay_awake()

    def watch(self, message: messages.WatchAsked) -> None:
        lease = self._own(message.lease)
        self._granted.add(lease.id)
        self._loop.expect_report(lease.id)
        self._send(message.id, {"ok": True})

    def _ended(self, message_id: int, settled: Settled) -> None:
        ended = settled.outcome.value if settled.outcome else None
        facts = {"alone": settled.was_alone, "peak": settled.peak_bytes}
        self._send(message_id, {"ok": True, "ended": ended, **facts})

    def cancel(self, message: messages.CancelAsked) -> None:
        if self._owner_of(message.key) not in (None, self._uid) and self._uid != 0:
            raise NotAllowed("this request belongs to another user.")
        lease = self._held_by_key(message.key)
        if lease is not None:
            self._loop.release(lease.id, Ending(Outcome.FAILED), _nobody_cares)
        elif message.key in self._loop.engine.waitlist:
            self._loop.take_back(message.key)
        self._send(message.id, {"ok": True})

    def status(self, message: messages.StatusAsked) -> None:
        self._send(message.id, {"status": self._whole_status()})

    def follow(self, message: messages.FollowAsked) -> None:
        if self._follows:
            raise UsageError("this connection follows already.")
        self._server.followers.add(self, message.id)
        self._follows = True

    def samples(self, message: messages.SamplesAsked) -> None:
        engine, history = self._loop.engine, self._loop.history
        offset_s = time.time() - self._loop.now()
        if message.lease is not None:
            found = history.curves.get(message.lease)
            if found is None:
                text = f"no samples of lease {message.lease} are kept."
                raise UnknownJob(text, "Short ones have none, and old ones are forgotten.")
            self._send(message.id, {"curve": picture.curve(message.lease, found, offset_s)})
            return
        show = picture.minute_samples if message.span == "day" else picture.recent_samples
        self._send(message.id, {"samples": show(engine, history, offset_s)})

    def why(self, message: messages.WhyAsked) -> None:
        found = report.explain(self._loop.engine, message.name, self._loop.now())
        if not found:
            raise UnknownJob(f"nothing runs or waits under '{message.name}'.", "See `grn ps`.")
        self._send(message.id, {"why": found})

    def profiles(self, message: messages.ProfilesAsked) -> None:
        self._send(message.id, {"profiles": report.profiles(self._loop.engine, message.type)})

    def forget(self, message: messages.ForgetAsked) -> None:
        known = [
            profile
            for profile in self._loop.engine.memory.profiles()
            if message.type in (profile.job_type, profile.label)
        ]
        if not known:
            raise UnknownJob(f"no job type '{message.type}' is known.", "See `grn profiles`.")
        if not all(self._server.may_change(self._uid, profile.owner) for profile in known):
            raise NotAllowed("this profile was learned from another user's jobs.")
        for job_type in {profile.job_type for profile in known}:
            self._loop.tell(ProfileForgotten(self._loop.now(), job_type))
        self._send(message.id, {"forgotten": len(known)})

    def ping(self, message: messages.PingSaid) -> None:
        self._send(
            message.id,
            {"version": self._server.version, "pid": os.getpid(), "uid": os.getuid()},
        )

    def stop(self, message: messages.StopAsked) -> None:
        if not self._server.may_change(self._uid, os.getuid()):
            raise NotAllowed("only the user who started the negotiator, or root, can stop it.")
        self._send(message.id, {"ok": True, "leases": len(self._loop.engine.leases)})
        self._server.stop()

    # --- helpers of the above ------------------------------------------------------------

    def _request(self, message: messages.LeaseAsked) -> Request:
        arguments: tuple[Argument, ...] = ()
        if message.args:
            arguments = tuple(
                (name, value) for name, value in message.args.items() if value is not None
            )
        return Request(
            key=message.key,
            lease=os.urandom(4).hex(),
            job_type=message.type,
            label=report.harmless(message.label),
            user=self._uid,
            gpus=message.gpus,
            mem_bytes=message.mem,
            is_exclusive=message.exclusive,
            priority=message.priority,
            policy=Policy(message.policy),
            holder=self._holder,
            arguments=arguments,
            slots=tuple(message.slots),
            stay=tuple(message.stay),
            is_command=message.command,
            attempt=message.attempt,
        )

    def _answer(self, action: Grant | Refuse | TellWaiting) -> None:
        message_id = self._asked.get(action.key)
        if message_id is None:
            return
        if isinstance(action, TellWaiting):
            wait = action.wait
            text = {"reason": wait.reason.value, "text": report.harmless(wait.text)}
            self._send(message_id, {"ev": "waiting", **text})
            return
        self._answered(action.key)
        if isinstance(action, Refuse):
            self._refuse(message_id, from_code(action.code, action.message, action.hint))
            return
        self._granted.add(action.lease.id)
        self._send(message_id, report.granted(action, self._wants_uuids()))

    def _answered(self, key: str) -> None:
        if self._asked.pop(key, None) is not None:
            self._server.waiting[self._uid] -= 1

    def _nested(self, message_id: int, lease_id: str) -> bool:
        """Answer a call inside a running job: it uses the lease that job holds."""
        lease = self._loop.engine.leases.get(lease_id)
        if lease is None or lease.request.user != self._uid or lease.state is not LeaseState.HELD:
            return False
        gpus = tuple(self._loop.engine.books[uuid].gpu for uuid in lease.gpus)
        grant = Grant(lease.request.key, lease, gpus)
        answer = report.granted(grant, self._wants_uuids())
        self._send(message_id, answer | {"nested": True, "probe": False})
        return True

    def _held_by_key(self, key: str) -> Lease | None:
        for lease in self._loop.engine.leases.values():
            if lease.request.key == key and lease.state is LeaseState.HELD:
                return lease
        return None

    def _owner_of(self, key: str) -> int | None:
        """Return whose lease or request this is, None when there is none."""
        lease = self._held_by_key(key)
        if lease is not None:
            return lease.request.user
        group = self._loop.engine.waitlist.group_of(key)
        return group.members[key].request.user if group is not None else None

    def _own(self, lease_id: str) -> Lease:
        lease = self._loop.engine.leases.get(lease_id)
        if lease is None:
            raise UnknownJob(f"there is no lease {lease_id}.", "See `grn ps`.")
        if lease.request.user != self._uid and self._uid != 0:
            raise NotAllowed(f"lease {lease_id} belongs to another user.")
        return lease

    def _wants_uuids(self) -> bool:
        """Inside a container the numbers of GPUs may differ from ours; their UUIDs do not."""
        if self._is_contained is None:
            pids = trees.inner_pids(self._holder.pid) if self._holder else []
            self._is_contained = not pids or len(pids) > self._server.namespaces
        return self._is_contained or self._loop.has_shifted

    def _whole_status(self) -> dict[str, Any]:
        whole = report.status(self._loop.engine, self._loop.now())
        return {"schema": 1, **self._server.facts(), **whole}


def _nobody_cares(_settled: Settled) -> None:
    """Stand for the client that is gone."""


_TABLE: dict[type, Callable[[Connection, Any], None]] = {
    messages.LeaseAsked: Connection.lease,
    messages.HoldAsked: Connection.hold,
    messages.DoneSaid: Connection.done,
    messages.WatchAsked: Connection.watch,
    messages.CancelAsked: Connection.cancel,
    messages.StatusAsked: Connection.status,
    messages.FollowAsked: Connection.follow,
    messages.SamplesAsked: Connection.samples,
    messages.WhyAsked: Connection.why,
    messages.ProfilesAsked: Connection.profiles,
    messages.ForgetAsked: Connection.forget,
    messages.PingSaid: Connection.ping,
    messages.StopAsked: Connection.stop,
}
