"""Slots inside a job: the GPUs of its lease, each for one task at a time."""

from __future__ import annotations

import os

from grn.client import frameworks, logs, pages
from grn.errors import DaemonError
from grn.group.nested import Nested
from grn.group.task import CommandEnd, Slot, SlotGrant, Task

MAX_ASKED = 8
TAIL_BYTES = 64 << 10


class NestedSlots:
    """The GPUs of an outer lease."""

    wake_at: float | None = None

    def __init__(self, lease: str, visible: str) -> None:
        self._lease = lease
        self._visible = visible
        self._nested = Nested()
        self._waiting = 0
        self._log_starts: dict[int, int] = {}  # by number of the task
        self._ends: list[CommandEnd] = []

    @classmethod
    def here(cls) -> NestedSlots | None:
        """Return the GPUs of the surrounding job, None when it has none."""
        outer = os.environ.get("GRN_LEASE")
        if not outer:
            return None
        try:
            leases = {row["id"]: row for row in pages.status()["leases"]}
        except DaemonError:
            return None
        if outer not in leases:
            return None
        # The process that started this one may have passed on only some of its GPUs.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return cls(outer, visible or ",".join(map(str, leases[outer]["gpus"])))

    def has_room(self) -> bool:
        """True while few tasks wait; waiting ones can be reported."""
        return self._waiting < MAX_ASKED

    def ask(self, task: Task) -> None:
        """Put a task in line."""
        self._waiting += 1
        self._nested.ask(task, self._lease, self._visible)

    def grants(self) -> list[SlotGrant]:
        """Return the tasks that can start now."""
        grants = self._nested.grants()
        self._waiting -= len(grants)
        for grant in grants:
            log = grant.task.log_path
            is_there = log is not None and os.path.exists(log)
            self._log_starts[grant.task.number] = os.path.getsize(log or "") if is_there else 0
        return grants

    def started(self, slot: Slot, pid: int) -> None:
        """Do nothing: the lease is bound to the outer job."""

    def unused(self, slot: Slot) -> None:
        """Take GPUs back."""
        self._nested.give(slot)

    def give(self, ended: CommandEnd) -> None:
        """Take GPUs back, and read from the task's log whether memory ran out."""
        log, start = ended.task.log_path or "", self._log_starts.pop(ended.task.number, 0)
        text = logs.tail(log, TAIL_BYTES, start) if ended.status else b""
        is_oom = frameworks.is_out_of_memory_text(text.decode(errors="replace"))
        self._ends.append(ended.but(is_out_of_memory=is_oom))
        self._nested.give(ended.slot)

    def settled(self) -> list[CommandEnd]:
        """Return the ends since the last call."""
        ends, self._ends = self._ends, []
        return ends

    def withdraw(self) -> None:
        """Drop all waiting tasks."""
        self._nested.withdraw()
        self._waiting = 0

    def fileno(self) -> int | None:
        """Return None: there is nothing to read."""
        return None

    def hear(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the lease belongs to the outer job."""
