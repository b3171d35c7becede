"""Find the process that called `grn select`, which will hold the lease, in /proc."""

from __future__ import annotations

import hashlib
import os
import stat

from grn.proc import processes


def calling_process() -> int:
    """Return the pid of the shell or program that called us.

    Some shells put a copy of themselves in between for `$(…)`, which is gone as soon as our output
    is read. Such a copy writes into the same pipe as we do, and does not look like anybody else.
    """
    pid = os.getppid()
    while (parent := _parent(pid)) > 0 and _writes_where_we_do(pid) and _is_copy(pid, parent):
        pid = parent
    return pid


def is_above(pid: int) -> bool:
    """True for our parent, its parent, and so on."""
    above = os.getppid()
    while above not in (0, pid):
        above = _parent(above)
    return above == pid


def mark_of(pid: int) -> str | None:
    """Return a key that no other process has, also in another container; None if it is gone."""
    found = processes.look(pid)
    if found is None or found.is_over:
        return None
    space = os.stat("/proc/self/ns/pid").st_ino
    named = f"{space}.{pid}.{found.started_ticks}"
    return hashlib.sha256(named.encode()).hexdigest()[:24]


def name_of(pid: int) -> tuple[str, str]:
    """Name what a process runs, unambiguous and for people: its script, or where it is."""
    words = _words(pid)
    try:
        folder = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        folder = os.getcwd()
    program = os.path.basename(words[0]).lstrip("-") if words else "?"
    for word in words[1:]:
        path = os.path.join(folder, word)
        if not word.startswith("-") and os.path.isfile(path):
            return os.path.realpath(path), word
    return f"{program} in {folder}", program


def _parent(pid: int) -> int:
    found = processes.look(pid)
    return found.parent if found is not None else 0


def _words(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def _is_copy(pid: int, parent: int) -> bool:
    """True for a process that was forked and has become nothing else."""
    try:
        is_same = os.readlink(f"/proc/{pid}/exe") == os.readlink(f"/proc/{parent}/exe")
    except OSError:
        return False
    return is_same and _words(pid) == _words(parent)


def _writes_where_we_do(pid: int) -> bool:
    try:
        ours, theirs = os.fstat(1), os.stat(f"/proc/{pid}/fd/1")
    except OSError:
        return False
    return stat.S_ISFIFO(ours.st_mode) and os.path.samestat(ours, theirs)
