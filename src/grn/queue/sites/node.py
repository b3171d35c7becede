"""One node as the queue sees it: a stream to its agent, made again whenever it is lost.

A node that cannot be reached keeps its attempts: what became of them is not known until its agent
answers again, or an engine vouches that the node is gone. Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, cast

from grn import __version__
from grn.errors import ProtocolError
from grn.model.text import harmless
from grn.protocol.lease_messages import GrantedGpus, IdleTold
from grn.queue.jobs.job import AttemptFate, EndReason, Exit, Settlement
from grn.queue.journal.rows import Command
from grn.queue.leases import Leases
from grn.queue.site import Attempt
from grn.queue.sites import stream
from grn.queue.sites.files.log_copy import LogCopies
from grn.queue.sites.files.node_folders import NOT_KEPT, NodeFolders, is_kept
from grn.queue.sites.frame_writer import FrameWriter
from grn.queue.sites.leases.node_leases import LeaseTransport, NodeLeases
from grn.queue.sites.leases.remote_lease import NodeAddress, RemoteLease
from grn.queue.sites.reconnect import Reconnection
from grn.queue.sites.stream import FilePiece, Frame, LeaseBytes, LogPiece, Message

log = logging.getLogger(__name__)
MAX_SKEW_S = 2.0  # below, the difference may be the time that a greeting takes
MAX_KNOWN = 128
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


class Node(asyncio.Protocol):
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
        self._logs = LogCopies(folder_of, log_bytes)
        self.is_draining = False  # it takes nothing new
        self.ends_at: float | None = None  # of the monotonic clock: its engine takes it back then
        self._log_bytes = log_bytes
        self._listener = listener
        self._queue_id = queue_id
        self._attempts: dict[Attempt, RemoteLease] = {}  # believed to be there
        self._cwds: dict[Attempt, str] = {}  # of those that this queue has started
        self._unwritten: set[Attempt] = set()  # whose ends were heard over the present stream
        self._agent = ""  # the process that holds leases until an attempt takes them over
        self._held: set[str] = set()  # leases that this agent was granted
        self._writer: FrameWriter | None = None
        self._reader = stream.FrameReader(is_home=True)
        self._known: set[int] = set()  # environments that the agent has over this stream
        self._is_greeted = False
        self._stream_version = 0  # of the agent
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_full = False  # it had no room for a folder a moment ago
        self._folders = NodeFolders(self._send, self._room)
        self._missing: set[Attempt] = set()  # files of these were not fetched
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
        return self.is_up and not self.is_draining and not self._is_full

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
            return "no negotiator"
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
        return bool(self._attempts) or self._listener.has_work()

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
            self._send({"op": "ping"})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writer = FrameWriter(cast(asyncio.Transport, transport))
        self._reader = stream.FrameReader(is_home=True)
        self._known = set()
        self._send({"op": "hello", "version": __version__, "stream": stream.VERSION,
                    "log_bytes": self._log_bytes})  # fmt: skip

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def _room(self) -> bool:
        """Wait until the node reads on; False when the stream is lost."""
        await self._may_write.wait()
        return self._writer is not None and self._writer.is_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer = None
        self._may_write.set()
        self._folders.stream_lost()
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

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
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

    def _send(self, frame: Frame) -> None:
        if self._writer is not None:
            self._writer.send(frame)

    # --- frames of the agent -------------------------------------------------------------

    def _receive(self, frame: Frame) -> None:
        if isinstance(frame, LeaseBytes):
            if self.leases.is_connected:
                self.leases.data_received(frame.data)
        elif isinstance(frame, LogPiece):
            self._write_log(frame)
        elif isinstance(frame, FilePiece):
            self._folders.receive(frame)
        elif frame.get("ev") == "hello":
            self._greeted(frame)
        elif self._is_greeted:
            handler = _HANDLERS.get(str(frame.get("ev")))
            if handler is not None:  # else it is of a newer version
                handler(self, frame)

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
        self._stream_version = told if isinstance(told, int) else 0
        if agent != self._agent:
            self._agent, self._held = agent, set()  # the leases of an earlier agent ended with it
        with contextlib.suppress(LookupError, TypeError, ValueError):
            self.clock_skew_s = float(message["at"]) - time.time()
        self._is_greeted = True
        self.trouble = ""
        log.info("action=node-found node=%s epoch=%s", self.name, epoch)
        for attempt, lease in list(self._attempts.items()):
            self._ask_for(attempt, lease)
        self._send({"op": "all-asked"})
        if message.get("draining") is True:
            self._drain(message)
        self._listener.node_changed(self)

    def _drain(self, _message: Message) -> None:
        """Start nothing new there; a start that is under way here puts its job back."""
        self.is_draining = True
        self._held.clear()
        log.info("action=node-drains node=%s", self.name)
        self._send({"op": "drain-heard"})
        self._listener.node_changed(self)

    def _negotiator(self, message: Message) -> None:
        is_up = message.get("up") is True
        if is_up and not self.leases.is_connected:
            self.leases.trouble = ""
            self.leases.connection_made(LeaseTransport(self._send))
        elif not is_up:
            if self.leases.is_connected:
                self.leases.connection_lost(None)
            self.leases.trouble = str(message.get("text", ""))
        self._listener.node_changed(self)

    def _return_unknown(self, rows: list[Message]) -> None:
        """Return leases that the agent was granted for an earlier queue, which did not use them."""
        known = {*self._held, *(lease.lease for lease in self._attempts.values())}
        pid = self._agent.partition("-")[0]
        for row in rows:
            lease = row.get("id")
            if type(lease) is str and str(row.get("pid")) == pid and lease not in known:
                log.info("action=return-lease node=%s lease=%s", self.name, lease)
                self.leases.done(lease, {"outcome": "failed"}, lambda _: None)

    def _started(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt in self._attempts:
            self._listener.attempt_started(attempt)

    def _ended(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt not in self._attempts:
            self._send({**_about("written", attempt), "keep": True})  # the end was heard before
            return
        self._unwritten.add(attempt)
        exit = stream.exit_from_json(message.get("exit"))
        if exit is not None and exit.because is EndReason.NOT_RUNNABLE:
            exit = replace(exit, text=self._not_runnable(attempt, exit.text))
        if exit is not None and exit.ended_at and abs(self.clock_skew_s) > MAX_SKEW_S:
            exit = replace(exit, ended_at=exit.ended_at - self.clock_skew_s)
        if "files" not in message:
            self._listener.attempt_ended(attempt, exit)
            return

        def fetched(note: str) -> None:
            if exit is None and note:  # its shim was lost: the attempt says that already
                log.warning("action=fetch job=%d note=%r", attempt.job, note)
            told = exit and replace(exit, note=note)
            self._listener.attempt_ended(attempt, told)

        self._fetch(attempt, message, fetched)

    def _fetch(self, attempt: Attempt, message: Message, then: Callable[[str], None]) -> None:
        """Fetch the files of an attempt before its end is told; the rest stays on the node."""
        command = self._listener.command_of(attempt)
        if command is None:
            then("not fetched: the journal's record of the job is damaged")
            return

        def done(note: str) -> None:
            folder = harmless(str(message.get("folder", "")))
            if note.startswith("not fetched") or " not fetched" in note:
                self._missing.add(attempt)
                note = f"{note}; see {folder} on {self.name}" if folder else note
            then(note)

        self._folders.fetch(attempt, command, message["files"], done)

    def _got(self, message: Message) -> None:
        self._folders.got(stream.attempt_in(message), message)

    def _need(self, message: Message) -> None:
        self._folders.needed(message)

    def _unsent(self, message: Message) -> None:
        """Put a job back whose folder the node cannot take, and ask it for nothing for a while."""
        attempt = stream.attempt_in(message)
        if attempt not in self._attempts:
            return
        text = harmless(str(message.get("text", "")))
        self.trouble = f"{self.name} could not take the folder of a job: {text}"
        log.error("action=send-folder node=%s job=%d reason=%r", self.name, attempt.job, text)
        self._is_full = True
        asyncio.get_running_loop().call_later(FULL_S, self._no_longer_full)
        self._listener.attempt_found(attempt, AttemptFate.NOT_BEGUN, self.trouble)
        self._listener.node_changed(self)

    def _no_longer_full(self) -> None:
        self._is_full = False
        if self._is_greeted:
            self.trouble = ""
        self._listener.node_changed(self)

    def _not_runnable(self, attempt: Attempt, text: str) -> str:
        """Say where a command could not be run, and what to do about a missing folder."""
        cwd = harmless(self._cwds.get(attempt, ""))
        if cwd and text.startswith(f"{cwd}: "):
            return (
                f"the folder {cwd} cannot be used on {self.name} ({text[len(cwd) + 2 :]}): submit"
                f" it with --send, or name a folder that {self.name} has with --cwd"
            )
        return f"on {self.name}: {text}"

    def _found(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt not in self._attempts:
            return
        try:
            fate = AttemptFate(message.get("fate"))
        except ValueError as error:
            raise ProtocolError("the fate of an attempt is not as it should be.") from error
        text = f"{self.name} went down"
        if fate is AttemptFate.NOT_BEGUN:
            text = f"the connection to {self.name} was cut before it began"
        elif fate is AttemptFate.INTERRUPTED:
            self._unwritten.add(attempt)
            if "files" in message:

                def fetched(note: str) -> None:
                    if note:
                        log.warning("action=fetch job=%d note=%r", attempt.job, note)
                    self._listener.attempt_found(attempt, fate, text)

                self._fetch(attempt, message, fetched)
                return
        self._listener.attempt_found(attempt, fate, text)

    def _refused(self, message: Message) -> None:
        raise ProtocolError(str(message.get("text", "the agent refused a message.")))

    def _write_log(self, piece: LogPiece) -> None:
        if piece.attempt in self._attempts:
            self._logs.write(piece)

    # --- orders of the queue -------------------------------------------------------------

    def start(self, attempt: Attempt, command: Command, lease: RemoteLease, visible: str) -> None:
        """Start an attempt under a lease, unless its agent is gone or takes nothing new."""
        self._attempts[attempt] = lease
        self._cwds[attempt] = command.cwd
        if lease.lease not in self._held:
            loop = asyncio.get_running_loop()
            why = "takes nothing new" if self.is_draining else "ended before it began"
            fate, text = AttemptFate.NOT_BEGUN, f"the agent on {self.name} {why}"
            loop.call_soon(self._listener.attempt_found, attempt, fate, text)
            return
        if fault := self._fault_of_folder(command):
            exit = Exit(None, because=EndReason.NOT_RUNNABLE, text=fault)
            asyncio.get_running_loop().call_soon(self._listener.attempt_ended, attempt, exit)
            return
        self._logs.begin(attempt, command)
        number = command.environment_id
        message: Message = {
            **_about("start", attempt), "argv": command.argv, "cwd": command.cwd,
            "environment": number, "extra": command.extra, "umask": command.umask,
            "time_limit_s": command.time_limit_s, "has_own_log": bool(command.log),
            "ending": command.ending, "ram": command.ram_bytes, "cap": command.memory_cap,
            "lease": lease.lease, "visible": visible, **self._folders.order(command),
        }  # fmt: skip
        if number not in self._known:
            if len(self._known) >= MAX_KNOWN:  # neither side keeps them for ever
                self._known.clear()
            message["is_first"] = not self._known
            self._known.add(number)
            message["variables"] = command.environment
        self._send(message)  # without a stream: the next one asks what became of it

    def _fault_of_folder(self, command: Command) -> str:
        """Return why the folder of a job cannot be brought there; empty if it can."""
        if not is_kept(command.send):
            return NOT_KEPT
        is_old = (command.send is not None or command.fetch) and self._stream_version < 2
        fault = f"the agent on {self.name} knows no --send and --fetch: {self.address.remedy}"
        return fault if is_old else ""

    def note_granted(self, lease: str) -> None:
        """Note a lease that the agent holds until an attempt takes it over."""
        if not self.is_draining:
            self._held.add(lease)

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settlement], None]) -> None:
        """Report the end of a lease to the node's negotiator."""
        self._held.discard(lease)
        self.leases.done(lease, ending, then)

    def stop(self, attempt: Attempt, is_now: bool, *, is_yield: bool = False) -> None:
        """Make the agent end an attempt; said again when the node is found again."""
        self._send({**_about("stop", attempt), "now": is_now, "yield": is_yield})

    def expect(self, attempt: Attempt, lease: RemoteLease) -> None:
        """Note an attempt that an earlier queue started there; its agent will tell more."""
        self._attempts[attempt] = lease
        self.leases.watch(lease.lease)
        self._line.want()
        if self._is_greeted:
            self._ask_for(attempt, lease)

    def _ask_for(self, attempt: Attempt, lease: RemoteLease) -> None:
        have = self._logs.sizes(attempt)
        self._send({**_about("find", attempt), "epoch": lease.epoch, "have": have})

    def written(self, attempt: Attempt) -> None:
        """Tell the agent that the end of an attempt is in the journal."""
        self._attempts.pop(attempt, None)
        self._cwds.pop(attempt, None)
        if attempt in self._unwritten:
            self._unwritten.discard(attempt)
            is_whole = self._logs.is_whole(attempt) and attempt not in self._missing
            self._send({**_about("written", attempt), "keep": not is_whole})
        self._logs.forget(attempt)
        self._missing.discard(attempt)

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs on the node; one that is away keeps them."""
        self._send({"op": "remove", "jobs": jobs})

    @property
    def attempts(self) -> int:
        """Return how many attempts are believed to be there."""
        return len(self._attempts)


_HANDLERS: dict[str, Callable[[Node, Message], None]] = {
    "negotiator": Node._negotiator,
    "started": Node._started,
    "ended": Node._ended,
    "found": Node._found,
    "refused": Node._refused,
    "need": Node._need,
    "unsent": Node._unsent,
    "got": Node._got,
    "draining": Node._drain,
}


def _about(op: str, attempt: Attempt) -> Message:
    return {"op": op, "job": attempt.job, "attempt": attempt.number}
