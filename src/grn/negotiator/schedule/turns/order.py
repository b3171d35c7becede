"""Waiting requests: their order, groups of alike requests, and what a refused group waits for.

The order is out-of-memory retries, priority, short types, fair share, age.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from grn.model.job import Request
from grn.negotiator.events import WaitReason

Turn = tuple[int, int, int, float, int]
Kind = tuple[object, ...]


class WaitingRequest(Struct, frozen=True):
    """One waiting request: its place and since when it waits."""

    request: Request
    sequence: int
    since: float
    is_short: bool = False  # its type is known to be short
    cost_h: float = 0.0  # its expected use in hours of a whole GPU
    place_h: float = 0.0  # the summed cost of its user's earlier requests


class BookedFor(NamedTuple):
    """The bookings that matter to requests: not those of their user, nor later ones to some."""

    user: int = -1  # who has bookings; other users are all alike
    yields: bool = False


FOR_ANYBODY = BookedFor()


class Reach(NamedTuple):
    """The GPUs that a request may use; none are named where all are allowed."""

    gpus: tuple[str, ...] = ()
    is_pinned: bool = False  # its process uses these GPUs already and cannot leave them


ANYWHERE = Reach()


class Refusal(Struct, frozen=True):
    """A refusal of a group's head that holds until one of these changes."""

    job_type: str
    version: int  # of the profile of its type
    sibling: str | None = None  # the first run of its type, which it waits for,
    gpus: int = 1  # or this number of GPUs with room at once
    is_alone: bool = False  # that are empty,
    need_bytes: float = 0  # or that can take this need each,
    is_guess: bool = False  # or the least guess for a type without a profile,
    is_load_known: bool = False  # and that are not too busy,
    reach: Reach = ANYWHERE  # among these GPUs
    lasts_s: float = 0.0  # how long such a job may take: reserved GPUs count if it ends in time
    host_reason: WaitReason | None = None  # GPUs have room, and the host lacks memory or cores:
    lacks: float = 0.0  # bytes, or cores
    bookings: BookedFor = FOR_ANYBODY  # whose bookings do not matter to it


@dataclass(slots=True)
class Group:
    """Requests that differ only by age; the oldest is first."""

    kind: Kind
    members: dict[str, WaitingRequest] = field(default_factory=dict)  # by key, in no order
    refused: Refusal | None = None  # the latest refusal of its head
    number: int = 0  # unique
    turn: Turn = (0, 0, 0, 0.0, 0)  # of its head when the group was last sorted
    line: list[tuple[int, str]] = field(default_factory=list)  # sequences and keys, in order
    pid: int | None = None  # the process of all members, when it cannot leave its GPUs

    @property
    def head(self) -> WaitingRequest:
        return self.members[self.line[0][1]]

    def in_line(self) -> Iterator[WaitingRequest]:
        """Yield the members, the oldest first."""
        return (self.members[key] for _, key in self.line)

    def put(self, waiting: WaitingRequest) -> None:
        """Insert a request by its age."""
        key = waiting.request.key
        self.members[key] = waiting
        insort(self.line, (waiting.sequence, key))

    def take(self, key: str) -> WaitingRequest:
        """Take a request out."""
        waiting = self.members.pop(key)
        del self.line[bisect_left(self.line, (waiting.sequence, key))]
        return waiting


def turn(waiting: WaitingRequest, is_over: bool = False, level: float = 0.0) -> Turn:
    """Return the sort key: retries after out of memory, priority, short types, usage, age.

    The short types of a user whose usage is far above others' do not precede.
    """
    request = waiting.request
    is_short = waiting.is_short and not is_over
    again = 0 if request.attempt or request.is_spared else 1
    return (again, -request.priority, 1 - is_short, level, waiting.sequence)
