"""Arrays as rows of the journal, and their members as rows of jobs.

A row has the submitted columns of its first member as a template, and two checksums like that of a
job: of the submitted columns, and of the members that are still folded. It is removed with the last
of these. The members of a damaged array become jobs that are never run.
"""

from __future__ import annotations

import functools
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from grn.client.leasing.job_request import member_arguments
from grn.daemon import database
from grn.daemon.database import checksum, is_intact
from grn.model.ranges import MAX_NUMBERS, parse_ranges
from grn.queue.events import SaveMembers
from grn.queue.jobs.job import JobSpec, KeptArray
from grn.queue.journal import new_rows, rows
from grn.queue.journal.journal_file import Disk
from grn.queue.journal.rows import NEVER_RUN, DamagedRow, NewJob, SharedCommand

log = logging.getLogger(__name__)
INDEX = "GRN_ARRAY_INDEX"
_SUBMITTED = "id, count, numbers, template, environment, priority, is_held, checksum"
_ALL = f"{_SUBMITTED}, folded, folded_checksum"
# The columns of a job that has not begun and that the record of its array does not have.
_QUEUED = (
    "'queued' AS state, 0 AS attempt, NULL AS reason, '' AS text, NULL AS status, NULL AS signal,"
    " NULL AS started_at, NULL AS ended_at"
)
_UNREADABLE = NewJob(JobSpec(0, "", ""), [], SharedCommand("", {}, 0))
_parsed = functools.lru_cache(maxsize=4)(parse_ranges)
Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class NewArray:
    """An array as it is submitted."""

    job: NewJob  # its first member, without its number
    numbers: str  # `0-9`, `0,2,4`
    count: int


@dataclass(frozen=True, slots=True)
class _Template:
    """What all members of an array share."""

    job: NewJob
    numbers: str
    environment: int
    submitted_at: float
    is_held: bool


def insert(
    db: sqlite3.Connection, first: int, array: NewArray, environment: int, now: float, is_held: bool
) -> None:
    """Insert a new array, all of whose members are folded."""
    (row,) = new_rows.of_jobs([first], [array.job], lambda _: environment, now, is_held)
    template = json.dumps(row[: len(rows.COLUMNS)])
    priority = array.job.spec.priority
    fixed = (first, array.count, array.numbers, template, environment, priority, int(is_held))
    folded = _spelled(first, ((first, first + array.count - 1),))
    db.execute(
        f"INSERT INTO arrays ({_ALL}) VALUES (?,?,?,?,?,?,?,?,?,?)",
        (*fixed, checksum(*fixed), *folded),
    )


def _spelled(array: int, left: Intervals) -> tuple[str, int]:
    text = json.dumps(left)
    return text, checksum(array, text)


def kept(disk: Disk) -> list[KeptArray]:
    """Return all arrays with folded members; a damaged one with its fault."""
    found = []
    for *row, folded, stored in disk.read(f"SELECT {_ALL} FROM arrays ORDER BY id"):
        array, fault = row[0], ""
        if is_intact(stored, (array, folded)):
            left: Intervals = tuple((first, last) for first, last in json.loads(folded))
        else:
            left, fault = _without_row(disk, _ids(disk, tuple(row))), NEVER_RUN
        try:
            template = _read(tuple(row))
            spec, is_held = template.job.spec, template.is_held
        except DamagedRow as error:
            spec, is_held, fault = JobSpec(array, "", ""), False, str(error)
        if fault:
            log.error("action=set-aside array=%d members=%d", array, len(_ids(disk, tuple(row))))
        if left:
            found.append(KeptArray(spec, left, is_held, fault))
    return found


def last_ids(disk: Disk) -> list[int]:
    """Return the highest id of each array."""
    found = [_ids(disk, row) for row in disk.read(f"SELECT {_SUBMITTED} FROM arrays")]
    return [ids[-1] for ids in found if ids]


def _ids(disk: Disk, row: tuple[Any, ...]) -> range:
    """Return the ids of all members; of a damaged row as the record of the submit has them."""
    array, count = row[:2]
    if not is_intact(row[-1], row[:-1]):
        found = disk.read("SELECT count FROM submits WHERE first = ?", (array,))
        count = found[0][0] if found else 0
    is_sound = isinstance(count, int) and 0 < count <= MAX_NUMBERS
    return range(array, array + count if is_sound else array)


def _without_row(disk: Disk, ids: range) -> Intervals:
    """Return the members that have no row as jobs."""
    among = (ids.start, ids.stop)
    known = {one for (one,) in disk.read("SELECT id FROM jobs WHERE id >= ? AND id < ?", among)}
    return tuple((one, one) for one in ids if one not in known)


def _read(row: tuple[Any, ...]) -> _Template:
    """Return what members share; raise DamagedRow when it is damaged."""
    columns = _columns(row)
    _, _, numbers, _, environment, priority, is_held, _ = row
    job = rows.as_new(columns, priority, {})
    return _Template(job, numbers, environment, columns["submitted_at"], bool(is_held))


def _columns(row: tuple[Any, ...]) -> dict[str, Any]:
    """Return the submitted columns of the first member; raise DamagedRow when it is damaged."""
    *fixed, stored = row
    if not is_intact(stored, tuple(fixed)):
        raise DamagedRow(NEVER_RUN)
    return dict(zip(rows.COLUMNS, json.loads(fixed[3]), strict=True))


def shown(
    disk: Disk,
    array: int,
    members: Sequence[int],
    where: str,
    values: Sequence[Any],
    columns: str = rows.SHOWN,
) -> list[tuple[Any, ...]]:
    """Return columns of the folded members that a condition selects, as if they were jobs."""
    row = _row(disk, array)
    try:
        known, indices = _columns(row), _parsed(row[2])
        places = [(one, str(indices[one - array])) for one in members]
    except DamagedRow:
        known, places = dict.fromkeys(rows.COLUMNS), [(one, "") for one in members]
    fixed = {**known, "priority": row[5], "is_held": row[6]}
    del fixed["id"], fixed["extra"]
    names = ", ".join(f"? AS {name}" for name in fixed)
    return disk.read(
        f"SELECT {columns} FROM (SELECT json_extract(value, '$[0]') AS id, {names}, {_QUEUED},"
        f" json_set(?, '$.{INDEX}', json_extract(value, '$[1]')) AS extra FROM json_each(?))"
        " AS jobs LEFT JOIN attempts ON attempts.job = jobs.id AND attempts.attempt = jobs.attempt"
        f" WHERE {where}",
        (*fixed.values(), known["extra"] or "{}", json.dumps(places), *values),
    )


def numbers_of(disk: Disk, array: int) -> str:
    """Return the numbers of an array, as they were written."""
    return str(_row(disk, array)[2])


def _row(disk: Disk, array: int) -> tuple[Any, ...]:
    """Return the record of an array with folded members, without these."""
    (row,) = disk.read(f"SELECT {_SUBMITTED} FROM arrays WHERE id = ?", (array,))
    return row


def _save_members(db: sqlite3.Connection, action: SaveMembers, _boot: str, _now: float) -> None:
    array = action.array
    (row,) = database.read(db, f"SELECT {_SUBMITTED} FROM arrays WHERE id = ?", (array,))
    try:
        new = _rows(_read(row), action)
    except DamagedRow:
        new = _unreadable_rows(action)
    db.executemany(rows.INSERT, new)
    if action.left:
        folded = _spelled(array, action.left)
        db.execute("UPDATE arrays SET folded=?, folded_checksum=? WHERE id=?", (*folded, array))
    else:
        db.execute("DELETE FROM arrays WHERE id = ?", (array,))


def _rows(template: _Template, action: SaveMembers) -> Iterator[tuple[Any, ...]]:
    numbers = _parsed(template.numbers)
    members = (_member(template.job, str(numbers[one - action.array])) for one in action.jobs)
    return new_rows.of_jobs(
        action.jobs, members, lambda _: template.environment, template.submitted_at,
        template.is_held,
    )  # fmt: skip


def _member(job: NewJob, index: str) -> NewJob:
    """Return a member by its number; what its line does with the number counts as an argument."""
    arguments = member_arguments(job.argv, index, job.arguments)
    return replace(job, extra={**job.extra, INDEX: index}, arguments=arguments)


def _unreadable_rows(action: SaveMembers) -> Iterator[tuple[Any, ...]]:
    """Return rows that match no checksum, so that they are never run."""
    checked = len(rows.COLUMNS)
    of_none = (_UNREADABLE for _ in action.jobs)
    for row in new_rows.of_jobs(action.jobs, of_none, lambda _: 0, 0.0, is_held=False):
        yield (*row[:checked], None, *row[checked + 1 :])


WRITERS: dict[type, Callable[[sqlite3.Connection, Any, str, float], None]] = {
    SaveMembers: _save_members,
}
