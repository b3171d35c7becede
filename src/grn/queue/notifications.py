"""Notify clients that wait for jobs or watch them, and run the user's hooks."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grn.queue.jobs.job import EndReason

log = logging.getLogger(__name__)
MAX_LINES = 20  # of the output, for a hook
MAX_BYTES = 16 << 10  # of each variable
Waiter = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The user's commands to run on events; empty for none."""

    on_end: str = ""
    on_failure: str = ""
    on_empty: str = ""
    on_idle: str = ""


class Notifications:
    """The waiting clients by job, and the hooks that run now."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._waiters: defaultdict[int, list[Waiter]] = defaultdict(list)
        self._watchers: defaultdict[int, list[Waiter]] = defaultdict(list)
        self._running: set[asyncio.Task[None]] = set()

    def when_ended(self, job: int, waiter: Waiter) -> None:
        """Call `waiter` once the job has ended."""
        self._waiters[job].append(waiter)

    def when_changed(self, job: int, watcher: Waiter) -> None:
        """Call `watcher` at each change of the job, and at its end."""
        self._watchers[job].append(watcher)

    def forget(self, job: int, waiter: Waiter) -> None:
        """Stop calling `waiter`."""
        for known in (self._waiters, self._watchers):
            if waiter in known.get(job, []):
                known[job].remove(waiter)

    def changed(self, job: int) -> None:
        for watcher in self._watchers.get(job, ()):
            watcher(job)

    def ended(
        self, job: int, reason: EndReason, own_hook: str, facts_of: Callable[[int], dict[str, str]]
    ) -> None:
        """Notify all that wait for a job, and run the hooks; `own_hook` is this job's."""
        for known in (self._waiters, self._watchers):
            for waiter in known.pop(job, []):
                waiter(job)
        on_failure = self._hooks.on_failure if reason is not EndReason.OK else ""
        hooks = [*filter(None, (own_hook, self._hooks.on_end, on_failure))]
        if hooks:
            facts = {"GRN_EVENT": "end", "GRN_JOB_ID": str(job), "GRN_REASON": reason.value}
            facts |= facts_of(job)
            for hook in hooks:
                self._run(hook, facts)

    def empty(self) -> None:
        """Run the hook for a queue whose last job has ended."""
        self._run(self._hooks.on_empty, {"GRN_EVENT": "empty"})

    def idle(self, job: int, facts_of: Callable[[int], dict[str, str]]) -> None:
        """Run the hook for a job that holds GPUs and does not use them."""
        if self._hooks.on_idle:
            facts = {"GRN_EVENT": "idle", "GRN_JOB_ID": str(job), **facts_of(job)}
            self._run(self._hooks.on_idle, facts)

    def _run(self, hook: str, facts: dict[str, str]) -> None:
        if hook:
            task = asyncio.get_running_loop().create_task(_run_hook(hook, facts))
            self._running.add(task)
            task.add_done_callback(self._running.discard)


async def _run_hook(hook: str, facts: dict[str, str]) -> None:
    """Run a hook; log one that fails."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", hook,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "PATH": _path(), **facts},
        start_new_session=True,
    )  # fmt: skip
    status = await process.wait()
    if status:
        log.warning("action=notify result=failed status=%d", status)


def _path() -> str:
    """Return PATH and, behind all, the folder of this Python: `grn notify` is there."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable)])


def facts_of(row: dict[str, Any], argv: Sequence[str], log: bytes) -> dict[str, str]:
    """Return what a hook is told of a job: a row of the journal, its command, its last output."""
    ran_s = row["ran_s"]
    is_line = list(argv[:2]) == ["/bin/sh", "-c"] and len(argv) == 3
    lines = log.decode("utf-8", "replace").splitlines()[-MAX_LINES:]
    found = {
        "GRN_JOB_NAME": row["name"],
        "GRN_JOB_COMMAND": argv[2] if is_line else shlex.join(argv),
        "GRN_JOB_STATUS": "" if row["status"] is None else str(row["status"]),
        "GRN_JOB_RUN_S": "" if ran_s is None else f"{ran_s:.1f}",
        "GRN_JOB_TAIL": "\n".join(lines),
    }
    return {name: text.replace("\0", "")[-MAX_BYTES:] for name, text in found.items()}
