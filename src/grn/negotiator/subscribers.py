"""Those who follow what happens: first all of it, then what changes, twice a second at most.

Nothing is done for them in between, so what is granted meanwhile costs the same with and without
them. Who does not keep up gets the whole picture again instead of an endless rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from grn.errors import UsageError
from grn.negotiator.change_feed import ChangeFeed
from grn.negotiator.loop import Loop

PACE_S = 0.5
BEAT_S = 5.0  # even when nothing changes: a follower can tell silence from trouble
MAX_PER_USER = 64

_encode_json = msgspec.json.Encoder().encode


class Subscriber(Protocol):
    """The connection of one who follows."""

    @property
    def uid(self) -> int: ...

    @property
    def is_stuffed(self) -> bool: ...

    def push(self, body: bytes) -> None: ...


@dataclass(slots=True)
class _Place:
    """How far one follower is."""

    message_id: int
    is_behind: bool = False


class Subscribers:
    """All followers and the one picture that is kept for them, while there are any."""

    def __init__(self, loop: Loop, facts: Callable[[], dict[str, Any]]) -> None:
        self._loop = loop
        self._facts = facts  # who speaks, and what troubles it
        self._told: dict[str, Any] = {}
        self._places: dict[Subscriber, _Place] = {}
        self._picture: ChangeFeed | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._spoke_at = 0.0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, follower: Subscriber, message_id: int) -> None:
        """Tell one more, beginning with all there is."""
        mine = sum(other.uid == follower.uid for other in self._places)
        if mine >= MAX_PER_USER:
            raise UsageError(f"{MAX_PER_USER} connections of this user follow already.")
        if self._picture is None:
            now = self._loop.now()
            offset_s = time.time() - now
            self._picture = ChangeFeed(self._loop.engine, self._loop.history, offset_s)
            self._picture.changes(now)
            self._told = self._facts()
            self._timer = asyncio.get_running_loop().call_later(PACE_S, self._tick)
        self._places[follower] = _Place(message_id)
        follower.push(_addressed(message_id, self._snapshot()))

    def remove(self, follower: Subscriber) -> None:
        """Tell one no more; without any, nothing is kept."""
        self._places.pop(follower, None)
        if not self._places:
            self._picture = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _tick(self) -> None:
        assert self._picture is not None
        self._timer = asyncio.get_running_loop().call_later(PACE_S, self._tick)
        now = self._loop.now()
        news = self._picture.changes(now)
        facts = self._facts()
        if facts != self._told:
            news |= facts
            self._told = facts
        is_awaited = any(place.is_behind for place in self._places.values())
        if not news and not is_awaited and now - self._spoke_at < BEAT_S:
            return
        self._spoke_at = now
        body = _encode_json({"ev": "changes", "at": time.time(), **news})
        whole = b""
        for follower, place in list(self._places.items()):
            if follower.is_stuffed:
                place.is_behind = True
            elif place.is_behind:
                place.is_behind = False
                whole = whole or self._snapshot()
                follower.push(_addressed(place.message_id, whole))
            else:
                follower.push(_addressed(place.message_id, body))

    def _snapshot(self) -> bytes:
        assert self._picture is not None
        head = {"ev": "snapshot", "at": time.time(), **self._told}
        return _encode_json({**head, **self._picture.whole()})


def _addressed(message_id: int, body: bytes) -> bytes:
    """Put the id of the question into an answer that is the same for all."""
    return b'{"id":%d,%s' % (message_id, body[1:])
