"""Queues with one fault each, run in place of the real one: every check must find its fault out.

Run as `python -m tests.queue_faults.mutants NAME`. Only here do tests reach inside grn: a fault has
to be put where the rule is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

from grn import paths
from grn.client import queue
from grn.daemon import lockfile
from grn.errors import MachineError
from grn.proc import services
from grn.proc.tree import KILL
from grn.queue import __main__ as service
from grn.queue.jobs.job import AttemptFate, Exit
from grn.queue.journal import journal, journal_file, rows
from grn.queue.local import attempt_files as folders
from grn.queue.local import (
    forker,
    launcher,
    output_log,
    shim,
    termination,
)
from grn.queue.site import Found

_IN_FORKER = (
    "import sys; sys.path[:] = sys.argv[1:]; from tests.queue_faults import mutants;"
    " mutants.be_forker({name!r})"
)


def commit_late() -> None:
    """Answer clients before their jobs are on the disk: each commit is done with the next."""
    real_begin = journal_file.Transaction.__enter__

    def begin(self: Any) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("COMMIT")
        real_begin(self)

    def end(self: Any, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._db.execute("ROLLBACK")

    journal_file.Transaction.__enter__ = begin  # type: ignore[method-assign]
    journal_file.Transaction.__exit__ = end  # type: ignore[method-assign]


def run_again() -> None:
    """Start anew whatever was running when the queue was killed, as if nothing had begun."""
    launcher.Launcher.find = lambda *_: Found(AttemptFate.NOT_BEGUN)  # type: ignore[method-assign]


def believe_number() -> None:
    """Take everybody with this user's number for this user, containers included."""
    queue.apart = lambda _: None


def listen_below() -> None:
    """Listen in the runtime folder, as older queues did."""
    paths.queue_socket = paths.former_queue_socket
    service.end_former = lambda: None


def kill_at_start() -> None:
    """Take every running job for lost after a restart, and end it."""
    launcher.Launcher.find = lambda *_: Found(AttemptFate.LOST)  # type: ignore[method-assign]


def forget_keys() -> None:
    """Take every submit for a new one."""
    real = journal.Journal.submit

    def submit(self: Any, key: str, *more: Any) -> tuple[int, bool]:
        self._db.execute("DELETE FROM submits WHERE key = ?", (key,))
        return real(self, key, *more)

    journal.Journal.submit = submit  # type: ignore[method-assign]
    journal.Journal.first_of = lambda *_: None  # type: ignore[method-assign]


def die_unanswered() -> None:
    """Write a submit down and die before the answer."""
    real = journal.Journal.submit

    def submit(self: Any, *more: Any) -> tuple[int, bool]:
        real(self, *more)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    journal.Journal.submit = submit  # type: ignore[method-assign]


def sync_normal() -> None:
    """Do not wait for the disk at a commit."""
    real = journal_file.open_file

    def open_lazily(path: str) -> sqlite3.Connection:
        db = real(path)
        db.execute("PRAGMA synchronous=NORMAL")
        return db

    journal_file.open_file = open_lazily


def lost_is_ok() -> None:
    """Take a job whose end nobody saw for one that ended well."""
    real = launcher.Launcher.exit_of
    launcher.Launcher.exit_of = (  # type: ignore[method-assign]
        lambda self, attempt, said=None: real(self, attempt, said) or Exit(0)
    )


def leave_leftovers() -> None:
    """Let the processes of a killed shim be."""
    launcher.Launcher.end_leftovers = lambda *_: 0  # type: ignore[method-assign]


def trust_pids() -> None:
    """Take whatever process has the number of a shim for that shim."""
    real = launcher.Launcher.find

    def find(self: Any, attempt: Any, is_same_boot: bool) -> Found:
        claim = folders.read_claim(self.folder(attempt))
        try:
            fd = os.pidfd_open(int((claim or "").split(" ")[0]))
        except (OSError, ValueError):
            return real(self, attempt, is_same_boot)
        self._recovery.adopted.add(attempt, fd)
        return Found(AttemptFate.ALIVE)

    launcher.Launcher.find = find  # type: ignore[method-assign]


def swallow_errors() -> None:
    """Go on after a failed write as if it had been a good one."""
    real = journal_file.Transaction.__exit__

    def end(self: Any, kind: Any, error: BaseException | None, trace: Any) -> bool:
        with contextlib.suppress(MachineError):
            real(self, kind, error, trace)
        return True

    journal_file.Transaction.__exit__ = end  # type: ignore[method-assign,assignment]


def no_checksums() -> None:
    """Take every row for what was written."""
    journal.is_intact = rows.is_intact = lambda *_: True


def same_boot() -> None:
    """Take every boot for this one."""
    real = launcher.Launcher.find
    launcher.Launcher.find = (  # type: ignore[method-assign]
        lambda self, attempt, _is_same_boot: real(self, attempt, True)
    )


def never_look() -> None:
    """Do not look whether socket and lock are still there."""

    async def rest(*_: Any) -> None:
        await asyncio.Event().wait()

    lockfile.DaemonLock.look_after = rest  # type: ignore[method-assign]
    lockfile.DaemonLock.hold = lambda _self: None  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "never-look": never_look,
    "believe-number": believe_number,
    "listen-below": listen_below,
    "commit-late": commit_late,
    "run-again": run_again,
    "kill-at-start": kill_at_start,
    "forget-keys": forget_keys,
    "die-unanswered": die_unanswered,
    "lost-is-ok": lost_is_ok,
    "no-checksums": no_checksums,
    "same-boot": same_boot,
    "swallow-errors": swallow_errors,
    "trust-pids": trust_pids,
    "leave-leftovers": leave_leftovers,
    "sync-normal": sync_normal,
}


def end_group() -> None:
    """End the process group of a command instead of its whole tree."""

    real, groups = shim.start_command, [0]

    def start(*given: Any) -> shim.StartedCommand:
        started = real(*given)
        groups[0] = started.pid
        return started

    def signal_group(_self: Any, step: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(groups[0], signal.SIGKILL if step == KILL else signal.SIGTERM)

    shim.start_command = start
    termination.Termination.signal_all = signal_group  # type: ignore[method-assign]
    termination.Termination.end_leftovers = lambda *_: None  # type: ignore[method-assign]


def no_cap() -> None:
    """Keep all that a command prints."""
    real = output_log.CappedLog.__init__
    output_log.CappedLog.__init__ = (  # type: ignore[method-assign]
        lambda self, path, _cap: real(self, path, 1 << 50)
    )


def wall_clock() -> None:
    """Measure time limits by the wall clock."""
    time.monotonic = time.time


def end_daemons() -> None:
    """End also the daemons that a command has started."""
    services.spared = lambda *_: set()
    services.is_service = lambda _: False


FORKER_MUTANTS: dict[str, Callable[[], None]] = {
    "end-daemons": end_daemons,
    "end-group": end_group,
    "no-cap": no_cap,
    "wall-clock": wall_clock,
}


def be_forker(name: str) -> None:
    """Be the forker of a mutant: its shims have the fault."""
    FORKER_MUTANTS[name]()
    forker.main()


def main() -> int:
    """Be the queue with the fault named."""
    name = sys.argv.pop(1)
    if name in FORKER_MUTANTS:
        launcher._FORKER_CODE = _IN_FORKER.format(name=name)
    else:
        MUTANTS[name]()
    return service.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
