"""A connection for programs that poll several files: reading never blocks.

Carries bytes; what they mean is for the protocol object of the caller, which is told of each new
connection.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from grn.errors import DaemonNotRunning, ProtocolError

Event = TypeVar("Event")

_SEND_S = 10
_CHUNK_BYTES = 1 << 16


class SansIo(Protocol[Event]):
    """One side of a conversation without I/O: `wire.Exchange`, `protocol.lease`."""

    def connection_made(self) -> None: ...

    def data_to_send(self) -> bytes: ...

    def receive_data(self, data: bytes) -> list[Event]: ...


class PolledConnection(Generic[Event]):
    """One connection, which may be lost and made again."""

    def __init__(self, dial: Callable[[], socket.socket], protocol: SansIo[Event]) -> None:
        self._dial = dial
        self._protocol = protocol
        self._received: list[Event] = []  # while bytes were sent
        self._socket: socket.socket | None = None

    @property
    def is_open(self) -> bool:
        """True from `open` until the connection is lost."""
        return self._socket is not None

    def open(self) -> bool:
        """Connect and send what the protocol object repeats; False when no daemon answers."""
        try:
            self._socket = self._dial()
        except DaemonNotRunning:
            return False
        self._socket.settimeout(None)  # with a timeout Python polls before each call
        self._received = []
        self._protocol.connection_made()
        self.flush()
        return True

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fileno(self) -> int | None:
        """Return the file to poll for reading, None without a connection."""
        return None if self._socket is None else self._socket.fileno()

    def flush(self) -> None:
        """Send what the protocol object has to say; a failure loses the connection.

        Reads meanwhile: a daemon that waits for its answers to be read does not read either.
        """
        sock = self._socket
        if sock is None:
            return
        view = memoryview(self._protocol.data_to_send())
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLOUT)
        while view and self._socket is not None:
            try:
                view = view[sock.send(view, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                if not poll.poll(_SEND_S * 1000):
                    self.close()
                self._received += self._read()
            except OSError:
                self.close()

    def receive(self) -> list[Event]:
        """Return the events that have arrived; afterwards the connection may be lost."""
        received, self._received = self._received, []
        return received + self._read()

    def wait(self, timeout_s: float) -> list[Event]:
        """Wait for bytes and return their events."""
        if self._socket is not None and not self._received:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(timeout_s * 1000)
        return self.receive()

    def _read(self) -> list[Event]:
        events: list[Event] = []
        try:
            while self._socket is not None:
                data = self._socket.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    self.close()
                events += self._protocol.receive_data(data)
        except BlockingIOError:
            pass
        except (OSError, ProtocolError):
            self.close()
        return events
