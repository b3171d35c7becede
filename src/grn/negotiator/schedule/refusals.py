"""Recorded refusals: what a refused request waits for, and whether that may have come.

A refusal that still holds spares the placement of its request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from grn.model.job import Request
from grn.negotiator.events import Wait, WaitReason
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.schedule.answers import RequestAnswers
from grn.negotiator.schedule.needs import RequestNeeds
from grn.negotiator.schedule.placement import FreeSpace, Need, allowed, is_anywhere, pinned
from grn.negotiator.schedule.room.allocations import Holdings
from grn.negotiator.schedule.room.room_index import RoomIndex
from grn.negotiator.schedule.turns.backfill import Backfill
from grn.negotiator.schedule.turns.order import ANYWHERE, Group, Reach, Refusal


class RoomsOnGpus:
    """The room on sets of GPUs, computed once between two grants."""

    def __init__(self, rooms: RoomIndex, closed: Collection[str]) -> None:
        self._rooms = rooms
        self._closed = closed
        self._found: dict[tuple[Reach, bool, frozenset[str]], FreeSpace] = {}

    def on(
        self, reach: Reach, with_closed: bool, booked: frozenset[str] = frozenset()
    ) -> FreeSpace:
        """Return the room on the GPUs of a reach, with or without those that are reserved.

        GPUs that are booked are left out.
        """
        name = (reach, with_closed or not self._closed, booked)
        if name not in self._found:
            closed = () if name[1] else self._closed
            self._found[name] = self._rooms.room(closed, reach, booked)
        return self._found[name]

    def cache_clear(self) -> None:
        """Drop all results: a lease was granted."""
        self._found.clear()


class Refusals:
    """What refused requests wait for."""

    def __init__(
        self,
        memory: TypeProfiles,
        holdings: Holdings,
        needs: RequestNeeds,
        answers: RequestAnswers,
        backfill: Backfill,
    ) -> None:
        self._memory = memory
        self._holdings = holdings
        self._needs = needs
        self._answers = answers
        self._backfill = backfill

    def without_room(
        self,
        request: Request,
        needs: Mapping[str, Need],
        shut: Collection[str],
        booked: frozenset[str],
    ) -> Refusal | None:
        """Refuse a request that no GPUs have room for, without placing it; None when some may."""
        if request.job_type in self._holdings.first_runs:
            return None  # it may wait for its first run, whatever the room
        refused = self.refused(request, needs)
        room = self._holdings.rooms.room(shut, refused.reach, booked)
        if refused.reach.is_pinned or not self._has_no_room(refused, room):
            return None
        return refused

    def reach_of(self, request: Request) -> Reach:
        """Return the GPUs that a request may use at present."""
        if is_anywhere(request) or not request.gpus:
            return ANYWHERE
        books = allowed(request, list(self._holdings.books.values()))
        homes = pinned(request, books)
        if not homes and len(books) == len(self._holdings.books):
            return ANYWHERE
        return Reach(tuple(book.gpu.uuid for book in homes or books), bool(homes))

    def refused(
        self, request: Request, needs: Mapping[str, Need], wait: Wait | None = None
    ) -> Refusal:
        """Return what must change before a request gets another answer."""
        job_type, reach = request.job_type, self.reach_of(request)
        reason = wait.reason if wait is not None else None
        if wait is not None and reason in (WaitReason.NO_RAM, WaitReason.CPUS_BUSY):
            version = self._needs.version_of(job_type)
            return Refusal(job_type, version, reach=reach, host_reason=reason, lacks=wait.lacks)
        here = self._needs_on(reach, needs)
        sibling = None
        if reason is WaitReason.FIRST_RUN_ELSEWHERE:
            sibling = self._holdings.first_runs.get(job_type)
        is_unsure = sibling is not None or self._memory.is_guess(job_type)
        enough = [need.need_bytes for need in here if not (is_unsure and need.is_probe)]
        return Refusal(
            job_type,
            self._needs.version_of(job_type),
            sibling,
            request.gpus,
            request.is_exclusive,
            min(enough, default=math.inf),
            sibling is None and len(enough) < len(here),
            not reach.is_pinned and all(need.load is not None for need in here),
            reach,
            self._needs.lasts_s(request),
            bookings=self._answers.booked_for(request),
        )

    def _needs_on(self, reach: Reach, needs: Mapping[str, Need]) -> list[Need]:
        """Return the needs on the GPUs that a request may use; a pinned one tries its own GPUs."""
        if not reach.gpus:
            return list(needs.values())
        books = [self._holdings.books[uuid] for uuid in reach.gpus]
        if not reach.is_pinned:
            return [needs[model] for model in {book.gpu.model for book in books}]
        return [
            replace(need, need_bytes=min(need.need_bytes, book.capacity_bytes))
            for book in books
            for need in (needs[book.gpu.model],)
        ]

    def is_still_no(
        self, group: Group, rooms: RoomsOnGpus, closed: dict[str, int], at: float
    ) -> bool:
        """True when nothing has changed that could turn the refusal of a group into a grant."""
        refused = group.refused
        if refused is None:
            return False
        if group.pid is not None and refused.reach != self.reach_of(group.head.request):
            return False  # its process has come to a GPU or left one
        if refused.host_reason is not None:
            is_same = refused.version == self._needs.version_of(refused.job_type)
            return is_same and not self._holdings.host.could(refused.host_reason, refused.lacks)
        booked = self._answers.booked(group.head.request, at).closed
        room = rooms.on(refused.reach, self._backfill.may_pass(group, at), booked)
        is_kept = bool(closed) and group.head.sequence in closed.values()
        if refused.is_alone and not is_kept and self._has_no_room(refused, room):
            return True  # whatever the need: too few GPUs are empty
        if refused.version != self._needs.version_of(refused.job_type):
            return False
        first_run = self._holdings.first_runs.get(refused.job_type)
        has_ended = refused.sibling is not None and first_run != refused.sibling
        return not (has_ended or is_kept) and self._has_no_room(refused, room)

    def _has_no_room(self, refused: Refusal, room: FreeSpace) -> bool:
        """True when a request that was refused for lack of room would be refused again."""
        if refused.is_alone:
            return room.empty < refused.gpus
        if room.has(refused.gpus, refused.need_bytes, refused.is_load_known):
            return False
        least = min(refused.need_bytes, self._needs.guess())
        return not (refused.is_guess and room.has(refused.gpus, least, is_probe=True))
