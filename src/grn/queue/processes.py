"""Processes as the system shows them, and signals that never reach a stranger.

A pid is used again once its process is gone and buried; the time of its start tells the two apart.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Process:
    """One process as it was seen once; of some only the exit status may be left."""

    __slots__ = ("parent", "pid", "session", "started_ticks")

    def __init__(self, pid: int, parent: int, session: int, started_ticks: int) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.started_ticks = started_ticks


def look(pid: int) -> Process | None:
    """Look at a process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # what comes before is a name of any kind
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def everyone() -> Iterator[Process]:
    """Yield all processes there are."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := look(int(name))) is not None:
            yield found


def below(root: int) -> list[Process]:
    """Return all processes below one, parents before children."""
    children: dict[int, list[Process]] = {}
    for one in everyone():
        children.setdefault(one.parent, []).append(one)
    found: list[Process] = []
    todo = [root]
    while todo:
        some = children.get(todo.pop(), [])
        found += some
        todo += [one.pid for one in some]
    return found


def children() -> list[int]:
    """Return the pids of our own children, in a fraction of the time that `below` takes."""
    own = os.getpid()
    try:
        with open(f"/proc/{own}/task/{own}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without this file
        return [one.pid for one in everyone() if one.parent == own]


def send(process: Process, signum: int) -> bool:
    """Signal a process if it is still the same; False when it is gone or not ours to signal."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        found = look(process.pid)  # after opening: from here on nobody else can be meant
        if found is None or found.started_ticks != process.started_ticks:
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
