"""The roles around a runner: where tasks come from, where they run, and who hears of it.

`typing` is not cheap: the runner and the doors import this file for their types only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from grn.group.task import CommandEnd, Slot, SlotGrant, Task


class Source(Protocol):
    """Where tasks come from."""

    @property
    def is_over(self) -> bool:
        """True when no more tasks will ever come."""

    def next_task(self) -> Task | None:
        """Return the next task, None if there is none now; asked again after each end."""

    def fileno(self) -> int | None:
        """Return what to listen to for more, None if tasks come without being waited for."""

    def hear(self) -> None:
        """There is something to read."""


class RunControl(Protocol):
    """What a listener may ask of a runner."""

    is_draining: bool
    is_stopping: bool
    stopped_by: int

    def run(self) -> None:
        """Run all there is; return when the last has ended, or all has been stopped."""

    def again(self, task: Task) -> bool:
        """Run a task once more that failed in spite of its status; False if that was its last."""

    def cancel(self, numbers: Collection[int], *, is_queued_only: bool = False) -> None:
        """End some tasks, or of these only the ones that have not begun."""

    def drain(self) -> None:
        """Start nothing more and let what runs finish."""

    def stop(self) -> None:
        """End all that runs, kindly first; at once when asked a second time."""


class Slots(Protocol):
    """Where tasks run. Asked for by `ask`; what came of it is fetched by `grants`."""

    @property
    def wake_at(self) -> float | None:
        """When to call `hear` even if nobody spoke, by time.monotonic()."""

    def has_room(self) -> bool:
        """True when one more task may be asked for."""

    def ask(self, task: Task) -> None:
        """Ask for a place for a task."""

    def grants(self) -> Sequence[SlotGrant]:
        """Return which tasks have a place now, or never will; each once."""

    def started(self, slot: Slot, pid: int) -> None:
        """A task runs there now."""

    def unused(self, slot: Slot) -> None:
        """A place was granted and is not needed any more."""

    def give(self, ended: CommandEnd) -> None:
        """A place is free again."""

    def settled(self) -> Sequence[CommandEnd]:
        """Return the ends of which all is known now; each once."""

    def withdraw(self) -> None:
        """Forget all that was asked for and not granted."""

    def fileno(self) -> int | None:
        """Return what to listen to, None for nothing."""

    def hear(self) -> None:
        """There is something to read, or it is `wake_at`."""

    def close(self) -> None:
        """Let all places go."""


class RunListener(Protocol):
    """Who hears of it all, and may call `again`, `drain` and `stop` of the runner."""

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        """A task is about to be started, or was just now."""

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        """A task has ended, or could not be started. While `is_stopping` it was interrupted."""
