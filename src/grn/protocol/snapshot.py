"""The state of both daemons as their change feeds tell it: messages in, rows and events out.

Pure. `grn.client.state_mirror` receives the messages; how the rows are shown is up to others.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from grn.model.record import names_of
from grn.protocol.negotiator_rows import (
    EndRow,
    GpuRow,
    LeaseRow,
    NegotiatorFacts,
    SamplesRow,
    WaitingRow,
)
from grn.protocol.queue_rows import JobRow, NodeRow, QueueFacts
from grn.protocol.rows import Kind, read, read_all, updated

Message = dict[str, Any]
NEGOTIATOR, QUEUE = "negotiator", "queue"
MAX_ENDS = 200
SAMPLES_KEPT = 120


class Event:
    """One event: its name, source, time, and data, which is JSON as it was received."""

    __slots__ = ("at", "data", "name", "source")

    def __init__(self, source: str, name: str, at: float, data: Message) -> None:
        self.source, self.name, self.at, self.data = source, name, at, data

    def row(self) -> Message:
        """Return the event as `grn events --json` prints it."""
        head = {"schema": 1, "at": self.at, "source": self.source, "ev": self.name}
        return {**head, "data": self.data}


class Snapshot:
    """The state of both daemons. `trouble` says why each cannot be reached; empty if it can."""

    def __init__(self) -> None:
        self.trouble = {NEGOTIATOR: "", QUEUE: ""}
        self.negotiator = NegotiatorFacts()
        self.gpus: dict[str, GpuRow] = {}  # by uuid
        self.leases: dict[str, LeaseRow] = {}  # by id
        self.waiting: dict[str, WaitingRow] = {}
        self.expected_at: dict[str, tuple[float, float]] = {}  # by lease; not part of the feed
        self.ends: deque[EndRow] = deque(maxlen=MAX_ENDS)
        self.samples: dict[str, Samples] = {}  # by uuid
        self.queue = QueueFacts()
        self.jobs: dict[int, JobRow] = {}  # not ended, by id
        self.ended: dict[int, JobRow] = {}  # the last ones, oldest first
        self.nodes: dict[str, NodeRow] = {}  # of the queue's sites, by site and name
        self._parts: _Parts | None = None  # of a snapshot that is not complete
        self.version = 0  # counts messages, so that a reader knows what it has drawn

    def has_heard(self, source: str) -> bool:
        """True when a daemon has answered, or is known to be away."""
        facts = self.negotiator if source == NEGOTIATOR else self.queue
        return bool(facts.version or self.trouble[source])

    def in_turn(self) -> list[WaitingRow]:
        """Return the waiting requests, the next first."""
        return sorted(self.waiting.values(), key=lambda row: row.turn)

    def take(self, source: str, message: Message) -> list[Event]:
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

    def lost(self, source: str, why: str, at: float) -> list[Event]:
        """Note that a source cannot be reached; its last state is kept."""
        if self.trouble[source] == why:
            return []
        self.version += 1
        self.trouble[source] = why
        return [Event(source, "lost", at, {"why": why})]

    # --- the negotiator ------------------------------------------------------------------

    def _all_of_machine(self, message: Message) -> list[tuple[str, Message]]:
        known = self.leases
        self.negotiator = read(NegotiatorFacts, message)
        self.gpus = {row.uuid: row for row in read_all(GpuRow, message["gpus"])}
        self.leases = {row.id: row for row in read_all(LeaseRow, message["leases"])}
        self.waiting = {row.id: row for row in read_all(WaitingRow, message["waiting"])}
        ends = message["ends"][-MAX_ENDS:]
        self.ends = deque(read_all(EndRow, ends), MAX_ENDS)
        self.samples = {row.uuid: Samples(row) for row in read_all(SamplesRow, message["samples"])}
        missed = [row for row in ends if row["id"] in known and row["id"] not in self.leases]
        return [*(("ended", row) for row in missed), ("snapshot", _whole(message))]

    def _when_joined(
        self, events: list[tuple[str, Message]], message: Message
    ) -> list[tuple[str, Message]]:
        """Hold back the events of a snapshot that comes in parts, and tell it as one."""
        if message["ev"] == "snapshot":
            self._parts = _Parts() if message.get("more") else None
        if self._parts is None:
            return events
        self._parts.add(message)
        kept = [one for one in events if one[0] == "ended"]
        if message.get("more"):
            return kept
        whole, self._parts = self._parts.whole(), None
        return [*kept, ("snapshot", whole)]

    def _changes(self, message: Message) -> list[tuple[str, Message]]:
        events: list[tuple[str, Message]] = []
        for row in message.get("ended", ()):
            self.ends.append(read(EndRow, row))
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
            is_new = _merge(LeaseRow, self.leases, row["id"], row)
            events.append(("granted" if is_new else "lease", row))
        for row in message.get("waiting", ()):
            _merge(WaitingRow, self.waiting, row["id"], row)
            events.append(("waiting", row))
        for row in message.get("gpus", ()):
            _merge(GpuRow, self.gpus, row["uuid"], row)
            events.append(("gpu", row))
        facts = _only(message, *_NEGOTIATOR_FACTS)
        if facts:
            self.negotiator = updated(self.negotiator, facts)
            told = _without(facts, "host")  # which moves with every sample
            if told:
                events.append(("negotiator", told))
        return events

    def _sample(self, at: float) -> None:
        for uuid, gpu in self.gpus.items():
            past = self.samples.get(uuid)
            if past is None:
                past = self.samples[uuid] = Samples(SamplesRow(uuid, 1.0, at - 1))
            past.add(at, gpu.used_bytes, gpu.load_pct)

    # --- the queue -----------------------------------------------------------------------

    def _all_of_queue(self, message: Message) -> list[tuple[str, Message]]:
        known = self.jobs
        self.queue = read(QueueFacts, message)
        self.jobs = {row.id: row for row in read_all(JobRow, message["jobs"])}
        self.ended = {row.id: row for row in read_all(JobRow, message["ended"])}
        self.nodes = {row.key: row for row in read_all(NodeRow, message.get("nodes", ()))}
        missed = [row for row in message["ended"] if row["id"] in known]
        return [*(("job-ended", row) for row in missed), ("snapshot", _whole(message))]

    def _job_changes(self, message: Message) -> list[tuple[str, Message]]:
        events: list[tuple[str, Message]] = []
        for job_id in message.get("gone", ()):
            self.jobs.pop(job_id, None)
        for row in message.get("jobs", ()):
            self.jobs[row["id"]] = read(JobRow, row)
            events.append(("job", row))
        for row in message.get("ended", ()):
            self.jobs.pop(row["id"], None)
            self.ended.pop(row["id"], None)
            self.ended[row["id"]] = read(JobRow, row)
            events.append(("job-ended", row))
        while len(self.ended) > MAX_ENDS:
            del self.ended[next(iter(self.ended))]
        for row in message.get("nodes", ()):
            node = read(NodeRow, row)
            self.nodes[node.key] = node
            events.append(("node", row))
        for name in message.get("nodes_gone", ()):
            self.nodes.pop(name, None)
            events.append(("node-gone", {"name": name}))
        facts = _only(message, *_QUEUE_FACTS)
        if facts:
            self.queue = updated(self.queue, facts)
            events.append(("queue", facts))
        return events


class Samples:
    """The last samples of one GPU, at an even pace."""

    __slots__ = ("load_pct", "step_s", "until_at", "used_bytes")

    def __init__(self, row: SamplesRow) -> None:
        self.step_s, self.until_at = row.step_s, row.until_at
        self.used_bytes: deque[int | None] = deque(row.used_bytes, SAMPLES_KEPT)
        self.load_pct: deque[float | None] = deque(row.load_pct, SAMPLES_KEPT)

    def add(self, at: float, used_bytes: int | None, load_pct: float | None) -> None:
        """Add the current values, once for each step."""
        missed = int((at - self.until_at + 0.1) / self.step_s)
        if missed < 1:
            return
        self.until_at = at
        if missed == 2:  # a sample that is a little late stands for the step it missed
            self.used_bytes.append(used_bytes)
            self.load_pct.append(load_pct)
            missed = 1
        for _ in range(min(missed - 1, SAMPLES_KEPT)):  # steps without a sample
            self.used_bytes.append(None)
            self.load_pct.append(None)
        self.used_bytes.append(used_bytes)
        self.load_pct.append(load_pct)


class _Parts:
    """The parts of a large snapshot, as they were received: what `grn events` prints of it."""

    def __init__(self) -> None:
        self._facts: Message = {}
        self._ends: deque[Message] = deque(maxlen=MAX_ENDS)
        self._rows: dict[str, dict[str, Message]] = {"gpus": {}, "leases": {}, "waiting": {}}

    def add(self, message: Message) -> None:
        """Apply one message."""
        self._facts |= _only(message, *_NEGOTIATOR_FACTS)
        self._ends.extend((*message.get("ends", ()), *message.get("ended", ())))
        for lease_id in message.get("gone", ()):
            self._rows["leases"].pop(lease_id, None)
            self._rows["waiting"].pop(lease_id, None)
        for name, rows in self._rows.items():
            for row in message.get(name, ()):
                key = row["uuid"] if name == "gpus" else row["id"]
                rows[key] = rows.get(key, {}) | row
                if name == "leases":
                    self._rows["waiting"].pop(key, None)

    def whole(self) -> Message:
        """Return the parts as one snapshot."""
        rows = {name: list(found.values()) for name, found in self._rows.items()}
        return {**self._facts, **rows, "ends": list(self._ends)}


_NEGOTIATOR_FACTS = (
    "version", "pid", "uid", "trouble", "started_at", "outcomes", "host", "bookings",
)  # fmt: skip
_QUEUE_FACTS = names_of(QueueFacts)


def _merge(kind: type[Kind], rows: dict[str, Kind], key: str, row: Message) -> bool:
    """Add a row, or update the one that is there; True when it is new."""
    old = rows.get(key)
    rows[key] = read(kind, row) if old is None else updated(old, row)
    return old is None


def _whole(message: Message) -> Message:
    return _without(message, "id", "ev", "at")


def _only(row: Message, *names: str) -> Message:
    return {name: row[name] for name in names if name in row}


def _without(row: Message, *names: str) -> Message:
    return {name: value for name, value in row.items() if name not in names}
