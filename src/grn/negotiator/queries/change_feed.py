"""Change feed: the snapshot that subscribers have, and the changes since.

Made of the same rows as `status`, but with points in time instead of durations and sort keys
instead of positions, so that nothing changes by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from grn.model.job import tag_of
from grn.model.text import harmless
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import Lease
from grn.negotiator.queries import views
from grn.negotiator.queries.history import STEP_S, Curve, History, LeaseEnd
from grn.negotiator.schedule.turns.order import Group, WaitingRequest
from grn.protocol.negotiator_rows import CurveRow, EndRow, SamplesRow

Row = dict[str, Any]
Said = tuple[str | None, str]  # the reason and the sentence
FIRST_GROUPS = 16  # the first waiting groups, whose reasons are computed each time,
NEXT_GROUPS = 24  # and of the others this many in turn, since each answer takes time
MAX_NEW_ROWS = 100  # new leases and requests per update
MAX_SAID_ROWS = 1000  # rows with a new reason per update
ENDS_SHOWN = 200
ORIGIN_DIGITS = 16  # of a key: they name the queue that made it, where one did
_UNSAID: Said = (None, "")


class ChangeFeed:
    """The machine as subscribers last received it."""

    def __init__(self, view: EngineView, history: History, wall_offset_s: float) -> None:
        self._view = view
        self._history = history
        self._offset_s = wall_offset_s
        self._gpus: dict[str, Row] = {}
        self._leases: dict[str, tuple[Lease, Row]] = {}
        self._waiting: dict[str, tuple[WaitingRequest, Row]] = {}
        self._ids: dict[str, str] = {}  # waiting requests: key -> id
        self.is_behind = False  # changes are left for the next update
        self._changed = dict.fromkeys(one.request.key for one in view.waitlist.ordered())
        view.follow(self._changed)
        self._said: dict[object, Said] = {}  # kind of request -> why it waits
        self._next_group = 0
        self._last_end = history.ends[-1].number if history.ends else 0

    def close(self) -> None:
        """Stop following the view."""
        self._view.unfollow(self._changed)

    def whole(self) -> Row:
        """Return the whole snapshot as of the last call of `changes`."""
        return {**self.frame(), **self.rows([*self._leases, *self._waiting])}

    def frame(self) -> Row:
        """Return the snapshot without leases and requests."""
        ends = [end for end in self._history.ends if end.number <= self._last_end]
        return {
            "gpus": self.gpus(),
            "ends": [self._end(end) for end in ends[-ENDS_SHOWN:]],
            "samples": recent_samples(self._view, self._history, self._offset_s),
        }

    def gpus(self) -> list[Row]:
        """Return all GPUs."""
        return list(self._gpus.values())

    def ids(self) -> list[str]:
        """Return the ids of all leases and requests."""
        return [*self._leases, *self._waiting]

    def rows(self, ids: Iterable[str]) -> Row:
        """Return the leases and requests that exist with these ids."""
        ids = list(ids)
        return {
            "leases": [self._leases[one][1] for one in ids if one in self._leases],
            "waiting": [self._waiting[one][1] for one in ids if one in self._waiting],
        }

    def changes(self, at: float, with_reasons: bool = True) -> Row:
        """Read the engine and return the changes; empty keys are left out.

        Computing reasons takes longer than all else.
        """
        gone: set[str] = set()
        found: dict[str, list[Any]] = {
            "gpus": list(self._changed_gpus()),
            "ended": [self._end(end) for end in self._history.ended_since(self._last_end)],
            "leases": list(self._changed_leases(gone)),
            "waiting": list(self._changed_waiting(gone, at if with_reasons else None)),
        }
        self.is_behind |= bool(self._changed)
        if found["ended"]:
            self._last_end = self._history.ends[-1].number
        found["gone"] = list(gone - self._leases.keys() - self._waiting.keys())
        return {name: rows for name, rows in found.items() if rows}

    # --- parts ---------------------------------------------------------------------------

    def _changed_gpus(self) -> Iterable[Row]:
        for uuid, book in self._view.books.items():
            row = views.gpu(book) | views.idle_on(self._view, book, self._idle_since)
            before = self._gpus.get(uuid)
            self._gpus[uuid] = row
            if before is None:
                yield row
            elif row != before:
                yield {"uuid": uuid, **_newer(before, row)}

    def _idle_since(self, since: float) -> Row:
        return {"idle_since_at": since + self._offset_s}

    def _changed_leases(self, gone: set[str]) -> Iterable[Row]:
        view, new = self._view, 0
        for lease_id in self._leases.keys() - view.leases.keys():
            del self._leases[lease_id]
            gone.add(lease_id)
        self.is_behind = False
        for lease_id, lease in view.leases.items():
            known = self._leases.get(lease_id)
            if known is not None and known[0] is lease:
                row = known[1]
                moved = _newer(row, views.moving_parts(view, lease))
                if moved:
                    row.update(moved)
                    yield {"id": lease_id, **moved}
                continue
            new += 1
            if new > MAX_NEW_ROWS:
                self.is_behind = True
                continue
            row = views.granted_lease(view, lease) | views.moving_parts(view, lease)
            row["since_at"] = lease.granted_at + self._offset_s
            row |= {"idle_since_at": None}
            if lease.idle_since is not None:
                row |= self._idle_since(lease.idle_since)
            row |= _names(lease.request.key)
            self._leases[lease_id] = (lease, row)
            yield row if known is None else {"id": lease_id, **_newer(known[1], row)}

    def _changed_waiting(self, gone: set[str], at: float | None) -> Iterable[Row]:
        changed: dict[str, Row] = {}
        for key in list(islice(self._changed, MAX_NEW_ROWS)):
            del self._changed[key]
            one = self._view.waitlist.find(key)
            known = self._ids.get(key)
            if known is not None and (one is None or one.request.lease != known):
                del self._waiting[known], self._ids[key]
                gone.add(known)
            if one is not None:
                changed[one.request.lease] = self._new_waiting(one)
        if at is not None:
            self._ask_some(at, changed)
        if not self._waiting:
            self._said.clear()
        return changed.values()

    def _ask_some(self, at: float, changed: dict[str, Row]) -> None:
        """Compute the reasons of some groups and note the rows that change."""
        for group in self._groups_to_ask():
            if len(changed) < MAX_SAID_ROWS:
                for row in self._ask(group, at, MAX_SAID_ROWS - len(changed)):
                    changed.setdefault(row["id"], row)

    def _new_waiting(self, one: WaitingRequest) -> Row:
        group = self._view.waitlist.group_of(one.request.key)
        reason, why = self._said.get(group.kind, _UNSAID) if group is not None else _UNSAID
        row = views.request(one.request) | {
            "state": "waiting",
            "since_at": one.since + self._offset_s,
            "turn": list(self._view.turn(one)),
            **_names(one.request.key),
            "reason": reason,
            "why": why,
        }
        self._waiting[one.request.lease] = (one, row)
        self._ids[one.request.key] = one.request.lease
        return row

    def _groups_to_ask(self) -> list[Group]:
        """Return the first groups in turn and some of the others, a bounded number."""
        groups = list(self._view.waitlist.in_turn())
        first, others = groups[:FIRST_GROUPS], groups[FIRST_GROUPS:]
        if len(others) <= NEXT_GROUPS:
            return groups
        begin = self._next_group % len(others)
        self._next_group = begin + NEXT_GROUPS
        return first + (others + others)[begin : begin + NEXT_GROUPS]

    def _ask(self, group: Group, at: float, most: int) -> Iterable[Row]:
        """Return the changed rows of a group, at most `most`; the rest follow later."""
        rows = [
            (one, self._waiting[one.request.lease][1])
            for one in group.in_line()
            if one.request.lease in self._waiting
        ]
        if not rows:
            return
        wait = self._view.why(group.head.request.key, at)
        said: Said = (wait.reason.value, harmless(wait.text)) if wait else _UNSAID
        self._said[group.kind] = said
        # When one row has moved all of them have; they are sent in order.
        has_moved = any(
            row["turn"] != list(self._view.turn(one)) for one, row in (rows[0], rows[-1])
        )
        for one, row in rows:
            if has_moved or row["why"] != said[1] or row["reason"] != said[0]:
                turn = list(self._view.turn(one)) if has_moved else row["turn"]
                changed = {"reason": said[0], "why": said[1], "turn": turn}
                moved = _newer(row, changed)
                if moved:
                    row.update(moved)
                    yield {"id": row["id"], **moved}
                    most -= 1
                    if not most:
                        return

    def _end(self, end: LeaseEnd) -> EndRow:
        return ended_lease(self._view, end, self._offset_s)


def _names(key: str) -> Row:
    """Return the names of a request: its own, and that of its origin, alike for one queue."""
    return {"tag": tag_of(key), "origin": tag_of(key[:ORIGIN_DIGITS])}


def ended_lease(view: EngineView, end: LeaseEnd, offset_s: float) -> EndRow:
    """Return how a lease ended."""
    lease, request = end.lease, end.lease.request
    return EndRow(
        id=lease.id,
        type=harmless(request.job_type),
        label=harmless(request.label),
        user=request.user,
        pid=request.holder.pid if request.holder else None,
        gpus=tuple(view.books[uuid].gpu.index for uuid in lease.gpus),
        outcome=end.outcome.lease_word,
        reserved_bytes=lease.reserved_bytes,
        peak_bytes=end.peak_bytes,
        first_run=lease.is_probe,
        since_at=lease.granted_at + offset_s,
        ended_at=end.at + offset_s,
        idled_s=lease.idle_s(end.at),
        **_names(request.key),
    )


def recent_samples(view: EngineView, history: History, offset_s: float) -> list[SamplesRow]:
    """Return the last two minutes of each GPU, oldest first."""
    return [
        _samples(view, uuid, past.recent, STEP_S, history.sampled_at + offset_s)
        for uuid, past in history.gpus.items()
    ]


def minute_samples(view: EngineView, history: History, offset_s: float) -> list[SamplesRow]:
    """Return the last day of each GPU, minute by minute, oldest first."""
    return [
        _samples(view, uuid, past.minutes, 60.0, history.sampled_at + offset_s)
        for uuid, past in history.gpus.items()
    ]


def curve(lease_id: str, curve: Curve, offset_s: float) -> CurveRow:
    """Return the memory of one lease from its grant on."""
    return CurveRow(curve.began_at + offset_s, curve.step_s, tuple(curve.values), lease_id)


def _samples(
    view: EngineView, uuid: str, points: Iterable[tuple[int | None, float | None]],
    step_s: float, until_at: float,
) -> SamplesRow:  # fmt: skip
    kept = list(points)
    return SamplesRow(
        uuid,
        step_s,
        until_at,
        used_bytes=tuple(used for used, _ in kept),
        load_pct=tuple(load for _, load in kept),
        index=view.books[uuid].gpu.index,
    )


def _newer(before: Row, after: Row) -> Row:
    return {name: value for name, value in after.items() if before.get(name) != value}
