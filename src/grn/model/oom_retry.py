"""Decide what follows running out of memory: the same again, more room, or no retry.

One rule for the queue, batches, sweeps, commands and decorated calls.
"""

from __future__ import annotations

from grn.model.record import Record

MAX_SPARED = 3  # retries of a victim of others, with the same room
MAX_MEMORY_ATTEMPTS = 4  # attempts with more room that need no request
_MAX_TOLD = 100


class Had(Record):
    """How often a job was run again after memory ran out: with more room, and as it was."""

    more: int = 0
    spared: int = 0  # as a victim: others took its room; or for host memory

    def told(self) -> dict[str, int | bool]:
        """Return the fields of the next lease request that differ from those of a first try."""
        if not self.more and not self.spared:
            return {}
        return {"attempt": min(self.more, _MAX_TOLD), "spared": bool(self.spared)}


def again(
    had: Had,
    is_victim: bool,
    most: int = MAX_MEMORY_ATTEMPTS,
    has_larger: bool = False,
    was_alone: bool = False,
) -> Had | None:
    """Count one more attempt of a job that ran out of memory, None when it gets none.

    A victim gets the same room, which does not count as one of the `most` attempts with more; where
    `most` is 0, nothing is repeated. A job that ran out of memory alone on its GPU continues while
    there is a larger one, however often, as each is larger than the last; else it is over.
    """
    if not most or (was_alone and not has_larger and not is_victim):
        return None
    if is_victim and had.spared < MAX_SPARED:
        return Had(had.more, had.spared + 1)
    return Had(had.more + 1, had.spared) if has_larger or had.more < most else None


def again_on_host(had: Had, is_victim: bool, most: int = MAX_SPARED) -> Had | None:
    """Count one more attempt of a job that the host's memory was not enough for, or none.

    Its request stays as it is: the negotiator has learned what it needs, unless others took it.
    """
    limit = MAX_SPARED if is_victim and most else min(most, MAX_SPARED)
    return Had(had.more, had.spared + 1) if had.spared < limit else None
