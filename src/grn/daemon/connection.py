"""One server connection: framing, dispatch, back pressure, deadlines.

Shared by negotiator and queue. Each service supplies its own handlers and decides who may connect;
bad input is answered here with an error and harms no other client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import msgspec

from grn import wire
from grn.daemon.turns import TURN_S, BufferBudget, Turns
from grn.errors import BY_CODE, GrnError, ProtocolError, UsageError
from grn.model.text import harmless
from grn.protocol.schemas import Rejected

log = logging.getLogger(__name__)
MAX_UNREAD_BYTES = 64 << 10
MAX_KEPT_BYTES_PER_USER = 8 << 20
MAX_KEPT_BYTES = 64 << 20  # of all users together

_encode_json = msgspec.json.Encoder().encode


class Speaker(Protocol):
    """One client as its service identifies it."""

    @property
    def uid(self) -> int: ...

    def lost(self) -> None:
        """Handle the loss of the connection."""

    def refused(self, message: Any, error: GrnError) -> None:
        """Note that a message was answered by an error."""


Pieces = Iterator[None]
Verbs = Mapping[type, Callable[[Any, Any], Pieces | None]]
"""The handler of each kind of message; it gets the speaker and the message.

The handler of a long answer is a generator: at each `yield` it may be paused, other requests are
answered and events are handled.
"""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The name of a service, its messages, and its limits for a client."""

    name: str
    read: Callable[[bytes], Any]
    verbs: Verbs
    most_bytes: int  # of one request
    deadline_s: float  # to complete a frame, and to read answers
    kept_bytes_per_user: int = MAX_KEPT_BYTES_PER_USER
    kept_bytes: int = MAX_KEPT_BYTES


class Service:
    """The state that all connections of one service share."""

    def __init__(
        self,
        settings: ConnectionSettings,
        meet: Callable[[ServerConnection, socket.socket], Speaker],
    ) -> None:
        self.settings = settings
        self.meet = meet
        self.turns = Turns()
        self.kept = BufferBudget(settings.kept_bytes_per_user, settings.kept_bytes)
        # Received bytes, cut into frames at once. One buffer for all: asyncio would allocate a
        # block of 256 KiB for each message, which the system maps and unmaps.
        self.arrived = bytearray(1 << 16)
        self.is_closed = False  # clients reconnect to the next service

    def connection(self) -> ServerConnection:
        """Make the protocol of one new connection."""
        return ServerConnection(self)


class ServerConnection(asyncio.BufferedProtocol):
    """One connection: each message goes to its handler, with the identified client."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._read = service.settings.read
        self._verbs = service.settings.verbs
        self._frames = wire.Frames(service.settings.most_bytes)
        self._transport: asyncio.Transport | None = None
        self._speaker: Speaker | None = None
        self._todo: deque[bytes] = deque()  # frames that wait for their turn
        self._begun: tuple[Any, Pieces] | None = None  # a message and the rest of its answer
        self._frame_deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._is_in_line = False
        self._kept_bytes = 0  # as counted in the service's budget
        self._unsent: list[bytes] = []  # answers to requests that are being handled
        self._unsent_bytes = 0
        self._is_answering = False
        self.is_stuffed = False  # the client reads too few of its answers

    # --- answers -------------------------------------------------------------------------

    def send(self, message_id: int | None, message: dict[str, Any]) -> None:
        """Answer one message."""
        if self._transport is not None:
            body = _encode_json({"id": message_id, **message})
            self._write(wire.HEADER.pack(len(body)) + body)

    def send_all(self, message_id: int | None, many: Sequence[dict[str, Any]]) -> None:
        """Answer one message by several, in one write."""
        if self._transport is not None:
            bodies = [_encode_json({"id": message_id, **message}) for message in many]
            self._write(b"".join(wire.HEADER.pack(len(one)) + one for one in bodies))

    def push(self, body: bytes) -> None:
        """Send an encoded message."""
        if self._transport is not None:
            self._write(wire.HEADER.pack(len(body)) + body)

    def _write(self, data: bytes) -> None:
        """Send bytes; answers to requests that are handled together go in one piece."""
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if not self._is_answering or self._unsent_bytes > MAX_UNREAD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what was said so far."""
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent and self._transport is not None:
            self._transport.write(b"".join(unsent))

    def refuse(self, message_id: int | None, error: GrnError) -> None:
        """Answer one message by an error, under its code in the protocol."""
        code = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in BY_CODE)
        text = {"code": code, "message": harmless(error.message), "hint": harmless(error.hint)}
        self.send(message_id, {"error": text})

    def turn_away(self, error: GrnError) -> None:
        """Send an error and close the connection."""
        self.refuse(None, error)
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # --- opening and closing --------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
        self._speaker = self._service.meet(self, transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._service.is_closed:
            return
        self._transport = None
        self._todo.clear()
        self._begun = None
        self._count_kept(0)
        for timer in filter(None, (self._frame_deadline, self._read_deadline)):
            timer.cancel()
        speaker, self._speaker = self._speaker, None
        if speaker is not None:
            speaker.lost()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._service.arrived

    def buffer_updated(self, nbytes: int) -> None:
        try:
            bodies = self._frames.feed(self._service.arrived[:nbytes])
        except ProtocolError as error:
            self._todo.clear()
            self.turn_away(error)
            return
        if bodies and self._frame_deadline is not None:
            self._frame_deadline.cancel()
            self._frame_deadline = None
        self._todo.extend(bodies)
        self._work()

    def pause_writing(self) -> None:
        """Stop reading from a client until it reads its answers; drop one that never does."""
        self.is_stuffed = True
        self._read_deadline = self._drop_later("not-reading")
        self._bound_kept()

    def resume_writing(self) -> None:
        self.is_stuffed = False
        if self._read_deadline is not None:
            self._read_deadline.cancel()
        self._work()

    def _drop_later(self, reason: str) -> asyncio.TimerHandle:
        def drop() -> None:
            if self._transport is not None and self._speaker is not None:
                log.warning("action=drop-connection uid=%d reason=%s", self._speaker.uid, reason)
                self._transport.abort()

        return asyncio.get_running_loop().call_later(self._service.settings.deadline_s, drop)

    # --- messages in order -----------------------------------------------------

    def _has_work(self) -> bool:
        return bool(self._todo) or self._begun is not None

    def _work(self) -> None:
        """Answer received requests, now or in turn, and bound the buffered bytes."""
        turns, speaker = self._service.turns, self._speaker
        if not self._has_work():
            self._listen()
        elif not self._is_in_line:
            if speaker is not None and turns.may_answer_now(speaker.uid):
                began_at = time.monotonic()
                self._answer_some(began_at + TURN_S)
                turns.has_answered(speaker.uid, began_at)
            if self._has_work():
                self._stand_in_line()
        self._count()

    def answer_until(self, ends_at: float) -> None:
        """Answer until a time; the rest follows after the turns of all others."""
        self._is_in_line = False
        self._answer_some(ends_at)
        if self._has_work():
            self._stand_in_line()
        self._count()

    def _stand_in_line(self) -> None:
        """Stop reading until the received requests are answered."""
        transport, speaker = self._transport, self._speaker
        if transport is None or speaker is None or transport.is_closing():
            return
        transport.pause_reading()
        has_begun = self._begun is not None
        if (has_begun or not self.is_stuffed) and not self._service.is_closed:
            self._is_in_line = True
            self._service.turns.join(speaker.uid, self, has_begun)

    def _count(self) -> None:
        if self._todo or self._kept_bytes or self._frames.is_mid_frame:
            self._bound_kept()

    def _bound_kept(self) -> None:
        """Count the buffered bytes; close the connection when its user is over the limit."""
        transport, speaker = self._transport, self._speaker
        if transport is None or speaker is None or transport.is_closing():
            return
        unread = transport.get_write_buffer_size() if self.is_stuffed else 0
        self._count_kept(self._frames.unfinished_bytes + sum(map(len, self._todo)) + unread)
        if not self._service.kept.is_over(speaker.uid, self._kept_bytes):
            return
        log.warning("action=drop-connection uid=%d reason=too-much-kept", speaker.uid)
        self._todo.clear()
        self._frames = wire.Frames(self._service.settings.most_bytes)
        self._count_kept(0)
        if unread:
            transport.abort()  # it would not read the reason either
            return
        most = self._service.settings.kept_bytes_per_user
        text = f"connections of this user have {most >> 20} MiB of unfinished requests already."
        self.turn_away(UsageError(text, "Send them one after the other."))

    def _count_kept(self, count: int) -> None:
        if self._speaker is not None and count != self._kept_bytes:
            self._service.kept.change(self._speaker.uid, count - self._kept_bytes)
            self._kept_bytes = count

    def _answer_some(self, ends_at: float) -> None:
        """Answer one request or a piece of it, and others while there is time.

        A begun answer is completed even when the client does not read: an unfinished one may hold
        more memory than its text.
        """
        self._is_answering = True
        try:
            while self._may_answer():
                self._answer(ends_at)
                if time.monotonic() > ends_at:
                    break
        finally:
            self._is_answering = False
            self.flush()
        if not self._has_work():
            self._listen()

    def _may_answer(self) -> bool:
        """True while a request waits, or the rest of an answer, and its client can be answered."""
        if self._transport is None or self._transport.is_closing() or self._service.is_closed:
            return False
        return self._begun is not None or (bool(self._todo) and not self.is_stuffed)

    def _listen(self) -> None:
        """Resume reading."""
        if self._transport is not None and not self.is_stuffed:
            self._transport.resume_reading()
            if self._frames.is_mid_frame and self._frame_deadline is None:
                # The deadline runs from a frame's first byte to its last, but not while reading
                # is paused.
                self._frame_deadline = self._drop_later("half-a-frame")

    def _answer(self, ends_at: float) -> None:
        """Answer the next message, or continue an answer, at most until a time."""
        message: Any = None
        pieces: Pieces | None = None
        if self._begun is not None:
            message, pieces = self._begun
            self._begun = None
        try:
            if pieces is None:
                message = self._read(self._todo.popleft())
                pieces = self._verbs[type(message)](self._speaker, message)
            if pieces is not None:
                for _ in pieces:
                    if time.monotonic() > ends_at:
                        self._begun = message, pieces
                        return
        except Rejected as rejected:
            self.refuse(rejected.message_id, rejected.error)
        except GrnError as error:
            self.refuse(message.id if message is not None else None, error)
            if self._speaker is not None:
                self._speaker.refused(message, error)
        except Exception:
            # A failing request must not end the service for all others; the client gets an error
            # and the log the traceback.
            log.exception("action=answer result=failed")
            name = self._service.settings.name
            message_id = message.id if message is not None else None
            self.refuse(message_id, GrnError(f"the {name} failed on this request; see its log."))
