"""What a killed shim leaves behind: all processes with the mark of its attempt, and their kin.

Kin of a marked process is whoever descends from it or shares a session that the job itself has
begun: a child with an emptied environment has no mark of its own.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

MOST_LOOKS = 20


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    session: int
    started_ticks: int
    is_marked: bool


def end_all(mark: bytes) -> int:
    """Kill all that is left; return how many there were. Who forks meanwhile is met again."""
    killed: set[tuple[int, int]] = set()
    for _ in range(MOST_LOOKS):
        left = _left(mark)
        if not left:
            break
        killed |= {(one.pid, one.started_ticks) for one in left if _kill(one)}
    return len(killed)


def started_ticks(pid: int) -> int | None:
    """Return when a process was started, None when it has ended: a reused pid has another time."""
    found = _look(pid, b"")
    return found.started_ticks if found is not None else None


def _left(mark: bytes) -> list[_Process]:
    """Return what is left now; never ourselves, whom a job may have started."""
    all_of_them = [one for pid in _pids() if (one := _look(pid, mark)) is not None]
    living = {one.pid for one in all_of_them}
    marked = {one.pid for one in all_of_them if one.is_marked}
    # A session whose leader lives and has no mark is not the job's: that of a login, for one.
    sessions = {
        one.session
        for one in all_of_them
        if one.is_marked and (one.session in marked or one.session not in living)
    }
    doomed = {one.pid for one in all_of_them if one.is_marked or one.session in sessions}
    while kin := {one.pid for one in all_of_them if one.parent in doomed} - doomed:
        doomed |= kin
    return [one for one in all_of_them if one.pid in doomed]


def _pids() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _look(pid: int, mark: bytes) -> _Process | None:
    """Return what is to be known of a process, None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()
    if fields[0] in b"ZX":
        return None
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            is_marked = mark in file.read().split(b"\0")
    except OSError:  # of another user: no process of ours
        is_marked = False
    return _Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), is_marked)


def _kill(process: _Process) -> bool:
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if started_ticks(process.pid) != process.started_ticks:  # looked at after opening
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
