"""Recognise grn's own daemons and shims among the processes that a job has started.

A daemon started inside a job serves others too, so the end of that job must not end it. The kernel
gives the evidence: the process holds the lock of a daemon or of an attempt's record. Sends no
signals.
"""

from __future__ import annotations

import os
import re

from grn import paths
from grn.proc import processes
from grn.proc.tree import family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from grn.proc.tree import Process

TAG = "GRN_JOB_TAG"  # names the attempt that a process belongs to: QUEUE.JOB.ATTEMPT
# The kernel shows the name by which a file was opened: a record is made as N.new.
_RECORD = re.compile(r"/[^/]+/\d+/\d+\.\d+\.(new|run)")


def spared(found: Collection[Process], tag: str = "") -> set[int]:
    """Return which of these processes must not be ended: services, and all below them.

    `tag` names the attempt that is being ended: the queue ends processes of its other attempts
    itself.
    """
    places_of = _Places()
    chosen = [
        one.pid for one in found if places_of.is_locked_by(one.pid) or is_of_another(one.pid, tag)
    ]
    return {one.pid for one in family(found, chosen)} if chosen else set()


def is_service(pid: int) -> bool:
    """True of a daemon or a shim of this user's grn, as this environment names its folders."""
    return _Places().is_locked_by(pid)


def is_of_another(pid: int, tag: str) -> bool:
    """True of a process of another attempt of the queue that gave this tag."""
    if not tag:
        return False
    kind = f"{TAG}={tag.partition('.')[0]}.".encode()
    tags = {entry for entry in tags_of(pid) if entry.startswith(kind)}
    return bool(tags) and f"{TAG}={tag}".encode() not in tags


def tags_of(pid: int) -> set[bytes]:
    """Return the assignments of a process's environment that name an attempt: one, or none."""
    entries, _ = processes.environment(pid)
    return {entry for entry in entries if entry.startswith(TAG.encode() + b"=")}


def attempts_of(pid: int) -> set[str]:
    """Return the folders of attempts whose records a process has locked, also removed ones."""
    return {name[:-4] for name in _locked(pid, re.compile(rf".*{_RECORD.pattern}").fullmatch)}


class _Places:
    """The files that services lock."""

    def __init__(self) -> None:
        sockets = (paths.queue_socket(), paths.own_socket())
        folders = {os.path.dirname(os.path.abspath(one)) for one in sockets}
        self._locks = {os.path.join(os.path.realpath(one), "lock") for one in folders}
        states = (paths.state_dir(), f"/var/tmp/grn-{os.getuid()}")
        self._records = tuple(os.path.join(os.path.realpath(one), "queue/jobs") for one in states)

    def is_locked_by(self, pid: int) -> bool:
        return bool(_locked(pid, self._is_ours))

    def _is_ours(self, name: str) -> bool:
        if name in self._locks:
            return True
        return any(
            name.startswith(root) and _RECORD.fullmatch(name, len(root)) for root in self._records
        )


def _locked(pid: int, is_meant: Callable[[str], object]) -> set[str]:
    """Return the names of open files of such names that a process has locked."""
    return {
        name
        for number, name in processes.open_files(pid)
        if is_meant(name) and processes.has_locked(pid, number)
    }
