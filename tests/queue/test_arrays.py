"""Arrays that are one record until their members' turns: order, limits, dependencies, restarts."""

from __future__ import annotations

import random

from grn.queue.events import (
    AskLease,
    ClockRead,
    ContinueCancel,
    SaveMembers,
    TellEmpty,
    WakeAt,
)
from grn.queue.jobs.arrays import FoldedArray
from grn.queue.jobs.job import AttemptFate, EndReason, JobState, KeptArray
from grn.queue.jobs.lease_window import UNFOLDED, WindowLimits
from grn.queue.jobs.steering import ENDED_AT_ONCE
from tests.queue.builders import FAILED, Line, a_spec, kept

MANY = 100_000


def a_line(**recovered: object) -> Line:
    return Line(limits=WindowLimits(window=2), **recovered)


def unfolded(line: Line) -> list[int]:
    """Return the members that the latest step made jobs of their own."""
    return [job for action in line.said(SaveMembers) for job in action.jobs]


# --- the folded members ----------------------------------------------------------------------


def test_members_are_taken_from_anywhere_and_only_once() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(200):
        first, count = chance.randrange(1, 50), chance.randrange(1, 30)
        array = FoldedArray(KeptArray(a_spec(first), ((first, first + count - 1),)))
        left = set(range(first, first + count))
        cancelled: set[int] = set()
        while left:
            named = [chance.randrange(first - 3, first + count + 3) for _ in range(3)]
            array.cancel(named)
            cancelled |= left & set(named)
            assert array.first(count) == sorted(left - cancelled)
            assert array.cancelled(count) == sorted(cancelled)
            wanted = [chance.randrange(first - 3, first + count + 3) for _ in range(5)]
            taken = sorted(left & set(wanted)), sorted(cancelled & set(wanted))
            assert array.take(wanted) == taken
            left -= set(wanted)
            cancelled -= set(wanted)
            assert list(array) == sorted(left)
            assert len(array) == len(left)
            assert all((job in array) == (job in left) for job in range(first - 3, first + 90))


# --- turns -------------------------------------------------------------------------------------


def test_an_array_of_any_length_unfolds_only_what_is_next() -> None:
    line = a_line()
    line.submits_array(1, MANY)
    assert line.asked == [1, 2]
    assert unfolded(line) == list(range(1, UNFOLDED + 1))
    assert line.engine.counts() == {"running": 0, "queued": MANY, "held": 0}
    assert len(line.engine.jobs) == MANY
    assert line.why(MANY) == "behind 2 other jobs of yours"


def test_members_are_persisted_before_a_lease_is_requested_for_one() -> None:
    line = a_line()
    line.submits_array(1, 3)
    kinds = [type(action) for action in line.actions]
    assert kinds == [SaveMembers, AskLease, AskLease]
    assert line.said(SaveMembers) == [SaveMembers(1, (1, 2, 3), ())]


def test_all_members_run_in_order_and_then_the_queue_is_empty() -> None:
    line = a_line()
    line.submits_array(1, 2 * UNFOLDED + 3)
    for job in range(1, 2 * UNFOLDED + 4):
        assert job in line.asked
        line.runs(job)
        line.exits(job)
    assert len(line.ends) == 2 * UNFOLDED + 3
    assert line.said(TellEmpty)


def test_the_queue_is_not_empty_while_members_are_folded() -> None:
    line = a_line()
    line.submits_array(1, UNFOLDED + 1)
    line.drains()
    line.cancels(*range(1, UNFOLDED + 1))
    assert not line.said(TellEmpty)
    assert line.engine.counts()["queued"] == 1


def test_a_job_of_higher_priority_overtakes_folded_members() -> None:
    line = a_line()
    line.submits_array(1, MANY)
    line.submits(MANY + 1, priority=5)
    assert line.asked == [1, MANY + 1]


def test_an_array_of_higher_priority_comes_before_jobs_and_arrays() -> None:
    line = a_line()
    line.submits(1, 2, 3)
    line.submits_array(4, 9)
    assert not unfolded(line), "it is not its turn"
    line.submits_array(10, 19, priority=5)
    assert line.asked == [10, 11]


def test_a_member_that_was_named_waits_for_its_turn() -> None:
    line = a_line()
    line.submits_array(1, MANY)
    line.names(777, 778, 5, MANY + 1)
    assert unfolded(line) == [777, 778]
    assert line.asked == [1, 2]
    line.cancels(*range(1, UNFOLDED + 1))
    assert line.asked == [UNFOLDED + 1, UNFOLDED + 2]


def test_a_job_that_is_moved_to_the_front_is_before_folded_members() -> None:
    line = a_line()
    line.drains()
    line.submits_array(1, MANY)
    line.submits(MANY + 1)
    line.moves(MANY + 1, to_front=True)
    line.drains(is_drained=False)
    assert line.asked == [MANY + 1, 1]


def test_a_job_that_is_moved_to_the_end_is_behind_folded_members() -> None:
    line = a_line()
    line.submits(1)
    line.submits_array(2, 500)
    line.moves(1, to_front=False)
    assert line.engine.jobs[1].place == 501


def test_a_limited_array_asks_for_no_more_than_its_limit() -> None:
    line = Line()
    line.submits_array(1, MANY, array=1, array_limit=2)
    line.submits(MANY + 1)
    assert line.asked == [1, 2, MANY + 1]
    assert line.why(MANY) == "its array runs at most 2 jobs at a time"


# --- held, after, windows -------------------------------------------------------------------------


def test_a_held_array_stays_folded_and_a_released_member_runs() -> None:
    line = a_line()
    line.submits_array(1, MANY, is_held=True)
    assert not line.actions
    assert "held" in line.why(MANY)
    assert line.engine.counts() == {"running": 0, "queued": 0, "held": MANY}
    line.names(500)
    line.releases(500)
    assert line.engine.counts() == {"running": 0, "queued": 1, "held": MANY - 1}
    assert line.asked == [500]


def test_an_array_that_waits_for_a_job_unfolds_when_that_has_ended_well() -> None:
    line = a_line()
    line.submits(1)
    line.submits_array(2, 400, after=(1,))
    assert line.asked == [1]
    assert line.why(300) == "waiting for job 1 to finish"
    line.names(300)
    line.runs(1)
    line.exits(1)
    assert line.asked == [2, 3]
    assert line.engine.jobs[300].waits_for == frozenset()


def test_all_members_are_skipped_when_the_job_they_come_after_fails() -> None:
    line = a_line()
    line.submits(1)
    line.submits_array(2, 400, after=(1,))
    line.runs(1)
    line.exits(1, FAILED)
    assert line.ends == {1: EndReason.FAILED} | dict.fromkeys(range(2, 401), EndReason.SKIPPED)
    assert line.said(TellEmpty)


def test_an_array_after_a_job_that_has_failed_before_is_skipped_at_once() -> None:
    line = a_line()
    line.submits_array(2, 400, after=(1,), ends={1: False})
    assert line.ends == dict.fromkeys(range(2, 401), EndReason.SKIPPED)


def test_a_job_comes_after_a_member() -> None:
    line = a_line()
    line.submits_array(1, 400)
    line.names(300)
    line.submits(401, after=(300,))
    assert line.engine.jobs[401].waits_for == {300}
    line.cancels(300)
    assert line.ends[401] is EndReason.SKIPPED


def test_an_array_that_begins_later_unfolds_then_and_its_members_wait_no_more() -> None:
    line = a_line()
    line.submits_array(1, MANY, begin_at=500.0)
    assert line.said(WakeAt) == [WakeAt(0.0)]
    line.tell(ClockRead(line.at, 400.0))
    assert line.asked == []
    assert line.said(WakeAt) == [WakeAt(500.0)]
    line.tell(ClockRead(line.at, 500.0))
    assert line.asked == [1, 2]
    assert unfolded(line) == list(range(1, UNFOLDED + 1))


# --- restarts ------------------------------------------------------------------------------------


def test_an_array_goes_on_after_a_restart_where_it_was() -> None:
    array = KeptArray(a_spec(1), ((11, 99), (200, 300)))
    line = a_line(arrays=(array,))
    assert line.asked == [11, 12]
    assert line.engine.counts()["queued"] == 89 + 101
    assert unfolded(line) == [*range(11, 100), *range(200, 200 + UNFOLDED - 89)]


def test_after_a_restart_an_array_still_waits_for_a_job() -> None:
    runs = kept(1, JobState.RUNNING, attempt=1, lease="one", found=AttemptFate.ALIVE)
    line = Line(runs, arrays=(KeptArray(a_spec(2, after=(1,)), ((2, 400),)),))
    assert line.asked == []
    line.exits(1)
    assert line.asked[:2] == [2, 3]


def test_the_members_of_a_damaged_array_are_lost_with_a_reason() -> None:
    line = a_line(arrays=(KeptArray(a_spec(1), ((5, 9),), fault="its record is damaged"),))
    assert line.ends == dict.fromkeys(range(5, 10), EndReason.LOST)
    assert set(line.texts.values()) == {"its record is damaged"}


# --- cancel --------------------------------------------------------------------------------------


def test_cancelled_members_end_in_parts_and_none_has_a_turn_meanwhile() -> None:
    line = a_line()
    line.submits_array(1, 2000)
    line.submits(2001)
    line.runs(1)
    line.cancels(*range(2, 2001))
    assert line.asked == [2001]
    assert len(line.ends) == UNFOLDED - 1 + ENDED_AT_ONCE
    while line.said(ContinueCancel):
        assert line.engine.jobs.is_cancelling
        assert line.engine.counts()["queued"] == 2000 - len(line.ends)
        line.continues()
        assert not line.said(AskLease)
    assert not line.engine.jobs.is_cancelling
    assert line.ends == dict.fromkeys(range(2, 2001), EndReason.CANCELLED)
    line.exits(1)
    assert line.ends[1] is EndReason.OK


def test_only_the_named_members_are_cancelled() -> None:
    line = a_line()
    line.submits_array(1, 5000, is_held=True)
    line.submits_array(5001, 6000, is_held=True)
    line.cancels(*range(10, 20), *range(4000, 5601))
    line.cancels(700)
    while line.said(ContinueCancel):
        line.continues()
    assert sorted(line.ends) == [*range(10, 20), 700, *range(4000, 5601)]
    assert line.engine.counts()["held"] == 6000 - len(line.ends)


def test_members_of_many_short_arrays_end_together() -> None:
    line = a_line()
    arrays = range(1, 3 * ENDED_AT_ONCE, 3)
    for first in arrays:
        line.submits_array(first, first + 2, is_held=True)
    line.cancels(*range(1, arrays[-1] + 3))
    assert len(line.ends) == ENDED_AT_ONCE
    line.continues()
    line.continues()
    assert len(line.ends) == 3 * ENDED_AT_ONCE
    assert not line.said(ContinueCancel)


def test_a_cancelled_member_that_is_named_ends_at_once() -> None:
    line = a_line()
    line.submits_array(1, 5000, is_held=True)
    line.cancels(*range(1, 5001))
    assert 4000 not in line.ends
    line.names(4000)
    assert line.ends[4000] is EndReason.CANCELLED


def test_cancelled_members_that_are_not_written_yet_are_saved_as_folded() -> None:
    line = a_line()
    line.submits_array(1, 5000, is_held=True)
    line.cancels(*range(101, 5001))
    assert line.said(SaveMembers)[0].left == ((1, 100), (101 + ENDED_AT_ONCE, 5000))


def test_cancelled_members_are_not_skipped_with_the_rest() -> None:
    line = a_line()
    line.submits(1)
    line.submits_array(2, 3000, after=(1,))
    line.cancels(*range(1001, 3001))
    line.runs(1)
    line.exits(1, FAILED)
    assert line.ends[2] is EndReason.SKIPPED
    assert line.ends[3000] is EndReason.CANCELLED
    assert len(line.ends) == 3000


# --- lists ---------------------------------------------------------------------------------------


def test_a_list_orders_members_as_jobs_whether_they_are_jobs_or_not() -> None:
    line = a_line()
    line.submits_array(1, 1000)
    line.submits_array(1001, 1003, priority=5)
    line.names(500)
    jobs = line.engine.jobs
    found = [one for array in jobs.folded_arrays() for one in array.ids]
    found += [1, 500, 1001, 1002, 1003]
    assert sorted({*found}, key=jobs.turn)[:5] == [1001, 1002, 1003, 1, UNFOLDED + 1]
    assert sorted({*found}, key=jobs.turn)[-1] == 1000
    assert jobs.folded_in(501) == 1
    assert jobs.folded_in(500) is None
