"""Requests that waited before a restart of the negotiator and may return to their positions.

A returning request takes the position of the first surviving request behind it, so relative order
is kept. Decides nothing else.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from grn.negotiator.schedule.turns.fair_share import Class, class_of
from grn.negotiator.schedule.turns.order import WaitingRequest
from grn.negotiator.schedule.turns.wait_queue import Waitlist

_Line = list[tuple[int, str]]  # sequences and keys, in order


class Returning:
    """Requests expected back, and requests that joined meanwhile."""

    def __init__(self, waitlist: Waitlist) -> None:
        self._waitlist = waitlist
        self._away: dict[str, int] = {}  # key -> old position
        self._lines: dict[tuple[int, Class], _Line] = {}  # by user

    def __bool__(self) -> bool:
        return bool(self._away)

    def expect(self, waiting: Iterable[tuple[str, int]]) -> None:
        """Note the positions of requests before the restart."""
        self._away = dict(waiting)

    def take(self, key: str) -> int | None:
        """Stop expecting a request; return its old position, if it has one."""
        return self._away.pop(key, None)

    def give_up(self) -> list[str]:
        """Stop expecting requests; return the keys that did not come back."""
        gone = list(self._away)
        self._away.clear()
        return gone

    def came(self, waiting: WaitingRequest) -> None:
        """Note a request that joined, so that returning requests can be placed before it."""
        if self._away:
            line = self._lines.setdefault(_name(waiting), [])
            insort(line, (waiting.sequence, waiting.request.key))
        else:
            self._lines.clear()

    def place_before(self, waiting: WaitingRequest) -> float | None:
        """Return the position of a returning request before others of its user, None for others.

        It takes the position of the first surviving request behind it, so relative order is kept.
        """
        line, alike = self._lines.get(_name(waiting), []), class_of(waiting)
        next_one = bisect_right(line, (waiting.sequence, ""))
        while next_one < len(line):
            later = self._waitlist.find(line[next_one][1])
            if later is not None and class_of(later) == alike:
                return later.place_h
            del line[next_one]  # it no longer waits, or in another class
        return None


def _name(waiting: WaitingRequest) -> tuple[int, Class]:
    return waiting.request.user, class_of(waiting)
