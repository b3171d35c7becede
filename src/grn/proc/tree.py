"""Process trees as values: which processes belong to a tree, and which step ends it next.

Decides; `terminate.py` carries out. A process that left its tree by `setsid` or a double fork is
found by its parent (a reaper adopts it), by its session, or by a mark in its environment.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

ASK, KILL = "ask", "kill"


class Process:
    """One process as it was seen once. A pid is reused, so pid and start time name a process."""

    __slots__ = ("cpu_ticks", "group", "is_over", "parent", "pid", "resident_bytes", "session",
                 "started_ticks", "waited_ticks")  # fmt: skip

    def __init__(
        self,
        pid: int,
        parent: int = 1,
        group: int = 0,
        session: int = 0,
        started_ticks: int = 0,
        is_over: bool = False,
        resident_bytes: int = 0,
        cpu_ticks: int = 0,
        waited_ticks: int = 0,
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.session = session
        self.started_ticks = started_ticks
        self.is_over = is_over  # only its exit status is left, or its first thread has ended
        self.resident_bytes = resident_bytes
        self.cpu_ticks = cpu_ticks
        self.waited_ticks = waited_ticks  # of children that have ended


def family(
    processes: Collection[Process], seeds: Iterable[int], spared: Collection[int] = ()
) -> list[Process]:
    """Return the processes with these pids and all that descend from them, parents first.

    A spared process is left out, with all below it.
    """
    children: dict[int, list[Process]] = {}
    by_pid: dict[int, Process] = {}
    for one in processes:
        by_pid[one.pid] = one
        children.setdefault(one.parent, []).append(one)
    todo = [by_pid[pid] for pid in seeds if pid in by_pid]
    found: dict[int, Process] = {}
    for one in todo:  # grows while it is walked
        if one.pid not in found and one.pid not in spared:
            found[one.pid] = one
            todo += children.get(one.pid, ())
    return list(found.values())


def below(processes: Collection[Process], root: int, spared: Collection[int] = ()) -> list[Process]:
    """Return all processes below one, parents first."""
    return family(processes, [one.pid for one in processes if one.parent == root], spared)


def relatives(processes: Collection[Process], marked: Collection[int]) -> list[Process]:
    """Return the marked processes, all of the sessions they began, and all that descend from those.

    A child with an emptied environment carries no mark. A session whose leader lives and is not
    marked was begun by another program, for instance by a login.
    """
    living = {one.pid for one in processes}
    sessions = {
        one.session
        for one in processes
        if one.pid in marked and (one.session in marked or one.session not in living)
    }
    return family(
        processes, [one.pid for one in processes if one.pid in marked or one.session in sessions]
    )


class Escalation:
    """The schedule of ending a tree: SIGTERM once, then after the grace SIGKILL repeatedly."""

    __slots__ = ("_again_s", "_give_up_s", "_grace_s", "_killed_since", "_step", "next_at")

    def __init__(self, grace_s: float, again_s: float = 0.1, give_up_s: float = 5.0) -> None:
        self._grace_s = grace_s
        self._again_s = again_s
        # A process that survives SIGKILL this long hangs in the kernel or is another user's.
        self._give_up_s = give_up_s
        self._step = ""
        self._killed_since: float | None = None
        self.next_at: float | None = None  # when `due` has something to do; None before `begin`

    def begin(self, now: float) -> None:
        """Begin to end the tree, or begin again for processes that have come since."""
        self._step = ASK if self._grace_s else KILL
        self.next_at = now

    def hurry(self, now: float) -> None:
        """Kill from now on, without grace."""
        self._grace_s = 0.0
        self.begin(now)

    def due(self, now: float) -> str:
        """Return the step to take now, `ASK` or `KILL`; nothing when it is too early."""
        if self.next_at is None or now < self.next_at:
            return ""
        step = self._step
        if step == ASK:
            self._step = KILL
            self.next_at = now + self._grace_s
        else:
            self._killed_since = now if self._killed_since is None else self._killed_since
            self.next_at = now + self._again_s
        return step

    def has_given_up(self, now: float) -> bool:
        """True when killing has had no effect for a long time."""
        return self._killed_since is not None and now >= self._killed_since + self._give_up_s
