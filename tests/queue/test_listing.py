"""Lists of ids: as those of rows, in the same order, whatever they are sorted by."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from grn.client.connection import drive
from grn.client.queue import connect
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
