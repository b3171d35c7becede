"""A forked process that ends the running commands when we are killed without a chance to do so.

It waits for our end and reads from shared memory which process groups were running then, so that
telling it costs no system call. One that ended a moment before may still stand there: groups of our
session are looked up, not pids, so a stranger with the same pid is never met. What has left its
group by then it knows from looks of its own.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time

from grn.fixed_slots.orphans import Orphans
from grn.proc import processes, services

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from grn.proc.processes import Process

MAX_COMMANDS = 4096  # more than that at once are not watched over
_WORD_BYTES = 8
_WATCH_MS = 250  # between looks for those who have left their tree
_LOOK_S = 0.05
_GIVE_UP_S = 10.0  # what does not hear SIGKILL for so long hangs in the kernel, or is not ours
_BIRTH_S = 2.0  # a command that we were just starting shows itself within this time
_ALL_FDS = 1 << 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Watchdog:
    """Knows which commands run, and outlives us."""

    def __init__(self, grace_s: float, elders: Iterable[int] = (), mark: bytes = b"") -> None:
        """Take the children that are no commands, and the variable of those that are, if any."""
        self._memory = mmap.mmap(-1, (1 + MAX_COMMANDS) * _WORD_BYTES)
        # First since when a command is being started, in ticks, or 0; then the pids of all.
        self._words = memoryview(self._memory).cast("q")
        self._free = list(range(1, MAX_COMMANDS + 1))
        self._places: dict[int, int] = {}
        runner = os.getpid()
        own = os.pidfd_open(runner)
        self.pid = _fork()
        if self.pid == 0:
            _keep_watch(own, self._words, grace_s, lambda: Orphans(runner, elders, mark))
        os.close(own)

    def expect(self) -> None:
        """A command is about to be started: we may be killed before we know its pid."""
        self._words[0] = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S)

    def add(self, pid: int | None) -> None:
        """It has been started, or, if None, it could not be."""
        if pid is not None and self._free:
            place = self._places[pid] = self._free.pop()
            self._words[place] = pid
        self._words[0] = 0

    def remove(self, pid: int) -> None:
        """It has ended."""
        place = self._places.pop(pid, None)
        if place is not None:
            self._words[place] = 0
            self._free.append(place)

    def close(self) -> None:
        """Nothing is left to watch over."""
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # somebody was faster
        self._words.release()
        self._memory.close()


def _fork() -> int:
    """Fork also where other threads run: the child does nothing that could wait for one of them."""
    if "threading" not in sys.modules:
        return os.fork()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _keep_watch(
    parent: int, words: memoryview, grace_s: float, orphans_of: Callable[[], Orphans]
) -> None:
    """In the forked process: wait until our parent is gone, then end what it left running."""
    try:
        session = os.getsid(0)
        os.setsid()  # whoever kills a whole group at once should not meet us
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.dup2(parent, 3)
        os.closerange(4, _ALL_FDS)  # pipes and terminals end with our parent, not with us
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        known = _wait_for_end(3, orphans_of())
        groups = {pid for pid in words[1:] if pid}
        if words[0]:
            groups |= _newborn(words[0], session, groups)
        end_groups(groups, session, grace_s, known)
    finally:
        os._exit(0)


def _wait_for_end(parent: int, orphans: Orphans) -> dict[int, Process]:
    """Wait until a process is gone; return who had left the trees of its commands by then."""
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    patience_ms: int | None = 0
    while not poll.poll(patience_ms):
        patience_ms = _WATCH_MS if orphans.look() else None
    return orphans.known


def _newborn(since_ticks: int, session: int, known: set[int]) -> set[int]:
    """Find the command that was being started when our parent was killed.

    It leads a group of our parent's session, was born just then, is an orphan as we are and has
    our environment.
    """
    names = set(os.environb)
    until = time.monotonic() + _BIRTH_S
    while time.monotonic() < until:
        for one in processes.everyone():
            is_new = since_ticks - 1 <= one.started_ticks <= since_ticks + _BIRTH_S * _TICKS_PER_S
            leads = one.pid == one.group and one.session == session and one.pid not in known
            if is_new and leads and one.parent == os.getppid() and names <= _names(one.pid):
                return {one.pid}
        time.sleep(_LOOK_S / 10)
    return set()


def _names(pid: int) -> set[bytes]:
    """Return the names of the variables a process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return {entry.partition(b"=")[0] for entry in file.read().split(b"\0")}
    except OSError:
        return set()


def end_groups(groups: set[int], session: int, grace_s: float, known: dict[int, Process]) -> None:
    """End processes, all of some groups of a session and all below them, kindly first."""
    kill_at = time.monotonic() + grace_s
    asked: set[int] = set()
    while known := _alive(known, groups, session):
        is_time = time.monotonic() >= kill_at
        if time.monotonic() >= kill_at + _GIVE_UP_S:
            return
        for pid, process in known.items():
            if is_time:
                processes.send(process, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                processes.send(process, signal.SIGTERM)
                processes.send(process, signal.SIGCONT)  # a stopped process hears nothing
        time.sleep(_LOOK_S)


def _alive(known: dict[int, Process], groups: set[int], session: int) -> dict[int, Process]:
    """Return which of the known processes are left, and those of the groups or below them."""
    children: dict[int, list[Process]] = {}
    todo: list[Process] = []
    for one in processes.everyone():
        before = known.get(one.pid)
        is_known = before is not None and before.started_ticks == one.started_ticks
        if is_known or (one.group in groups and one.session == session):
            todo.append(one)
        children.setdefault(one.parent, []).append(one)
    found: dict[int, Process] = {}
    while todo:
        one = todo.pop()
        if one.pid not in found and not one.is_over:
            found[one.pid] = one
            todo += children.get(one.pid, [])
    served = services.spared(found.values())  # daemons serve others as well
    return {pid: one for pid, one in found.items() if pid not in served}
