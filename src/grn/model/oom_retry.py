"""What follows when a job has run out of memory: the same once more, more room, or nothing.

One rule for all who run a job again: the queue, batches, sweeps, commands and decorated calls.
Written out by hand since `dataclasses` is too dear for somebody's training script.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

MAX_SPARED = 3  # so often is a victim of others tried again with the same room
MAX_MEMORY_ATTEMPTS = 4  # so often does a job get more room without being asked
_MAX_TOLD = 100


class Had:
    """How often a job was run again after memory ran out: with more room, and as it was."""

    __slots__ = ("more", "spared")

    def __init__(self, more: int = 0, spared: int = 0) -> None:
        self.more: Final = more
        self.spared: Final = spared  # it had kept to what it had: others took its room

    def told(self) -> dict[str, int | bool]:
        """Return what the negotiator is told of it in the next request."""
        return {"attempt": min(self.more, _MAX_TOLD), "spared": bool(self.spared)}


def again(
    had: Had, is_victim: bool, most: int = MAX_MEMORY_ATTEMPTS, has_larger: bool = False
) -> Had | None:
    """Count one more try of a job that ran out of memory, None when it gets none.

    A victim gets the room it had, and that is not counted as one of the `most` tries with more;
    where none of those were asked for, nothing is run again. A job that ran out of memory alone
    on its GPU goes on while there is a larger one, however often: each is larger than the last.
    """
    if not most:
        return None
    if is_victim and had.spared < MAX_SPARED:
        return Had(had.more, had.spared + 1)
    return Had(had.more + 1, had.spared) if has_larger or had.more < most else None
