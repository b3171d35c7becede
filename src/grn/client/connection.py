"""Connections to the negotiator, for programs that block and for programs on an event loop.

The steps of a conversation are generators that yield what to do next (send, receive, sleep):
`drive` does them blocking, `drive_async` awaits them.
"""

from __future__ import annotations

import os
import select
import socket
import time

from grn import paths, wire
from grn.client import trust
from grn.errors import DaemonError, DaemonNotRunning, NotTrusted, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    from grn.wire import Message

    Result = TypeVar("Result")
    Steps = Generator[tuple[str, Any, Any], Any, Result]

ANSWER_S = 10.0
CHUNK_BYTES = 65536
EAGER_S = 0.0003


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


# Raised by code that reads a reply without its fields.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_others: list[tuple[str, int]] = []  # the last negotiator that is another user's: where, whose


def garbled() -> ProtocolError | None:
    """Return what to tell of a malformed reply, if a negotiator of another user's has answered.

    One's own and root's say what they should: with these it is a bug, and not to be hidden.
    """
    if not _others:
        return None
    path, user = _others[0]
    return ProtocolError(
        f"the negotiator at {path} (user {paths.user_name(user)})"
        " does not speak the protocol of this grn.",
        "It may be of another version, or none of grn's: see GRN_TRUSTED_USERS.",
    )


_met: set[str] = set()  # where this process, or one it was forked from, has reached a negotiator


def has_met() -> bool:
    """True when a negotiator has answered here before: one that is away now may come back."""
    return paths.own_socket() in _met


def forget_met() -> None:
    """Expect no negotiator here any more."""
    _met.discard(paths.own_socket())


def connect() -> Connection:
    """Connect to the negotiator of this machine."""
    return Connection(call())


def call() -> socket.socket:
    """Return a socket to the negotiator of this machine, unless it is an impostor's."""
    doubts: NotTrusted | None = None
    for path in paths.sockets_to_try():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            continue
        doubt = trust.doubt(sock, path)
        if doubt is None:
            user = trust.user_of(sock)
            _others[:] = [] if user in (0, os.getuid()) else [(path, user)]
            _met.add(paths.own_socket())
            return sock
        doubts = doubts or doubt
        sock.close()
    raise doubts or DaemonNotRunning(paths.own_socket())


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


def ask_once(message: Message) -> Message:
    """Ask the negotiator one question over a new connection, once."""
    return drive(_ask_once(message))


def _ask_once(message: Message) -> Steps[Message]:
    connection = connect()
    try:
        answer = yield from connection.ask(message)
    except TimeoutError as error:
        raise DaemonError(
            f"the negotiator did not answer within {ANSWER_S:.0f} s.",
            "It may be stopped or overloaded; `grn doctor` tells more.",
        ) from error
    except ConnectionError as error:
        raise DaemonNotRunning(paths.own_socket()) from error
    finally:
        connection.close()
    return answer


def _perform(verb: str, subject: Any, detail: Any) -> bytes | None:
    if verb == "send":
        _send(subject, detail)
    elif verb != "sleep":
        return _receive(subject, detail, is_eager=verb == "recv eagerly")
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


def _receive(sock: socket.socket, timeout_s: float | None, is_eager: bool) -> bytes:
    """Receive bytes; the socket itself has no timeout, which saves system calls."""
    if sock.gettimeout() is not None:
        sock.settimeout(None)
    if sock.fileno() < 0:
        raise ConnectionResetError("the connection was closed on this side")
    # A grant that needs no waiting arrives sooner than a sleeping process wakes up
    # (benchmarks/round_trip.py); between two looks the processor is yielded to other processes.
    until = time.perf_counter() + EAGER_S if is_eager else 0.0
    while is_eager:
        try:
            return sock.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if time.perf_counter() >= until:
                break
            os.sched_yield()
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
    try:
        return await asyncio.wait_for(loop.sock_recv(subject, CHUNK_BYTES), detail)
    except asyncio.TimeoutError as error:  # another class than TimeoutError before Python 3.11
        raise TimeoutError(str(error)) from error
