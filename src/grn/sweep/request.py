"""What the negotiator is asked for on behalf of a task."""

from __future__ import annotations

import os
import shlex

from grn.client import fingerprint, job_features
from grn.client.lease import wish
from grn.model.oom_retry import Had
from grn.sweep.task import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.wire import Message

_SHELL = ("/bin/sh", "-c")


def request(task: Task) -> Message:
    """Return the request for a task."""
    words = _words(task.argv)
    full, label = job_features.command_type(words, task.folder or "")
    needs = task.needs
    message = wish(
        needs.job_type or full, needs.job_type or label, gpus=needs.gpus, mem=needs.mem_bytes,
        exclusive=needs.is_exclusive, priority=needs.priority,
    )  # fmt: skip
    message["key"] = os.urandom(12).hex()
    message["args"] = job_features.of_command(words)
    message |= fingerprint.told(words, task.folder or "")
    message |= Had(task.attempt, task.spared).told()
    message["command"] = True
    message["yields"] = True  # what makes room for others is run again by whoever asks
    outer = os.environ.get("GRN_LEASE")
    if outer:
        message["within"] = outer
    return message


def _words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command, also of one that the shell runs, without assignments."""
    if argv[:2] != _SHELL or len(argv) != 3:
        return argv
    try:
        words = shlex.split(argv[2])
    except ValueError:
        return argv
    while words and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
        del words[0]
    return tuple(words) or argv
