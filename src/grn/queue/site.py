"""The role of a place where attempts run. `local/` fills it for this machine.

A site starts attempts, ends them on request, reports each end, and finds after a restart of the
queue what became of each attempt. It decides nothing about jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from grn.queue.job import AttemptFate, Exit
from grn.queue.journal.rows import Command


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, by its numbers."""

    job: int
    number: int


@dataclass(frozen=True, slots=True)
class Found:
    """What became of an attempt; with a fault its files are damaged and it is not run again."""

    fate: AttemptFate
    fault: str = ""


class SiteListener(Protocol):
    """What the queue hears from a site."""

    def attempt_started(self, attempt: Attempt) -> None: ...

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        """Hear how an attempt ended; None: nobody knows, and nothing of it runs any more."""


class Site(Protocol):
    """One place where attempts run."""

    def open(self) -> None: ...

    def close(self) -> None:
        """Let go of all attempts; they run on."""

    def start(self, attempt: Attempt, command: Command, lease: str, visible: str) -> None: ...

    def stop(self, attempt: Attempt, is_now: bool) -> None: ...

    def find(self, attempt: Attempt, is_same_boot: bool) -> Found:
        """Find an attempt of before a restart, and report its end if it lives."""

    def report(self, attempt: Attempt) -> None:
        """Report the end of an attempt that was found ended or lost."""

    def tidy(self) -> None:
        """Forget what only attempts that are over needed."""

    def written(self, attempt: Attempt) -> None:
        """Note that the end of an attempt is in the journal."""

    def folder(self, attempt: Attempt) -> str: ...

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs, given how often each was tried."""
