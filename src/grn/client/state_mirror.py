"""The current state of the machine and of the user's queue, through restarts of either.

`StateMirror` keeps a `Snapshot` up to date by the change feeds of both daemons. It blocks or
awaits and starts no thread and no process. The rows are documented in docs/json.md.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque

from grn import wire
from grn.client import negotiator, queue
from grn.client.connection import ANSWER_S, Connection
from grn.errors import GrnError, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Row = dict[str, Any]

RETRY_S = 1.0
SILENT_S = 15.0  # both daemons send at least every five seconds
MAX_ENDS = 200
SAMPLES_KEPT = 120
NEGOTIATOR, QUEUE = "negotiator", "queue"


class Event:
    """One event: its name, source, time, and row."""

    __slots__ = ("at", "data", "name", "source")

    def __init__(self, source: str, name: str, at: float, data: Row) -> None:
        self.source, self.name, self.at, self.data = source, name, at, data

    def row(self) -> Row:
        """Return the event as `grn events --json` prints it."""
        head = {"schema": 1, "at": self.at, "source": self.source, "ev": self.name}
        return {**head, "data": self.data}


class Snapshot:
    """The state of both daemons. `trouble` says why each cannot be reached; empty if it can."""

    def __init__(self) -> None:
        self.trouble = {NEGOTIATOR: "", QUEUE: ""}
        self.negotiator: Row = {}  # version, pid, uid, trouble, started_at, outcomes
        self.gpus: dict[str, Row] = {}  # by uuid
        self.leases: dict[str, Row] = {}  # by id
        self.waiting: dict[str, Row] = {}
        self.ends: deque[Row] = deque(maxlen=MAX_ENDS)
        self.samples: dict[str, Samples] = {}  # by uuid
        self.queue: Row = {}  # version, pid, uid, trouble, drained, counts
        self.jobs: dict[int, Row] = {}  # not ended, by id
        self.ended: dict[int, Row] = {}  # the last ones, oldest first
        self._is_joining = False  # parts of the first snapshot are still to come
        self.version = 0  # counts messages, so that a reader knows what it has drawn

    def in_turn(self) -> list[Row]:
        """Return the waiting requests, the next first."""
        return sorted(self.waiting.values(), key=lambda row: row["turn"])

    def take(self, source: str, message: Row) -> list[Event]:
        """Apply one message of the stream; return its events."""
        self.version += 1
        self.trouble[source] = ""
        at = float(message["at"])
        is_whole = message["ev"] == "snapshot"
        if source == NEGOTIATOR:
            events = self._all_of_machine(message) if is_whole else self._changes(message)
            events = self._when_joined(events, message)
            self._sample(at)
        else:
            events = self._all_of_queue(message) if is_whole else self._job_changes(message)
        return [Event(source, name, at, data) for name, data in events]

    def lost(self, source: str, why: str) -> list[Event]:
        """Note that a source cannot be reached; its last state is kept."""
        if self.trouble[source] == why:
            return []
        self.version += 1
        self.trouble[source] = why
        return [Event(source, "lost", time.time(), {"why": why})]

    # --- the negotiator ------------------------------------------------------------------

    def _all_of_machine(self, message: Row) -> list[tuple[str, Row]]:
        known = self.leases
        self.negotiator = _only(message, *_NEGOTIATOR_FACTS)
        self.gpus = {row["uuid"]: row for row in message["gpus"]}
        self.leases = {row["id"]: row for row in message["leases"]}
        self.waiting = {row["id"]: row for row in message["waiting"]}
        self.ends = deque(message["ends"], MAX_ENDS)
        self.samples = {row["uuid"]: Samples(row) for row in message["samples"]}
        missed = [row for row in self.ends if row["id"] in known and row["id"] not in self.leases]
        whole = _without(message, "id", "ev", "at")
        return [*(("ended", row) for row in missed), ("snapshot", whole)]

    def _when_joined(self, events: list[tuple[str, Row]], message: Row) -> list[tuple[str, Row]]:
        """Join the parts of a large snapshot."""
        is_first = message["ev"] == "snapshot"
        if not is_first and not self._is_joining:
            return events
        if is_first and not message.get("more"):
            self._is_joining = False
            return events
        self._is_joining = bool(message.get("more"))
        kept = [one for one in events if one[0] == "ended"]
        if self._is_joining:
            return kept
        rows = {"gpus": self.gpus, "leases": self.leases, "waiting": self.waiting}
        whole = self.negotiator | {name: list(found.values()) for name, found in rows.items()}
        return [*kept, ("snapshot", whole | {"ends": list(self.ends)})]

    def _changes(self, message: Row) -> list[tuple[str, Row]]:
        events: list[tuple[str, Row]] = []
        for row in message.get("ended", ()):
            self.ends.append(row)
            if row["id"] not in self.leases:  # granted and ended between two messages
                events.append(("granted", _without(row, "outcome", "ended_at", "peak_bytes")))
            events.append(("ended", row))
        ended = {row["id"] for row in message.get("ended", ())}
        for lease_id in message.get("gone", ()):
            was_waiting = self.waiting.pop(lease_id, None) is not None
            was_leased = self.leases.pop(lease_id, None) is not None
            if lease_id not in ended and (was_leased or was_waiting):
                events.append(("freed" if was_leased else "withdrawn", {"id": lease_id}))
        for row in message.get("leases", ()):
            self.waiting.pop(row["id"], None)
            is_new = row["id"] not in self.leases
            self.leases.setdefault(row["id"], {}).update(row)
            events.append(("granted" if is_new else "lease", row))
        for row in message.get("waiting", ()):
            self.waiting.setdefault(row["id"], {}).update(row)
            events.append(("waiting", row))
        for row in message.get("gpus", ()):
            self.gpus.setdefault(row["uuid"], {}).update(row)
            events.append(("gpu", row))
        facts = _only(message, *_NEGOTIATOR_FACTS)
        if facts:
            self.negotiator |= facts
            events.append(("negotiator", facts))
        return events

    def _sample(self, at: float) -> None:
        for uuid, gpu in self.gpus.items():
            past = self.samples.get(uuid)
            if past is None:
                past = self.samples[uuid] = Samples({"until_at": at - 1, "step_s": 1.0})
            past.add(at, gpu["used_bytes"], gpu["load_pct"])

    # --- the queue -----------------------------------------------------------------------

    def _all_of_queue(self, message: Row) -> list[tuple[str, Row]]:
        known = self.jobs
        self.queue = _only(message, *_QUEUE_FACTS)
        self.jobs = {row["id"]: queue.typed(row) for row in message["jobs"]}
        self.ended = {row["id"]: queue.typed(row) for row in message["ended"]}
        missed = [row for job_id, row in self.ended.items() if job_id in known]
        whole = _without(message, "id", "ev", "at")
        return [*(("job-ended", row) for row in missed), ("snapshot", whole)]

    def _job_changes(self, message: Row) -> list[tuple[str, Row]]:
        events: list[tuple[str, Row]] = []
        for job_id in message.get("gone", ()):
            self.jobs.pop(job_id, None)
        for row in map(queue.typed, message.get("jobs", ())):
            self.jobs[row["id"]] = row
            events.append(("job", row))
        for row in map(queue.typed, message.get("ended", ())):
            self.jobs.pop(row["id"], None)
            self.ended.pop(row["id"], None)
            self.ended[row["id"]] = row
            events.append(("job-ended", row))
        while len(self.ended) > MAX_ENDS:
            del self.ended[next(iter(self.ended))]
        facts = _only(message, *_QUEUE_FACTS)
        if facts:
            self.queue |= facts
            events.append(("queue", facts))
        return events


class Samples:
    """The last samples of one GPU, at an even pace."""

    __slots__ = ("load_pct", "step_s", "until_at", "used_bytes")

    def __init__(self, row: Row) -> None:
        self.step_s = float(row["step_s"])
        self.until_at = float(row["until_at"])
        self.used_bytes: deque[int | None] = deque(row.get("used_bytes", ()), SAMPLES_KEPT)
        self.load_pct: deque[float | None] = deque(row.get("load_pct", ()), SAMPLES_KEPT)

    def add(self, at: float, used_bytes: int | None, load_pct: float | None) -> None:
        """Add the current values, once for each step."""
        missed = int((at - self.until_at + 0.1) / self.step_s)
        if missed < 1:
            return
        self.until_at = at
        for _ in range(min(missed - 1, SAMPLES_KEPT)):  # steps without a sample
            self.used_bytes.append(None)
            self.load_pct.append(None)
        self.used_bytes.append(used_bytes)
        self.load_pct.append(load_pct)


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
                return self.picture.lost(line.name, why)
            if line.sock is None:
                return []
        heard = line.read(now)
        if isinstance(heard, str):
            line.close()
            line.try_at = now + RETRY_S / 10
            return self.picture.lost(line.name, heard)
        if not heard and now - line.heard_at > self._silent_s:
            return self.picture.lost(line.name, f"the {line.name} has been silent for a while.")
        try:
            return [event for one in heard for event in self.picture.take(line.name, one)]
        except negotiator.MALFORMED:
            garbled = negotiator.garbled() if line.name == NEGOTIATOR else None
            if garbled is None:
                raise
            line.close()
            return self.picture.lost(line.name, garbled.message)

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


_NEGOTIATOR_FACTS = ("version", "pid", "uid", "trouble", "started_at", "outcomes")
_QUEUE_FACTS = ("version", "pid", "uid", "trouble", "drained", "counts", "origin")


def _only(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names if name in row}


def _without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in names}
