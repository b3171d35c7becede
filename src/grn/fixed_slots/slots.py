"""Fixed slots: GPUs named by whoever starts us, each for one command at a time.

Needs no driver and no negotiator; where one runs, the GPUs are held there while we use them.
"""

from __future__ import annotations

import os

from grn import paths
from grn.group.task import Slot, SlotGrant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grn.fixed_slots.slot_leases import Hold
    from grn.group.task import CommandEnd, Task


class FixedSlots:
    """A stack of slots: last listed first, then the most recently freed first."""

    def __init__(
        self,
        names: Sequence[str],
        owner: str = "fixed slots",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._free = [Slot(name, {"CUDA_VISIBLE_DEVICES": name}) for name in names]
        self._names = names
        self._owner = owner  # what other users of the negotiator see of us
        self._say = say  # told once why a GPU has to be waited for
        self._hold: Hold | None = None
        self._has_looked = False  # for a negotiator
        self._asked: list[Task] = []
        self._ends: list[CommandEnd] = []

    @property
    def wake_at(self) -> float | None:
        """When to call a negotiator that was lost."""
        return None if self._hold is None else self._hold.wake_at

    def has_room(self) -> bool:
        """One task is kept at hand for the next slot that gets free."""
        return len(self._asked) < max(1, len(self._free))

    def ask(self, task: Task) -> None:
        """Put a task at the end of the line."""
        if not self._has_looked:
            self._has_looked = True
            self._hold = _hold(self._names, self._owner, self._say)
        self._asked.append(task)

    def grants(self) -> list[SlotGrant]:
        """Give the free slots to those that were first."""
        grants: list[SlotGrant] = []
        while self._asked and self._free:
            slot = self._free.pop() if self._hold is None else self._next_held(self._hold)
            if slot is None:
                break
            grants.append(SlotGrant(self._asked.pop(0), slot))
        return grants

    def _next_held(self, hold: Hold) -> Slot | None:
        """Take the topmost slot that may be used; pass over those that somebody else uses."""
        from grn.fixed_slots.slot_leases import SlotState

        for place in reversed(range(len(self._free))):
            state = hold.state(self._free[place].name)
            if state is SlotState.READY:
                slot = self._free.pop(place)
                lease = hold.lease_of(slot.name)
                # A command that asks grn for a GPU itself must not wait for the one it runs on.
                under = {"GRN_LEASE": lease} if lease else {}
                visible = {"CUDA_VISIBLE_DEVICES": hold.visible(slot.name)}
                return Slot(slot.name, {**slot.environment, **visible, **under}, lease)
            if state is SlotState.ASKED:
                return None
        return None

    def started(self, slot: Slot, pid: int) -> None:
        """Nobody else needs to know."""

    def unused(self, slot: Slot) -> None:
        """Put a slot back on top."""
        self._free.append(slot)

    def give(self, ended: CommandEnd) -> None:
        """Put a slot back on top."""
        self._free.append(ended.slot)
        self._ends.append(ended)

    def settled(self) -> list[CommandEnd]:
        """All is known at once."""
        ends, self._ends = self._ends, []
        return ends

    def withdraw(self) -> None:
        """Forget the line."""
        self._asked.clear()

    def fileno(self) -> int | None:
        """Return the line to the negotiator, if there is one."""
        return None if self._hold is None else self._hold.fileno()

    def hear(self) -> None:
        """Hear the negotiator."""
        if self._hold is not None:
            self._hold.hear()

    def close(self) -> None:
        """Let others have the GPUs."""
        if self._hold is not None:
            self._hold.close()


def _hold(names: Sequence[str], owner: str, say: Callable[[str], None]) -> Hold | None:
    """Hold the GPUs if a negotiator may be there: a look at its socket costs nothing."""
    if not any(os.path.exists(path) for path in paths.sockets_to_try()):
        return None
    from grn.fixed_slots.slot_leases import Hold

    return Hold(names, owner, say)
