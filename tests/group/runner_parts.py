"""What tests of a runner need around it: tasks from a list, and an ear that remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from grn.fixed_slots.runner import Runner
from grn.fixed_slots.slots import FixedSlots
from grn.group.roles import RunControl, Slots
from grn.group.task import CommandEnd, Slot, Task


def sh(line: str, number: int = 1, **more: object) -> Task:
    """Make a task that runs a line of shell."""
    return Task(number, ("/bin/sh", "-c", line), line).but(**more)


class Listed:
    """Tasks from a list."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = list(tasks)

    @property
    def is_over(self) -> bool:
        return not self.tasks

    def next_task(self) -> Task | None:
        return self.tasks.pop(0) if self.tasks else None

    def fileno(self) -> int | None:
        return None

    def hear(self) -> None:
        raise AssertionError("there is nothing to hear")


class Ear:
    """Remembers all it hears, and does with each end what a test wants."""

    def __init__(self, on_end: Callable[[RunControl, CommandEnd], None] | None = None) -> None:
        self.starts: list[tuple[str, str]] = []  # label and slot
        self.ends: list[CommandEnd] = []
        self._on_end = on_end or (lambda runner, ended: None)

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        self.starts.append((task.label, slot.name))

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        self.ends.append(ended)
        self._on_end(runner, ended)

    @property
    def statuses(self) -> dict[str, int]:
        return {ended.task.label: ended.status for ended in self.ends}


def run(
    tasks: Iterable[Task],
    slots: Slots | Sequence[str] = ("0", "1"),
    on_end: Callable[[RunControl, CommandEnd], None] | None = None,
    retries: int = 0,
) -> Ear:
    """Run tasks to their end and return what was heard of them."""
    ear = Ear(on_end)
    places = FixedSlots(slots) if isinstance(slots, Sequence) else slots
    Runner(places, Listed(tasks), ear, retries=retries).run()
    return ear
