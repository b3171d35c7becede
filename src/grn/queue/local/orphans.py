"""Processes that a killed shim has left behind: those marked with its attempt, and relatives.

A relative descends from a marked process or shares a session that the job began: a child with an
emptied environment carries no mark. Daemons of grn that the job started are left alone.
"""

from __future__ import annotations

import os
import signal

from grn.proc import processes, services
from grn.proc.processes import Process

MAX_LOOKS = 20


def end_all(tag: str) -> int:
    """Kill all that is left, also processes forked meanwhile; return how many there were."""
    killed: set[tuple[int, int]] = set()
    for _ in range(MAX_LOOKS):
        left = _left(tag)
        if not left:
            break
        for one in left:
            if processes.send(one, signal.SIGKILL):
                killed.add((one.pid, one.started_ticks))
    return len(killed)


def _left(tag: str) -> list[Process]:
    """Return what is left now; never ourselves, whom a job may have started."""
    mark = f"{services.TAG}={tag}".encode()
    everyone = [one for one in processes.everyone() if one.pid != os.getpid()]
    living = {one.pid for one in everyone}
    marked = {one.pid for one in everyone if _has(one.pid, mark)}
    # A session whose leader lives and has no mark is not the job's: that of a login, for one.
    sessions = {
        one.session
        for one in everyone
        if one.pid in marked and (one.session in marked or one.session not in living)
    }
    doomed = marked | {one.pid for one in everyone if one.session in sessions}
    while kin := {one.pid for one in everyone if one.parent in doomed} - doomed:
        doomed |= kin
    left = [one for one in everyone if one.pid in doomed]
    spared = services.spared(left, tag)
    return [one for one in left if one.pid not in spared]


def _has(pid: int, mark: bytes) -> bool:
    text = _read(f"/proc/{pid}/environ")
    if not text:  # its first thread may have ended while others go on
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return False
        text = b"\0".join(_read(f"/proc/{pid}/task/{one}/environ") for one in threads)
    return mark in text.split(b"\0")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # gone, or of another user
        return b""
