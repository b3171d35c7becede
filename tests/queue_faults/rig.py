"""A real queue in folders of its own, to be harmed: its processes, its clients, its files.

Knows how to start, find and kill things and how to ask; what must be true afterwards is said by
the tests and by `ledger.py`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from grn.client import negotiator, queue
from grn.errors import DaemonError, GrnError
from grn.queue.journal.rows import fill_checksums
from grn.queue.local import attempt_files as attempts
from tests.harness import PATIENCE_S, Daemon, Story, is_running, wait_for

GPUS = "virtual:4x512MiB"
SMALL = 8 << 20
_pause = threading.Event()


def pause(seconds: float) -> None:
    """Let a moment pass: the moment of a blow is chance, what follows it is waited for."""
    _pause.wait(seconds)


class Rig:
    """The queue of one test, its negotiator, and the folder in which both live."""

    def __init__(self, story: Story, mutant: str = "") -> None:
        self.story = story
        self.mutant = mutant
        self.python = sys.executable  # of the queue
        self.state = story.folder / "state"
        self.queue: Daemon | None = None
        self.negotiator: Daemon | None = None
        self.log = story.folder / "queue.log"
        story.env.update(
            GRN_GPUS=GPUS,
            GRN_GRACE_S="0.3",
            GRN_GRACE_TO_END_S="1",
        )

    # --- services ------------------------------------------------------------------------

    @property
    def queue_argv(self) -> list[str]:
        if self.mutant:
            return [self.python, "-m", "tests.queue_faults.mutants", self.mutant]
        return [self.python, "-m", "grn.queue"]

    def spawn(self, *before: str, **env: str) -> Daemon:
        """Start the queue and do not wait for it; `before` are the words of a wrapping command."""
        argv = [*before, *self.queue_argv]
        self.queue = Daemon(argv, self.story.environment(**env), self.log)
        return self.queue

    def start(self, *before: str, **env: str) -> Daemon:
        """Start the queue and return when it is ready; a negotiator before it, if none answers.

        The queue would start one too, at ten times the cost; after `spawn` it does.
        """
        if (
            not env
            and not (self.negotiator and self.negotiator.is_running)
            and self.leases() is None
        ):
            with suppress(AssertionError):  # there may be no GPU
                self.start_negotiator()
        daemon = self.spawn(*before, **env)
        line = daemon.line()
        assert line == "ready", f"{line}\n{self.tail()}"
        return daemon

    def start_negotiator(self, **env: str) -> Daemon:
        """Start a negotiator, for tests in which the queue must not start its own."""
        argv = [sys.executable, "-m", "grn.negotiator"]
        log = self.story.folder / "negotiator.log"
        self.negotiator = Daemon(argv, self.story.environment(**env), log)
        assert self.negotiator.line() == "ready", log.read_text()
        return self.negotiator

    def restart(self) -> Daemon:
        """Kill the queue, if it lives, and start it again."""
        if self.queue is not None:
            self.queue.kill()
        return self.start()

    def close(self) -> None:
        """End the services; jobs that still run are killed."""
        for daemon in (self.queue, self.negotiator):
            if daemon is not None and daemon.is_running:
                daemon.kill()
        for pid in self.story.left_behind():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def tail(self) -> str:
        """Return the end of the queue's log."""
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    # --- finding processes ---------------------------------------------------------------

    def services(self) -> dict[str, list[int]]:
        """Return the pids of what runs now: queue, forker, negotiator."""
        found: dict[str, list[int]] = {"queue": [], "forker": [], "negotiator": []}
        for pid in self.story.left_behind():
            words = command_line(pid)
            if any(b"forker" in word for word in words):
                # A shim looks like the forker it was forked from, but has a session of its own.
                if _parent(pid) == (self.queue.pid if self.queue else 0):
                    found["forker"].append(pid)
            elif any(b"grn.negotiator" in word for word in words):
                found["negotiator"].append(pid)
            elif any(b"grn.queue" in word or b"queue_faults.mutants" in word for word in words):
                found["queue"].append(pid)
        return found

    def serving(self) -> list[int]:
        """Return the negotiators that listen at a socket, whether its file is there or not."""
        run = self.story.env["GRN_RUNTIME_DIR"]
        lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
        # Flags 00010000: it listens. The last two words are its inode and its path.
        heard = {
            f"socket:[{words[-2]}]"
            for words in lines
            if words[3] == "00010000" and os.path.dirname(words[-1]) == run
        }
        return [pid for pid in self.services()["negotiator"] if heard & set(_open_files(pid))]

    def forker(self) -> int:
        """Return the pid of the forker."""
        return wait_for(lambda: self.services()["forker"], "a forker")[0]

    def shim_of(self, job: int, attempt: int = 1) -> int:
        """Return the pid of the shim that has claimed an attempt, once it has."""

        def claim() -> str:
            return attempts.read_claim(str(self.folder(job, attempt))) or ""

        return int(wait_for(claim, f"a claim of {job}").split()[0])

    def folder(self, job: int, attempt: int = 1) -> Path:
        """Return the folder of an attempt, once there is something of it."""
        found = wait_for(lambda: self._find(job, attempt), f"files of {job}")
        assert found is not None
        return found

    def _find(self, job: int, attempt: int) -> Path | None:
        jobs = self.state / "queue" / "jobs"
        record = next(jobs.glob(f"*/{job // 1000}/{job}.{attempt}.run"), None)
        return None if record is None else record.with_suffix("")

    def marked(self, job: int) -> list[int]:
        """Return the pids of all living processes of a job."""
        mark = f"GRN_JOB_ID={job}".encode()
        return [pid for pid in self.story.left_behind() if mark in _environment(pid)]

    # --- asking --------------------------------------------------------------------------

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        """Ask the queue, which must be there."""
        return queue.ask({"op": op, **more}, may_start=False, timeout_s=PATIENCE_S)

    def submit(self, argv: Sequence[str], *, key: str = "", **more: Any) -> int:
        """Submit one job and return its id."""
        return int(self.ask("submit", **self.request([argv], key, **more))["first"])

    def request(self, argvs: Iterable[Sequence[str]], key: str = "", **more: Any) -> dict[str, Any]:
        """Return what a client would send for some jobs of a small kind."""
        jobs = [{"argv": [*argv], "type": "small", "label": "small"} for argv in argvs]
        return {
            "key": key or os.urandom(12).hex(),
            "jobs": jobs,
            "cwd": str(self.story.folder),
            "env": self.story.environment(),
            "mem": SMALL,
            **more,
        }

    def row(self, job: int) -> dict[str, Any]:
        """Return all that the queue knows of a job."""
        row: dict[str, Any] = self.ask("show", job=job)["job"]
        return row

    def rows(self) -> dict[int, dict[str, Any]]:
        """Return all jobs the queue knows."""
        return {row["id"]: row for row in self.ask("list", most=1_000_000)["jobs"]}

    def ended(self, job: int, deadline_s: float = PATIENCE_S) -> dict[str, Any]:
        """Return a job's row once it has ended."""

        def is_ended() -> dict[str, Any] | None:
            row = self.row(job)
            return row if row["state"] == "ended" else None

        row = wait_for(is_ended, lambda: f"the end of {job}: {self.row(job)}", deadline_s)
        assert row is not None
        return row

    def running(self, job: int) -> dict[str, Any]:
        """Return a job's row once it runs."""
        wait_for(lambda: self.row(job)["state"] == "running", f"job {job} to run")
        return self.row(job)

    def leases(self) -> list[dict[str, Any]] | None:
        """Return what the negotiator has given away, None when none answers."""
        try:
            status = negotiator.status()
        except (DaemonError, OSError):
            return None
        return [*status["leases"], *status["waiting"]]

    def no_lease_left(self, deadline_s: float = PATIENCE_S) -> bool:
        """True when the negotiator has nothing given away and nobody waits, within the deadline."""
        try:
            wait_for(lambda: self.leases() == [], "no lease", deadline_s)
        except AssertionError:
            return False
        return True

    def is_answering(self) -> bool:
        try:
            return bool(self.ask("ping"))
        except (GrnError, OSError):
            return False

    def database(self) -> Path:
        return self.state / "queue" / "queue.sqlite3"

    def change(self, sql: str, *values: Any) -> None:
        """Change the journal of a queue that is down, as the queue itself would."""
        self.spoil(sql, *values)
        with closing(sqlite3.connect(self.database())) as db, db:
            fill_checksums(db)

    def spoil(self, sql: str, *values: Any) -> None:
        """Damage the journal of a queue that is down: its checksums stay as they are."""
        with closing(sqlite3.connect(self.database())) as db, db:
            db.execute(sql, values)


def command_line(pid: int) -> list[bytes]:
    """Return the words a process was started with."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _open_files(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill(pids: Iterable[int]) -> Iterator[int]:
    """Kill processes of ours; yield those that were there to be killed."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        yield pid


def gone(pids: Iterable[int], deadline_s: float = PATIENCE_S) -> None:
    """Wait until processes are gone."""
    left = list(pids)
    wait_for(lambda: not any(map(is_running, left)), f"{left} to go", deadline_s)
