"""Publisher of changes: the subscribers of one daemon, and the pace at which they get messages.

A daemon makes snapshots and changes in its own `subscribers.py` and pushes them through here. A
slow subscriber gets a new snapshot instead of a growing backlog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from grn.errors import UsageError

PACE_S = 0.5
BEAT_S = 5.0  # even without changes, so that a subscriber notices a dead daemon
MAX_PER_USER = 64

_encode_json = msgspec.json.Encoder().encode


class Subscriber(Protocol):
    """The connection of one subscriber."""

    @property
    def is_stuffed(self) -> bool: ...

    def push(self, body: bytes) -> None: ...


@dataclass(slots=True)
class Position:
    """The position of one subscriber."""

    message_id: int  # of its question
    uid: int
    is_behind: bool = False  # it has missed changes


P = TypeVar("P", bound=Position)


class Publisher(Generic[P]):
    """All subscribers, and the timer that calls `tick` while there are any."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self.positions: dict[Subscriber, P] = {}
        self._tick = tick
        self._timer: asyncio.TimerHandle | None = None
        self._spoke_at = 0.0

    def __len__(self) -> int:
        return len(self.positions)

    def join(self, subscriber: Subscriber, position: P) -> None:
        """Add a subscriber; refuse one too many of a user."""
        mine = sum(other.uid == position.uid for other in self.positions.values())
        if mine >= MAX_PER_USER:
            raise UsageError(f"{MAX_PER_USER} connections of this user follow already.")
        self.positions[subscriber] = position

    def leave(self, subscriber: Subscriber) -> bool:
        """Remove a subscriber; True when none is left."""
        self.positions.pop(subscriber, None)
        if not self.positions and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return not self.positions

    def tick_in(self, pause_s: float = PACE_S) -> None:
        """Call `tick` after this time, or earlier if that is due already."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            pause_s = min(pause_s, max(0.0, self._timer.when() - loop.time()))
            self._timer.cancel()
        self._timer = loop.call_later(pause_s, self._fire)

    def is_due(self, now: float, has_news: bool) -> bool:
        """True when there is news, or the last message was long ago; counts it as sent."""
        if not has_news and now - self._spoke_at < BEAT_S:
            return False
        self._spoke_at = now
        return True

    def push(self, subscriber: Subscriber, body: bytes) -> None:
        """Send a message that is the same for all, with the id of the subscriber's question."""
        message_id = self.positions[subscriber].message_id
        subscriber.push(b'{"id":%d,%s' % (message_id, body[1:]))

    def _fire(self) -> None:
        self._timer = None
        self._tick()


def message(ev: str, rows: dict[str, Any]) -> bytes:
    """Encode one message without the id of a question."""
    return _encode_json({"ev": ev, "at": time.time(), **rows})
