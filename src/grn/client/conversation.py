"""A line to a daemon for a loop: what is said leaves at once, what is heard never blocks.

Knows frames and ids; what messages mean, and when to call again, is for those who use it.
"""

from __future__ import annotations

import select
import socket
import time

from grn import wire
from grn.client.connection import call
from grn.errors import DaemonNotRunning, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.wire import Message

_SEND_S = 10
_CHUNK_BYTES = 1 << 16


class Conversation:
    """One connection, which may be lost and made again."""

    def __init__(
        self,
        dial: Callable[[], socket.socket] = call,
        decode: Callable[[bytes], Message] = wire.decode_reply,
    ) -> None:
        self._dial = dial
        self._decode = decode
        self._heard: list[Message] = []  # while we spoke
        self._socket: socket.socket | None = None
        self._frames = wire.Frames(wire.MAX_REPLY_BYTES)
        self._last_id = 0

    @property
    def is_open(self) -> bool:
        """True from `open` until the line is lost."""
        return self._socket is not None

    def open(self) -> bool:
        """Call whoever answers; False when nobody does."""
        try:
            self._socket = self._dial()
        except DaemonNotRunning:
            return False
        self._socket.settimeout(None)  # else Python waits before it asks the system
        self._heard = []
        self._frames = wire.Frames(wire.MAX_REPLY_BYTES)
        return True

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fileno(self) -> int | None:
        """Return what to listen to."""
        return None if self._socket is None else self._socket.fileno()

    def say(self, op: str, **more: object) -> int:
        """Send a message and return its id; one that cannot be sent loses the line."""
        self._last_id += 1
        message = {"op": op, "id": self._last_id, "v": wire.PROTOCOL, **more}
        if self._socket is not None:
            try:
                self._send(self._socket, wire.encode(message))
            except OSError:
                self.close()
        return self._last_id

    def _send(self, sock: socket.socket, data: bytes) -> None:
        """Send all; listen meanwhile: the other side may be waiting for us to."""
        view = memoryview(data)
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLOUT)
        while view and self._socket is not None:
            try:
                view = view[sock.send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not poll.poll(_SEND_S * 1000):
                    raise TimeoutError("it does not read") from None
                self._heard += self._read()

    def wait_for(self, number: int, patience_s: float) -> Message | None:
        """Wait for the answer to one message; whatever else is said meanwhile is dropped.

        To hang up without having heard all would throw away what the other side has not read yet.
        """
        poll = select.poll()
        until = time.monotonic() + patience_s
        while self._socket is not None and time.monotonic() < until:
            poll.register(self._socket, select.POLLIN)
            poll.poll((until - time.monotonic()) * 1000)
            for message in self.hear():
                if message.get("id") == number:
                    return message
        return None

    def hear(self) -> list[Message]:
        """Return what has come in; afterwards the line may be lost."""
        heard, self._heard = self._heard, []
        return heard + self._read()

    def _read(self) -> list[Message]:
        messages: list[Message] = []
        try:
            while self._socket is not None:
                data = self._socket.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    self.close()
                messages += [self._decode(body) for body in self._frames.feed(data)]
        except BlockingIOError:
            pass
        except (OSError, ProtocolError):
            self.close()
        return messages
