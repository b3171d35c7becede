"""Identities of processes: the holder of a lease, and the processes that work for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from grn.model.job import Holder
from grn.proc import pidfd, processes
from grn.proc.spawn import SERVICE

_LEASE = b"GRN_LEASE="
_SERVICE = SERVICE.encode() + b"="


def holder_of(pid: int) -> Holder | None:
    """Return the identity of a live process: pid and start time, so that a reused pid differs."""
    process = processes.living(pid)
    return Holder(pid, process.started_ticks) if process else None


def is_alive(holder: Holder) -> bool:
    """True while this process runs, not another with its pid."""
    return processes.is_running(holder.pid, holder.started_ticks)


def child_of(parent: int, pid: int) -> Holder | None:
    """Return a child of a process by the pid that process knows it by, also in a container."""
    for child in sorted(processes.listed_children(parent) or ()):
        if child == pid or processes.inner_pids(child)[-1] == pid:
            return holder_of(child)
    return None


def ancestor_of(child: int, pid: int, user: int) -> Holder | None:
    """Return a process above another, by the pid it is known by there, if it is that user's."""
    above = processes.living(child)
    while above is not None and above.parent > 0:
        above = processes.living(above.parent)
        if above is not None and pid in (above.pid, processes.inner_pids(above.pid)[-1]):
            is_theirs = user in (0, processes.user(above.pid))
            return Holder(above.pid, above.started_ticks) if is_theirs else None
    return None


def peer_of(connection: socket.socket) -> tuple[Holder | None, int, int | None]:
    """Return process, user and pidfd of the peer, as the kernel reports them.

    No process when it has ended, or is in a pid namespace that is not visible here.
    """
    pid, uid = pidfd.credentials(connection)
    try:
        fd = pidfd.of_peer(connection, pid)
    except ConnectionError:
        return None, uid, None
    holder = holder_of(pid) if pid > 0 else None
    if holder is None or pidfd.has_ended(fd):  # checked last: the pid was this process's
        os.close(fd)
        return None, uid, None
    return holder, uid, fd


def tag_of(pid: int) -> tuple[str, int] | None:
    """Return the lease that a process's environment names, if any, and its user; None: a daemon.

    The environment of another user's process may be hidden.
    """
    entries, user = processes.environment(pid)
    if any(entry.startswith(_SERVICE) for entry in entries):
        return None
    leases = [entry[len(_LEASE) :] for entry in entries if entry.startswith(_LEASE)]
    return (leases[0].decode("ascii", "replace"), user) if leases else ("", -1)


def tagged(users: Mapping[str, int]) -> dict[str, tuple[Holder, ...]]:
    """Return the live processes that were started under each lease, by lease -> its user."""
    found: dict[str, tuple[Holder, ...]] = {}
    for pid in processes.pids():
        tag, user = tag_of(pid) or ("", -1)
        if tag in users and users[tag] == user and (holder := holder_of(pid)):
            found[tag] = (*found.get(tag, ()), holder)
    return found
