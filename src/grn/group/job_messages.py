"""Translation between tasks and the queue's messages."""

from __future__ import annotations

import os
import time
from typing import Any

from grn import wire
from grn.client.submit import wanted
from grn.group.task import CommandEnd, Slot, Task
from grn.protocol.rows import ProgressRow

TERMINATED = -15
NOWHERE = Slot("", {})


class SentTask:
    """A task that has become a job of the queue."""

    __slots__ = ("attempt", "is_running", "memory_attempt", "slot", "task", "tries_left")

    def __init__(self, task: Task, tries_left: int) -> None:
        self.task = task
        self.tries_left = tries_left
        self.memory_attempt = 0
        self.attempt = 0
        self.is_running = False
        self.slot = NOWHERE


def job_of(task: Task, group: str) -> dict[str, Any]:
    """Return the part of a submit message that describes one task."""
    is_named = task.label and task.label not in task.argv
    name = f"{group}/{task.label}"[:128] if is_named else group
    if task.profile:
        job = {"argv": [wire.spelled(word) for word in task.argv], "name": name, **task.profile}
    else:
        job = wanted(list(task.argv), task.needs.job_type, name, task.folder)
    environment = task.environment.items()
    job["extra"] = {wire.spelled(name): wire.spelled(value) for name, value in environment}
    if task.log_path is not None:
        job["log"] = wire.spelled(os.path.abspath(task.log_path))
    return job


def attempt_end(sent: SentTask, row: ProgressRow) -> CommandEnd:
    """Return how the latest attempt of a job ended."""
    reason, text = row.attempt_reason, row.attempt_text or ""
    status, signum = row.attempt_status, row.attempt_signal
    is_cancelled = reason == "cancelled"
    trouble = ""
    if status is None:
        status = -signum if signum else TERMINATED
        trouble = "" if signum or is_cancelled else row.text or text
    elif reason == "not-runnable":
        trouble = row.text or text
    is_oom = reason == "out-of-memory"
    return CommandEnd(
        sent.task, sent.slot, status, row.began_at or time.time(), row.ran_s or 0.0,
        is_out_of_memory=is_oom, peak_bytes=row.peak_bytes, trouble=trouble,
        is_cancelled=is_cancelled, because=text if is_oom else "",
        reason=row.reason or reason or "", text=row.text or text,
    )  # fmt: skip
