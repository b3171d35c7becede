"""What `grn top` lists: the rows of its sections, filtered, sorted and with arrays folded.

Pure. Neighbouring jobs of one array are one row, for the page as well: waiting jobs while they
have one state and priority, ended ones by their outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from grn.cli.top.rows import Row, Section, ended, running, unlisted, waiting
from grn.model.ranges import parse_ranges, show_ranges
from grn.model.text import harmless
from grn.protocol.queue_rows import FoldedRow, JobRow
from grn.protocol.snapshot import Snapshot

MAX_INDEX_PARTS = 3  # of the ranges in a name
SORTS: Mapping[Section, tuple[str, ...]] = {
    Section.RUNNING: ("gpu", "age", "memory", "user", "name"),
    Section.WAITING: ("turn", "age", "user", "name"),
    Section.ENDED: ("latest", "memory", "user", "name"),
}


@dataclass(frozen=True, slots=True)
class Board:
    """The rows of each section, and how many jobs there are: shown, and without the filter.

    `unlisted` are those of a long queue that its feed leaves out; they are in the totals.
    """

    rows: Mapping[Section, Sequence[Row]]
    shown: Mapping[Section, int]
    totals: Mapping[Section, int]
    unlisted: int = 0


def board(
    picture: Snapshot, own_uid: int, wanted: str = "", is_mine: bool = False,
    sorts: Mapping[Section, str] | None = None, *, is_expanded: bool = False,
) -> Board:  # fmt: skip
    """Bring everything together; `wanted` is looked for in ids, names, users, GPUs and reasons.

    Expanded, every job of an array has a row.
    """
    found = {
        Section.RUNNING: running(picture, own_uid),
        Section.WAITING: waiting(picture, own_uid),
        Section.ENDED: ended(picture, own_uid),
    }
    totals = {part: len(rows) for part, rows in found.items()}
    missing = unlisted(picture)
    totals[Section.WAITING] += missing
    shown: dict[Section, int] = {}
    parts: dict[Section, Sequence[Row]] = {}
    for part, rows in found.items():
        kept = [row for row in rows if _is_wanted(row, wanted.lower(), is_mine, own_uid)]
        shown[part] = len(kept)
        kept = _sorted(kept, (sorts or {}).get(part, SORTS[part][0]))
        jobs = picture.ended if part is Section.ENDED else picture.jobs
        left_out = () if wanted or part is not Section.WAITING else picture.queue.folded
        parts[part] = kept if is_expanded else folded(kept, jobs, left_out)
    if not is_expanded:
        jobs_shown = sum(len(row.members) or 1 for row in parts[Section.WAITING])
        missing -= jobs_shown - shown[Section.WAITING]
        shown[Section.WAITING] = jobs_shown
    return Board(parts, shown, totals, missing)


def folded(
    rows: Iterable[Row], jobs: Mapping[int, JobRow], unlisted: Sequence[FoldedRow] = ()
) -> list[Row]:
    """Put neighbours of one array together; `jobs` are the jobs of the rows.

    `unlisted` are arrays of which only the first members have rows.
    """
    groups: list[list[Row]] = []
    before: tuple[object, ...] | None = None
    for row in rows:
        job = jobs.get(row.job) if row.job is not None else None
        key = _key(row, job) if job is not None else None
        if key is not None and key == before:
            groups[-1].append(row)
        else:
            groups.append([row])
        before = key
    return [_one(group, jobs, unlisted) for group in groups]


def _key(row: Row, job: JobRow) -> tuple[object, ...] | None:
    if not job.array_index.isdecimal() or row.part is Section.RUNNING:
        return None
    ended = (job.reason, job.text) if row.part is Section.ENDED else (job.state, job.priority)
    return (row.part, job.name, job.label, job.argv, job.cwd, *ended)


def _one(group: Sequence[Row], jobs: Mapping[int, JobRow], unlisted: Sequence[FoldedRow]) -> Row:
    listed = sorted(row.job for row in group if row.job is not None)
    last = listed[-1] if listed and group[0].part is Section.WAITING else 0
    others = [one for one in unlisted if any(a <= last <= b for a, b in one.members)]
    if len(group) == 1 and not others:
        return group[0]
    first = jobs[listed[0]]
    numbers = tuple((job, int(jobs[job].array_index)) for job in listed)
    members, indices = _members(numbers, tuple(others))
    name = f"{harmless(first.name or first.label)}[{indices}]"
    peaks = [row.used_bytes for row in group if row.used_bytes is not None]
    state = group[0].state
    return group[0]._replace(
        id=f"{members[0]}-{members[-1]}",
        state=f"{len(members)} {state}" if group[0].part is Section.ENDED else state,
        what=name,
        name=name,
        used_bytes=max(peaks, default=None),
        members=members,
    )


@lru_cache(maxsize=64)
def _members(
    listed: tuple[tuple[int, int], ...], unlisted: tuple[FoldedRow, ...]
) -> tuple[tuple[int, ...], str]:
    """Return all jobs that a row stands for, and their numbers as text; given some with theirs."""
    found = dict(listed)
    for array in unlisted:
        numbers = parse_ranges(array.numbers)
        found |= {job: numbers[job - array.array] for job in array.ids}
    return tuple(sorted(found)), show_ranges(sorted(found.values()), MAX_INDEX_PARTS)


def _is_wanted(row: Row, wanted: str, is_mine: bool, own_uid: int) -> bool:
    if is_mine and row.user != own_uid:
        return False
    if not wanted:
        return True
    texts = (row.id, row.what, row.state, row.why, row.lease or "", row.where)
    on_gpu = wanted.startswith("gpu") and wanted[3:].strip().isdigit()
    if on_gpu:  # of this machine; a node may be called so too
        return row.where == wanted or (not row.where and int(wanted[3:]) in row.gpus)
    return any(wanted in text.lower() for text in texts)


def _sorted(rows: list[Row], sort: str) -> list[Row]:
    if sort == "age":
        return sorted(rows, key=lambda row: row.since_at)
    if sort == "memory":
        return sorted(rows, key=lambda row: -(row.used_bytes or 0))
    if sort == "user":
        return sorted(rows, key=lambda row: row.user)
    if sort == "name":
        return sorted(rows, key=lambda row: row.what)
    if sort == "gpu":
        return sorted(rows, key=lambda row: (row.where, row.gpus, row.since_at))
    return rows
