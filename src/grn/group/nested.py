"""Tasks inside a job: they share its lease, one task at a time on each GPU.

The memory of the lease was reserved for the job on each GPU, so no two tasks share one.
"""

from __future__ import annotations

from collections import deque

from grn.group.task import Slot, SlotGrant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.group.task import Task


class Nested:
    """Assigns the GPUs of an outer lease, in the order of requests."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._lease = ""
        self._all: list[str] = []
        self._free: list[str] = []

    def ask(self, task: Task, lease: str, visible: str) -> None:
        """Queue a task for GPUs of a lease; `visible` names its GPUs."""
        if not self._all:
            self._lease = lease
            self._all = list(dict.fromkeys(name.strip() for name in visible.split(",")))
            self._free = list(self._all)
        self._waiting.append(task)

    def grants(self) -> list[SlotGrant]:
        """Return the tasks that can start now; a smaller task does not overtake."""
        grants = []
        while self._waiting and len(self._free) >= self._count(self._waiting[0]):
            task = self._waiting.popleft()
            taken = self._free[: self._count(task)]
            del self._free[: len(taken)]
            grants.append(SlotGrant(task, self._slot(taken)))
        return grants

    def give(self, slot: Slot) -> None:
        """Take GPUs back."""
        back = {*slot.name.split(","), *self._free}
        self._free = [name for name in self._all if name in back]

    def withdraw(self) -> None:
        """Drop all waiting tasks."""
        self._waiting.clear()

    def _count(self, task: Task) -> int:
        """Return how many GPUs a task gets: at most all of the lease."""
        return min(max(1, task.needs.gpus), len(self._all))

    def _slot(self, names: list[str]) -> Slot:
        visible = ",".join(names)
        environment = {"CUDA_VISIBLE_DEVICES": visible, "GRN_GPU_COUNT": str(len(names))}
        is_part = len(names) < len(self._all)
        return Slot(visible, environment if is_part else {}, f"{self._lease}:{visible}")
