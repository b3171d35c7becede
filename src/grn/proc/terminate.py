"""End process trees: SIGTERM, SIGCONT, wait, SIGKILL; also processes that left by a double fork.

`tree.py` decides what belongs to a tree and which step is next. A reaper (`adopt_orphans`) is the
parent of everything below it that loses its own parent, so nothing leaves its tree.
`StopSignals` are the signals that end this process itself.
"""

from __future__ import annotations

import os
import signal
import time

from grn.proc import pidfd, processes, services
from grn.proc.tree import ASK, KILL, Escalation, relatives

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterable
    from types import FrameType
    from typing import Any, TypeVar

    from grn.proc.tree import Process

    One = TypeVar("One", bound=pidfd.Named)

_PR_SET_CHILD_SUBREAPER = 36
_QUICK_LOOKS = 50
_MARKED_S = 1.0  # the queue is blocked meanwhile
# A stopped process gets no other signal until it is continued.
_SIGNALS = {ASK: (signal.SIGTERM, signal.SIGCONT), KILL: (signal.SIGKILL,)}
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Commands are in the background of the terminal, where using it would stop them for ever. They
# inherit that this signal is ignored.
_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


def adopt_orphans(is_wanted: bool = True) -> None:
    """Become the parent of orphaned descendants, so that none of them leaves the tree."""
    import ctypes  # not at the top: it is slow to import

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def has_children() -> bool:
    """True while this process has a child, also one that is not reaped yet."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def take(step: str, some: Iterable[Process], asks_by: int = 0) -> set[tuple[int, int]]:
    """Take a step with each process; return the identities of those that could be signalled.

    `asks_by` is the signal of the step `ASK`, 0 for the usual one.
    """
    signals = (asks_by, signal.SIGCONT) if step == ASK and asks_by else _SIGNALS[step]
    return {(one.pid, one.started_ticks) for one in some if pidfd.send(one, *signals)}


def end(find: Callable[[], Collection[Process]], steps: Escalation, look_s: float) -> int:
    """End the processes of `find` until none is left or killing has no effect; return a count."""
    steps.begin(time.monotonic())
    signalled: set[tuple[int, int]] = set()
    while (left := find()) and not steps.has_given_up(now := time.monotonic()):
        if step := steps.due(now):
            signalled |= take(step, left)
        time.sleep(look_s)
    return len(signalled)


def below_us(step: str, tag: str, asks_by: int = 0) -> None:
    """Take a step with every descendant, except services and other attempts' processes.

    For a process that is the reaper of a command and of nothing else.
    """
    found = processes.all_below(os.getpid())
    spared = services.spared(found, tag)
    take(step, [one for one in found if one.pid not in spared], asks_by)
    if step == KILL:
        _kill_children(spared)


def _kill_children(spared: Collection[int]) -> None:
    """Kill children faster than they fork: an orphaned descendant becomes our child."""
    killed: set[int] = set(spared)
    for _ in range(_QUICK_LOOKS):
        for pid in processes.children():
            if pid not in killed:
                os.kill(pid, signal.SIGKILL)  # our child and not waited for: the pid is its own
                killed.add(pid)


def marked(tag: str) -> list[Process]:
    """Return the leftovers of a killed shim: processes with its attempt's mark and relatives.

    Daemons of grn that the job started are left out, and so is this process, which may be one.
    """
    mark = f"{services.TAG}={tag}".encode()
    everyone = [one for one in processes.everyone() if one.pid != os.getpid()]
    found = relatives(
        everyone, {one.pid for one in everyone if processes.has_variable(one.pid, mark)}
    )
    spared = services.spared(found, tag)
    return [one for one in found if one.pid not in spared]


def end_marked(tag: str) -> int:
    """Kill the leftovers of a killed shim, also processes forked meanwhile; return a count."""
    steps = Escalation(0.0, again_s=0.0, give_up_s=_MARKED_S)
    return end(lambda: marked(tag), steps, look_s=0.0)


def end_having(assignment: str, give_up_s: float) -> int:
    """Kill all processes that were started with a variable, and their relatives; except this one.

    Return how many could not be killed.
    """

    def left() -> list[Process]:
        everyone = [one for one in processes.everyone() if one.pid != os.getpid()]
        mark = assignment.encode()
        having = {one.pid for one in everyone if processes.has_variable(one.pid, mark)}
        found = relatives(everyone, having)
        return [one for one in found if one.pid in having or not one.is_over]

    end(left, Escalation(0.0, again_s=0.05, give_up_s=give_up_s), look_s=0.01)
    return len(left())


def kill(some: Iterable[One]) -> list[One]:
    """Kill exactly these processes; return those that could not be killed for lack of rights."""
    return [
        one
        for one in some
        if not pidfd.send(one, signal.SIGKILL) and processes.is_running(one.pid, one.started_ticks)
    ]


def end_child(child: subprocess.Popen[Any], grace_s: float) -> None:
    """End a process that `spawn.child` started, and wait for it."""
    import subprocess  # not at the top: it is slow to import

    child.terminate()
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def signal_session(leader: subprocess.Popen[Any], signum: int) -> None:
    """Pass a signal on to a child that began a session, and to all in its first process group."""
    if leader.poll() is None:
        os.killpg(leader.pid, signum)


def signal_child(pid: int, signum: int) -> None:
    """Pass a signal on to a child that is not waited for yet, so its pid is not reused."""
    os.kill(pid, signum)


class StopSignals:
    """Signals that stop this process, as bytes on a pipe; ignored signals stay ignored."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._end, False)
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        try:
            self._fd_before = signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)
        except ValueError:
            return  # only the main thread can handle signals: leave them to its code
        for signum in _STOPS:
            handler = signal.getsignal(signum)
            if handler is not signal.SIG_IGN and handler is not None:
                self._before[signum] = handler
                signal.signal(signum, _leave_it_to_the_pipe)
        for signum in _TERMINAL:
            before = signal.signal(signum, signal.SIG_IGN)
            self._before[signum] = signal.SIG_DFL if before is None else before
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # ends would be lost
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def read(self) -> list[int]:
        """Return the received signals."""
        try:
            return [signum for signum in os.read(self.fd, 512) if signum in _STOPS]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Restore the previous handlers."""
        if self._before:
            signal.set_wakeup_fd(self._fd_before)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self.fd)
        os.close(self._end)


def _leave_it_to_the_pipe(signum: int, frame: FrameType | None) -> None:
    pass
