"""The jobs that have not ended, as a restarted queue finds them; damage of ended ones is mended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from grn.queue.jobs.job import BUSY, Kept
from grn.queue.journal import rows
from grn.queue.journal.journal_file import Disk
from grn.queue.journal.shared_columns import KeptReader

log = logging.getLogger(__name__)
MAX_PART = 1000  # rows of jobs that are read at a time
_TIMELESS = "state = 'ended' AND typeof(ended_at) NOT IN ('real', 'integer')"


@dataclass(slots=True)
class KeptJobs:
    """What was found, and how many jobs turned out to have ended."""

    jobs: list[Kept] = field(default_factory=list)
    mended: int = 0


def kept(disk: Disk, boot: str, now: float) -> KeptJobs:
    """Return all jobs that have not ended; a damaged one carries its fault."""
    _mend_times(disk, now)
    texts: dict[str, str] = {}
    found = KeptJobs()
    reader = KeptReader(texts)
    for row in _unended(disk):
        one = reader.read(row)
        if one is not None:
            found.jobs.append(one)
            continue
        one = rows.kept(row, texts, lambda job_id: _latest_attempt(disk, job_id))
        if one.fault and rows.has_ended(row):
            _mend_state(disk, one.spec.id)
            found.mended += 1
            continue
        if one.state in BUSY:
            one = _with_begin(disk, one, boot)
        if one.fault:
            log.error("action=set-aside job=%d reason=%r", one.spec.id, one.fault)
        found.jobs.append(one)
    return found


def _unended(disk: Disk) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of all jobs that have not ended, a part of them in memory at a time."""
    last, is_more = -1, True
    while is_more:
        part = disk.read(
            f"SELECT {rows.KEPT} FROM jobs WHERE id > ?"
            " AND (typeof(state) <> 'text' OR state <> 'ended') ORDER BY id LIMIT ?",
            (last, MAX_PART),
        )
        yield from part
        is_more = len(part) == MAX_PART
        last = part[-1][0] if part else last


def _with_begin(disk: Disk, kept: Kept, boot: str) -> Kept:
    """Add how the latest attempt was begun.

    Its row is written together with the state, so a missing one is damage. Assuming this boot is
    then safe: a living shim is found, and the attempt is not run again.
    """
    lease, begun_in = _lease_of(disk, kept.spec.id, kept.attempt)
    fault = kept.fault if begun_in else kept.fault or rows.RUN_NO_MORE
    is_same = begun_in in ("", boot) or "/" in lease  # a node has boots of its own
    return kept._replace(lease=lease if is_same else "", fault=fault, is_same_boot=is_same)


def _lease_of(disk: Disk, job_id: int, attempt: int) -> tuple[str, str]:
    """Return the lease an attempt was begun under and the boot; empty when not known."""
    sql = f"SELECT {rows.BEGUN} FROM attempts WHERE job = ? AND attempt = ?"
    found = disk.read(sql, (job_id, attempt))
    return rows.lease_and_boot(found[0]) if found else ("", "")


def _latest_attempt(disk: Disk, job_id: int) -> object:
    return disk.read("SELECT max(attempt) FROM attempts WHERE job = ?", (job_id,))[0][0]


def _mend_times(disk: Disk, now: float) -> None:
    """Set the missing end times of ended jobs to now: they would not be listed."""
    if disk.read(f"SELECT id FROM jobs WHERE {_TIMELESS} LIMIT 1"):
        with disk.transaction():
            disk.db.execute(f"UPDATE jobs SET ended_at = ? WHERE {_TIMELESS}", (now,))


def _mend_state(disk: Disk, job_id: int) -> None:
    """Restore the state of an ended job: its outcome is there, its state is not."""
    log.error("action=mend-state job=%d", job_id)
    with disk.transaction():
        disk.db.execute("UPDATE jobs SET state = 'ended' WHERE id = ?", (job_id,))
