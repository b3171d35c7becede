"""Commands of a runner that are ended one at a time, each with all it has started.

Asks kindly and kills what does not hear; the place of such a command is free when nothing of it is
left. Who is to leave, and what follows, is decided elsewhere.
"""

from __future__ import annotations

import os
import signal

from grn.proc import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.sweep.task import CommandEnd

LOOK_S = 0.02
KILL_AGAIN_S = 0.1
GIVE_UP_S = 5.0  # what does not hear SIGKILL for so long hangs in the kernel, or is not ours


class _Leaver:
    """One command that is being ended."""

    __slots__ = ("because", "end", "give_up_at", "kill_at", "mark", "pid")

    def __init__(self, pid: int, lease: str, because: str, kill_at: float) -> None:
        self.pid = pid
        self.mark = os.fsencode(f"GRN_LEASE={lease}")  # what it has started carries it too
        self.because = because
        self.kill_at = kill_at
        self.give_up_at = kill_at + GIVE_UP_S
        self.end: tuple[CommandEnd, int | None] | None = None  # once the command itself is over


class Leaving:
    """All commands of a runner that make room for others."""

    def __init__(self, trees: Callable[[], list[processes.Process]], grace_s: float) -> None:
        self._trees = trees  # all that any command of the runner has started
        self._grace_s = grace_s
        self._leavers: dict[int, _Leaver] = {}  # by pid

    def __len__(self) -> int:
        return len(self._leavers)

    def begin(self, pid: int, lease: str, because: str, now: float) -> None:
        """Ask a command to end, and all it has started."""
        if pid not in self._leavers:
            leaver = self._leavers[pid] = _Leaver(pid, lease, because, now + self._grace_s)
            self._signal(leaver, signal.SIGTERM)
            self._signal(leaver, signal.SIGCONT)  # a stopped process hears nothing

    def over(self, pid: int, ended: CommandEnd, resident_bytes: int | None) -> bool:
        """Keep the end of a command until nothing of it is left; False if it was not asked to."""
        leaver = self._leavers.get(pid)
        if leaver is None:
            return False
        if ended.status:  # else it was faster, and has done what it was to do
            ended = ended.but(is_requeued=True, because=leaver.because)
        leaver.end = (ended, resident_bytes)
        return True

    @property
    def wake_at(self) -> float | None:
        """When to look again; no word comes of the ends of those that left their tree."""
        times = [0.0 if one.end is not None else one.kill_at for one in self._leavers.values()]
        return min(times, default=None)

    def keep_time(self, now: float) -> list[tuple[CommandEnd, int | None]]:
        """Kill what has had its grace; return the ends of commands of which nothing is left."""
        ends = []
        for leaver in list(self._leavers.values()):
            if now >= leaver.kill_at:
                self._signal(leaver, signal.SIGKILL)
                leaver.kill_at = now + KILL_AGAIN_S
            if leaver.end is not None and (now >= leaver.give_up_at or not self._tree(leaver)):
                ends.append(leaver.end)
                del self._leavers[leaver.pid]
        return ends

    def _tree(self, leaver: _Leaver) -> list[processes.Process]:
        """Return what a command has started, also what left its tree, and itself."""
        found: dict[int, processes.Process] = {}
        for one in self._trees():  # parents come before their children
            is_its_own = leaver.pid in (one.pid, one.group) or one.parent in found
            if is_its_own or processes.has_variable(one.pid, leaver.mark):
                found[one.pid] = one
        return list(found.values())

    def _signal(self, leaver: _Leaver, signum: int) -> None:
        for process in self._tree(leaver):
            processes.send(process, signum)
