"""The interfaces around a runner: source of tasks, slots, listener; and the counts of a group.

`typing` is slow to import: the runner and the entry points import this file for types only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from grn.group.task import CommandEnd, Slot, SlotGrant, Task


class Source(Protocol):
    """The source of tasks."""

    @property
    def is_over(self) -> bool:
        """True when no more tasks will come."""

    def next_task(self) -> Task | None:
        """Return the next task, None if there is none yet; called again after each end."""

    def fileno(self) -> int | None:
        """Return the file to wait on for more tasks, None if tasks need no waiting."""

    def hear(self) -> None:
        """Read the file, which is ready."""


class RunControl(Protocol):
    """The control of a runner by its listener."""

    is_draining: bool
    is_stopping: bool
    stopped_by: int

    def run(self) -> None:
        """Run all tasks; return when the last has ended or all were stopped."""

    def again(self, task: Task) -> bool:
        """Run a task again that failed with exit status 0; False if no retry is left."""

    def cancel(self, numbers: Collection[int], *, is_queued_only: bool = False) -> None:
        """End some tasks, or only those of them that have not begun."""

    def drain(self) -> None:
        """Start no more tasks and let running ones finish."""

    def stop(self) -> None:
        """End all running tasks, with SIGTERM first; kill them at the second call."""


class Slots(Protocol):
    """The places where tasks run: `ask` requests one, `grants` returns the answers."""

    @property
    def wake_at(self) -> float | None:
        """When to call `hear` even without input, by time.monotonic()."""

    def has_room(self) -> bool:
        """True when a place for one more task may be requested."""

    def ask(self, task: Task) -> None:
        """Request a place for a task."""

    def grants(self) -> Sequence[SlotGrant]:
        """Return which tasks have a place now, or never will; each once."""

    def started(self, slot: Slot, pid: int) -> None:
        """Note that a task runs there."""

    def unused(self, slot: Slot) -> None:
        """Return a granted place that is not needed any more."""

    def give(self, ended: CommandEnd) -> None:
        """Return the place of a task that has ended."""

    def settled(self) -> Sequence[CommandEnd]:
        """Return the ends that are complete now; each once."""

    def withdraw(self) -> None:
        """Withdraw all requests that are not granted."""

    def fileno(self) -> int | None:
        """Return the file to wait on, None for none."""

    def hear(self) -> None:
        """Read the file, which is ready, or act at `wake_at`."""

    def close(self) -> None:
        """Release all places."""


class RunListener(Protocol):
    """Receives starts and ends, and may call `again`, `drain` and `stop` of the runner."""

    def starting(self, runner: RunControl, task: Task, slot: Slot) -> None:
        """A task is about to be started, or was just now."""

    def ended(self, runner: RunControl, ended: CommandEnd) -> None:
        """A task has ended, or could not be started. While `is_stopping` it was interrupted."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of the tasks of a group."""

    total: int | None  # to run now, without those skipped; None: unknown yet
    finished: int = 0
    failed: int = 0
    running: int = 0
    skipped: int = 0  # finished in an earlier run
    names: tuple[str, ...] = ()  # of those that run, for people

    @property
    def done(self) -> int:
        """How many have ended, successfully or not."""
        return self.finished + self.failed

    def plus(self, finished: int = 0, failed: int = 0, running: int = 0) -> Progress:
        """Return the counts after a change."""
        return replace(
            self,
            finished=self.finished + finished,
            failed=self.failed + failed,
            running=self.running + running,
        )
