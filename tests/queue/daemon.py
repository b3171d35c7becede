"""A real queue with virtual GPUs in a story of its own, and `grn` to talk to it.

Commands of jobs wait at gates (`gate x` in their line of shell) and the tests for conditions.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grn.client import queue as line
from grn.errors import GrnError
from tests.harness import GRN, Daemon, Ended, Gate, Job, Story, is_running, wait_for

FOUR_SMALL = "virtual:4x512MiB"
# Jobs of tests state their memory: nothing has to be learned before the next may start.
SMALL = ("--mem", "16MiB")
GATE = 'gate() { flock -s "$STORY/gates/$1" true; }; '


def start_daemon(story: Story, what: str, python: str = sys.executable) -> Daemon | None:
    """Start the negotiator or the queue of a story; None if it does not get ready."""
    state = Path(story.env["GRN_STATE_DIR"])
    state.mkdir(mode=0o700, exist_ok=True)
    log = state / f"{what}.log"
    argv = [python, "-m", f"grn.{what}", "--log", str(log)]
    daemon = Daemon(argv, story.environment(), log)
    return daemon if daemon.line() == "ready" else None


class Queue:
    """The queue of one story: `queue("ls")` runs `grn ls`, the rest asks it directly."""

    python = sys.executable  # of its daemons

    def __init__(self, story: Story) -> None:
        self.story = story
        self.starts_on_demand = False  # True: by grn itself, where that is what is tested
        self._is_awake = False

    @classmethod
    def begin(cls, gpus: str = FOUR_SMALL, **settings: str) -> Queue:
        story = Story.begin()
        story.env.update({"GRN_GPUS": gpus, "GRN_SAMPLE_S": "0.1", **settings})
        return cls(story)

    def wake(self) -> None:
        """Start negotiator and queue, which `grn submit` would do too, at ten times the cost."""
        if self.starts_on_demand or self._is_awake or self.is_answering():
            return
        self._is_awake = True
        for what in ("negotiator", "queue"):  # the first may be there, or find no GPU
            start_daemon(self.story, what, self.python)

    # --- grn -----------------------------------------------------------------------------

    def start(self, *words: str, **options: Any) -> Job:
        """Start one command of `grn`."""
        if words[:1] in (("submit",), ("batch",), ("sweep",)):
            self.wake()
        return self.story.start(*GRN, *words, **options)

    def __call__(self, *words: str, **options: Any) -> Ended:
        """Run one command of `grn` and return what came of it; a traceback is never an answer."""
        ended = self.start(*words, **options).wait()
        assert "Traceback" not in ended.err, ended.err
        return ended

    def fine(self, *words: str, **options: Any) -> str:
        """Run one command of `grn`, which must go well, and return what it prints."""
        ended = self(*words, **options)
        assert ended.code == 0, ended
        return ended.out

    def fed(self, text: bytes, *words: str) -> Ended:
        """Run one command of `grn` with something on its standard input."""
        path = self.story.folder / "fed"
        path.write_bytes(text)
        with path.open("rb") as stdin:
            return self(*words, stdin=stdin)

    def json(self, *words: str) -> Any:
        return json.loads(self.fine(*words, "--json"))

    def submit(
        self, *words: str, env: Mapping[str, str | None] | None = None, **options: Any
    ) -> int:
        """Submit words of `grn submit`; return the one id it prints."""
        return int(self.fine("submit", *words, env=env, **options))

    def sh(self, text: str, *flags: str, **options: Any) -> int:
        """Submit a small job that is a line of shell, with `gate NAME` in it."""
        return self.submit(*SMALL, *flags, "--shell", "--", GATE + text, **options)

    def shs(self, *lines: str) -> list[int]:
        """Submit small jobs without `grn`, which is quicker."""
        self.wake()
        jobs = [
            {"argv": ["/bin/sh", "-c", GATE + text], "type": "sh", "label": "sh"} for text in lines
        ]
        shared = {"cwd": str(self.story.folder), "env": self.story.environment(), "mem": 16 << 20}
        first = line.submit({"op": "submit", "jobs": jobs, **shared})["first"]
        return list(range(first, first + len(jobs)))

    def gate(self, name: str) -> Gate:
        return self.story.gate(name)

    # --- what is so ----------------------------------------------------------------------

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        return line.ask({"op": op, **more}, may_start=False)

    def job(self, job: int) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("show", job=job)["job"]
        return found

    def ended(self, job: int) -> dict[str, Any]:
        """Return a job once it has ended."""
        wait_for(lambda: self.job(job)["state"] == "ended", lambda: f"the end of {self.job(job)}")
        return self.job(job)

    def in_state(self, job: int, *states: str) -> dict[str, Any]:
        """Return a job once it is in one of these states."""
        wait_for(lambda: self.job(job)["state"] in states, lambda: f"{states}: {self.job(job)}")
        return self.job(job)

    def says(self, job: int, text: str) -> None:
        """Wait until a job has printed something."""
        wait_for(lambda: text in self.log(job), lambda: f"{text!r}: {self.log(job)!r}")

    def log(self, job: int, name: str = "log") -> str:
        folder = self.job(job)["folder"]
        path = Path(folder or "/nowhere") / name
        return path.read_text() if path.exists() else ""

    @property
    def pid(self) -> int:
        return int(self.ask("ping")["pid"])

    def is_answering(self) -> bool:
        try:
            return bool(self.ask("ping"))
        except GrnError:
            return False

    # --- the end -------------------------------------------------------------------------

    def kill(self) -> None:
        """End the queue without a chance to clean up."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_running(pid), "the queue to be gone")

    def cancel_all(self) -> None:
        alive = [row["id"] for row in self.ask("list", which="alive", most=1_000_000)["jobs"]]
        if alive:
            self.ask("cancel", jobs=alive, now=True)
            wait_for(lambda: not self.ask("list", which="alive")["jobs"], "all jobs to end")

    def end(self) -> None:
        """Cancel what runs, stop queue and negotiator; nothing may be left."""
        if self.is_answering():
            self.cancel_all()
            pid = self.pid
            self.ask("stop")
            wait_for(lambda: not is_running(pid), "the queue to leave")
        self("stop")
        self.story.end()


@contextmanager
def being_here(queue: Queue) -> Iterator[Queue]:
    """Let this process talk to the queue of a story, and start it again if need be."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in queue.story.env.items():
            patch.setenv(name, value)
        yield queue


@contextmanager
def a_queue(gpus: str = FOUR_SMALL, **settings: str) -> Iterator[Queue]:
    """Begin a story with a queue; it starts on demand and is gone at the end."""
    queue = Queue.begin(gpus, **settings)
    with being_here(queue):
        try:
            yield queue
        finally:
            queue.end()
