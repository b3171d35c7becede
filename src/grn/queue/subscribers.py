"""Subscribers of the queue: a snapshot of its jobs, then changes, at most twice a second.

Changes are found by comparing, so jobs pay nothing for subscribers. Of a long queue only the jobs
next in line and the counts are sent.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any, Protocol

import msgspec

from grn.errors import UsageError
from grn.queue.loop import QueueLoop
from grn.queue.ready_queue import QueuedJob

PACE_S = 0.5
BEAT_S = 5.0
MAX_JOBS = 1000  # of those that have not ended
MAX_ENDED = 100
MAX_FOLLOWERS = 64

Row = dict[str, Any]
Seen = tuple[object, ...]
_encode_json = msgspec.json.Encoder().encode


class QueueSubscriber(Protocol):
    """The connection of one subscriber."""

    @property
    def is_stuffed(self) -> bool: ...

    def push(self, body: bytes) -> None: ...


class SubscriberTeller(Protocol):
    """What makes rows for people out of jobs."""

    def rows(self, where: str, values: list[Any], order: str, most: int) -> list[Row]: ...

    def why(self, job: QueuedJob) -> str: ...

    def facts(self) -> Row: ...


@dataclass(slots=True)
class _JobPosition:
    message_id: int
    is_behind: bool = False


class QueueSubscribers:
    """All followers and what they know, while there are any."""

    def __init__(self, loop: QueueLoop, teller: SubscriberTeller) -> None:
        self._loop = loop
        self._teller = teller
        self._places: dict[QueueSubscriber, _JobPosition] = {}
        self._told: dict[int, Seen] = {}  # job that has not ended -> what was told of it
        self._newest = 0  # id of the latest job that was looked at
        self._ended = 0  # how many had ended when we last looked
        self._facts: Row = {}
        self._timer: asyncio.TimerHandle | None = None
        self._spoke_at = 0.0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, follower: QueueSubscriber, message_id: int) -> None:
        """Tell one more, beginning with all there is; the others get it too, in one."""
        if len(self._places) >= MAX_FOLLOWERS:
            raise UsageError(f"{MAX_FOLLOWERS} connections follow this queue already.")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PACE_S, self._tick)
        body = self._snapshot()
        for other, place in self._places.items():
            self._push(other, place, body, is_whole=True)
        self._places[follower] = _JobPosition(message_id)
        follower.push(_addressed(message_id, body))

    def remove(self, follower: QueueSubscriber) -> None:
        """Tell one no more."""
        self._places.pop(follower, None)
        if not self._places:
            self._told.clear()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PACE_S, self._tick)
        self._loop.leases.refresh(self._tell)

    def _tell(self) -> None:
        """Tell what has changed; the reasons of jobs that wait are those of this moment."""
        if not self._places:  # the last has left meanwhile
            return
        now = self._loop.now()
        is_late = any(p.is_behind and not f.is_stuffed for f, p in self._places.items())
        news = self._news()
        is_whole = is_late or self._is_short()
        if not news and not is_whole and now - self._spoke_at < BEAT_S:
            return
        if is_whole:
            body = self._snapshot()
        else:
            body = _encode_json({"ev": "changes", "at": time.time(), **news})
        self._spoke_at = now
        for follower, place in self._places.items():
            self._push(follower, place, body, is_whole)

    def _push(
        self, follower: QueueSubscriber, place: _JobPosition, body: bytes, is_whole: bool
    ) -> None:
        if follower.is_stuffed:
            place.is_behind = True
            return
        if is_whole or not place.is_behind:
            place.is_behind = False
            follower.push(_addressed(place.message_id, body))

    # --- what there is -------------------------------------------------------------------

    def _snapshot(self) -> bytes:
        jobs = self._loop.engine.jobs
        busy = "state IN ('starting','running','stopping')"
        rows = self._rows(busy, [], "priority DESC, place", MAX_JOBS)
        left = MAX_JOBS - len(rows)
        if left:
            rows += self._rows("state = 'queued'", [], "priority DESC, place", left)
        ended = self._teller.rows("state = 'ended'", [], "jobs.ended_at DESC", MAX_ENDED)
        self._told = {row["id"]: self._seen(jobs[row["id"]]) for row in rows if row["id"] in jobs}
        self._newest = max(jobs, default=self._newest)
        self._ended = self._loop.journal.ended
        self._facts = self._teller.facts()
        head = {"ev": "snapshot", "at": time.time(), **self._facts}
        return _encode_json({**head, "jobs": rows, "ended": ended[::-1]})

    def _rows(self, where: str, values: list[Any], order: str, most: int) -> list[Row]:
        """Return jobs that have not ended, each with the tag of what it asks the negotiator for."""
        rows = self._teller.rows(where, values, order, most)
        for row in rows:
            row["tag"] = self._tag(row["id"])
            job = self._loop.engine.jobs.get(row["id"])
            row["place"] = job.place if job is not None else 0
        return rows

    def _tag(self, job_id: int) -> str | None:
        key = self._loop.leases.key_of(job_id)
        return None if key is None else tag_of(key)

    def _is_short(self) -> bool:
        """True when there are more jobs than were told of, and room for them."""
        return len(self._told) < MAX_JOBS // 2 and len(self._loop.engine.jobs) > len(self._told)

    def _news(self) -> Row:
        engine = self._loop.engine
        changed = self._new_ids()
        gone = [job_id for job_id in self._told if job_id not in engine.jobs]
        for job_id in gone:
            del self._told[job_id]
        for job_id, before in self._told.items():
            if self._seen(engine.jobs[job_id]) != before:
                changed.append(job_id)
        for job_id in changed:
            self._told[job_id] = self._seen(engine.jobs[job_id])
        news: Row = {}
        if changed:
            marks = ",".join("?" * len(changed))
            news["jobs"] = self._rows(f"jobs.id IN ({marks})", changed, "jobs.id", len(changed))
        if gone:
            news["gone"] = gone
        ended = self._loop.journal.ended - self._ended
        self._ended += ended
        if ended > 0:
            most = min(ended, MAX_ENDED)
            last = self._teller.rows("state = 'ended'", [], "jobs.ended_at DESC", most)
            news["ended"] = last[::-1]
        facts = self._teller.facts()
        if facts != self._facts:
            self._facts = facts
            news |= facts
        return news

    def _new_ids(self) -> list[int]:
        """Return jobs that were submitted since, as far as there is room for them."""
        found: list[int] = []
        for job_id in reversed(self._loop.engine.jobs):
            if job_id <= self._newest:
                break
            found.append(job_id)
        self._newest = max(found, default=self._newest)
        return found[::-1][: max(0, MAX_JOBS - len(self._told))]

    def _seen(self, job: QueuedJob) -> Seen:
        return (
            job.state, job.is_held, job.attempt, job.priority, job.place, job.is_asked,
            self._teller.why(job),
        )  # fmt: skip


def tag_of(key: str) -> str:
    """Return the name under which the negotiator shows a request, or all of a queue's."""
    return blake2s(key.encode(), digest_size=8).hexdigest()


def _addressed(message_id: int, body: bytes) -> bytes:
    """Put the id of the question into an answer that is the same for all."""
    return b'{"id":%d,%s' % (message_id, body[1:])
