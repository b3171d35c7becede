"""Which tasks that failed are run once more, and with how much room."""

from __future__ import annotations

from grn.model.oom_retry import Had, again

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.sweep.task import CommandEnd, Task


class CommandRetries:
    """Counts the failures of each task; what others have done to it is none of its own."""

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._failures: dict[int, int] = {}  # by number

    def after(self, ended: CommandEnd) -> Task | None:
        """Return the task as it is to be run once more, None if that was its last try."""
        return uncounted(ended) or self._counted(ended)

    def _counted(self, ended: CommandEnd) -> Task | None:
        task = ended.task
        failures = self._failures[task.number] = self._failures.get(task.number, 0) + 1
        is_hopeless = not ended.slot.name and bool(ended.trouble)  # no GPU will ever do
        return task.but(past="") if failures <= self._retries and not is_hopeless else None


def uncounted(ended: CommandEnd) -> Task | None:
    """Return the task as it is run again without being asked, None if its end was its own."""
    task = ended.task
    if ended.is_out_of_memory and (ended.has_larger or not ended.was_alone):
        before = Had(task.attempt, task.spared)
        had = again(before, ended.is_victim, has_larger=ended.has_larger)
        if had is not None:
            return task.but(attempt=had.more, spared=had.spared, past=ended.because)
    elif ended.is_requeued and not ended.is_out_of_memory:
        # The negotiator asks for no job more than twice: then it has a GPU to itself.
        return task.but(attempt=task.attempt + 1, past=ended.because)
    return None


def past(ended: CommandEnd, attempt: int, before: str = "") -> str:
    """Say why a try was not enough, after what was said of those before it."""
    reason = "out-of-memory" if ended.is_out_of_memory else "requeued"
    said = f"attempt {attempt}: {reason}" + (f", {ended.because}" if ended.because else "")
    return f"{before}; {said}" if before else said
