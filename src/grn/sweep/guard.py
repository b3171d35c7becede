"""A forked process that ends the running commands when we are killed without a chance to do so.

It waits for our end and reads from shared memory which sessions were running then, so that telling
it costs no system call. One that ended a moment before may still stand there: sessions are looked
up, not pids, so a stranger with the same pid is never met.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import time

from grn import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.processes import Process

MOST_COMMANDS = 4096  # more than that at once are not watched over
_PID_BYTES = 4
_LOOK_S = 0.05
_GIVE_UP_S = 10.0  # what does not hear SIGKILL for so long hangs in the kernel, or is not ours
_ALL_FDS = 1 << 20


class Guard:
    """Knows which commands run, and outlives us."""

    def __init__(self, grace_s: float) -> None:
        self._memory = mmap.mmap(-1, MOST_COMMANDS * _PID_BYTES)
        self._pids = memoryview(self._memory).cast("i")
        self._free = list(range(MOST_COMMANDS))
        self._places: dict[int, int] = {}
        own = os.pidfd_open(os.getpid())
        self.pid = os.fork()
        if self.pid == 0:
            _keep_watch(own, self._pids, grace_s)
        os.close(own)

    def add(self, pid: int) -> None:
        """A command has been started."""
        if self._free:
            place = self._places[pid] = self._free.pop()
            self._pids[place] = pid

    def remove(self, pid: int) -> None:
        """It has ended."""
        place = self._places.pop(pid, None)
        if place is not None:
            self._pids[place] = 0
            self._free.append(place)

    def close(self) -> None:
        """Nothing is left to watch over."""
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass  # somebody was faster
        self._pids.release()
        self._memory.close()


def _keep_watch(parent: int, pids: memoryview, grace_s: float) -> None:
    """In the forked process: wait until our parent is gone, then end what it left running."""
    try:
        os.setsid()  # whoever kills a whole group at once should not meet us
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.dup2(parent, 3)
        os.closerange(4, _ALL_FDS)  # pipes and terminals end with our parent, not with us
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        poll = select.poll()
        poll.register(3, select.POLLIN)
        while not poll.poll():
            pass
        end_sessions({pid for pid in pids if pid}, grace_s)
    finally:
        os._exit(0)


def end_sessions(sessions: set[int], grace_s: float) -> None:
    """End all processes of some sessions and all below them, kindly first."""
    kill_at = time.monotonic() + grace_s
    known: dict[int, Process] = {}
    asked: set[int] = set()
    while known := _alive(known, sessions):
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


def _alive(known: dict[int, Process], sessions: set[int]) -> dict[int, Process]:
    """Return which of the known processes are left, and those of the sessions or below them."""
    found: dict[int, Process] = {}
    for one in sorted(processes.everyone(), key=lambda one: one.started_ticks):
        before = known.get(one.pid)
        if one.is_over:
            continue
        is_known = before is not None and before.started_ticks == one.started_ticks
        if is_known or one.session in sessions or one.parent in found:
            found[one.pid] = one
    return found
