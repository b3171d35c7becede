"""Find the process that called `grn select`, which will hold the lease."""

from __future__ import annotations

import hashlib
import os
import stat

from grn.proc import processes


def calling_process() -> int:
    """Return the pid of the shell or program that called us.

    Some shells put a copy of themselves in between for `$(…)`, which is gone as soon as our output
    is read. Such a copy writes into the same pipe as we do and runs the program of its parent.
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
    found = processes.living(pid)
    if found is None:
        return None
    named = f"{processes.pid_namespace()}.{pid}.{found.started_ticks}"
    return hashlib.sha256(named.encode()).hexdigest()[:24]


def name_of(pid: int) -> tuple[str, str]:
    """Name what a process runs, unambiguous and for people: its script, or where it is."""
    words = processes.words(pid)
    folder = processes.folder(pid) or os.getcwd()
    program = os.path.basename(words[0]).lstrip("-") if words else "?"
    for word in words[1:]:
        path = os.path.join(folder, word)
        if not word.startswith("-") and os.path.isfile(path):
            return os.path.realpath(path), word
    return f"{program} in {folder}", program


def _parent(pid: int) -> int:
    found = processes.look(pid)
    return found.parent if found is not None else 0


def _is_copy(pid: int, parent: int) -> bool:
    """True for a process that was forked and has become nothing else."""
    program = processes.program(pid)
    is_same = program is not None and program == processes.program(parent)
    return is_same and processes.words(pid) == processes.words(parent)


def _writes_where_we_do(pid: int) -> bool:
    ours, theirs = processes.file_status(os.getpid(), 1), processes.file_status(pid, 1)
    if ours is None or theirs is None:
        return False
    return stat.S_ISFIFO(ours.st_mode) and os.path.samestat(ours, theirs)
