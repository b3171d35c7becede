"""Subscribers of the negotiator: a snapshot, then changes, at most twice a second.

Grants cost the same with and without subscribers. A slow subscriber gets a new snapshot instead of
a growing backlog. A large snapshot comes in parts, so that no message takes long to make.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from grn.errors import UsageError
from grn.negotiator.change_feed import ChangeFeed
from grn.negotiator.loop import Loop

PACE_S = 0.5
PART_S = 0.02  # between two parts of a picture that is not told yet
PART_ROWS = 100
MAX_PARTS_S = 0.005  # at once, for all followers
BEAT_S = 5.0  # even when nothing changes: a follower can tell silence from trouble
MAX_PER_USER = 64

_encode_json = msgspec.json.Encoder().encode


class Subscriber(Protocol):
    """The connection of one subscriber."""

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
    rest: list[str] = field(default_factory=list)  # ids that it was not told yet, the last first
    missed: dict[str, None] = field(default_factory=dict)  # ids that changed meanwhile,
    ended: list[Any] = field(default_factory=list)  # and leases that ended,
    gone: list[str] = field(default_factory=list)  # and what is not there any more

    @property
    def is_joining(self) -> bool:
        return bool(self.rest or self.missed or self.ended or self.gone)

    def miss(self, news: dict[str, Any]) -> None:
        """Note what is to be told after the rest."""
        for name in ("leases", "waiting"):
            self.missed.update((row["id"], None) for row in news.get(name, ()))
        self.ended += news.get("ended", ())
        self.gone += news.get("gone", ())

    def next_ids(self) -> list[str]:
        """Return what is told next."""
        ids = [self.rest.pop() for _ in range(min(PART_ROWS, len(self.rest)))]
        while self.missed and len(ids) < PART_ROWS:
            ids.append(self.missed.popitem()[0])
        return ids


class Subscribers:
    """All followers and the one picture that is kept for them, while there are any."""

    def __init__(self, loop: Loop, facts: Callable[[], dict[str, Any]]) -> None:
        self._loop = loop
        self._facts = facts  # who speaks, and what troubles it
        self._told: dict[str, Any] = {}
        self._places: dict[Subscriber, _Place] = {}
        self._picture: ChangeFeed | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._spoke_at = self._looked_at = 0.0

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
            self._picture = ChangeFeed(self._loop.view, self._loop.history, offset_s)
            self._picture.changes(now)
            self._looked_at = now
            self._told = self._facts()
        self._places[follower] = place = _Place(message_id)
        self._begin(follower, place)
        self._tick_in(self._pause_s)

    def remove(self, follower: Subscriber) -> None:
        """Tell one no more; without any, nothing is kept."""
        self._places.pop(follower, None)
        if not self._places and self._picture is not None:
            self._picture.close()
            self._picture = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    @property
    def _pause_s(self) -> float:
        assert self._picture is not None
        is_awaited = any(
            place.is_joining and not follower.is_stuffed for follower, place in self._places.items()
        )
        return PART_S if is_awaited or self._picture.is_behind else PACE_S

    def _tick(self) -> None:
        assert self._picture is not None
        self._timer = None
        now = self._loop.now()
        is_time = now - self._looked_at >= PACE_S - PART_S
        news: dict[str, Any] = {}
        if is_time or self._picture.is_behind:
            news = self._picture.changes(now, with_reasons=is_time)
            self._looked_at = now if is_time else self._looked_at
        facts = self._facts()
        if facts != self._told:
            news |= facts
            self._told = facts
        is_awaited = any(place.is_behind or place.is_joining for place in self._places.values())
        if news or is_awaited or now - self._spoke_at >= BEAT_S:
            self._spoke_at = now
            self._tell(news)
        self._tick_in(self._pause_s)

    def _tick_in(self, pause_s: float) -> None:
        """Look again so soon, or sooner if that is due already."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            pause_s = min(pause_s, max(0.0, self._timer.when() - loop.time()))
            self._timer.cancel()
        self._timer = loop.call_later(pause_s, self._tick)

    def _tell(self, news: dict[str, Any]) -> None:
        """Tell all what is new, and those who join a part of the rest, in rotation."""
        body = self._message("changes", news)
        ends_at = time.monotonic() + MAX_PARTS_S
        for follower, place in list(self._places.items()):
            if place.is_joining:
                place.miss(news)
                if not follower.is_stuffed and time.monotonic() < ends_at:
                    self._places[follower] = self._places.pop(follower)
                    self._tell_part(follower, place)
            elif follower.is_stuffed:
                place.is_behind = True
            elif place.is_behind:
                self._begin(follower, place)
            else:
                follower.push(_addressed(place.message_id, body))

    def _begin(self, follower: Subscriber, place: _Place) -> None:
        """Tell one the first part of all there is."""
        assert self._picture is not None
        place.is_behind = False
        place.rest = self._picture.ids()[::-1]
        part = {**self._told, **self._picture.frame(), **self._picture.rows(place.next_ids())}
        follower.push(_addressed(place.message_id, self._message("snapshot", part, place)))

    def _tell_part(self, follower: Subscriber, place: _Place) -> None:
        assert self._picture is not None
        told = {"ended": place.ended, "gone": place.gone, "gpus": self._picture.gpus()}
        part = {**self._told, **told, **self._picture.rows(place.next_ids())}
        place.ended, place.gone = [], []
        follower.push(_addressed(place.message_id, self._message("changes", part, place)))

    def _message(self, ev: str, rows: dict[str, Any], place: _Place | None = None) -> bytes:
        """Return a message; it says so when what a follower was told is not all yet."""
        assert self._picture is not None
        is_joining = place is not None and place.is_joining
        more = {"more": True} if is_joining or self._picture.is_behind else {}
        return _encode_json({"ev": ev, "at": time.time(), **more, **rows})


def _addressed(message_id: int, body: bytes) -> bytes:
    """Put the id of the question into an answer that is the same for all."""
    return b'{"id":%d,%s' % (message_id, body[1:])
