"""Following a queue: long ones in part, changes alone afterwards, no follower without bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from grn.client.connection import Connection, drive
from grn.client.queue import connect
from grn.daemon import publisher
from grn.errors import UsageError
from grn.queue import subscribers
from tests.harness import wait_for
from tests.queue.daemon import Queue, a_queue, being_here


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    with a_queue() as made:
        made.fine("queue", "start")
        yield made


@pytest.fixture
def queue(shared: Queue) -> Iterator[Queue]:
    with being_here(shared):
        yield shared


@pytest.fixture
def line(queue: Queue) -> Iterator[Connection]:
    made = connect(may_start=False)
    yield made
    made.close()


def hear(line: Connection) -> dict[str, Any]:
    return drive(line.receive(60))


def test_changes_alone_are_told_after_the_first_picture(queue: Queue, line: Connection) -> None:
    before = queue.sh("true", "--hold")
    whole = drive(line.ask({"op": "follow"}))
    after = queue.sh("true", "--hold")
    told = hear(line)
    while not told.get("jobs"):
        told = hear(line)
    queue.fine("cancel", str(before), str(after))

    assert (whole["ev"], told["ev"]) == ("snapshot", "changes")
    assert before in [row["id"] for row in whole["jobs"]]
    assert [row["id"] for row in told["jobs"]] == [after]
    assert told["jobs"][0]["why"] == "held: run `grn release` to let it start"
    assert "environment" not in told["jobs"][0], "an environment may hold secrets"


def test_jobs_too_short_to_be_seen_alive_are_told_as_ended(queue: Queue, line: Connection) -> None:
    drive(line.ask({"op": "follow"}))
    ids = set(queue.shs(*["true"] * 20))
    ended: set[int] = set()
    while not ids <= ended:
        ended |= {row["id"] for row in hear(line).get("ended", [])}


def test_of_a_long_queue_the_next_are_told_and_the_rest_when_their_turn_comes(
    queue: Queue, line: Connection
) -> None:
    jobs = [{"argv": ["true"], "type": "t", "label": "t"}] * (subscribers.MAX_JOBS + 500)
    shared = {"cwd": "/", "env": {}, "held": True, "key": "ab" * 8}
    first = queue.ask("submit", jobs=jobs, **shared)["first"]
    whole = drive(line.ask({"op": "follow"}))
    assert len(whole["jobs"]) == subscribers.MAX_JOBS
    assert whole["counts"]["held"] == len(jobs)
    queue.ask("cancel", jobs=list(range(first, first + subscribers.MAX_JOBS - 400)))
    again = hear(line)
    while again["ev"] != "snapshot":
        again = hear(line)
    assert len(again["jobs"]) == 900
    queue.cancel_all()


def test_a_second_follow_and_one_too_many_are_refused(queue: Queue) -> None:
    lines = [connect(may_start=False) for _ in range(publisher.MAX_PER_USER)]
    for one in lines:
        drive(one.ask({"op": "follow"}))
    extra = connect(may_start=False)
    with pytest.raises(UsageError, match="follow already"):
        drive(extra.ask({"op": "follow"}))
    for one in (*lines, extra):
        one.close()
    wait_for(queue.is_answering)
