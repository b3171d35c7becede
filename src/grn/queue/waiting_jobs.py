"""The jobs that wait, for lists: jobs of the journal and members of arrays that are none yet.

Nothing becomes a job by being listed (docs/decisions/0056-arrays-are-one-record.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from grn.queue.jobs.job_views import FoldedMembers
from grn.queue.loop import QueueLoop

Row = dict[str, Any]
Found = TypeVar("Found")
ORDER = "priority DESC, place"
AT_ONCE = 1000  # members that are tested one by one in a query


class Selection(NamedTuple):
    """Which jobs are wanted, as a condition of the journal with its values."""

    where: str = "1"
    values: list[Any] = []  # noqa: RUF012 - of a tuple that never changes
    is_of_members: bool = False  # it may select some members of an array and not others


Query = Callable[[int, Sequence[int], str, Sequence[Any]], list[Found]]


def folded_rows(loop: QueueLoop, wanted: Selection, most: int) -> Iterator[Row]:
    """Yield the first folded members that are selected, in the order of their turns."""
    return islice(_all(loop, wanted, most, loop.journal.folded_rows), most)


def _all(loop: QueueLoop, wanted: Selection, most: int, query: Query[Found]) -> Iterator[Found]:
    at_once = AT_ONCE if wanted.is_of_members else min(most, AT_ONCE)
    for array in loop.engine.jobs.folded_arrays():
        ids, is_sought = array.ids, True
        while is_sought and (some := list(islice(ids, at_once))):
            found = query(array.array, some, wanted.where, wanted.values)
            is_sought = bool(found) or wanted.is_of_members
            yield from found


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
    where = f"state = 'queued' AND {wanted.where}"
    found = loop.journal.ids(where, wanted.values, ORDER, most)
    found += folded_ids(loop, wanted, most)
    return sorted(found, key=loop.engine.jobs.turn)[:most]


def folded_ids(loop: QueueLoop, wanted: Selection, most: int) -> list[int]:
    """Return the first folded members that are selected, in the order of their turns."""
    if wanted.is_of_members:
        return list(islice(_all(loop, wanted, AT_ONCE, loop.journal.folded_ids), most))
    arrays = _selected(loop, wanted)
    return list(islice((one for array, _ in arrays for one in array.ids), most))


def folded_arrays(loop: QueueLoop, wanted: Selection, most: int) -> list[Row]:
    """Return one row for all folded members of each array that is selected, with their ids."""
    return [
        {**row, "array": array.array, "members": array.parts,
         "numbers": loop.journal.numbers_of(array.array)}
        for array, row in islice(_selected(loop, wanted), most)
    ]  # fmt: skip


def _selected(loop: QueueLoop, wanted: Selection) -> Iterator[tuple[FoldedMembers, Row]]:
    """Yield the arrays of which the first folded member is selected, with its row."""
    for array in loop.engine.jobs.folded_arrays():
        first = [next(array.ids)]
        for row in loop.journal.folded_rows(array.array, first, wanted.where, wanted.values):
            yield array, row


def count_folded(loop: QueueLoop, wanted: Selection) -> int:
    """Return how many folded members are selected."""
    return len(folded_ids(loop, wanted, loop.engine.jobs.folded))
