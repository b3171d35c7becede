"""Fixed slots: GPUs named by whoever starts us, each for one command at a time."""

from __future__ import annotations

from grn.sweep.task import Grant, Slot

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.sweep.task import Ended, Task


class FixedSlots:
    """A stack of slots: last listed first, then the most recently freed first."""

    wake_at: float | None = None

    def __init__(self, names: Iterable[str]) -> None:
        self._free = [Slot(name, {"CUDA_VISIBLE_DEVICES": name}) for name in names]
        self._asked: list[Task] = []
        self._ends: list[Ended] = []

    def has_room(self) -> bool:
        """One task is kept at hand for the next slot that gets free."""
        return len(self._asked) < max(1, len(self._free))

    def ask(self, task: Task) -> None:
        """Put a task at the end of the line."""
        self._asked.append(task)

    def grants(self) -> list[Grant]:
        """Give the free slots to those that were first."""
        grants = []
        while self._asked and self._free:
            grants.append(Grant(self._asked.pop(0), self._free.pop()))
        return grants

    def started(self, slot: Slot, pid: int) -> None:
        """Nobody else needs to know."""

    def unused(self, slot: Slot) -> None:
        """Put a slot back on top."""
        self._free.append(slot)

    def give(self, ended: Ended, resident_bytes: int | None) -> None:
        """Put a slot back on top."""
        self._free.append(ended.slot)
        self._ends.append(ended)

    def settled(self) -> list[Ended]:
        """All is known at once."""
        ends, self._ends = self._ends, []
        return ends

    def withdraw(self) -> None:
        """Forget the line."""
        self._asked.clear()

    def spared(self) -> tuple[int, ...]:
        """All our children are commands."""
        return ()

    def fileno(self) -> int | None:
        """There is nobody to listen to."""
        return None

    def hear(self) -> None:
        """Nobody speaks."""

    def close(self) -> None:
        """There is nothing to let go."""
