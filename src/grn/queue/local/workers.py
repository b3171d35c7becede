"""Shims as the queue sees them: their tasks, and attempt files that can be reused."""

from __future__ import annotations

import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any

from grn import wire
from grn.queue.journal.rows import Command
from grn.queue.local import attempt_files
from grn.queue.local.channel import GoOrder, StartOrder, StopOrder
from grn.queue.site import Attempt

SEND_S = 5.0
SPARE_S, MAX_SPARES = 10.0, 64
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How commands are run: where their files go, how long they get to end, how much they log."""

    root: str  # of all attempts' folders
    queue_id: str
    queue_lock: str
    grace_s: float = 10.0
    log_bytes: int = 64 << 20

    @property
    def begun(self) -> str:
        """The file in which shims note the attempts they begin."""
        return os.path.join(os.path.dirname(self.queue_lock), "begun")

    def folder(self, attempt: Attempt) -> str:
        """Return the folder of an attempt's files."""
        return attempt_files.folder_of(self.root, attempt.job, attempt.number)

    def tag(self, attempt: Attempt) -> str:
        """Return the mark that all processes of an attempt carry in their environment."""
        return f"{self.queue_id}.{attempt.job}.{attempt.number}"


@dataclass(frozen=True, slots=True)
class LaunchTask:
    """An attempt and the data that its shim needs."""

    attempt: Attempt
    command: Command
    lease: str
    visible: str


class Worker:
    """A shim process, idle or at work on one attempt, at the other end of a channel."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.task: LaunchTask | None = None
        self.knows: set[int] = set()  # environments it has been given
        self.ahead: tuple[Attempt, Command] | None = None  # what it was ordered to get ready for
        self.idle_since = 0.0

    def is_ready_for(self, attempt: Attempt) -> bool:
        """True when this worker was ordered to get ready for an attempt."""
        return self.ahead is not None and self.ahead[0] == attempt

    def order(self, order: StartOrder | GoOrder | StopOrder) -> bool:
        """Send an order; False when the worker is gone."""
        data = wire.encode(order.to_json())
        try:
            sent = self._send_some(data)
            if sent < len(data):
                self.channel.settimeout(SEND_S)
                self.channel.sendall(data[sent:])
                self.channel.setblocking(False)
        except OSError:
            return False
        return True

    def _send_some(self, data: bytes) -> int:
        """Send what the socket takes at once: all, but for very long orders."""
        try:
            return self.channel.send(data)
        except BlockingIOError:  # full, not closed
            return 0


class Postponed:
    """Attempts whose shim could not start, because the system ran out of processes for example.

    Starting all of them at once would fill the last free processes with shims that have none left
    for their commands. So one is tried first; each round without a failure doubles the next.
    """

    def __init__(self) -> None:
        self.tasks: deque[LaunchTask] = deque()
        self._batch = 1

    def add(self, task: LaunchTask) -> None:
        """Note a failure to start."""
        self.tasks.append(task)
        self._batch = 1

    def take(self) -> list[LaunchTask]:
        """Return the attempts to try in this round, oldest first."""
        taken = [self.tasks.popleft() for _ in range(min(self._batch, len(self.tasks)))]
        self._batch *= 2
        return taken


class Spares:
    """Reusable records: of short attempts whose ends this queue saw and persisted."""

    def __init__(self) -> None:
        self._ended: set[Attempt] = set()
        self._folders: list[str] = []

    def ended(self, attempt: Attempt, record: Record) -> None:
        """Note that this queue saw an attempt end; the records of long ones are kept."""
        if record["ran_s"] < SPARE_S:
            self._ended.add(attempt)

    def settled(self, attempt: Attempt, folder: str) -> None:
        """Note that an end is in the journal: its record is not needed any more."""
        if attempt in self._ended:
            self._ended.remove(attempt)
            if len(self._folders) < MAX_SPARES:
                self._folders.append(folder)

    def take(self) -> str:
        """Return the folder of a reusable record, or an empty text."""
        return self._folders.pop() if self._folders else ""
