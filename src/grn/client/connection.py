"""Connections to daemons, for programs that block, that run an event loop or that poll.

The steps of a conversation are generators that yield what to do next (send, receive, sleep):
`drive` does them blocking, `drive_async` awaits them. `PolledConnection` never blocks for reading.
"""

from __future__ import annotations

import select
import socket
import time

from grn import wire
from grn.errors import DaemonNotRunning

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from typing import Any, Protocol, TypeVar

    from grn.wire import Message

    Result = TypeVar("Result")
    Steps = Generator[tuple[str, Any, Any], Any, Result]

    class SansIo(Protocol):
        """One side of a conversation without I/O: `wire.Exchange`, `protocol.lease`."""

        def connection_made(self) -> None: ...

        def data_to_send(self) -> bytes: ...


ANSWER_S = 10.0
CHUNK_BYTES = 65536


class Connection:
    """One socket to a daemon, for questions and their answers."""

    def __init__(
        self, sock: socket.socket, decode: Callable[[bytes], Message] = wire.decode_reply
    ) -> None:
        self.sock = sock
        self.exchange = wire.Exchange(decode)
        self._received: list[Message] = []

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def send(self, message: Message) -> Steps[int]:
        """Send one message and return the id its answers will carry."""
        number = self.exchange.say(message)
        yield ("send", self.sock, self.exchange.data_to_send())
        return number

    def receive(self, timeout_s: float | None) -> Steps[Message]:
        """Wait for the next message; raise the error that it carries."""
        while not self._received:
            data = yield ("recv", self.sock, timeout_s)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            self._received = self.exchange.receive_data(data)
        message = self._received.pop(0)
        error = wire.error_in(message)
        if error is not None:
            raise error
        return message

    def ask(self, message: Message, timeout_s: float | None = ANSWER_S) -> Steps[Message]:
        """Send one message and return its answer."""
        yield from self.send(message)
        answer = yield from self.receive(timeout_s)
        return answer


def drive(steps: Steps[Result]) -> Result:
    """Do the steps of a conversation, blocking."""
    try:
        verb, subject, detail = next(steps)
        while True:
            try:
                result = _perform(verb, subject, detail)
            except OSError as error:
                verb, subject, detail = steps.throw(error)
            else:
                verb, subject, detail = steps.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()


async def drive_async(steps: Steps[Result]) -> Result:
    """Do the steps of a conversation on the running event loop."""
    try:
        verb, subject, detail = next(steps)
        while True:
            try:
                result = await _perform_async(verb, subject, detail)
            except OSError as error:
                verb, subject, detail = steps.throw(error)
            else:
                verb, subject, detail = steps.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _perform(verb: str, subject: Any, detail: Any) -> bytes | None:
    if verb == "send":
        _send(subject, detail)
    elif verb != "sleep":
        return _receive(subject, detail)
    else:
        time.sleep(detail)
    return None


def _send(sock: socket.socket, data: bytes) -> None:
    """Send all; nearly always there is room for it at once, and a deadline costs nothing."""
    try:
        sent = sock.send(data, socket.MSG_DONTWAIT)
    except BlockingIOError:
        sent = 0
    if sent < len(data):
        sock.settimeout(ANSWER_S)
        sock.sendall(data[sent:])


def _receive(sock: socket.socket, timeout_s: float | None) -> bytes:
    """Receive bytes; the socket itself has no timeout, which saves system calls."""
    if sock.gettimeout() is not None:
        sock.settimeout(None)
    if sock.fileno() < 0:
        raise ConnectionResetError("the connection was closed on this side")
    # A process that sleeps in `recv` is woken when the other side reads the request; `poll` is not.
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    if not ready.poll(None if timeout_s is None else timeout_s * 1000):
        raise TimeoutError("timed out")
    return sock.recv(CHUNK_BYTES)


async def _perform_async(verb: str, subject: Any, detail: Any) -> bytes | None:
    import asyncio

    loop = asyncio.get_running_loop()
    if verb == "sleep":
        await asyncio.sleep(detail)
        return None
    subject.settimeout(0)
    if verb == "send":
        await loop.sock_sendall(subject, detail)
        return None
    if detail is None:
        return await loop.sock_recv(subject, CHUNK_BYTES)
    return await _receive_async(loop, subject, detail)


async def _receive_async(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, timeout_s: float
) -> bytes:
    """Receive bytes before a deadline.

    Reads only after the wait: a cancelled `sock_recv` may have taken bytes that are then lost.
    """
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    timer = loop.call_later(timeout_s, wake)
    loop.add_reader(sock, wake)
    try:
        await woken
    finally:
        timer.cancel()
        loop.remove_reader(sock)
    try:
        return sock.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
    except BlockingIOError:
        raise TimeoutError("timed out") from None


class PolledConnection:
    """A connection for programs that poll several files; it may be lost and made again.

    Carries bytes; what they mean is for the protocol object of the caller, which is told of each
    new connection.
    """

    def __init__(self, dial: Callable[[], socket.socket], protocol: SansIo) -> None:
        self._dial = dial
        self._protocol = protocol
        self._received = b""  # while bytes were sent
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
        self._received = b""
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
                if not poll.poll(ANSWER_S * 1000):
                    self.close()
                self._received += self._read()
            except OSError:
                self.close()

    def receive(self) -> bytes:
        """Return the bytes that have arrived; afterwards the connection may be lost."""
        received, self._received = self._received, b""
        return received + self._read()

    def wait(self, timeout_s: float) -> bytes:
        """Wait for bytes and return them."""
        if self._socket is not None and not self._received:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.poll(timeout_s * 1000)
        return self.receive()

    def _read(self) -> bytes:
        chunks: list[bytes] = []
        try:
            while self._socket is not None:
                data = self._socket.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
                if not data:
                    self.close()
                chunks.append(data)
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        return b"".join(chunks)
