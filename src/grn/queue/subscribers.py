"""Subscribers of the queue: a snapshot of its jobs, then changes, at most twice a second.

Changes are found by comparing, so jobs pay nothing for subscribers. Of a long queue only the jobs
next in line, the counts, and which arrays the others belong to are sent.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Protocol

from grn.daemon.publisher import Position, Publisher, Subscriber, message
from grn.queue.jobs.job import JobView
from grn.queue.loop import QueueLoop
from grn.queue.waiting_jobs import Selection

MAX_JOBS = 1000  # of those that have not ended
MAX_ENDED = 100

Row = dict[str, Any]
Seen = tuple[object, ...]


class SubscriberTeller(Protocol):
    """Turns jobs into rows for people."""

    def rows(self, where: str, values: list[Any], order: str, most: int) -> list[Row]: ...

    def waiting(self, wanted: Selection, most: int) -> list[Row]: ...

    def alive(self, jobs: list[int]) -> list[Row]: ...

    def why(self, job: JobView) -> str: ...

    def facts(self) -> Row: ...

    def nodes(self) -> list[Row]: ...


class QueueSubscribers:
    """All subscribers and the rows they have, while there are any."""

    def __init__(self, loop: QueueLoop, teller: SubscriberTeller) -> None:
        self._loop = loop
        self._teller = teller
        self._publisher: Publisher[Position] = Publisher(self._tick)
        self._told: dict[int, Seen] = {}  # job that has not ended -> its last sent state
        self._newest = 0  # id of the latest job that was read
        self._ended = 0  # number of ended jobs at the last update
        self._facts: Row = {}
        self._nodes: dict[str, Row] = {}  # as they were sent, by site and name

    def __len__(self) -> int:
        return len(self._publisher)

    def add(self, subscriber: Subscriber, uid: int, message_id: int) -> None:
        """Add a subscriber; all get a new snapshot, so that they share one state."""
        self._publisher.join(subscriber, Position(message_id, uid))
        self._publisher.tick_in()
        self._push(self._snapshot(), is_whole=True)

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        if self._publisher.leave(subscriber):
            self._told.clear()

    def _tick(self) -> None:
        self._publisher.tick_in()
        self._loop.leases.refresh(self._tell)

    def _tell(self) -> None:
        """Send changes, with up-to-date waiting reasons."""
        positions = self._publisher.positions
        if not positions:  # the last one left meanwhile
            return
        is_late = any(one.is_behind and not who.is_stuffed for who, one in positions.items())
        news = self._news()
        is_whole = is_late or self._is_short()
        if self._publisher.is_due(self._loop.now(), bool(news) or is_whole):
            self._push(self._snapshot() if is_whole else message("changes", news), is_whole)

    def _push(self, body: bytes, is_whole: bool) -> None:
        for subscriber, position in self._publisher.positions.items():
            if subscriber.is_stuffed:
                position.is_behind = True
            elif is_whole or not position.is_behind:
                position.is_behind = False
                self._publisher.push(subscriber, body)

    # --- rows -------------------------------------------------------------------

    def _snapshot(self) -> bytes:
        jobs = self._loop.engine.jobs
        busy = "state IN ('starting','running','stopping')"
        rows = self._teller.rows(busy, [], "priority DESC, place", MAX_JOBS)
        left = MAX_JOBS - len(rows)
        if left:
            rows += self._teller.waiting(Selection(), left)
        ended = self._teller.rows("state = 'ended'", [], "jobs.ended_at DESC", MAX_ENDED)
        self._told = {row["id"]: self._seen(jobs[row["id"]]) for row in rows if row["id"] in jobs}
        self._newest = self._loop.journal.next_id - 1
        self._ended = self._loop.journal.ended
        self._facts = self._teller.facts()
        self._nodes = _by_name(self._teller.nodes())
        listed = {"jobs": rows, "ended": ended[::-1], "nodes": list(self._nodes.values())}
        return message("snapshot", {**self._facts, **listed})

    def _is_short(self) -> bool:
        """True when there are more jobs than were sent, and room for them."""
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
            news["jobs"] = self._teller.alive(changed)
        if gone:
            news["gone"] = gone
        ended = self._loop.journal.ended - self._ended
        self._ended += ended
        if ended > 0:
            # Not by the time of their ends: a job can be persisted after a later one.
            last = list(self._loop.journal.last_ended)[-ended:]
            marks = ",".join("?" * len(last))
            news["ended"] = self._teller.rows(
                f"jobs.id IN ({marks})", last, "jobs.ended_at", len(last)
            )
        facts = self._teller.facts()
        if facts != self._facts:
            self._facts = facts
            news |= facts
        return news | self._node_news()

    def _node_news(self) -> Row:
        """Return the nodes that have changed, by more than that they were heard of."""
        before, self._nodes = self._nodes, _by_name(self._teller.nodes())
        news: Row = {}
        changed = [
            row for name, row in self._nodes.items()
            if name not in before or _but_heard(row) != _but_heard(before[name])
        ]  # fmt: skip
        if changed:
            news["nodes"] = changed
        if gone := sorted(before.keys() - self._nodes.keys()):
            news["nodes_gone"] = gone
        return news

    def _new_ids(self) -> list[int]:
        """Return jobs submitted since the last update, as many as there is room for."""
        jobs, newest = self._loop.engine.jobs, self._loop.journal.next_id - 1
        unended = (job_id for job_id in range(self._newest + 1, newest + 1) if job_id in jobs)
        found = list(islice(unended, max(0, MAX_JOBS - len(self._told))))
        self._newest = newest
        return found

    def _seen(self, job: JobView) -> Seen:
        return (
            job.state, job.is_held, job.attempt, job.priority, job.place, job.is_asked,
            self._teller.why(job),
        )  # fmt: skip


def _by_name(nodes: list[Row]) -> dict[str, Row]:
    return {f"{row['site']}/{row['node']}": row for row in nodes}


def _but_heard(node: Row) -> Row:
    """Leave out when a node that answers was heard of: that changes all the time."""
    return node | {"heard_at": None} if node["state"] == "up" else node
