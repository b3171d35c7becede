"""Tasks inside a job: its lease is there, and each of its GPUs is for one of them at a time.

The memory of the lease was reserved for the job on each GPU, so no two tasks share one.
"""

from __future__ import annotations

from collections import deque

from grn.group.task import Slot, SlotGrant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.group.task import Task


class Nested:
    """Shares out the GPUs of an outer lease, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._lease = ""
        self._all: list[str] = []
        self._free: list[str] = []

    def ask(self, task: Task, lease: str, visible: str) -> None:
        """Put a task in line for GPUs of a lease, of which so many can be seen."""
        if not self._all:
            self._lease = lease
            self._all = list(dict.fromkeys(name.strip() for name in visible.split(",")))
            self._free = list(self._all)
        self._waiting.append(task)

    def grants(self) -> list[SlotGrant]:
        """Return what can start now; none is overtaken by one that asks for less."""
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
        """Forget the line."""
        self._waiting.clear()

    def _count(self, task: Task) -> int:
        """Say how many GPUs a task gets: one that asks for more than there are gets all."""
        return min(max(1, task.needs.gpus), len(self._all))

    def _slot(self, names: list[str]) -> Slot:
        visible = ",".join(names)
        environment = {"CUDA_VISIBLE_DEVICES": visible, "GRN_GPU_COUNT": str(len(names))}
        is_part = len(names) < len(self._all)
        return Slot(visible, environment if is_part else {}, f"{self._lease}:{visible}")
