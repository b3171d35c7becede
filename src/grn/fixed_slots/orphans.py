"""What has left the trees of a runner's commands and still lives.

A process below a runner that loses its parent becomes a child of the runner, whatever its group and
session. A killed runner leaves no trace of that, so a watchdog looks from time to time.
"""

from __future__ import annotations

import os

from grn.proc import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.proc.processes import Process


class Orphans:
    """All children of a runner that its commands have started, and its commands."""

    def __init__(self, runner: int, elders: Iterable[int], mark: bytes) -> None:
        """Take the children that the runner had before, and the variable that all commands have."""
        self._crew = runner
        self._mark = mark
        found = processes.look(runner)
        self._own_group = 0 if found is None else found.group
        self._others = {*elders, os.getpid()}  # we are one of its children too
        self.known: dict[int, Process] = {}

    def look(self) -> bool:
        """Look once; False where the system does not tell, or the runner is gone."""
        now = processes.listed_children(self._crew)
        if now is None:
            return False
        # The runner of one moment ago may have no children since it is being killed: look at each.
        for pid in self.known.keys() - now:
            if not _is_same(self.known[pid]):
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


def _is_same(before: Process) -> bool:
    found = processes.look(before.pid)
    return found is not None and found.started_ticks == before.started_ticks and not found.is_over
