"""Fixed slots: GPUs named on the command line, each for one command at a time.

Needs no driver and no negotiator; where one runs, the GPUs are held there while they are in use.
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
        self._owner = owner  # the label that other users of the negotiator see
        self._say = say  # gets the reason of a wait for a GPU, once
        self._hold: Hold | None = None
        self._has_looked = False  # for a negotiator
        self._asked: list[Task] = []
        self._ends: list[CommandEnd] = []

    @property
    def wake_at(self) -> float | None:
        """When to call a negotiator that was lost."""
        return None if self._hold is None else self._hold.wake_at

    def has_room(self) -> bool:
        """True when a slot is free for one more task; one task may wait for the next free slot."""
        return len(self._asked) < max(1, len(self._free))

    def ask(self, task: Task) -> None:
        """Append a task to the waiting ones."""
        if not self._has_looked:
            self._has_looked = True
            self._hold = _hold(self._names, self._owner, self._say)
        self._asked.append(task)

    def grants(self) -> list[SlotGrant]:
        """Assign the free slots to the first tasks."""
        grants: list[SlotGrant] = []
        while self._asked and self._free:
            slot = self._free.pop() if self._hold is None else self._next_held(self._hold)
            if slot is None:
                break
            grants.append(SlotGrant(self._asked.pop(0), slot))
        return grants

    def _next_held(self, hold: Hold) -> Slot | None:
        """Take the topmost usable slot; skip slots in use by other jobs."""
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
        """Do nothing: the slot is held already."""

    def unused(self, slot: Slot) -> None:
        """Put a slot back on top."""
        self._free.append(slot)

    def give(self, ended: CommandEnd) -> None:
        """Put a slot back on top."""
        self._free.append(ended.slot)
        self._ends.append(ended)

    def settled(self) -> list[CommandEnd]:
        """Return the ends: they are complete at once."""
        ends, self._ends = self._ends, []
        return ends

    def withdraw(self) -> None:
        """Drop all waiting tasks."""
        self._asked.clear()

    def fileno(self) -> int | None:
        """Return the connection to the negotiator, if there is one."""
        return None if self._hold is None else self._hold.fileno()

    def hear(self) -> None:
        """Read the negotiator's messages."""
        if self._hold is not None:
            self._hold.hear()

    def close(self) -> None:
        """Release the GPUs."""
        if self._hold is not None:
            self._hold.close()


def _hold(names: Sequence[str], owner: str, say: Callable[[str], None]) -> Hold | None:
    """Hold the GPUs if there may be a negotiator: checking for its socket is cheap."""
    if not any(os.path.exists(path) for path in paths.sockets_to_try()):
        return None
    from grn.fixed_slots.slot_leases import Hold

    return Hold(names, owner, say)
