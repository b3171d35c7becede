"""The current state of the machine and of the user's queue, through restarts of either.

`StateMirror` keeps a `Snapshot` up to date by the change feeds of both daemons. It blocks or
awaits and starts no thread and no process.
"""

from __future__ import annotations

import select
import socket
import time

from grn import wire
from grn.client import negotiator, queue
from grn.client.connection import ANSWER_S, Connection
from grn.errors import GrnError, ProtocolError
from grn.protocol.snapshot import NEGOTIATOR, QUEUE, Event, Snapshot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Row = dict[str, Any]

RETRY_S = 1.0
SILENT_S = 15.0  # both daemons send at least every five seconds


class _Line:
    """The connection to one daemon, reopened when it is lost."""

    def __init__(self, name: str, connect: Callable[[], Connection]) -> None:
        self.name = name
        self.sock: socket.socket | None = None
        self.heard_at = 0.0
        self._connect = connect
        self._exchange = wire.Exchange()
        self.try_at = 0.0

    def open(self, now: float) -> str:
        """Connect and subscribe; return the reason of a failure, or an empty text."""
        self.try_at = now + RETRY_S
        try:
            line = self._connect()
        except GrnError as error:
            return error.message
        sock, self._exchange = line.sock, line.exchange
        self._exchange.say({"op": "follow"})
        try:
            sock.settimeout(ANSWER_S)
            sock.sendall(self._exchange.data_to_send())
            sock.setblocking(False)
        except OSError:
            sock.close()
            return f"the {self.name} closed the connection."
        self.sock, self.heard_at = sock, now
        return ""

    def read(self, now: float) -> list[Row] | str:
        """Return the received messages, or why the connection ended."""
        assert self.sock is not None
        messages: list[Row] = []
        try:
            while data := self.sock.recv(1 << 18):
                self.heard_at = now
                messages += self._exchange.receive_data(data)
                refused = next(filter(None, map(wire.error_in, messages)), None)
                if refused is not None:
                    return refused.message
        except BlockingIOError:
            return messages
        except (OSError, ProtocolError) as error:
            return f"the {self.name} cannot be heard: {error}"
        return f"the {self.name} closed the connection."

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class StateMirror:
    """Keeps a snapshot. Use `wait` in blocking programs and `wait_async` on an event loop."""

    def __init__(
        self,
        *,
        with_negotiator: bool = True,
        with_queue: bool = True,
        silent_s: float = SILENT_S,
    ) -> None:
        self.picture = Snapshot()
        self.garbled: GrnError | None = None  # what to tell of a malformed message
        self._silent_s = silent_s
        self._lines: list[_Line] = []
        if with_negotiator:
            self._lines.append(_Line(NEGOTIATOR, negotiator.connect))
        if with_queue:
            self._lines.append(_Line(QUEUE, _queue_that_runs))

    def __enter__(self) -> StateMirror:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self, patience_s: float = ANSWER_S) -> Snapshot:
        """Return the snapshot once each daemon has answered or is known to be away."""
        until = time.monotonic() + patience_s
        heard: set[str] = set()
        while len(heard) < len(self._lines) and time.monotonic() < until:
            heard |= {event.source for event in self.wait(until - time.monotonic())}
        return self.picture

    def expect(self, expected_at: dict[str, tuple[float, float]]) -> None:
        """Add expected starts and ends, by lease, to the snapshot."""
        if expected_at != self.picture.expected_at:
            self.picture.expected_at = expected_at
            self.picture.version += 1

    def close(self) -> None:
        """Close both connections."""
        for line in self._lines:
            line.close()

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        """Wait for events and return them; none when the time is over."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            events = self.take()
            pause_s = self._pause_s(until)
            if events or (until is not None and time.monotonic() >= until):
                return events
            select.select(self._sockets(), [], [], pause_s)

    async def wait_async(self, timeout_s: float | None = None) -> list[Event]:
        """Do as `wait` does, on the running event loop."""
        import asyncio

        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            events = self.take()
            pause_s = self._pause_s(until)
            if events or (until is not None and time.monotonic() >= until):
                return events
            loop, ready = asyncio.get_running_loop(), asyncio.Event()
            sockets = self._sockets()
            for sock in sockets:
                loop.add_reader(sock, ready.set)
            try:
                await asyncio.wait_for(ready.wait(), pause_s)
            except asyncio.TimeoutError:
                pass
            finally:
                for sock in sockets:
                    loop.remove_reader(sock)

    def take(self) -> list[Event]:
        """Apply received messages without waiting; reconnect where it is time to."""
        now = time.monotonic()
        return [event for line in self._lines for event in self._take_from(line, now)]

    def _take_from(self, line: _Line, now: float) -> list[Event]:
        if line.sock is None:
            why = line.open(now) if now >= line.try_at else ""
            if why:
                return self._lost(line, why)
            if line.sock is None:
                return []
        heard = line.read(now)
        if isinstance(heard, str):
            line.close()
            line.try_at = now + RETRY_S / 10
            return self._lost(line, heard)
        if not heard and now - line.heard_at > self._silent_s:
            return self._lost(line, f"the {line.name} has been silent for a while.")
        try:
            return [event for one in heard for event in self._apply(line.name, one)]
        except negotiator.MALFORMED:
            self.garbled = negotiator.garbled() if line.name == NEGOTIATOR else None
            if self.garbled is None:
                raise
            line.close()
            return self._lost(line, self.garbled.message)

    def _apply(self, source: str, message: Row) -> list[Event]:
        if source == QUEUE:
            for row in (*message.get("jobs", ()), *message.get("ended", ())):
                queue.typed(row)
        return self.picture.take(source, message)

    def _lost(self, line: _Line, why: str) -> list[Event]:
        return self.picture.lost(line.name, why, time.time())

    def _sockets(self) -> list[socket.socket]:
        return [line.sock for line in self._lines if line.sock is not None]

    def _pause_s(self, until: float | None) -> float:
        now = time.monotonic()
        times = [line.try_at for line in self._lines if line.sock is None]
        times.append(now + self._silent_s)
        if until is not None:
            times.append(until)
        return max(0.0, min(times) - now)


def _queue_that_runs() -> Connection:
    return queue.connect(may_start=False)
