"""Whose turn it is: retries, priority, short types, shares of users, age."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from grn.model.job import Request

Turn = tuple[int, int, int, float, int]
Kind = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting request: its place and since when it waits."""

    request: Request
    sequence: int
    since: float
    is_short: bool = False  # its type is known to take little time
    tag: float = 0.0  # what its user will have been given by then, in hours of a whole GPU


@dataclass(frozen=True, slots=True)
class Refused:
    """A no to a group's head that holds until one of these changes."""

    job_type: str
    version: int  # of what was learned of its type
    sibling: str | None = None  # the first run it waits for; else it waits for room:
    gpus: int = 1  # on so many GPUs at once
    is_alone: bool = False  # they must be empty
    need_bytes: float = 0  # that each of them can take
    is_guess: bool = False  # or what a type nobody knows is given
    is_load_known: bool = False  # and on GPUs that are not too busy


@dataclass(slots=True)
class Group:
    """Requests that are interchangeable but for their age; the oldest is first."""

    kind: Kind
    members: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    refused: Refused | None = None  # the latest no to its head
    number: int = 0  # to tell groups apart

    @property
    def head(self) -> Waiting:
        return next(iter(self.members.values()))


def turn(waiting: Waiting) -> Turn:
    """Sort requests: out of memory first, then priority, short ones, shares of users, age."""
    request = waiting.request
    level = 0 if waiting.is_short else 1
    return (0 if request.attempt else 1, -request.priority, level, waiting.tag, waiting.sequence)


class Shares:
    """Turns between users: each gets as much of the GPUs as any other who waits.

    A request is given a tag when it comes: where its user stands, who then moves on by what it will
    cost. The smallest tag is next. A user's own requests stay in their order; one who has not asked
    for long stands where the others are, so nobody saves up turns.
    """

    def __init__(self) -> None:
        self._stands: dict[int, float] = {}
        self._now = 0.0  # the tag of who was last given something

    def tag(self, user: int, cost: float) -> float:
        """Return the tag of a new request."""
        begins = max(self._now, self._stands.get(user, 0.0))
        self._stands[user] = begins + cost
        return begins

    def given(self, waiting: Waiting) -> None:
        """Note that a request got its GPUs."""
        self._now = max(self._now, waiting.tag)
