"""A forked process that ends the running commands when the runner is killed by SIGKILL.

It waits for the runner's end and reads the running process groups from shared memory, so that an
update costs no system call. A group that ended a moment before may still be listed: groups of the
runner's session are looked up, not pids, so a stranger with the same pid is never met. Processes
that left their group are found by regular scans.
"""

from __future__ import annotations

import mmap
import os
import signal
import time

from grn.proc import pidfd, processes, services, spawn, terminate
from grn.proc.tree import Escalation, family

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from grn.proc.tree import Process

MAX_COMMANDS = 4096  # further commands at the same time are not watched
_WORD_BYTES = 8
_WATCH_MS = 250  # between scans for processes that left their tree
_FOR_EVER = -1
_LOOK_S = 0.05
_GIVE_UP_S = 10.0
_BIRTH_S = 2.0  # a command that was being started appears within this time
_ALL_FDS = 1 << 20


class Watchdog:
    """Tracks the running commands, and outlives the runner."""

    def __init__(self, grace_s: float, elders: Iterable[int] = (), mark: bytes = b"") -> None:
        """Take the children that are no commands, and the variable of the commands, if any."""
        self._memory = mmap.mmap(-1, (1 + MAX_COMMANDS) * _WORD_BYTES)
        # First since when a command is being started, in ticks, or 0; then the pids of all.
        self._words = memoryview(self._memory).cast("q")
        self._free = list(range(1, MAX_COMMANDS + 1))
        self._places: dict[int, int] = {}
        runner = os.getpid()
        own = pidfd.open_child(runner)
        self.pid = spawn.fork(
            lambda: _keep_watch(own, self._words, grace_s, lambda: _Orphans(runner, elders, mark))
        )
        os.close(own)

    def expect(self) -> None:
        """Note that a command is about to start: the runner may be killed before it has its pid."""
        self._words[0] = int(time.clock_gettime(time.CLOCK_BOOTTIME) * processes.TICKS_PER_S)

    def add(self, pid: int | None) -> None:
        """Note the pid of the started command, or None if it did not start."""
        if pid is not None and self._free:
            place = self._places[pid] = self._free.pop()
            self._words[place] = pid
        self._words[0] = 0

    def remove(self, pid: int) -> None:
        """Note that a command has ended."""
        place = self._places.pop(pid, None)
        if place is not None:
            self._words[place] = 0
            self._free.append(place)

    def close(self) -> None:
        """End the watchdog: no command is left."""
        try:
            terminate.signal_child(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # it has ended already
        self._words.release()
        self._memory.close()


def _keep_watch(
    parent: int, words: memoryview, grace_s: float, orphans_of: Callable[[], _Orphans]
) -> None:
    """In the forked process: wait for the parent's end, then end its commands."""
    session = os.getsid(0)
    os.setsid()  # a signal to the runner's whole group must not reach this process
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    os.dup2(parent, 3)
    os.closerange(4, _ALL_FDS)  # do not keep the parent's pipes and terminals open
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    left = _Left(_wait_for_end(3, orphans_of()), {pid for pid in words[1:] if pid}, session)
    if words[0]:
        left.groups |= _newborn(words[0], session, left.groups)
    terminate.end(left.find, Escalation(grace_s, again_s=0.0, give_up_s=_GIVE_UP_S), _LOOK_S)


def _wait_for_end(parent: int, orphans: _Orphans) -> dict[int, Process]:
    """Wait until a process is gone; return the processes that had left its commands' trees."""
    wait_ms = 0
    while not pidfd.has_ended(parent, wait_ms):
        wait_ms = _WATCH_MS if orphans.look() else _FOR_EVER
    return orphans.known


class _Orphans:
    """The commands of a runner, and processes that left their trees: a reaper's other children.

    A killed runner leaves no trace of its children, so the watchdog scans from time to time.
    """

    def __init__(self, runner: int, elders: Iterable[int], mark: bytes) -> None:
        """Take the children that the runner had before, and the variable that all commands have."""
        self._runner = runner
        self._mark = mark
        found = processes.look(runner)
        self._own_group = 0 if found is None else found.group
        self._others = {*elders, os.getpid()}  # the watchdog is one of its children too
        self.known: dict[int, Process] = {}

    def look(self) -> bool:
        """Scan once; False where the kernel keeps no list, or the runner is gone."""
        now = processes.listed_children(self._runner)
        if now is None:
            return False
        # A runner that is being killed may have no children any more: check each.
        for pid in self.known.keys() - now:
            if not processes.is_running(pid, self.known[pid].started_ticks):
                del self.known[pid]
        self._others &= now
        for pid in now - self.known.keys() - self._others:
            self._meet(pid)
        return True

    def _meet(self, pid: int) -> None:
        found = processes.look(pid)
        if found is None:
            return
        is_marked = not self._mark or processes.has_variable(pid, self._mark)
        if found.group != self._own_group and is_marked:
            self.known[pid] = found
        else:
            self._others.add(pid)


def _newborn(since_ticks: int, session: int, known: set[int]) -> set[int]:
    """Find the command that was being started when the parent was killed.

    It leads a group of the parent's session, began just then, is an orphan and has the same
    environment.
    """
    names = set(os.environb)
    until = time.monotonic() + _BIRTH_S
    while time.monotonic() < until:
        for one in processes.everyone():
            is_new = (
                since_ticks - 1
                <= one.started_ticks
                <= since_ticks + _BIRTH_S * processes.TICKS_PER_S
            )
            leads = one.pid == one.group and one.session == session and one.pid not in known
            if is_new and leads and one.parent == os.getppid() and names <= _names(one.pid):
                return {one.pid}
        time.sleep(_LOOK_S / 10)
    return set()


def _names(pid: int) -> set[bytes]:
    """Return the names of the variables a process was started with."""
    entries, _ = processes.environment(pid)
    return {entry.partition(b"=")[0] for entry in entries}


class _Left:
    """The rest of the commands: process groups of a session, known orphans, and all below."""

    def __init__(self, known: dict[int, Process], groups: set[int], session: int) -> None:
        self._known = known
        self.groups = groups
        self._session = session

    def find(self) -> list[Process]:
        """Return the remaining processes; a process found once stays known."""
        everyone = [one for one in processes.everyone() if not one.is_over]
        seeds = [one.pid for one in everyone if self._is_left(one)]
        found = family(everyone, seeds)
        served = services.spared(found)  # daemons serve others as well
        self._known = {one.pid: one for one in found if one.pid not in served}
        return list(self._known.values())

    def _is_left(self, one: Process) -> bool:
        before = self._known.get(one.pid)
        is_known = before is not None and before.started_ticks == one.started_ticks
        return is_known or (one.group in self.groups and one.session == self._session)
