"""The progress of a batch or a sweep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of the tasks of a group."""

    total: int | None  # to run now, without those skipped; None: unknown yet
    finished: int = 0
    failed: int = 0
    running: int = 0
    skipped: int = 0  # finished in an earlier run

    @property
    def done(self) -> int:
        """How many have ended, successfully or not."""
        return self.finished + self.failed
