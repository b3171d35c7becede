"""Jobs that give way: stopped once, run again first of their priority, never ended by it."""

from __future__ import annotations

from grn.queue.events import SaveAttemptEnd, Stop
from grn.queue.jobs import finish
from grn.queue.jobs.job import EndReason, JobState, Settlement
from tests.queue.builders import CANCELLED, FAILED, OK, YIELDED, Line, a_spec

SETTLED = Settlement("yielded")


def test_a_job_that_yields_is_stopped_once_and_runs_again_first() -> None:
    line = Line()
    line.submits(a_spec(1), a_spec(2, yields=True), a_spec(3))
    line.runs(2)

    assert line.is_asked_to_yield(2) == [Stop(2, 1, is_now=False, is_yield=True)]
    assert line.is_asked_to_yield(2) == []
    assert line.state(2) is JobState.RUNNING
    line.exits(2, YIELDED, SETTLED)
    assert line.said(SaveAttemptEnd)[0].reason is EndReason.YIELDED
    assert (line.state(2), line.ends) == (JobState.QUEUED, {})
    line.loses_negotiator()
    assert [one.spec.id for one in line.engine._table.ready.all_asked()] == [2, 1, 3]


def test_a_job_that_does_not_yield_is_not_stopped() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)

    assert line.is_asked_to_yield(1) == []


def test_a_lease_that_is_not_known_is_ignored() -> None:
    assert Line().is_asked_to_yield(7) == []


def test_a_shim_of_a_former_queue_knows_a_cancel_only() -> None:
    line = Line()
    line.submits(a_spec(1, yields=True))
    line.runs(1)
    line.is_asked_to_yield(1)
    line.exits(1, CANCELLED, SETTLED)

    assert (line.state(1), line.ends) == (JobState.QUEUED, {})


def test_a_job_that_was_done_before_it_was_stopped_has_ended() -> None:
    line = Line()
    line.submits(a_spec(1, yields=True), a_spec(2, yields=True))
    line.runs(1, 2)
    line.is_asked_to_yield(1)
    line.is_asked_to_yield(2)
    line.exits(1, OK)
    line.exits(2, FAILED)

    assert line.ends == {1: EndReason.OK, 2: EndReason.FAILED}


def test_a_cancel_of_a_job_that_gives_way_ends_it() -> None:
    line = Line()
    line.submits(a_spec(1, yields=True))
    line.runs(1)
    line.is_asked_to_yield(1)
    line.cancels(1)
    line.exits(1, YIELDED, SETTLED)

    assert line.ends == {1: EndReason.CANCELLED}


def test_a_request_to_yield_that_comes_before_the_shim_is_repeated() -> None:
    line = Line()
    line.submits(a_spec(1, yields=True))
    line.grants(1)
    line.is_asked_to_yield(1)

    assert line.starts(1) == [Stop(1, 1, is_now=False, is_yield=True)]


def test_each_attempt_may_be_asked_again() -> None:
    line = Line()
    line.submits(a_spec(1, yields=True))
    for attempt in (1, 2, 3):
        line.runs(1)
        assert line.is_asked_to_yield(1) == [Stop(1, attempt, is_now=False, is_yield=True)]
        line.exits(1, YIELDED, SETTLED)


def test_an_attempt_that_reached_its_limit_with_again_is_followed_by_another() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.exits(1, YIELDED, SETTLED)

    assert line.asked == [1]


def test_the_negotiator_and_the_next_attempt_are_told() -> None:
    assert finish.told_to_negotiator(YIELDED)["outcome"] == "yielded"
    assert finish.why_again("yielded") == "yield"
    assert finish.why_again("out-of-memory") == "out-of-memory"
