"""Which tasks that failed are run once more."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.sweep.task import Ended, Task

MORE_ROOM_TRIES = 3  # how often a task that ran out of memory beside others gets more room


class Tries:
    """Counts the failures of each task; out of memory beside others is none of its own."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._failures: dict[int, int] = {}  # by number

    def after(self, ended: Ended) -> Task | None:
        """Return the task as it is to be run once more, None if that was its last try."""
        task = ended.task
        has_shared = ended.is_out_of_memory and not ended.was_alone
        if has_shared and task.attempt < MORE_ROOM_TRIES:
            return task.but(attempt=task.attempt + 1)
        failures = self._failures[task.number] = self._failures.get(task.number, 0) + 1
        is_hopeless = not ended.slot.name and bool(ended.trouble)  # no GPU will ever do
        return task if failures <= self._retries and not is_hopeless else None
