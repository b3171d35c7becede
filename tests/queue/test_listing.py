"""Lists of ids: as those of rows, in the same order, whatever they are sorted by."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from grn.client.connection import drive
from grn.client.queue import connect
from grn.queue.journal.rows import matching
from grn.queue.subscribers import MAX_JOBS
from tests.harness import is_running, wait_for
from tests.queue.daemon import Queue, a_queue, being_here

LONG = 3000


@pytest.mark.parametrize("selection", [
    {"which": "all", "sort": "ran"}, {"which": "ended", "sort": "gpu", "ascending": True},
    {"which": "all", "match": "some"}, {"which": "alive", "states": ["held"]},
    {"which": "all", "name": "some"}, {"which": "all", "most": 3},
])  # fmt: skip
def test_ids_are_those_of_the_rows(shared: Queue, selection: dict[str, object]) -> None:
    with being_here(shared):
        rows = shared.ask("list", **selection)["jobs"]
        ids = shared.ask("list", **selection, ids_only=True)["ids"]
    assert ids == [row["id"] for row in rows]
    assert ids


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    with a_queue() as queue:
        queue.wake()
        for line in ("sleep 0.02", "true", "exit 3"):
            queue.ended(queue.sh(line, "--name", "some"))
        queue.fine("submit", "--hold", "--name", "some", "--array", "0-2", "--", "true")
        queue.fine("submit", "--hold", "--", "true")
        yield queue


def test_a_long_array_stays_one_record_however_it_is_looked_at(long: Queue) -> None:
    with being_here(long):
        first = long.ask("list", which="alive", most=1)["jobs"][0]["id"]
        line = connect(may_start=False)
        fed = drive(line.ask({"op": "follow"}))["jobs"]
        line.close()
        assert [row["array_index"] for row in fed] == [str(one) for one in range(MAX_JOBS)]
        folded = long.fine("ls").splitlines()
        assert folded[1].split()[:3] == [f"{first}-{first + LONG - 1}", str(LONG), "held"]
        assert f"long[0-{LONG - 1}]: echo $GRN_ARRAY_INDEX" in folded[1]
        expanded = long.fine("ls", "--expand", "-n", "7").splitlines()[1:]
        assert "long[6]: echo 6" in expanded[6]
        assert len(long.json("ls", "-n", str(LONG))["jobs"]) == LONG
        some = long.ask("list", which="alive", match="long[2999]")
        assert ([row["id"] for row in some["jobs"]], some["total"]) == ([first + 2999], 1)
        assert long.ask("list", which="alive", match="echo", most=2)["total"] == LONG
        assert long.ask("list", which="alive", tag="none")["jobs"] == []
        assert long.ask("list", states=["running"])["jobs"] == []
        for words, found in (
            ([f"{first + 5}-{first + 6}"], [first + 5, first + 6]),
            (["long[77]"], [first + 77]),
            (["long"], list(range(first, first + LONG))),
        ):
            assert long.ask("names", names=words)["jobs"] == found
        assert members_with_rows(long) == 0


def test_rows_of_members_are_the_same_before_and_after_they_are_jobs(long: Queue) -> None:
    with being_here(long):
        (before,) = long.ask("list", which="alive", match="long[1234]")["jobs"]
        assert long.job(before["id"])["name"] == "long"  # which makes it a job
        (after,) = long.ask("list", which="alive", match="long[1234]")["jobs"]
        assert after == before
        folded = long.fine("ls").splitlines()
    assert folded[1].split()[1:3] == [str(LONG), "held"]
    assert f"long[0-{LONG - 1}]" in folded[1]


def members_with_rows(queue: Queue) -> int:
    """End the queue, and return how many members are jobs by its journal."""
    pid = queue.pid
    queue.ask("stop")
    wait_for(lambda: not is_running(pid), "the queue to leave")
    with closing(sqlite3.connect(next(queue.story.folder.rglob("queue.sqlite3")))) as journal:
        ((count,),) = journal.execute("SELECT count(*) FROM jobs WHERE name = 'long'")
    queue.fine("queue", "start")
    return int(count)


@pytest.fixture
def long() -> Iterator[Queue]:
    with a_queue() as queue:
        queue.fine("submit", "--hold", "--name", "long", "--array", f"0-{LONG - 1}", "--shell",
                   "--", "echo $GRN_ARRAY_INDEX")  # fmt: skip
        yield queue


def test_pages_of_an_array_have_each_job_once_and_its_states_are_counted(long: Queue) -> None:
    with being_here(long):
        first = long.ask("list", which="alive", most=1)["jobs"][0]["id"]
        pages = [
            long.ask("list", array=first + 7, skip=skip, most=700)
            for skip in range(0, LONG + 700, 700)
        ]
    ids = [row["id"] for page in pages for row in page["jobs"]]
    assert ids == list(range(first, first + LONG))
    assert {page["total"] for page in pages} == {LONG}
    told = {"first": first, "count": LONG, "states": {"held": LONG}}
    assert [page["array"] for page in pages] == [told] * len(pages)


def test_pages_follow_the_order_of_a_list_through_all_states(shared: Queue) -> None:
    with being_here(shared):
        whole = [row["id"] for row in shared.ask("list")["jobs"]]
        pages = [shared.ask("list", skip=skip, most=2)["jobs"] for skip in range(0, 10, 2)]
        last = shared.ask("list", array=whole[0], match="held")
    assert [row["id"] for page in pages for row in page] == whole
    assert (last["total"], last["array"]["states"]) == (3, {"held": 3})


@pytest.mark.parametrize("words", [
    "long[2999]", "[29", "held 299", "ECHO", "echo held long", "$grn_array", "none", "é", "long[]",
])  # fmt: skip
def test_words_find_folded_members_as_they_find_jobs(long: Queue, words: str) -> None:
    sql, values = matching(words)
    with being_here(long):
        found = long.ask("list", which="alive", match=words, ids_only=True, most=LONG)["ids"]
        folds = long.ask("list", which="alive", match=words, folds=True)
        (array, *_) = long.ask("list", which="alive", folds=True)["jobs"]
    ids = range(array["id"], array["id"] + LONG)
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE attempts (lease)")
        db.execute("CREATE TABLE jobs (id, name, label, group_name, text, reason, is_held, state,"
                   " argv, extra)")  # fmt: skip
        db.executemany(
            "INSERT INTO jobs VALUES (?, 'long', ?, '', '', NULL, 1, 'queued', ?, ?)",
            [(one, array["label"], json.dumps(array["argv"]),
              json.dumps({"GRN_ARRAY_INDEX": str(number)})) for number, one in enumerate(ids)],
        )  # fmt: skip
        rows = db.execute(f"SELECT jobs.id FROM jobs LEFT JOIN attempts WHERE 1{sql}", values)
        expected = [one for (one,) in rows]
    assert found == expected
    members = [part for row in folds["jobs"] for part in row["members"]]
    assert [one for a, b in members for one in range(a, b + 1)] == expected
