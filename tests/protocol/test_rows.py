"""Rows of replies, read from JSON and held against what the daemons say."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest

from grn.client import negotiator
from grn.client.connection import drive
from grn.client.negotiator import MALFORMED, ask_once, connect
from grn.errors import ProtocolError, UnknownJob
from grn.protocol.negotiator_rows import (
    AuditRow,
    BookingRow,
    CurveRow,
    EndRow,
    GpuRow,
    LeaseRow,
    NegotiatorFacts,
    ProfileRow,
    RunRow,
    SamplesRow,
    ShareRow,
    Status,
    WaitingRow,
    lease_or_request,
)
from grn.protocol.queue_rows import AttemptRow, JobEnd, JobRow, ProgressRow, QueueFacts
from grn.protocol.rows import as_json, read, updated
from tests.harness import wait_for
from tests.queue.daemon import a_queue

PLAIN = {"id": 1, "state": "queued", "argv": ["a"]}


def test_fields_that_an_older_daemon_leaves_out_have_their_defaults() -> None:
    row = read(JobRow, {**PLAIN, "new_in_a_later_release": 1})

    assert (row.id, row.argv, row.gpus, row.used_bytes) == (1, ("a",), (), None)
    assert row.is_waiting
    assert not row.has_ended


def test_attempts_and_dependencies_are_values_too() -> None:
    attempt = {"attempt": 2, "gpus": [0, 1], "reason": "failed", "ran_s": 3}
    row = read(JobRow, {**PLAIN, "after": [[7, True]], "attempts": [attempt]})

    assert row.after == ((7, True),)
    assert (row.attempts[0].attempt, row.attempts[0].gpus) == (2, (0, 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", ["no"]), ("state", 3), ("priority", "no"), ("submitted_at", "no"), ("after", [[1]]),
     ("peak_bytes", 1.5), ("argv", "no"), ("gpus", ["no"]), ("attempts", [3])],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ProtocolError, match=field) as caught:
        read(JobRow, {**PLAIN, field: value})

    assert isinstance(caught.value, MALFORMED)


def test_a_row_without_what_it_is_about_is_malformed() -> None:
    with pytest.raises(MALFORMED):
        read(JobRow, {"state": "queued", "argv": []})


def test_a_change_replaces_the_fields_it_has() -> None:
    row = updated(read(JobRow, PLAIN), {"state": "held", "gpus": [1], "unknown": 1})

    assert (row.id, row.state, row.gpus) == (1, "held", (1,))


def test_a_row_as_json_is_read_as_the_same_row() -> None:
    row = read(JobRow, {**PLAIN, "after": [[7, True]], "attempts": [{"attempt": 1, "gpus": [0]}]})

    assert as_json(row)["attempts"][0]["gpus"] == [0]
    assert read(JobRow, as_json(row)) == row


def test_the_folder_of_an_earlier_attempt_is_beside_that_of_the_last() -> None:
    row = read(JobRow, {**PLAIN, "attempt": 3, "folder": "/jobs/7.3"})

    assert row.folder_of(1) == "/jobs/7.1"


# --- what the daemons really say -------------------------------------------------------------

# Fields that only some replies have, by kind of row.
OF_STATUS = {"for_s", "idle_for_s"}
OF_FEED = {"since_at", "tag", "origin", "idle_since_at"}
OF_SHOW = {"attempts", "environment"}
# Only of jobs that set it.
OF_FEW = {
    "on",
    "without",
    "notify",
    "array_index",
    "array_limit",
    "begin_at",
    "only",
    "yields",
    "is_urgent",
    "at_least_s",
    "cpus",
    "ram_bytes",
    "stop_signal",
    "grace_s",
    "again",
    "sends",
    "fetch",
    "idle_limit_s",
    # Only of a row that stands for several members of an array.
    "members",
    "array",
    "numbers",
}


def check(kind: type[Any], rows: Iterable[dict[str, Any]], without: set[str]) -> None:
    """Each row can be read, and has the fields of its definition but for `without`."""
    found = list(rows)
    assert found, kind
    for row in found:
        read(kind, row)
        assert set(row) == {one.name for one in fields(kind)} - without, kind


def curve_of(lease: str) -> list[dict[str, Any]]:
    """Return the memory of a lease; nothing before its first sample."""
    try:
        return [ask_once({"op": "samples", "lease": lease})["curve"]]
    except UnknownJob:
        return []


def test_definitions_have_the_fields_that_both_daemons_send() -> None:
    with a_queue("virtual:2x512MiB") as queue:
        done = queue.ended(queue.sh("true"))["id"]
        queue.gate("x")
        runs = queue.sh("gate x", "--mem", "400MiB", "--gpus", "2")
        lease = queue.in_state(runs, "running")["lease"]
        waits = queue.sh("true", "--mem", "400MiB", "--gpus", "2")
        wait_for(lambda: ask_once({"op": "status"})["status"]["waiting"], "a request")
        status = negotiator.status()
        line = connect()
        feed = drive(line.ask({"op": "follow"}))
        line.close()
        shown = [queue.ask("show", job=job)["job"] for job in (done, runs, waits)]

        check(GpuRow, status["gpus"], set())
        check(LeaseRow, status["leases"], OF_FEED)
        place = {"place", "had_gpu_h", "users_before"}
        check(WaitingRow, status["waiting"], (OF_FEED | {"turn"}) - {"tag"})
        check(ShareRow, status["shares"], set())
        later = time.time() + 1e6
        ask_once({"op": "book", "from_at": later, "until_at": later + 60.0})
        check(BookingRow, ask_once({"op": "bookings"})["bookings"], set())
        profiles = ask_once({"op": "profiles"})["profiles"]
        check(ProfileRow, profiles, set())
        check(RunRow, [run for row in profiles for run in row["history"]], set())
        check(GpuRow, feed["gpus"], set())
        check(LeaseRow, feed["leases"], OF_STATUS | {"ends_in_s"})
        check(WaitingRow, feed["waiting"], OF_STATUS | place | {"starts_in_s"})
        check(EndRow, feed["ends"], set())
        check(SamplesRow, feed["samples"], set())
        wait_for(lambda: curve_of(lease), "samples of the lease")
        check(CurveRow, curve_of(lease), set())
        assert {one.name for one in fields(NegotiatorFacts)} <= set(feed)
        assert {one.name for one in fields(Status)} <= set(status)
        assert [type(lease_or_request(row)) for row in status["leases"]] == [LeaseRow]
        assert [type(lease_or_request(row)) for row in status["waiting"]] == [WaitingRow]

        of_feed = {"used_bytes"}
        check(JobRow, queue.ask("list", which="all")["jobs"], of_feed | OF_SHOW | OF_FEW)
        check(JobRow, shown, of_feed | OF_FEW)
        check(AttemptRow, [one for row in shown for one in row["attempts"]], set())
        check(ProgressRow, [queue.ask("watch", jobs=[done])["progress"]], set())
        check(JobEnd, [queue.ask("wait", jobs=[done])["ended"]], set())
        check(QueueFacts, [{**_without_id(queue.ask("ping"))}], {"origin", "counts", "folded"})
        queue.gate("x").open()
        ask_once({"op": "forget", "type": profiles[0]["type"]})
        check(AuditRow, ask_once({"op": "audit", "most": 9})["audit"], set())
        queue.ended(waits)


def _without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "id"}
