"""Arrays in the journal: one record each, whose members become jobs exactly once."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from grn.queue.events import SaveEnd, SaveMembers
from grn.queue.jobs.job import EndReason, JobState
from grn.queue.journal.array_rows import NewArray
from grn.queue.journal.journal import Journal
from grn.queue.journal.rows import DamagedRow, NewJob, SharedCommand
from tests.queue.builders import a_spec
from tests.queue_faults.damage import KINDS, Harm, columns_of, spoil

COUNT = 5
Open = Callable[[], Journal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open the journal of this test; opening it again closes it first."""
    journals: list[Journal] = []

    def open_it() -> Journal:
        while journals:
            journals.pop().close()
        journals.append(Journal(str(tmp_path / "queue"), "boot-1", lambda: 1000.0))
        return journals[-1]

    yield open_it
    while journals:
        journals.pop().close()


def a_job() -> NewJob:
    spec = a_spec(0, mem_bytes=1 << 20, tags=("a", "b"), priority=3, cpus=0.5, time_limit_s=60.0)
    shared = SharedCommand("/data", {"MARK": "m"}, 0o27, "mail")
    return NewJob(spec, ("train", "\udcff"), shared, "grid", "", {}, {"lr": 0.1}, "0abc1234")


def submit(journal: Journal, key: str = "aaaa", count: int = COUNT, **options: Any) -> int:
    first, is_new = journal.submit_array(key, NewArray(a_job(), f"0-{count - 1}", count), **options)
    assert is_new
    return first


def columns(journal: Journal, job: int) -> dict[str, Any]:
    with closing(sqlite3.connect(journal.path)) as db:
        db.row_factory = sqlite3.Row
        return dict(db.execute("SELECT * FROM jobs WHERE id = ?", (job,)).fetchone())


def test_an_array_is_one_record_until_its_members_are_saved(opened: Open) -> None:
    first = submit(opened())
    journal = opened()
    assert journal.kept() == []
    (kept,) = journal.kept_arrays()
    assert (kept.left, kept.is_held, kept.fault) == (((1, 5),), False, "")
    assert kept.spec == a_job().spec._replace(id=first)
    assert journal.next_id == first + COUNT
    assert journal.submit_array("aaaa", NewArray(a_job(), "0-4", 5)) == (first, False)


def test_a_member_is_stored_like_a_job_that_was_submitted_alone(opened: Open) -> None:
    journal = opened()
    submit(journal, is_held=True)
    journal.write([SaveMembers(1, (3,), ((1, 2), (4, 5)))])
    alone, _ = journal.submit("bbbb", [replace(a_job(), extra={"GRN_ARRAY_INDEX": "2"})], True)
    opened().close()
    member, other = columns(journal, 3), columns(journal, alone)
    unlike = {name for name in member if member[name] != other[name]}
    assert unlike == {"id", "place", "checksum", "state_checksum"}
    assert opened().command(3).extra == {"GRN_ARRAY_INDEX": "2"}


def test_members_become_jobs_exactly_once_over_restarts(opened: Open) -> None:
    submit(opened())
    opened().write([SaveMembers(1, (1, 2), ((3, 5),))])
    journal = opened()
    assert [one.spec.id for one in journal.kept()] == [1, 2]
    assert [one.left for one in journal.kept_arrays()] == [((3, 5),)]
    journal.write([SaveMembers(1, (3, 4, 5), ())])
    journal = opened()
    assert [(one.spec.id, one.state, one.fault) for one in journal.kept()] == [
        (job, JobState.QUEUED, "") for job in range(1, 6)
    ]
    assert journal.kept_arrays() == []


def test_a_write_that_fails_saves_no_member(opened: Open) -> None:
    journal = opened()
    submit(journal)
    journal.write([SaveMembers(1, (1,), ((2, 5),))])
    with pytest.raises(Exception, match="UNIQUE"):
        journal.write([SaveMembers(1, (2, 1), ((3, 5),))])
    assert [one.spec.id for one in opened().kept()] == [1]
    assert [one.left for one in opened().kept_arrays()] == [((2, 5),)]


def test_the_environment_of_folded_members_outlives_a_clean(opened: Open) -> None:
    journal = opened()
    submit(journal)
    journal.write([SaveMembers(1, (1,), ((2, 5),)), SaveEnd(1, EndReason.OK, "", None)])
    journal.clean(5000.0)
    journal = opened()
    journal.write([SaveMembers(1, (2,), ((3, 5),))])
    assert journal.command(2).environment == {"MARK": "m"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", [
    "count", "numbers", "template", "environment", "priority", "is_held", "checksum", "folded",
    "folded_checksum",
])  # fmt: skip
def test_members_of_a_damaged_array_run_as_submitted_or_are_set_aside(
    opened: Open, column: str, kind: str
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    journal = opened()
    submit(journal)
    journal.write([SaveMembers(1, (1, 2), ((3, 5),))])
    journal.close()
    path = Path(journal.path)
    assert column in columns_of(path, "arrays")
    spoil(path, [Harm("arrays", column, "id = 1", kind)], random.Random(seed))
    journal = opened()
    assert journal.next_id == 6, "ids of members are given to no other job"
    (kept,) = journal.kept_arrays()
    assert {job for first, last in kept.left for job in range(first, last + 1)} == {3, 4, 5}
    journal.write([SaveMembers(1, (3,), ((4, 5),))])
    if kept.fault and not column.startswith("folded"):
        assert "damaged" in kept.fault
        for read in (journal.command, journal.as_submitted):
            with pytest.raises(DamagedRow):
                read(3)
    else:
        assert bool(kept.fault) == column.startswith("folded")
        assert kept.spec == a_job().spec._replace(id=1)
        assert journal.command(3).extra == {"GRN_ARRAY_INDEX": "2"}
