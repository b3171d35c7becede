"""The interface of a place where attempts run; `local/` implements it for this machine.

A site starts attempts, ends them on request, reports each end, and finds after a restart of the
queue what became of each attempt. It decides nothing about jobs.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from grn.queue.jobs.job import AttemptFate, Exit
from grn.queue.journal.rows import Command


class Attempt(Struct, frozen=True):
    """One attempt, by its numbers."""

    job: int
    number: int


class Found(Struct, frozen=True):
    """What became of an attempt; with a fault its files are damaged and it is not run again."""

    fate: AttemptFate
    fault: str = ""


class SiteListener(Protocol):
    """Receives the reports of a site."""

    def attempt_started(self, attempt: Attempt) -> None: ...

    def attempt_ended(self, attempt: Attempt, exit: Exit | None) -> None:
        """Take the end of an attempt; None: its exit is unknown, and none of its processes runs."""


class Site(Protocol):
    """One place where attempts run."""

    def open(self) -> None: ...

    def close(self) -> None:
        """Stop watching attempts; they continue to run."""

    def prepare(self, attempt: Attempt, command: Command) -> None:
        """Get ready for an attempt that may start soon; nothing of it begins."""

    def start(self, attempt: Attempt, command: Command, lease: str, visible: str) -> None: ...

    def stop(self, attempt: Attempt, is_now: bool, *, is_yield: bool = False) -> None: ...

    def find(self, attempt: Attempt, is_same_boot: bool, lease: str = "") -> Found:
        """Find an attempt from before a restart; if it lives, report its end later."""

    def report(self, attempt: Attempt) -> None:
        """Report the end of an attempt that was found ended or lost."""

    def tidy(self) -> None:
        """Drop data of attempts that are over."""

    def written(self, attempt: Attempt) -> None:
        """Note that the end of an attempt is in the journal."""

    def folder(self, attempt: Attempt) -> str: ...

    def remove(self, jobs: list[tuple[int, int]]) -> None:
        """Delete the files of jobs, given how often each was tried."""
