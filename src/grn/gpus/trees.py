"""Processes of this machine as the kernel lists them, and which lease each works for.

Reads /proc directly: one small file per process and look. Signals go through pidfds only.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grn.gpus.probe import Placement
from grn.interpreter import SERVICE
from grn.model.job import Holder

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SMALL_FILE_BYTES = 1 << 16  # in `status` a long list of groups comes before what we look for
_FILES_KEPT = 32
_TAG = b"GRN_LEASE="
_SERVICE = SERVICE + "="  # never the name of a lease
_NUMBERS = re.compile(rb"^NSpid:([\s\d]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TreeProcess:
    """One process at one moment."""

    pid: int
    parent: int
    session: int
    started_ticks: int
    resident_bytes: int
    cpu_ticks: int


def read_process(pid: int) -> TreeProcess | None:
    """Return one process, None when it is gone (or only its exit status is left)."""
    text = _read(pid, "stat")
    fields = text[text.rfind(b")") + 2 :].split(None, 22)
    if len(fields) < 22 or fields[0] in (b"Z", b"X"):
        return None
    return TreeProcess(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started_ticks=int(fields[19]),
        resident_bytes=int(fields[21]) * PAGE_BYTES,
        cpu_ticks=int(fields[11]) + int(fields[12]),
    )


def read_all(known: Mapping[int, TreeProcess] | None = None) -> dict[int, TreeProcess]:
    """Return all processes that can be seen; those in `known` are not read again."""
    known = known or {}
    found: dict[int, TreeProcess] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            pid = int(name)
            process = known.get(pid) or read_process(pid)
            if process is not None:
                found[pid] = process
    return found


def read_chains(pids: Iterable[int]) -> dict[int, TreeProcess]:
    """Return some processes with all their ancestors: much less to read than all there are."""
    found: dict[int, TreeProcess] = {}
    for pid in pids:
        while pid > 1 and pid not in found:
            process = read_process(pid)
            if process is None:
                break
            found[pid] = process
            pid = process.parent
    return found


def holder_of(pid: int) -> Holder | None:
    """Name a live process so that a later one with the same pid is told apart."""
    process = read_process(pid)
    return Holder(pid, process.started_ticks) if process else None


def child_of(parent: int, pid: int) -> Holder | None:
    """Return a child of a process by the pid that process knows it by, also in a container."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as file:
            children = [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return None
    for child in children:
        if child == pid or inner_pids(child)[-1] == pid:
            return holder_of(child)
    return None


def ancestor_of(child: int, pid: int, user: int) -> Holder | None:
    """Return a process above another, by the pid it is known by there, if it is that user's."""
    above = read_process(child)
    while above is not None and above.parent > 0:
        above = read_process(above.parent)
        if above is not None and pid in (above.pid, inner_pids(above.pid)[-1]):
            return Holder(above.pid, above.started_ticks) if _is_of(above.pid, user) else None
    return None


def _is_of(pid: int, user: int) -> bool:
    try:
        return user in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return False


def is_alive(holder: Holder) -> bool:
    """True while that very process runs."""
    process = read_process(holder.pid)
    return process is not None and process.started_ticks == holder.started_ticks


def inner_pids(pid: int) -> list[int]:
    """Return a process's numbers in its pid namespaces, ours first; several mean a container."""
    found = _NUMBERS.search(_read(pid, "status"))
    return [int(word) for word in found[1].split()] if found else [pid]


def end_processes(holders: Iterable[Holder]) -> list[Holder]:
    """Kill exactly these processes, and return those that we may not kill.

    One whose pid was reused meanwhile is left alone.
    """
    refused = []
    for holder in holders:
        try:
            pidfd = os.pidfd_open(holder.pid)
        except OSError:
            continue
        try:
            if is_alive(holder):  # checked after opening, so the fd is of the right process
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:
            refused.append(holder)
        finally:
            os.close(pidfd)
    return refused


class Memories:
    """What processes have in memory, for those asked about again and again.

    The files of a few stay open: that saves finding them, and an open one stays with its process
    and never shows another of the same pid.
    """

    def __init__(self) -> None:
        self._files: dict[Holder, int] = {}

    def resident_and_peak_bytes(self, holder: Holder) -> tuple[int, int] | None:
        """Return what a process has now and had at most, None when it is gone."""
        fd = self._files.get(holder)
        if fd is None:
            fd = self._open(holder)
        try:
            text = os.pread(fd, _SMALL_FILE_BYTES, 0) if fd is not None else b""
        except OSError:
            text = b""
        peak, resident = _size_in(text, b"\nVmHWM:"), _size_in(text, b"\nVmRSS:")
        if peak is None or resident is None:
            self._close(holder)
            return None
        return resident, peak

    def _open(self, holder: Holder) -> int | None:
        try:
            fd = os.open(f"/proc/{holder.pid}/status", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if not is_alive(holder):  # looked at after opening: a reused pid is found out
            os.close(fd)
            return None
        if len(self._files) >= _FILES_KEPT:
            self._close(next(iter(self._files)))
        self._files[holder] = fd
        return fd

    def _close(self, holder: Holder) -> None:
        fd = self._files.pop(holder, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Let all files go."""
        for holder in list(self._files):
            self._close(holder)


def tagged(users: Mapping[str, int]) -> dict[str, tuple[Holder, ...]]:
    """Return the live processes that were started under each lease, by lease -> its user."""
    found: dict[str, tuple[Holder, ...]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            tag, user = _tag_of(int(name))
            if tag in users and users[tag] == user and (holder := holder_of(int(name))):
                found[tag] = (*found.get(tag, ()), holder)
    return found


class Trees:
    """Finds the leases a process works for: by descent, by memory of past looks, by its tag."""

    def __init__(self) -> None:
        self._remembered: dict[Holder, tuple[str, ...]] = {}
        self._tags: dict[Holder, tuple[str, int]] = {}

    def members(
        self, processes: Mapping[int, TreeProcess], placements: Sequence[Placement]
    ) -> dict[int, tuple[str, ...]]:
        """Return pid -> leases for all of `processes` that work for a lease."""
        roots = _roots(processes, placements)
        live = {placement.lease: placement.user for placement in placements}
        answers: dict[int, tuple[str, ...]] = {}
        for pid in processes:
            self._answer(pid, processes, roots, live, answers)
        self._remember(processes, answers)
        return {pid: leases for pid, leases in answers.items() if leases}

    def _answer(
        self,
        pid: int,
        processes: Mapping[int, TreeProcess],
        roots: Mapping[int, tuple[str, ...]],
        live: Mapping[str, int | None],
        answers: dict[int, tuple[str, ...]],
    ) -> tuple[str, ...]:
        """Walk up from a process to the nearest holder; orphans go by what is known of them."""
        path: list[int] = []
        leases: tuple[str, ...] | None = None
        while leases is None:
            if pid in answers:
                leases = answers[pid]
            elif pid in roots:
                leases = roots[pid]
                path.append(pid)
            elif pid not in processes or pid in path:
                leases = ()
            else:
                path.append(pid)
                leases = self._known(processes[pid], live)
                pid = processes[pid].parent
        for member in path:
            answers[member] = leases
        return leases

    def _known(
        self, process: TreeProcess, live: Mapping[str, int | None]
    ) -> tuple[str, ...] | None:
        """Return the leases of a process, none for a daemon, None when its parent decides."""
        holder = Holder(process.pid, process.started_ticks)
        kept = tuple(lease for lease in self._remembered.get(holder, ()) if lease in live)
        if kept or not live:
            return kept or None
        if holder not in self._tags:
            self._tags[holder] = _tag_of(process.pid)
        tag, user = self._tags[holder]
        if tag == _SERVICE:
            return ()  # it may have been started inside a job, and serves others as well
        # Anybody can write any lease into an environment; only its own user's word counts.
        return (tag,) if tag in live and live[tag] in (None, user) else None

    def _remember(
        self, processes: Mapping[int, TreeProcess], answers: Mapping[int, tuple[str, ...]]
    ) -> None:
        present = {Holder(process.pid, process.started_ticks) for process in processes.values()}
        self._tags = {holder: tag for holder, tag in self._tags.items() if holder in present}
        self._remembered = {
            holder: leases for holder in present if (leases := answers.get(holder.pid))
        }


def _read(pid: int, name: str) -> bytes:
    """Return a small file of a process, nothing when it is gone; in as few calls as can be."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _SMALL_FILE_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _size_in(status: bytes, name: bytes) -> int | None:
    """Return one size of a `status` file; found by hand, as this is asked at every lease."""
    start = status.find(name)
    if start < 0:
        return None
    start += len(name)
    return int(status[start : status.index(b" kB", start)]) * 1024


def _roots(
    processes: Mapping[int, TreeProcess], placements: Sequence[Placement]
) -> dict[int, tuple[str, ...]]:
    roots: dict[int, tuple[str, ...]] = {}
    for placement in placements:
        holder = placement.holder
        process = processes.get(holder.pid) if holder else None
        if holder and process and process.started_ticks == holder.started_ticks:
            roots[holder.pid] = (*roots.get(holder.pid, ()), placement.lease)
    return roots


def _tag_of(pid: int) -> tuple[str, int]:
    """Return the lease named in a process's environment, which we may not see, and its user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            user = os.fstat(environ.fileno()).st_uid
            entries = environ.read(1 << 20).split(b"\0")
    except OSError:
        return "", -1  # it is gone, or another user's
    if any(entry.startswith(_SERVICE.encode()) for entry in entries):
        return _SERVICE, user
    tags = [entry[len(_TAG) :] for entry in entries if entry.startswith(_TAG)]
    return (tags[0].decode("ascii", "replace"), user) if tags else ("", -1)
