"""Jobs that may start at some times only: who is asked for, and when the engine looks again."""

from __future__ import annotations

from datetime import datetime

from grn.queue.events import AskLease, DropAsk, Edited, WakeAt
from tests.queue.builders import FAILED, Line, a_spec, kept


def at(text: str) -> float:
    """Return a time of this machine's zone."""
    return datetime.fromisoformat(text).timestamp()


NOON, EVENING, MORNING = at("2026-11-18 12:00"), at("2026-11-18 22:00"), at("2026-11-19 08:00")


def test_a_job_is_asked_for_when_its_time_has_come() -> None:
    line, spec = Line(), a_spec(1, begin_at=EVENING)

    assert line.submits(spec) == [WakeAt(0.0)]
    assert line.reads_clock(NOON) == [WakeAt(EVENING)]
    assert line.why(1) == "starts at 22:00 (as stated)"
    assert line.reads_clock(EVENING - 60) == [WakeAt(EVENING)]  # the clock was set
    assert line.reads_clock(EVENING) == [AskLease(spec, 1, 0)]


def test_a_request_is_withdrawn_when_the_window_closes() -> None:
    line, spec = Line(), a_spec(1, only="22:00-08:00")
    line.submits(spec)

    assert line.reads_clock(EVENING) == [WakeAt(MORNING), AskLease(spec, 1, 0)]
    assert line.reads_clock(MORNING) == [DropAsk(1), WakeAt(EVENING + 86400)]
    assert line.why(1) == "starts at 22:00 (as stated)"


def test_a_running_job_goes_on_and_its_next_attempt_waits_for_the_window() -> None:
    line = Line()
    line.submits(a_spec(1, only="22:00-08:00", retries=1))
    line.reads_clock(EVENING)
    line.runs(1)
    line.reads_clock(MORNING)
    line.exits(1, FAILED)

    assert line.asked == []
    line.reads_clock(EVENING + 86400)
    assert line.asked == [1]


def test_others_do_not_wait_for_a_closed_window() -> None:
    line = Line()
    line.submits(a_spec(1, begin_at=EVENING, priority=5), a_spec(2))

    assert line.asked == [2]


def test_a_queue_that_starts_again_keeps_windows() -> None:
    line = Line(kept(1, begin_at=EVENING))
    line.reads_clock(NOON)

    assert line.asked == []
    line.reads_clock(EVENING)
    assert line.asked == [1]


def test_an_edited_window_replaces_the_former() -> None:
    line = Line()
    line.submits(a_spec(1, begin_at=EVENING), a_spec(2, begin_at=EVENING))
    line.reads_clock(NOON)
    line.tell(Edited(line.at, a_spec(1)))
    line.tell(Edited(line.at, a_spec(2, begin_at=MORNING)))
    assert line.asked == [1]

    line.reads_clock(EVENING)
    assert line.asked == [1]
    line.reads_clock(MORNING)
    assert line.asked == [1, 2]


def test_without_windows_the_clock_is_not_asked_for() -> None:
    line = Line()

    assert not any(isinstance(action, WakeAt) for action in line.submits(1, 2))
