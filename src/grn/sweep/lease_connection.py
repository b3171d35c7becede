"""A line to the negotiator for a loop: what is said leaves at once, what is heard never blocks.

Knows frames and ids; what messages mean, and when to call again, is for those who use it.
"""

from __future__ import annotations

import select
import socket
import struct
import time

from grn import wire
from grn.client.connection import call
from grn.errors import DaemonNotRunning, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.wire import Message

_SEND_S = 10
_CHUNK_BYTES = 1 << 16


class Conversation:
    """One connection, which may be lost and made again."""

    def __init__(self) -> None:
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
            self._socket = call()
        except DaemonNotRunning:
            return False
        patience = struct.pack("ll", _SEND_S, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
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
                self._socket.sendall(wire.encode(message))
            except OSError:
                self.close()
        return self._last_id

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
        messages: list[Message] = []
        try:
            while self._socket is not None:
                data = self._socket.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    self.close()
                messages += [wire.decode_reply(body) for body in self._frames.feed(data)]
        except BlockingIOError:
            pass
        except (OSError, ProtocolError):
            self.close()
        return messages
