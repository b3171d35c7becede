"""The jobs that wait, for lists: jobs of the journal and members of arrays that are none yet.

Nothing becomes a job by being listed (docs/decisions/0056-arrays-are-one-record.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from grn.model.ranges import parse_ranges
from grn.queue.jobs.arrays import IdRanges, Part
from grn.queue.jobs.job_views import FoldedMembers
from grn.queue.journal import rows
from grn.queue.loop import QueueLoop

Row = dict[str, Any]
Found = TypeVar("Found")
ORDER = "priority DESC, place"
MAX_SUMMARIES = 100
MAX_SPELLED = 1000  # characters and runs of an array whose summary is worth sending
AT_ONCE = 1000  # members that are tested one by one in a query


class Selection(NamedTuple):
    """Which jobs are wanted, as a condition of the journal with its values."""

    where: str = "1"
    values: list[Any] = []  # noqa: RUF012 - of a tuple that never changes
    is_of_members: bool = False  # it may select some members of an array and not others
    array: int | None = None  # the members of this array alone
    words: tuple[str, ...] = ()  # each is found in a job, besides

    def of_journal(self, state: str) -> tuple[str, list[Any]]:
        """Return the whole condition for jobs of the journal in some states."""
        matching, values = rows.matching(" ".join(self.words))
        return f"{state} AND {self.where}{matching}", [*self.values, *values]


Query = Callable[[int, Sequence[int], str, Sequence[Any]], list[Found]]


def folded_rows(loop: QueueLoop, wanted: Selection, most: int) -> Iterator[Row]:
    """Yield the first folded members that are selected, in the order of their turns."""
    return islice(_all(loop, wanted, most, loop.journal.folded_rows), most)


def _all(loop: QueueLoop, wanted: Selection, most: int, query: Query[Found]) -> Iterator[Found]:
    at_once = AT_ONCE if wanted.is_of_members else min(most, AT_ONCE)
    for array in _arrays(loop, wanted):
        ids, is_sought = _matching(loop, array, wanted.words), True
        while is_sought and (some := list(islice(ids, at_once))):
            found = query(array.array, some, wanted.where, wanted.values)
            is_sought = bool(found) or wanted.is_of_members
            yield from found


def _matching(loop: QueueLoop, array: FoldedMembers, words: Sequence[str]) -> Iterator[int]:
    """Yield the members in which all words are found, as `rows.matching` finds them.

    They differ in id and number only: of an array of 100,000 nothing else is looked at.
    """
    if not words:
        return array.ids
    (row,) = loop.journal.folded_rows(array.array, [next(array.ids)], "1", ())
    own = rows.not_shared(row, words)
    if not own:
        return array.ids
    numbers = parse_ranges(loop.journal.numbers_of(array.array))
    name = rows.lower(row["name"] or row["label"])

    def has_all(job: int) -> bool:
        numbered = f"{job} {name}[{numbers[job - array.array]}]"
        return all(word in numbered for word in own)

    return filter(has_all, array.ids)


def _arrays(loop: QueueLoop, wanted: Selection) -> Iterator[FoldedMembers]:
    """Yield the arrays that may have selected members."""
    for array in loop.engine.jobs.folded_arrays():
        if wanted.array in (None, array.array):
            yield array


def rows_of(loop: QueueLoop, jobs: Sequence[int]) -> Iterator[Row]:
    """Yield those of the jobs that are folded members."""
    by_array: dict[int | None, list[int]] = {}
    for job in jobs:
        by_array.setdefault(loop.engine.jobs.folded_in(job), []).append(job)
    for array, some in by_array.items():
        if array is not None:
            yield from loop.journal.folded_rows(array, some, "1", ())


def ids(loop: QueueLoop, wanted: Selection, most: int) -> list[int]:
    """Return the first jobs that wait and are selected, in the order of their turns."""
    where, values = wanted.of_journal("state = 'queued'")
    found = loop.journal.ids(where, values, ORDER, most)
    found += folded_ids(loop, wanted, most)
    return sorted(found, key=loop.engine.jobs.turn)[:most]


def folded_ids(loop: QueueLoop, wanted: Selection, most: int) -> list[int]:
    """Return the first folded members that are selected, in the order of their turns."""
    if wanted.is_of_members:
        return list(islice(_all(loop, wanted, AT_ONCE, loop.journal.folded_ids), most))
    arrays = (array for array, _ in _selected(loop, wanted))
    found = (one for array in arrays for one in _matching(loop, array, wanted.words))
    return list(islice(found, most))


def folded_arrays(loop: QueueLoop, wanted: Selection, most: int) -> list[Row]:
    """Return one row for all folded members of each array that is selected, with their ids."""
    found = []
    for array, _ in islice(_selected(loop, wanted), most):
        numbers = loop.journal.numbers_of(array.array)
        parts: Sequence[Part] = array.parts
        if wanted.words:
            members = IdRanges()
            members.add(_matching(loop, array, wanted.words))
            parts = members.parts
        if parts:
            (row,) = loop.journal.folded_rows(array.array, [parts[0][0]], "1", ())
            found.append({**row, "array": array.array, "members": parts, "numbers": numbers})
    return found


def summaries(loop: QueueLoop) -> list[Row]:
    """Return which jobs the folded members of the next arrays are, without their rows."""
    found = []
    for array in islice(loop.engine.jobs.folded_arrays(), MAX_SUMMARIES):
        numbers = loop.journal.numbers_of(array.array)
        if len(numbers) + len(array.parts) <= MAX_SPELLED:
            found.append({"array": array.array, "numbers": numbers, "members": array.parts})
    return found


def _selected(loop: QueueLoop, wanted: Selection) -> Iterator[tuple[FoldedMembers, Row]]:
    """Yield the arrays of which the first folded member is selected, with its row."""
    for array in _arrays(loop, wanted):
        first = [next(array.ids)]
        for row in loop.journal.folded_rows(array.array, first, wanted.where, wanted.values):
            yield array, row


def count_folded(loop: QueueLoop, wanted: Selection) -> int:
    """Return how many folded members are selected."""
    return len(folded_ids(loop, wanted, loop.engine.jobs.folded))
