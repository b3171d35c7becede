"""One node as the queue sees it: a stream to its agent, made again whenever it is lost.

A node that cannot be reached keeps its attempts: nobody knows what became of them until its agent
answers again, or an engine vouches that the node is gone. Decides nothing about jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from grn import __version__
from grn.errors import ProtocolError
from grn.model.text import harmless
from grn.proc import spawn, terminate
from grn.protocol.lease import Grant
from grn.queue.job import AttemptFate, Exit, Settlement
from grn.queue.journal.rows import Command
from grn.queue.leases import Leases
from grn.queue.site import Attempt, Found
from grn.queue.sites import stream
from grn.queue.sites.stream import Frame, LeaseBytes, LogPiece, Message

if TYPE_CHECKING:
    import subprocess

log = logging.getLogger(__name__)
GREET_S = 40.0
PING_S, SILENT_S = 10.0, 35.0
FIRST_RETRY_S, MAX_RETRY_S = 0.5, 30.0
MAX_STDERR = 4096


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node by its name, its site, and the command that makes a stream to its agent."""

    name: str
    site: str
    pipe: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoteLease:
    """A lease of a node: its name carries the node, and the life of it that granted the lease."""

    node: str
    epoch: str
    lease: str

    def __str__(self) -> str:
        return f"{self.node}/{self.epoch}/{self.lease}"


def remote(lease: str) -> RemoteLease | None:
    """Read the name of a lease; None for one of this machine."""
    parts = lease.split("/")
    return RemoteLease(*parts) if len(parts) == 3 else None


class NodeListener(Protocol):
    """The router, as a node sees it."""

    def has_work(self) -> bool: ...

    def node_changed(self, node: Node) -> None: ...

    def granted(self, node: Node, job: int, grant: Grant) -> None: ...

    def awaited(self, node: Node, job: int, text: str) -> None: ...

    def reasons(self, node: Node, texts: dict[int, str]) -> None: ...

    def refused(self, node: Node, job: int, text: str) -> None: ...

    def attempt_started(self, attempt: Attempt) -> None: ...

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None: ...

    def attempt_found(self, attempt: Attempt, fate: AttemptFate, text: str) -> None: ...


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
        self.leases = Leases(queue_id, _NodeLeases(self, listener))
        self.epoch = ""  # known once the agent has answered
        self.trouble = ""  # why it cannot be used
        self.heard_at: float | None = None  # of the wall clock
        self.clock_skew_s = 0.0
        self.is_draining = False  # it takes nothing new
        self.ends_at: float | None = None  # of the monotonic clock: its engine takes it back then
        self._folder_of = folder_of
        self._log_bytes = log_bytes
        self._listener = listener
        self._queue_id = queue_id
        self._attempts: dict[Attempt, str] = {}  # believed to be there, with the epoch of each
        self._unstarted: set[Attempt] = set()  # sent, and not acknowledged yet
        self._unwritten: set[Attempt] = set()  # whose ends were heard over the present stream
        self._agent = ""  # the process that holds leases until an attempt takes them over
        self._held: set[str] = set()  # leases that this agent was granted
        self._transport: asyncio.Transport | None = None
        self._reader = stream.FrameReader(is_home=True)
        self._known: set[int] = set()  # environments that the agent has over this stream
        self._is_greeted = False
        self._gone = asyncio.Event()
        self._wanted = asyncio.Event()
        self._last_heard = 0.0
        self._is_closed = False

    # --- the connection ------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """True while the agent answers and the node's negotiator too."""
        return self._is_greeted and self.leases.is_connected

    @property
    def is_open(self) -> bool:
        """True while it can be asked for leases."""
        return self.is_up and not self.is_draining

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
        return "cut" if self.heard_at is not None else "connecting" if not self.trouble else "away"

    def want(self) -> None:
        """Connect soon: there is work."""
        self._wanted.set()

    async def keep_connected(self) -> None:
        """Keep a stream while there is work, or attempts are there."""
        pause_s = FIRST_RETRY_S
        while not self._is_closed:
            if not self._attempts and not self._listener.has_work():
                self._wanted.clear()
                await self._wanted.wait()
            began = time.monotonic()
            await self._stream_once()
            if time.monotonic() - began > MAX_RETRY_S:
                pause_s = FIRST_RETRY_S
            if not self._is_closed:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)

    async def _stream_once(self) -> None:
        loop = asyncio.get_running_loop()
        self._gone.clear()
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as complaints:
            try:
                with theirs:
                    process = spawn.child(
                        self.address.pipe, stdin=theirs.fileno(), stdout=theirs.fileno(),
                        stderr=complaints.fileno(), start_new_session=True,
                    )  # fmt: skip
            except OSError as error:
                ours.close()
                self._changed(f"{self.address.pipe[0]}: {error.strerror}")
                return
            try:
                ours.setblocking(False)
                await loop.create_connection(lambda: self, sock=ours)
                await self._until_gone()
            finally:
                if self._transport is not None:
                    self._transport.abort()
                await loop.run_in_executor(None, terminate.end_child, process, 1.0)
            if not self._is_closed:
                self._changed(self.trouble or _complaint(complaints, process))

    async def _until_gone(self) -> None:
        """Wait for the end of the stream; end one that is silent."""
        self._last_heard = time.monotonic()
        while not self._gone.is_set():
            limit_s = SILENT_S if self._is_greeted else GREET_S
            if time.monotonic() - self._last_heard > limit_s:
                self.trouble = f"not heard of for {limit_s:.0f} s"
                return
            if self._is_greeted:
                self._send({"op": "ping"})
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), PING_S)

    def close(self) -> None:
        """Close the stream; attempts continue on the node."""
        self._is_closed = True
        self._wanted.set()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._reader = stream.FrameReader(is_home=True)
        self._known = set()
        self.trouble = ""
        self._send({"op": "hello", "version": __version__, "stream": stream.VERSION})

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        was_greeted, self._is_greeted = self._is_greeted, False
        if self.leases.is_connected:
            self.leases.connection_lost(None)
        self._gone.set()
        if was_greeted:
            log.info("action=node-cut node=%s", self.name)
            self._listener.node_changed(self)

    def _changed(self, trouble: str) -> None:
        if trouble != self.trouble or not self._is_greeted:
            self.trouble = trouble
            log.info("action=node-away node=%s reason=%r", self.name, trouble)
            self._listener.node_changed(self)

    def data_received(self, data: bytes) -> None:
        self._last_heard = time.monotonic()
        self.heard_at = time.time()
        try:
            for frame in self._reader.feed(data):
                self._receive(frame)
        except ProtocolError as error:
            self.trouble = error.message
            log.error("action=receive node=%s result=failed reason=%r", self.name, error.message)
            if self._transport is not None:
                self._transport.abort()

    def _send(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(stream.encode(frame))

    # --- frames of the agent -------------------------------------------------------------

    def _receive(self, frame: Frame) -> None:
        if isinstance(frame, LeaseBytes):
            if self.leases.is_connected:
                self.leases.data_received(frame.data)
        elif isinstance(frame, LogPiece):
            self._write_log(frame)
        elif frame.get("ev") == "hello":
            self._greeted(frame)
        elif self._is_greeted:
            handler = _HANDLERS.get(str(frame.get("ev")))
            if handler is not None:  # else it is of a newer version
                handler(self, frame)

    def _greeted(self, message: Message) -> None:
        version, epoch = message.get("version"), message.get("epoch")
        if version != __version__:
            self.trouble = (
                f"grn {version} is there and {__version__} here:"
                f" `grn site update {self.address.site}`"
            )
            raise ProtocolError(self.trouble)
        if type(epoch) is not str or "/" in epoch or not epoch:
            raise ProtocolError("the agent does not say which life of the node this is.")
        self.epoch = epoch
        self.is_draining = False
        agent = str(message.get("agent"))
        if agent != self._agent:
            self._agent, self._held = agent, set()  # the leases of an earlier agent ended with it
        with contextlib.suppress(TypeError, ValueError):
            self.clock_skew_s = float(message["at"]) - time.time()
        self._is_greeted = True
        log.info("action=node-found node=%s epoch=%s", self.name, epoch)
        for attempt, began_in in list(self._attempts.items()):
            self._ask_for(attempt, began_in)
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
            self.leases.connection_made(_LeaseTransport(self._send))
        elif not is_up:
            if self.leases.is_connected:
                self.leases.connection_lost(None)
            self.leases.trouble = str(message.get("text", ""))
        self._listener.node_changed(self)

    def _started(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt in self._attempts:
            self._unstarted.discard(attempt)
            self._listener.attempt_started(attempt)

    def _ended(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt not in self._attempts:
            self._send(_about("written", attempt))  # the end was heard before
            return
        self._unstarted.discard(attempt)
        self._unwritten.add(attempt)
        self._listener.attempt_ended(attempt, stream.exit_from_json(message.get("exit")))

    def _found(self, message: Message) -> None:
        attempt = stream.attempt_in(message)
        if attempt not in self._attempts:
            return
        try:
            fate = AttemptFate(message.get("fate"))
        except ValueError as error:
            raise ProtocolError("the fate of an attempt is not as it should be.") from error
        self._unstarted.discard(attempt)
        text = f"{self.name} went down"
        if fate is AttemptFate.NOT_BEGUN:
            text = f"the connection to {self.name} was cut before it began"
        self._listener.attempt_found(attempt, fate, text)

    def _refused(self, message: Message) -> None:
        raise ProtocolError(str(message.get("text", "the agent refused a message.")))

    def _write_log(self, piece: LogPiece) -> None:
        """Add a piece to the copy of an attempt's output at home."""
        if piece.attempt not in self._attempts:
            return
        folder = self._folder_of(piece.attempt)
        path = os.path.join(folder, piece.name)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(path, flags, 0o600)
            try:
                size = os.fstat(fd).st_size
                is_next = piece.offset <= size  # a gap would be another file's
                if is_next and piece.offset + len(piece.data) <= self._log_bytes:
                    os.pwrite(fd, piece.data, piece.offset)
            finally:
                os.close(fd)
            _drop_older(folder, piece.name)
        except OSError as error:  # a full disk at home: the node has the whole output
            log.error("action=write-log node=%s result=failed reason=%r", self.name, str(error))

    # --- orders of the queue -------------------------------------------------------------

    def start(self, attempt: Attempt, command: Command, lease: RemoteLease, visible: str) -> None:
        """Start an attempt under a lease, unless its agent is gone or takes nothing new."""
        self._attempts[attempt] = lease.epoch
        if lease.lease not in self._held:
            loop = asyncio.get_running_loop()
            why = "takes nothing new" if self.is_draining else "ended before it began"
            fate, text = AttemptFate.NOT_BEGUN, f"the agent on {self.name} {why}"
            loop.call_soon(self._listener.attempt_found, attempt, fate, text)
            return
        self._unstarted.add(attempt)
        number = command.environment_id
        message: Message = {
            **_about("start", attempt), "argv": command.argv, "cwd": command.cwd,
            "environment": number, "extra": command.extra, "umask": command.umask,
            "time_limit_s": command.time_limit_s, "log": command.log, "lease": lease.lease,
            "visible": visible,
        }  # fmt: skip
        if number not in self._known:
            self._known.add(number)
            message["variables"] = command.environment
        self._send(message)  # without a stream: the next one asks what became of it

    def note_granted(self, lease: str) -> None:
        """Note a lease that the agent holds until an attempt takes it over."""
        if not self.is_draining:
            self._held.add(lease)

    def done(self, lease: str, ending: dict[str, Any], then: Callable[[Settlement], None]) -> None:
        """Report the end of a lease to the node's negotiator."""
        self._held.discard(lease)
        self.leases.done(lease, ending, then)

    def stop(self, attempt: Attempt, is_now: bool) -> None:
        """Make the agent end an attempt; said again when the node is found again."""
        self._send({**_about("stop", attempt), "now": is_now})

    def expect(self, attempt: Attempt, epoch: str) -> Found:
        """Note an attempt that an earlier queue started there; its agent will tell more."""
        self._attempts[attempt] = epoch
        self._wanted.set()
        if self._is_greeted:
            self._ask_for(attempt, epoch)
        return Found(AttemptFate.ALIVE)

    def _ask_for(self, attempt: Attempt, epoch: str) -> None:
        have = _sizes(self._folder_of(attempt))
        self._send({**_about("find", attempt), "epoch": epoch, "have": have})

    def written(self, attempt: Attempt) -> None:
        """Tell the agent that the end of an attempt is in the journal."""
        self._attempts.pop(attempt, None)
        self._unstarted.discard(attempt)
        if attempt in self._unwritten:
            self._unwritten.discard(attempt)
            self._send(_about("written", attempt))

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs on the node; one that is away keeps them."""
        self._send({"op": "remove", "jobs": jobs})

    def attempts_there(self) -> list[Attempt]:
        """Return the attempts that are believed to be there."""
        return list(self._attempts)

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
    "draining": Node._drain,
}


class _LeaseTransport(asyncio.Transport):
    """Carries the bytes of the lease conversation as frames of the stream."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        super().__init__()
        self._carry = send

    def write(self, data: Any) -> None:
        self._carry(LeaseBytes(bytes(data)))

    def close(self) -> None:
        """Leave the stream open: only the conversation over it ends."""


class _NodeLeases:
    """Passes the events of one node's lease conversation on, with the node."""

    def __init__(self, node: Node, listener: NodeListener) -> None:
        self._node = node
        self._listener = listener

    def has_work(self) -> bool:
        return self._listener.has_work()

    def connected(self) -> None:
        self._listener.node_changed(self._node)

    def disconnected(self) -> None:
        self._listener.node_changed(self._node)

    def granted(self, job: int, grant: Grant) -> None:
        self._node.note_granted(grant.lease)
        self._listener.granted(self._node, job, grant)

    def awaited(self, job: int, text: str) -> None:
        self._listener.awaited(self._node, job, text)

    def reasons(self, texts: dict[int, str]) -> None:
        self._listener.reasons(self._node, texts)

    def refused(self, job: int, text: str) -> None:
        self._listener.refused(self._node, job, text)


def _about(op: str, attempt: Attempt) -> Message:
    return {"op": op, "job": attempt.job, "attempt": attempt.number}


def _sizes(folder: str) -> dict[str, int]:
    """Return how much of an attempt's output is here."""
    sizes = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if stream.LOG_NAME.fullmatch(entry.name):
                sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes


def _drop_older(folder: str, name: str) -> None:
    """Remove what the node has dropped of a long log: all but the last two parts."""
    base, mark, number = name.partition(".tail")
    if mark and int(number) >= 2:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, f"{base}.tail{int(number) - 2}"))


def _complaint(file: IO[bytes], process: subprocess.Popen[bytes]) -> str:
    """Return why a pipe has ended, in its own words."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_STDERR))
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    said = [harmless(line) for line in lines if line]
    return said[-1] if said else f"the connection ended (status {process.returncode})"
