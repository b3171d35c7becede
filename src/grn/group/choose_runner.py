"""Choose the runner: this user's queue, the GPUs of the surrounding job, or given slots.

Tasks inside a job share its lease, one task at a time on each GPU: the memory of the lease was
reserved for the job on each GPU, so no two tasks share one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from grn.client import logs, negotiator
from grn.client.leasing import frameworks
from grn.client.leasing.gpu_environment import LOGGED_UNLESS_SET
from grn.errors import DaemonError
from grn.fixed_slots.runner import Runner
from grn.group.group_runner import AHEAD, GroupRunner
from grn.group.roles import RunControl, RunListener, Slots, Source
from grn.group.task import CommandEnd, Slot, SlotGrant, Task

MAX_ASKED = 8
TAIL_BYTES = 64 << 10
ELSEWHERE = "a task inside a job runs on the GPUs of that job, and cannot run at"


def runner_for(
    source: Source,
    listener: RunListener,
    group: str,
    *,
    slots: Slots | None = None,
    retries: int = 0,
    is_fail_fast: bool = False,
    on_wait: Callable[[Task, str], None] | None = None,
    on_submit: Callable[[Task, int], None] | None = None,
    shared: dict[str, Any] | None = None,
    ahead: int = AHEAD,
    mark: str = "",
    may_nest: bool = True,
) -> RunControl:
    """Return the runner for the tasks of a source; `mark` is that of the runner for fixed slots.

    With `may_nest` false they are jobs of the queue also inside a job.
    """
    slots = slots or (NestedSlots.here() if may_nest else None)
    if slots is not None:
        return Runner(slots, source, listener, mark=mark, retries=retries)
    return GroupRunner(
        source, listener, group, retries=retries, is_fail_fast=is_fail_fast, on_wait=on_wait,
        on_submit=on_submit, shared=shared, ahead=ahead,
    )  # fmt: skip


class NestedSlots:
    """The GPUs of an outer lease, assigned in the order of requests."""

    wake_at: float | None = None

    def __init__(self, lease: str, visible: str) -> None:
        self._lease = lease
        self._all = list(dict.fromkeys(name.strip() for name in visible.split(",")))
        self._free = list(self._all)
        self._waiting: deque[Task] = deque()
        self._log_starts: dict[int, int] = {}  # by number of the task
        self._ends: list[CommandEnd] = []

    @classmethod
    def here(cls) -> NestedSlots | None:
        """Return the GPUs of the surrounding job, None when it has none."""
        outer = os.environ.get("GRN_LEASE")
        if not outer:
            return None
        try:
            leases = {row["id"]: row for row in negotiator.status()["leases"]}
        except DaemonError:
            return None
        if outer not in leases:
            return None
        # The process that started this one may have passed on only some of its GPUs.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return cls(outer, visible or ",".join(map(str, leases[outer]["gpus"])))

    def has_room(self) -> bool:
        """True while few tasks wait; waiting ones can be reported."""
        return len(self._waiting) < MAX_ASKED

    def ask(self, task: Task) -> None:
        """Put a task in line."""
        self._waiting.append(task)

    def grants(self) -> list[SlotGrant]:
        """Return the tasks that can start now; a smaller task does not overtake."""
        grants = []
        while self._waiting and self._can_answer(self._waiting[0]):
            task = self._waiting.popleft()
            if task.needs.is_elsewhere:
                grants.append(SlotGrant(task, None, f"{ELSEWHERE} {task.needs.at}"))
                continue
            taken = self._free[: self._count(task)]
            del self._free[: len(taken)]
            grants.append(SlotGrant(task, self._slot(taken)))
            log = task.log_path
            is_there = log is not None and os.path.exists(log)
            self._log_starts[task.number] = os.path.getsize(log or "") if is_there else 0
        return grants

    def _can_answer(self, task: Task) -> bool:
        return task.needs.is_elsewhere or len(self._free) >= self._count(task)

    def _count(self, task: Task) -> int:
        """Return how many GPUs a task gets: at most all of the lease."""
        return min(max(1, task.needs.gpus), len(self._all))

    def _slot(self, names: list[str]) -> Slot:
        visible = ",".join(names)
        unless_set = LOGGED_UNLESS_SET.items()
        environment = {name: value for name, value in unless_set if name not in os.environ}
        if len(names) < len(self._all):
            environment["CUDA_VISIBLE_DEVICES"] = visible
            environment["GRN_GPU_COUNT"] = str(len(names))
        return Slot(visible, environment, f"{self._lease}:{visible}")

    def started(self, slot: Slot, pid: int) -> None:
        """Do nothing: the lease is bound to the outer job."""

    def unused(self, slot: Slot) -> None:
        """Take GPUs back."""
        back = {*slot.name.split(","), *self._free}
        self._free = [name for name in self._all if name in back]

    def give(self, ended: CommandEnd) -> None:
        """Take GPUs back, and read from the task's log whether memory ran out."""
        log, start = ended.task.log_path or "", self._log_starts.pop(ended.task.number, 0)
        text = logs.tail(log, TAIL_BYTES, start) if ended.status else b""
        is_oom = frameworks.is_out_of_memory_text(text.decode(errors="replace"))
        self._ends.append(ended.but(is_out_of_memory=is_oom))
        self.unused(ended.slot)

    def settled(self) -> list[CommandEnd]:
        """Return the ends since the last call."""
        ends, self._ends = self._ends, []
        return ends

    def withdraw(self) -> None:
        """Drop all waiting tasks."""
        self._waiting.clear()

    def fileno(self) -> int | None:
        """Return None: there is nothing to read."""
        return None

    def hear(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the lease belongs to the outer job."""
