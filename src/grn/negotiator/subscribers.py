"""Subscribers of the negotiator: a snapshot, then changes, at most twice a second.

Grants cost the same with and without subscribers. A large snapshot comes in parts, so that no
message takes long to make.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from grn.daemon.publisher import PACE_S, Position, Publisher, Subscriber, message
from grn.negotiator.loop import Loop
from grn.negotiator.queries.change_feed import ChangeFeed

PART_S = 0.02  # between two parts of a snapshot
PART_ROWS = 100
MAX_PARTS_S = 0.005  # at once, for all subscribers


@dataclass(slots=True)
class _Joining(Position):
    """The position of one subscriber; at first it gets the snapshot in parts."""

    rest: list[str] = field(default_factory=list)  # ids that are still to be sent, the last first
    missed: dict[str, None] = field(default_factory=dict)  # ids that changed meanwhile
    ended: list[Any] = field(default_factory=list)  # leases that ended meanwhile,
    gone: list[str] = field(default_factory=list)  # and ids that are gone

    @property
    def is_joining(self) -> bool:
        return bool(self.rest or self.missed or self.ended or self.gone)

    def miss(self, news: dict[str, Any]) -> None:
        """Note changes to be sent after the snapshot."""
        for name in ("leases", "waiting"):
            self.missed.update((row["id"], None) for row in news.get(name, ()))
        self.ended += news.get("ended", ())
        self.gone += news.get("gone", ())

    def next_ids(self) -> list[str]:
        """Return the ids of the next part."""
        ids = [self.rest.pop() for _ in range(min(PART_ROWS, len(self.rest)))]
        while self.missed and len(ids) < PART_ROWS:
            ids.append(self.missed.popitem()[0])
        return ids


class Subscribers:
    """All subscribers and the one feed that is kept for them, while there are any."""

    def __init__(self, loop: Loop, facts: Callable[[], dict[str, Any]]) -> None:
        self._loop = loop
        self._facts = facts  # identity and warnings of the daemon
        self._told: dict[str, Any] = {}
        self.publisher: Publisher[_Joining] = Publisher(self._tick)
        self.feed: ChangeFeed | None = None
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self.publisher)

    def add(self, subscriber: Subscriber, uid: int, message_id: int) -> None:
        """Add a subscriber, beginning with a snapshot."""
        position = _Joining(message_id, uid)
        self.publisher.join(subscriber, position)
        self._loop.sampler.wake()
        if self.feed is None:
            now = self._loop.now()
            self.feed = ChangeFeed(self._loop.view, self._loop.history, time.time() - now)
            self.feed.changes(now)
            self._looked_at = now
            self._told = self._facts()
        self._begin(subscriber, position)
        self.publisher.tick_in(self._pause_s)

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber; without any, drop the feed."""
        if self.publisher.leave(subscriber) and self.feed is not None:
            self.feed.close()
            self.feed = None

    @property
    def _pause_s(self) -> float:
        assert self.feed is not None
        is_awaited = any(
            position.is_joining and not subscriber.is_stuffed
            for subscriber, position in self.publisher.positions.items()
        )
        return PART_S if is_awaited or self.feed.is_behind else PACE_S

    def _tick(self) -> None:
        assert self.feed is not None
        now = self._loop.now()
        is_time = now - self._looked_at >= PACE_S - PART_S
        news: dict[str, Any] = {}
        if is_time or self.feed.is_behind:
            news = self.feed.changes(now, with_reasons=is_time)
            self._looked_at = now if is_time else self._looked_at
        facts = self._facts()
        if facts != self._told:
            news |= facts
            self._told = facts
        positions = self.publisher.positions.values()
        is_awaited = any(one.is_behind or one.is_joining for one in positions)
        if self.publisher.is_due(now, bool(news) or is_awaited):
            self._tell(news)
        self.publisher.tick_in(self._pause_s)

    def _tell(self, news: dict[str, Any]) -> None:
        """Send changes to all, and the next part to joining subscribers, in rotation."""
        body = self._message("changes", news)
        ends_at = time.monotonic() + MAX_PARTS_S
        positions = self.publisher.positions
        for subscriber, position in list(positions.items()):
            if position.is_joining:
                position.miss(news)
                if not subscriber.is_stuffed and time.monotonic() < ends_at:
                    positions[subscriber] = positions.pop(subscriber)
                    self._tell_part(subscriber, position)
            elif subscriber.is_stuffed:
                position.is_behind = True
            elif position.is_behind:
                self._begin(subscriber, position)
            else:
                self.publisher.push(subscriber, body)

    def _begin(self, subscriber: Subscriber, position: _Joining) -> None:
        """Send the first part of a snapshot."""
        assert self.feed is not None
        position.is_behind = False
        position.rest = self.feed.ids()[::-1]
        part = {**self._told, **self.feed.frame(), **self.feed.rows(position.next_ids())}
        self.publisher.push(subscriber, self._message("snapshot", part, position))

    def _tell_part(self, subscriber: Subscriber, position: _Joining) -> None:
        assert self.feed is not None
        told = {"ended": position.ended, "gone": position.gone, "gpus": self.feed.gpus()}
        part = {**self._told, **told, **self.feed.rows(position.next_ids())}
        position.ended, position.gone = [], []
        self.publisher.push(subscriber, self._message("changes", part, position))

    def _message(self, ev: str, rows: dict[str, Any], position: _Joining | None = None) -> bytes:
        """Return a message; `more` marks an incomplete snapshot."""
        assert self.feed is not None
        is_joining = position is not None and position.is_joining
        more = {"more": True} if is_joining or self.feed.is_behind else {}
        return message(ev, {**more, **rows})
