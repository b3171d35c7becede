"""Queues with one fault each in what concerns sites: the campaign must find every one out.

Run as `python -m tests.sites.mutants NAME`. Only here do tests reach inside grn: a fault has to be
put where the rule is kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from grn.queue import __main__ as service
from grn.queue.jobs.job import AttemptFate
from grn.queue.sites.files import log_copy
from grn.queue.sites.node import Node
from grn.queue.sites.node_attempts import NodeAttempts


def cut_is_dead() -> None:
    """Take a cut line for a dead node: end its attempts."""
    real = Node.connection_lost

    def lost(self: Any, exc: Exception | None) -> None:
        was_heard = self.is_heard
        real(self, exc)
        for attempt in list(self._attempts.leases) if was_heard else ():
            text = f"{self.name} went down"
            self._listener.attempt_found(attempt, AttemptFate.INTERRUPTED, text)

    Node.connection_lost = lost  # type: ignore[method-assign]


def start_again() -> None:
    """Start whatever was out of sight again, without asking what became of it."""

    def ask_for(self: Any, attempt: Any, _lease: Any) -> None:
        self._listener.attempt_found(attempt, AttemptFate.NOT_BEGUN, "it was out of sight")

    NodeAttempts.ask_for = ask_for  # type: ignore[method-assign]


def append_logs() -> None:
    """Add each piece of a log to the end of its copy, wherever it belongs."""

    def write_at(path: str, piece: Any, _start: int, flags: int) -> bool:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o600)
        try:
            return os.write(fd, piece.data) == len(piece.data)
        finally:
            os.close(fd)

    log_copy._write_at = write_at
    log_copy.LogCopies.sizes = lambda *_: {}  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "cut-is-dead": cut_is_dead,
    "start-again": start_again,
    "append-logs": append_logs,
}


def main() -> int:
    """Be the queue with the fault named."""
    MUTANTS[sys.argv.pop(1)]()
    return service.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
