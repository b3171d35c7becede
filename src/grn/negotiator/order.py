"""Whose turn it is: retries, priority, short types, what users have had, age."""

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
    cost_h: float = 0.0  # what it is expected to take, in hours of a whole GPU,
    place_h: float = 0.0  # and all of its user that came before it


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
    turn: Turn = (0, 0, 0, 0.0, 0)  # of its head, as it was when it was last sorted in

    @property
    def head(self) -> Waiting:
        return next(iter(self.members.values()))


def turn(waiting: Waiting, is_over: bool = False, level: float = 0.0) -> Turn:
    """Sort requests: out of memory first, then priority, short ones, what users have had, age.

    Who has had far more than others has no short ones.
    """
    request = waiting.request
    is_short = waiting.is_short and not is_over
    again = 0 if request.attempt or request.is_spared else 1
    return (again, -request.priority, 1 - is_short, level, waiting.sequence)
