"""One node as the queue sees it: a stream to its agent, made again whenever it is lost.

A node that cannot be reached keeps its attempts: what became of them is not known until its agent
answers again, or an engine vouches that the node is gone. `node_attempts.py` has the frames about
them. Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from grn import __version__
from grn.errors import ProtocolError
from grn.protocol.lease_messages import GrantedGpus, IdleTold
from grn.queue.jobs.job import AttemptFate, Exit, Settlement
from grn.queue.journal.rows import Command
from grn.queue.leases import Leases
from grn.queue.site import Attempt
from grn.queue.sites import stream
from grn.queue.sites.frame_writer import ARRIVED, FrameWriter
from grn.queue.sites.leases.node_leases import LeaseTransport, NodeLeases
from grn.queue.sites.leases.remote_lease import NodeAddress, RemoteLease
from grn.queue.sites.node_attempts import NodeAttempts
from grn.queue.sites.reconnect import Reconnection
from grn.queue.sites.stream import FilePiece, Frame, LeaseBytes, LogPiece, Message

log = logging.getLogger(__name__)
FULL_S = 15.0


class NodeListener(Protocol):
    """The router, as a node sees it."""

    def has_work(self) -> bool: ...

    def node_changed(self, node: Node) -> None: ...

    def other_node_of(self, node: Node, agent: str) -> str:
        """Return another node that this agent answered as; empty if there is none."""

    def granted(self, node: Node, job: int, grant: GrantedGpus) -> None: ...

    def awaited(self, node: Node, job: int, text: str) -> None: ...

    def reasons(self, node: Node, texts: dict[int, str]) -> None: ...

    def refused(self, node: Node, job: int, text: str) -> None: ...

    def yield_asked(self, node: Node, lease: str, is_idle: bool) -> None: ...

    def idle_told(self, node: Node, told: IdleTold) -> None: ...

    def attempt_started(self, attempt: Attempt) -> None: ...

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None: ...

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None: ...

    def command_of(self, attempt: Attempt) -> Command | None: ...


class Node(asyncio.BufferedProtocol):
    """A node's stream, the lease conversation over it, and the attempts that are there."""

    def __init__(
        self,
        address: NodeAddress,
        queue_id: str,
        folder_of: Callable[[Attempt], str],
        log_bytes: int,
        listener: NodeListener,
    ) -> None:
        self.address = address
        self.name = address.name
        self.leases = Leases(queue_id, NodeLeases(self, listener))
        self.leases.on_leases = self._return_unknown
        self.epoch = ""  # known once the agent has answered
        self.trouble = ""  # why it cannot be used
        self._refusal = ""  # why its agent's last answer was not accepted
        self.heard_at: float | None = None  # of the wall clock
        self.clock_skew_s = 0.0
        self.is_draining = False  # it takes nothing new
        self.ends_at: float | None = None  # of the monotonic clock: its engine takes it back then
        self._log_bytes = log_bytes
        self._listener = listener
        self._queue_id = queue_id
        self._agent = ""  # the process that holds leases until an attempt takes them over
        self._held: set[str] = set()  # leases that this agent was granted
        self._writer: FrameWriter | None = None
        self._reader = stream.FrameReader(is_home=True)
        self._is_greeted = False
        self.stream_version = 0  # of the agent
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._full = ""  # why it had no room for a job or its folder a moment ago
        self._attempts = NodeAttempts(self, listener, folder_of, log_bytes)
        self._line = Reconnection(self)

    # --- the connection ------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """True while the agent answers and the node's negotiator too."""
        return self._is_greeted and self.leases.is_connected

    @property
    def agent(self) -> str:
        """Return the agent that answered last."""
        return self._agent

    @property
    def is_open(self) -> bool:
        """True while it can be asked for leases."""
        return self.is_up and not self.is_draining and not self._full

    @property
    def left_s(self) -> float | None:
        """Return how long it is there; None if it stays, or that is not known."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())

    @property
    def is_heard(self) -> bool:
        """True while the agent answers."""
        return self._is_greeted

    @property
    def state(self) -> str:
        """Return its state for people."""
        if self.is_up:
            return "draining" if self.is_draining else "up"
        if self._is_greeted:
            return "no negotiator" if self.leases.trouble else "connecting"  # it is being started
        if self.is_unusable:
            return "unusable"
        return "cut" if self.heard_at is not None else "connecting" if not self.trouble else "away"

    @property
    def is_unusable(self) -> bool:
        """True while the agent can be reached and its answer is not accepted."""
        return bool(self._refusal) and self.trouble == self._refusal

    @property
    def is_needed(self) -> bool:
        """True while there is work, or attempts are there."""
        return bool(self._attempts.leases) or self._listener.has_work()

    def want(self) -> None:
        """Connect soon: there is work."""
        self._line.want()

    def retry(self) -> None:
        """Try again soon to reach a node that is away: somebody looks."""
        self._line.retry()

    async def keep_connected(self) -> None:
        """Keep a stream while it is needed."""
        await self._line.keep_connected()

    def move(self, address: NodeAddress) -> None:
        """Use another way to the node; a stream of the old way is ended."""
        if address != self.address:
            self.address = address
            self._line.retry()
            self.abort()

    def close(self) -> None:
        """Close the stream; attempts continue on the node."""
        self._line.close()
        self.abort()

    def abort(self) -> None:
        """End the present stream at once."""
        if self._writer is not None:
            self._writer.abort()

    def protocol(self) -> Node:
        """Return the protocol of a new stream."""
        return self

    def ping(self) -> None:
        """Let the agent show that it is there."""
        if self._is_greeted:
            self.send({"op": "ping"})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writer = FrameWriter(cast(asyncio.Transport, transport))
        self._reader = stream.FrameReader(is_home=True)
        self._attempts.stream_made()
        self.send({"op": "hello", "version": __version__, "stream": stream.VERSION,
                    "log_bytes": self._log_bytes})  # fmt: skip

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def room(self) -> bool:
        """Wait until the node reads on; False when the stream is lost."""
        await self._may_write.wait()
        return self._writer is not None and self._writer.is_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer = None
        self._may_write.set()
        self._attempts.stream_lost()
        was_greeted, self._is_greeted = self._is_greeted, False
        if self.leases.is_connected:
            self.leases.connection_lost(None)
        self._line.lost()
        if was_greeted:
            log.info("action=node-cut node=%s", self.name)
            self._listener.node_changed(self)

    def away(self, trouble: str) -> None:
        """Note why there is no stream."""
        if trouble != self.trouble:
            log.info("action=node-away node=%s reason=%r", self.name, trouble)
        self.trouble = trouble
        self._listener.node_changed(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return ARRIVED

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._reader.feed(ARRIVED[:nbytes]):
                self.heard_at = time.time()
                self._receive(frame)
            self._line.heard()
        except ProtocolError as error:
            self._fail(error.message)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self._fail(f"what it sends is not understood: {error}")

    def _fail(self, fault: str) -> None:
        """End a stream that cannot be used."""
        self._line.fault = self._refusal = self.trouble = fault
        log.error("action=receive node=%s result=failed reason=%r", self.name, fault)
        self.abort()

    def send(self, frame: Frame) -> None:
        """Send a frame; without a stream it is dropped: the next stream asks what became of it."""
        if self._writer is not None:
            self._writer.send(frame)

    # --- frames of the agent -------------------------------------------------------------

    def _receive(self, frame: Frame) -> None:
        if isinstance(frame, LeaseBytes):
            if self.leases.is_connected:
                self.leases.data_received(frame.data)
        elif isinstance(frame, (LogPiece, FilePiece)):
            self._attempts.receive(frame)
        elif frame.get("ev") == "hello":
            self._greeted(frame)
        elif not self._is_greeted:
            return
        elif handler := _HANDLERS.get(str(frame.get("ev"))):
            handler(self, frame)
        else:
            self._attempts.receive(frame)

    def _greeted(self, message: Message) -> None:
        version, epoch = message.get("version"), message.get("epoch")
        if version != __version__:
            raise ProtocolError(
                f"grn {version} is there and {__version__} here: {self.address.remedy}"
            )
        if type(epoch) is not str or "/" in epoch or not epoch:
            raise ProtocolError("the agent does not say which life of the node this is.")
        self.is_draining = False
        agent = str(message.get("agent"))
        if twin := self._listener.other_node_of(self, agent):
            raise ProtocolError(f"it is the same machine as {twin}: name it once")
        self.epoch = epoch
        told = message.get("stream")
        self.stream_version = told if isinstance(told, int) else 0
        if agent != self._agent:
            self._agent, self._held = agent, set()  # the leases of an earlier agent ended with it
        with contextlib.suppress(LookupError, TypeError, ValueError):
            self.clock_skew_s = float(message["at"]) - time.time()
        self._is_greeted = True
        self.trouble = self._full
        log.info("action=node-found node=%s epoch=%s", self.name, epoch)
        self._attempts.ask_for_all()
        self.send({"op": "all-asked"})
        if message.get("draining") is True:
            self._drain(message)
        self._listener.node_changed(self)

    def _drain(self, _message: Message) -> None:
        """Start nothing new there; a start that is under way here puts its job back."""
        self.is_draining = True
        self._held.clear()
        log.info("action=node-drains node=%s", self.name)
        self.send({"op": "drain-heard"})
        self._listener.node_changed(self)

    def _negotiator(self, message: Message) -> None:
        is_up = message.get("up") is True
        if is_up and not self.leases.is_connected:
            self.leases.trouble = ""
            self.leases.connection_made(LeaseTransport(self.send))
        elif not is_up:
            if self.leases.is_connected:
                self.leases.connection_lost(None)
            self.leases.trouble = str(message.get("text", ""))
        self._listener.node_changed(self)

    def _return_unknown(self, rows: list[Message]) -> None:
        """Return leases that the agent was granted for an earlier queue, which did not use them."""
        known = {*self._held, *(lease.lease for lease in self._attempts.leases.values())}
        pid = self._agent.partition("-")[0]
        for row in rows:
            lease = row.get("id")
            if type(lease) is str and str(row.get("pid")) == pid and lease not in known:
                log.info("action=return-lease node=%s lease=%s", self.name, lease)
                self.leases.done(lease, {"outcome": "failed"}, lambda _: None)

    def full(self, trouble: str) -> None:
        """Be asked for nothing for a while: there is no room for a folder."""
        self.trouble = self._full = trouble
        asyncio.get_running_loop().call_later(FULL_S, self._no_longer_full)
        self._listener.node_changed(self)

    def _no_longer_full(self) -> None:
        self._full = ""
        if self._is_greeted:
            self.trouble = ""
        self._listener.node_changed(self)

    def _refused(self, message: Message) -> None:
        raise ProtocolError(str(message.get("text", "the agent refused a message.")))

    # --- orders of the queue -------------------------------------------------------------

    def start(self, attempt: Attempt, command: Command, lease: RemoteLease, visible: str) -> None:
        """Start an attempt under a lease, unless its agent is gone or takes nothing new."""
        self._attempts.start(attempt, command, lease, visible)

    def stop(self, attempt: Attempt, is_now: bool, *, is_yield: bool = False) -> None:
        """Make the agent end an attempt; said again when the node is found again."""
        self._attempts.stop(attempt, is_now, is_yield)

    def expect(self, attempt: Attempt, lease: RemoteLease) -> None:
        """Note an attempt that an earlier queue started there; its agent will tell more."""
        self._attempts.expect(attempt, lease)
        self.leases.watch(lease.lease)
        self._line.want()
        if self._is_greeted:
            self._attempts.ask_for(attempt, lease)

    def written(self, attempt: Attempt) -> None:
        """Tell the agent that the end of an attempt is in the journal."""
        self._attempts.written(attempt)

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs on the node; one that is away keeps them."""
        self._attempts.remove(jobs)

    def holds(self, lease: str) -> bool:
        """True while the agent holds a lease that no attempt has taken over."""
        return lease in self._held

    def note_granted(self, lease: str) -> None:
        """Note a lease that the agent holds until an attempt takes it over."""
        if not self.is_draining:
            self._held.add(lease)

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settlement], None]) -> None:
        """Report the end of a lease to the node's negotiator."""
        self._held.discard(lease)
        self.leases.done(lease, ending, then)

    @property
    def attempts(self) -> int:
        """Return how many attempts are believed to be there."""
        return len(self._attempts.leases)


_HANDLERS: dict[str, Callable[[Node, Message], None]] = {
    "negotiator": Node._negotiator,
    "refused": Node._refused,
    "draining": Node._drain,
}
