"""Short stories of the queue's engine: facts in, actions out, the books checked after each."""

from __future__ import annotations

import pytest

from grn.model.oom_retry import MAX_MEMORY_ATTEMPTS
from grn.queue.events import (
    ActionFailed,
    AskLease,
    AttemptFound,
    CancelAsked,
    DropAsk,
    Edited,
    HoldAsked,
    Launch,
    PassAsk,
    Prepare,
    ReturnLease,
    SaveAttemptEnd,
    SaveBegin,
    SaveDrain,
    SaveEnd,
    SaveState,
    SettleLease,
    Stop,
    SubmitterGone,
    TellEmpty,
    TellEnded,
    WatchLease,
)
from grn.queue.jobs import finish
from grn.queue.jobs.job import (
    After,
    AttemptFate,
    EndReason,
    Exit,
    JobState,
    Kept,
    Settlement,
)
from grn.queue.jobs.job_views import NO_NEGOTIATOR
from grn.queue.jobs.lease_window import PASS_ON_S, WindowLimits
from tests.queue.builders import (
    ALONE,
    FAILED,
    OK,
    OUT_OF_MEMORY,
    SHARING,
    Line,
    a_spec,
    kept,
)

QUEUED, STARTING, RUNNING, STOPPING, ENDED = JobState


# --- the path of a job ---------------------------------------------------------------------


def test_a_job_is_asked_for_granted_launched_and_ended() -> None:
    line = Line()
    spec = a_spec(1)

    assert line.submits(spec) == [AskLease(spec, 1, 0)]
    assert line.grants(1, "L", gpus=(2,), visible="2", reserved_bytes=7) == [
        SaveState(1, STARTING, 1, 0, 0, False, 0, 1),
        SaveBegin(1, 1, "L", (2,), 7),
        Launch(1, 1, "L", "2"),
    ]
    assert line.starts(1) == []
    assert line.state(1) is RUNNING
    assert line.exits(1, OK, Settlement("ok", peak_bytes=5)) == [
        SaveAttemptEnd(1, 1, EndReason.OK, OK, 5),
        SaveEnd(1, EndReason.OK, "", OK),
        TellEnded(1, EndReason.OK),
        TellEmpty(),
    ]


def test_everything_is_saved_before_anything_is_done() -> None:
    """The loop writes all saves of a turn first; within a step they come before their acts too."""
    line = Line()
    line.submits(1, 2)
    line.grants(1)
    kinds = [type(action) for action in line.actions]
    assert kinds.index(SaveBegin) < kinds.index(Launch)
    line.exits(1)
    kinds = [type(action) for action in line.actions]
    assert kinds.index(SaveEnd) < kinds.index(TellEnded)


def test_a_job_may_be_over_before_it_was_seen_to_run() -> None:
    line = Line()
    line.submits(1)
    line.grants(1)
    line.exits(1)
    assert line.ends == {1: EndReason.OK}


def test_a_failure_ends_a_job_with_the_reason() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.exits(1, Exit(3))
    assert line.ends == {1: EndReason.FAILED}
    assert line.texts == {1: "exit status 3"}


def test_a_killed_shim_is_lost_and_never_called_ok() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    (end, *_) = line.loses(1)
    assert isinstance(end, SaveAttemptEnd)
    assert end.reason is EndReason.LOST
    assert end.exit.status is None
    assert line.ends == {1: EndReason.LOST}


def test_the_last_end_says_once_that_the_queue_is_empty() -> None:
    line = Line()
    line.submits(1, 2)
    line.runs(1, 2)
    line.exits(1)
    assert line.said(TellEmpty) == []
    line.exits(2)
    assert len(line.said(TellEmpty)) == 1


# --- whose turn ----------------------------------------------------------------------------


def test_jobs_are_asked_for_by_priority_then_age() -> None:
    line = Line()
    line.loses_negotiator()
    line.submits(1, 2)
    line.submits(3, 4, priority=5)
    line.submits(5, priority=-1)
    line.submits(6)
    line.finds_negotiator()
    assert line.asked == [3, 4, 1, 2, 6, 5]


def test_the_negotiator_is_asked_for_a_bounded_window() -> None:
    line = Line(limits=WindowLimits(window=3))
    line.submits(*range(1, 8))
    assert line.asked == [1, 2, 3]
    line.grants(2)
    assert line.asked == [1, 3, 4]
    line.refuses(1)
    assert line.asked == [3, 4, 5]
    line.cancels(3)
    assert line.asked == [4, 5, 6]


def test_a_better_job_takes_the_place_of_the_last_in_a_full_window() -> None:
    line = Line(limits=WindowLimits(window=2))
    line.submits(1, 2, 3)
    line.submits(4, priority=1)
    assert line.asked == [1, 4]
    assert DropAsk(2) in line.actions
    line.submits(5, 6, priority=2)
    assert sorted(line.asked) == [5, 6]
    line.grants(5)
    assert sorted(line.asked) == [4, 6]


def test_a_job_as_good_as_those_asked_for_takes_nobodys_place() -> None:
    line = Line(limits=WindowLimits(window=2))
    line.submits(2, 3)
    line.submits(1)
    assert line.asked == [2, 3]


def test_no_more_run_at_once_than_the_limit_says() -> None:
    line = Line(limits=WindowLimits(running=2))
    line.submits(1, 2, 3)
    assert line.asked == [1, 2]
    line.runs(1, 2)
    assert line.asked == []
    line.exits(1)
    assert line.asked == [3]
    line.grants(3)
    line.submits(4)
    assert line.asked == []


def test_a_better_job_is_preferred_under_a_limit_too() -> None:
    line = Line(limits=WindowLimits(running=1))
    line.submits(1)
    line.submits(2, priority=3)
    assert line.asked == [2]


# --- trying again --------------------------------------------------------------------------


def test_a_job_is_tried_again_only_if_it_was_asked_to_be() -> None:
    line = Line()
    line.submits(a_spec(1, retries=2))
    for attempt in (1, 2, 3):
        assert line.engine.jobs[1].tries_left == 3 - attempt
        line.runs(1)
        assert line.launched[-1] == (1, attempt)
        assert line.ends == {}
        line.exits(1, FAILED)
    assert line.ends == {1: EndReason.FAILED}


def test_a_try_again_is_saved_and_asks_under_a_new_number() -> None:
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.runs(1)
    line.exits(1, FAILED)
    assert line.said(SaveState) == [SaveState(1, QUEUED, 1, 0, 0, False, 0, 1)]
    assert [ask.attempt for ask in line.said(AskLease)] == [2]


def test_out_of_memory_while_sharing_is_tried_again_first_in_line_and_not_counted() -> None:
    line = Line(limits=WindowLimits(window=1))
    line.submits(1, 2)
    line.submits(3, priority=9)
    line.runs(3, 1)
    assert line.asked == [2]
    line.exits(1, OUT_OF_MEMORY, SHARING)
    assert line.asked == [1]
    (ask,) = line.said(AskLease)
    assert (ask.attempt, ask.memory_attempt) == (2, 1)
    assert line.said(SaveState)[0].memory_attempt == 1
    assert line.engine.jobs[1].tries_left == 0
    line.submits(4, priority=1000)
    assert line.asked == [1]


def test_out_of_memory_is_tried_again_a_few_times_at_most() -> None:
    line = Line()
    line.submits(1)
    for attempt in range(MAX_MEMORY_ATTEMPTS + 1):
        assert line.engine.jobs[1].memory_attempt == attempt
        line.runs(1)
        line.exits(1, OUT_OF_MEMORY, SHARING)
    assert line.ends == {1: EndReason.OUT_OF_MEMORY}


def test_a_victim_of_others_is_tried_again_first_in_line_with_the_room_it_had() -> None:
    line = Line(limits=WindowLimits(window=1))
    line.submits(1, 2)
    line.runs(1)
    settled = Settlement("oom", was_alone=False, is_victim=True, because="b.py took its room")
    line.exits(1, OUT_OF_MEMORY, settled)
    (end,) = line.said(SaveAttemptEnd)
    (ask,) = line.said(AskLease)
    assert (end.reason, end.text) == (EndReason.OUT_OF_MEMORY, "b.py took its room")
    assert (ask.spec.id, ask.memory_attempt, ask.is_spared) == (1, 0, True)
    assert line.saved[1].spared == 1
    line.awaits(1, "no room")
    assert line.why(1) == "b.py took its room; no room"


def test_an_attempt_that_an_earlier_queue_ended_as_requeued_runs_again_uncounted() -> None:
    line = Line(kept(1, RUNNING, attempt=1, lease="lease-1", found=AttemptFate.ENDED))
    line.exits(1, Exit(None, 15, EndReason.REQUEUED))
    (ask,) = line.said(AskLease)
    assert (ask.spec.id, ask.attempt, line.engine.jobs[1].tries_left) == (1, 2, 0)


def test_out_of_memory_alone_is_the_jobs_own() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.exits(1, OUT_OF_MEMORY, ALONE)
    assert line.ends == {1: EndReason.OUT_OF_MEMORY}


def test_out_of_memory_alone_is_tried_again_if_retries_are_left() -> None:
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.runs(1)
    line.exits(1, OUT_OF_MEMORY, ALONE)
    assert line.engine.jobs[1].tries_left == 0
    assert line.engine.jobs[1].memory_attempt == 0


def test_a_lost_shim_counts_as_a_try() -> None:
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.runs(1)
    line.loses(1)
    assert line.asked == [1]
    line.runs(1)
    line.loses(1)
    assert line.ends == {1: EndReason.LOST}


# --- what comes after what -----------------------------------------------------------------


def test_a_job_waits_for_the_one_it_comes_after() -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, after=[1]))
    assert line.asked == [1]
    assert line.why(2) == "waiting for job 1 to finish"
    line.runs(1)
    line.exits(1)
    assert line.asked == [2]


@pytest.mark.parametrize("exit", [FAILED, Exit(None, 9), OUT_OF_MEMORY])
def test_a_job_is_skipped_when_the_one_before_did_not_end_well(exit: Exit) -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, after=[1]))
    line.runs(1)
    line.exits(1, exit, ALONE if exit is OUT_OF_MEMORY else Settlement())
    assert line.ends[2] is EndReason.SKIPPED
    assert line.texts[2] == "it depends on job 1, which did not succeed"


@pytest.mark.parametrize("exit", [OK, FAILED])
def test_a_job_after_any_end_runs_however_the_one_before_ended(exit: Exit) -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, after=[After(1, must_be_ok=False)]))
    line.runs(1)
    line.exits(1, exit)
    assert line.asked == [2]


def test_a_job_after_several_waits_for_all() -> None:
    line = Line()
    line.submits(1, 2, 3)
    line.submits(a_spec(4, after=[1, 2, After(3, must_be_ok=False)]))
    line.runs(1, 2, 3)
    line.exits(1)
    line.exits(3, FAILED)
    assert line.why(4) == "waiting for job 2 to finish"
    line.exits(2)
    assert line.asked == [4]


def test_one_bad_end_of_several_is_enough_and_said_once() -> None:
    line = Line()
    line.submits(1, 2)
    line.submits(a_spec(3, after=[1, 2]))
    line.runs(1, 2)
    line.exits(1, FAILED)
    assert line.ends == {1: EndReason.FAILED, 3: EndReason.SKIPPED}
    line.exits(2, FAILED)
    assert list(line.ends) == [1, 3, 2]


def test_a_chain_is_skipped_to_its_end_but_for_those_that_come_after_any() -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, after=[1]))
    line.submits(a_spec(3, after=[2]))
    line.submits(a_spec(4, after=[After(3, must_be_ok=False)]))
    line.runs(1)
    line.exits(1, FAILED)
    assert line.ends == {1: EndReason.FAILED, 2: EndReason.SKIPPED, 3: EndReason.SKIPPED}
    assert line.asked == [4]


def test_a_chain_of_any_length_is_skipped_at_once() -> None:
    line = Line()
    line.submits(1)
    line.submits(*(a_spec(job, after=[job - 1]) for job in range(2, 5001)))
    line.cancels(1)
    assert len(line.ends) == 5000
    assert line.ends[5000] is EndReason.SKIPPED
    assert len(line.said(TellEmpty)) == 1


def test_a_skipped_chain_says_once_that_the_queue_is_empty() -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, after=[1]))
    line.submits(a_spec(3, after=[2]))
    line.runs(1)
    line.exits(1, FAILED)
    assert line.said(TellEmpty) == [TellEmpty()]
    assert line.actions[-1] == TellEmpty()


@pytest.mark.parametrize(
    ("ended_well", "must_be_ok", "runs"),
    [(True, True, True), (True, False, True), (False, True, False), (False, False, True)],
)
def test_a_job_may_come_after_one_that_has_ended_already(
    ended_well: bool, must_be_ok: bool, runs: bool
) -> None:
    line = Line()
    line.submits(a_spec(2, after=[After(1, must_be_ok)]), ends={1: ended_well})
    assert line.asked == ([2] if runs else [])
    assert line.ends == ({} if runs else {2: EndReason.SKIPPED})
    assert bool(line.said(TellEmpty)) != runs


def test_a_job_that_is_tried_again_keeps_those_after_it_waiting() -> None:
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.submits(a_spec(2, after=[1]))
    line.runs(1)
    line.exits(1, FAILED)
    assert line.why(2) == "waiting for job 1 to finish"
    line.runs(1)
    line.exits(1)
    assert line.asked == [2]


def test_a_cancelled_or_refused_job_did_not_end_well() -> None:
    line = Line()
    line.submits(1, 2)
    line.submits(a_spec(3, after=[1]))
    line.submits(a_spec(4, after=[2]))
    line.cancels(1)
    line.refuses(2)
    assert line.ends[3] is line.ends[4] is EndReason.SKIPPED


# --- hold, move, drain ---------------------------------------------------------------------


def test_a_held_job_is_not_asked_for_until_it_is_released() -> None:
    line = Line()
    line.submits(1, 2, is_held=True)
    assert line.asked == []
    assert [saved.is_held for saved in line.said(SaveState)] == [True, True]
    line.releases(2)
    assert line.asked == [2]
    assert line.said(SaveState)[0].is_held is False


def test_holding_a_job_takes_its_request_back() -> None:
    line = Line()
    line.submits(1)
    line.holds(1)
    assert line.said(DropAsk) == [DropAsk(1)]
    assert line.holds(1) == []
    line.releases(1)
    assert line.asked == [1]
    assert line.releases(1) == []


def test_holding_makes_room_for_the_next_in_a_full_window() -> None:
    line = Line(limits=WindowLimits(window=1))
    line.submits(1, 2)
    line.holds(1)
    assert line.asked == [2]
    line.releases(1)
    assert line.asked == [2]


def test_a_job_that_runs_cannot_be_held() -> None:
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.runs(1)
    assert line.holds(1) == []
    line.exits(1, FAILED)
    assert line.asked == [1]


def test_a_held_job_that_comes_after_another_needs_both() -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, after=[1]), is_held=True)
    line.releases(2)
    assert line.why(2) == "waiting for job 1 to finish"
    line.holds(2)
    line.runs(1)
    line.exits(1)
    assert line.asked == []
    line.releases(2)
    assert line.asked == [2]


def test_a_held_job_is_skipped_like_any_other() -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, after=[1]), is_held=True)
    line.cancels(1)
    assert line.ends[2] is EndReason.SKIPPED


def test_a_moved_job_goes_before_those_it_was_moved_before() -> None:
    line = Line()
    line.submits(1, 2, 3)
    line.moves(3, to_front=True)
    assert line.asked == [3, 1, 2], "the negotiator goes by who asked first"
    line.moves(1, 2, to_front=True)
    assert line.asked == [1, 2, 3]


def test_a_job_moved_back_goes_after_all_others() -> None:
    line = Line()
    line.submits(1, 2, 3)
    line.moves(1, to_front=False)
    assert line.asked == [2, 3, 1]
    assert [drop.job for drop in line.said(DropAsk)] == [1], "nobody else need ask again"
    line.submits(4)
    assert line.asked == [2, 3, 1, 4]


def test_a_job_moved_to_the_front_comes_into_a_full_window() -> None:
    line = Line(limits=WindowLimits(window=2))
    line.submits(1, 2, 3, 4)
    line.moves(4, to_front=True)
    assert line.asked == [4, 1]
    line.grants(4)
    assert line.asked == [1, 2]


def test_another_priority_is_told_to_the_negotiator_too() -> None:
    line = Line()
    line.submits(1, 2)
    line.moves(2, priority=7)
    (ask,) = line.said(AskLease)
    assert (ask.spec.id, ask.spec.priority) == (2, 7)
    assert line.said(SaveState)[0].priority == 7


def test_a_place_and_a_priority_are_given_together() -> None:
    line = Line()
    line.submits(1, 2, 3, priority=1)
    line.submits(4)
    line.moves(4, priority=1, to_front=True)
    assert line.asked == [4, 1, 2, 3]


def test_only_queued_jobs_are_moved() -> None:
    line = Line()
    line.submits(1, 2)
    line.runs(1)
    assert line.moves(1, priority=5) == []
    assert line.moves(99, to_front=True) == []


def test_moving_does_not_release_a_held_job() -> None:
    line = Line()
    line.submits(1, is_held=True)
    line.submits(2)
    line.moves(1, to_front=True)
    assert line.asked == [2]
    line.releases(1)
    assert sorted(line.asked) == [1, 2]


def test_a_drained_queue_starts_nothing_and_lets_run_what_runs() -> None:
    line = Line()
    line.submits(1, 2, 3)
    line.runs(1)
    line.drains()
    assert line.said(SaveDrain) == [SaveDrain(True)]
    assert line.asked == []
    line.submits(4)
    assert line.asked == []
    line.exits(1)
    assert line.asked == []
    line.drains(False)
    assert line.said(SaveDrain) == [SaveDrain(False)]
    assert line.asked == [2, 3, 4]


# --- cancel --------------------------------------------------------------------------------


def test_a_queued_job_is_cancelled_at_once() -> None:
    line = Line()
    line.submits(1)
    assert line.cancels(1) == [
        DropAsk(1),
        SaveEnd(1, EndReason.CANCELLED, "", None),
        TellEnded(1, EndReason.CANCELLED),
        TellEmpty(),
    ]
    assert line.cancels(1) == []


def test_held_and_waiting_jobs_are_cancelled_like_others() -> None:
    line = Line()
    line.submits(1, is_held=True)
    line.submits(a_spec(2, after=[After(1, must_be_ok=False)]))
    line.cancels(2, 1)
    assert line.ends == {1: EndReason.CANCELLED, 2: EndReason.CANCELLED}
    assert line.asked == []


def test_a_running_job_is_asked_to_end_and_ends_when_it_has() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    assert line.cancels(1) == [SaveState(1, STOPPING, 1, 0, 0, False, 0, 1), Stop(1, 1, False)]
    line.exits(1, Exit(None, 15, EndReason.CANCELLED))
    assert line.ends == {1: EndReason.CANCELLED}


def test_a_cancel_that_overtakes_the_start_still_stops_the_job() -> None:
    line = Line()
    line.submits(1)
    line.grants(1)
    line.cancels(1)
    assert line.said(Stop) == [Stop(1, 1, False)]
    line.starts(1)
    assert line.state(1) is STOPPING
    line.exits(1, Exit(None, 15))
    assert line.ends == {1: EndReason.CANCELLED}


def test_a_cancel_while_the_grant_is_on_its_way_gives_it_back() -> None:
    line = Line()
    line.submits(1, 2)
    line.cancels(1)
    assert line.grants(1, "late") == [ReturnLease("late")]
    line.holds(2)
    assert line.grants(2, "later") == [ReturnLease("later")]
    assert line.launched == []


def test_a_grant_that_comes_after_a_drain_is_given_back() -> None:
    line = Line()
    line.submits(1)
    line.drains()
    assert line.grants(1, "late") == [ReturnLease("late")]


def test_a_second_cancel_is_in_earnest() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.cancels(1)
    line.cancels(1, is_now=True)
    assert line.said(Stop) == [Stop(1, 1, True)]
    assert line.state(1) is STOPPING


def test_a_cancelled_job_is_not_tried_again() -> None:
    line = Line()
    line.submits(a_spec(1, retries=5), a_spec(2, retries=5), a_spec(3, retries=5))
    line.runs(1, 2, 3)
    line.cancels(1, 2, 3)
    line.exits(1, FAILED)
    line.loses(2)
    line.exits(3, OUT_OF_MEMORY, SHARING)
    assert set(line.ends.values()) == {EndReason.CANCELLED}


def test_a_job_that_ends_well_before_it_hears_of_the_cancel_ended_well() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.cancels(1)
    line.exits(1, OK)
    assert line.ends == {1: EndReason.OK}


def test_cancelling_makes_room_for_the_next() -> None:
    line = Line(limits=WindowLimits(window=1))
    line.submits(1, 2)
    line.cancels(1)
    assert line.asked == [2]


# --- what the negotiator says --------------------------------------------------------------


def test_a_job_that_can_never_run_ends_with_the_reason() -> None:
    line = Line()
    line.submits(1)
    line.refuses(1, "you asked for 3 GPUs; this machine has 2.")
    assert line.ends == {1: EndReason.REFUSED}
    assert line.texts == {1: "you asked for 3 GPUs; this machine has 2."}


def test_a_refusal_of_what_was_taken_back_means_nothing() -> None:
    line = Line()
    line.submits(1)
    line.holds(1)
    assert line.refuses(1) == []


def test_a_negotiator_that_comes_back_is_asked_for_the_jobs_submitted_meanwhile() -> None:
    """The lease conversation repeats the requests that are open."""
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.submits(2, 3, priority=1)
    line.runs(1)
    line.exits(1, FAILED)
    line.loses_negotiator()
    line.submits(4, priority=9)
    assert line.asked == [2, 3, 1]
    line.finds_negotiator()
    asks = [(ask.spec.id, ask.attempt) for ask in line.said(AskLease)]
    assert asks == [(4, 1)]


def test_jobs_run_on_while_there_is_no_negotiator() -> None:
    line = Line()
    line.submits(1, 2)
    line.runs(1)
    line.loses_negotiator()
    line.exits(1)
    assert line.ends == {1: EndReason.OK}
    assert line.why(2) == NO_NEGOTIATOR
    assert "`grn start --virtual 2x2GiB`" in NO_NEGOTIATOR, "the way out on a machine without GPUs"


# --- a lease passed on ---------------------------------------------------------------------


def test_the_lease_of_a_short_job_is_passed_on_to_the_next_of_its_kind() -> None:
    line = Line()
    line.submits(1, 2, 3)
    line.grants(1, "L")
    line.exits(1, OK, None, after_s=0.01)
    assert line.launched == [(1, 1), (2, 1)]
    assert line.said(Launch) == [Launch(2, 1, "L", "0")]
    assert line.said(DropAsk) == [DropAsk(2)]
    assert line.said(ReturnLease) == []
    assert line.ends == {1: EndReason.OK}
    assert line.asked == [3]


def test_what_was_asked_for_the_heir_serves_the_next_in_line() -> None:
    line = Line(limits=WindowLimits(window=1))
    line.submits(1, 2, 3)
    line.grants(1, "L")
    line.exits(1, OK, None, after_s=0.01)
    assert line.said(PassAsk) == [PassAsk(2, AskLease(a_spec(3), 1, 0))]
    assert line.said(AskLease) == []
    assert line.asked == [3]
    line.grants(3, "M")
    assert line.said(Launch) == [Launch(3, 1, "M", "0")]


@pytest.mark.parametrize(
    ("changes", "may_pass_on", "after_s"),
    [
        ({"job_type": "other.py"}, True, 0.01),
        ({"gpus": 2}, True, 0.01),
        ({"mem_bytes": 5}, True, 0.01),
        ({"is_exclusive": True}, True, 0.01),
        ({"priority": 1}, True, 0.01),
        ({}, False, 0.01),
        ({}, True, PASS_ON_S + 0.01),
    ],
)
def test_a_lease_is_passed_on_only_to_its_like_and_only_for_a_moment(
    changes: dict[str, object], may_pass_on: bool, after_s: float
) -> None:
    line = Line()
    line.submits(1)
    line.submits(a_spec(2, **changes))
    line.grants(1, "L", may_pass_on=may_pass_on)
    line.exits(1, OK, None, after_s=after_s)
    assert line.said(ReturnLease) == [ReturnLease("L", OK)]
    assert line.launched == [(1, 1)]
    assert line.asked == [2]


def test_a_lease_is_passed_on_for_a_moment_in_all_not_for_each() -> None:
    line = Line()
    line.submits(*range(1, 100))
    line.grants(1, "L")
    job = 1
    while not line.said(ReturnLease):
        line.exits(job, OK, None, after_s=0.02)
        job += 1
    assert line.at == pytest.approx(PASS_ON_S + 0.02, abs=0.02)


def test_a_lease_is_not_passed_over_the_head_of_a_better_job() -> None:
    line = Line(limits=WindowLimits(window=1))
    line.submits(1, 2)
    line.grants(1, "L")
    line.submits(a_spec(3, job_type="other.py", priority=2))
    line.exits(1, OK, None, after_s=0.01)
    assert line.said(ReturnLease) == [ReturnLease("L", OK)]


def test_a_lease_is_not_passed_on_in_a_drained_queue() -> None:
    line = Line()
    line.submits(1, 2)
    line.grants(1, "L")
    line.drains()
    line.exits(1, OK, None, after_s=0.01)
    assert line.said(ReturnLease) == [ReturnLease("L", OK)]
    assert line.launched == [(1, 1)]


def test_passing_on_keeps_to_the_limit_of_running_jobs() -> None:
    line = Line(limits=WindowLimits(running=2))
    line.submits(*range(1, 9))
    line.grants(1)
    line.exits(1, OK, None, after_s=0.01)
    line.exits(2, OK, None, after_s=0.01)
    assert line.engine.counts() == {"running": 1, "queued": 5, "held": 0}
    assert len(line.asked) == 1


# --- after a restart -----------------------------------------------------------------------


def test_queued_jobs_are_asked_for_again_in_their_order() -> None:
    line = Line(kept(1), kept(2, place=-5), kept(3, priority=2), kept(4, is_held=True))
    assert line.asked == [3, 2, 1]
    assert line.why(4).startswith("held")


def test_what_was_saved_of_a_job_is_so_again() -> None:
    line = Line(kept(1, attempt=3, tries_left=2, memory_attempt=1))
    (ask,) = [action for action in line.begun if isinstance(action, AskLease)]
    assert (ask.attempt, ask.memory_attempt) == (4, 1)
    assert line.engine.jobs[1].tries_left == 2


def test_an_attempt_that_had_not_begun_is_made_under_another_number() -> None:
    line = Line(kept(1, STARTING, attempt=1, found=AttemptFate.NOT_BEGUN, lease="L"))
    ends = [action for action in line.begun if isinstance(action, SaveAttemptEnd)]
    assert [(end.job, end.attempt) for end in ends] == [(1, 1)], "it has a stated reason"
    assert line.asked == [1]
    line.grants(1)
    assert line.launched == [(1, 2)]


def test_a_cancelled_attempt_that_had_not_begun_is_cancelled() -> None:
    line = Line(kept(1, STOPPING, attempt=1, found=AttemptFate.NOT_BEGUN, lease="L"))
    assert line.ends == {1: EndReason.CANCELLED}
    assert line.asked == []


@pytest.mark.parametrize("state", [STARTING, RUNNING])
def test_a_living_attempt_goes_on(state: JobState) -> None:
    line = Line(kept(1, state, attempt=2, found=AttemptFate.ALIVE, lease="L"))
    assert line.begun == [WatchLease("L")]
    assert line.state(1) is RUNNING
    line.exits(1)
    assert line.ends == {1: EndReason.OK}


def test_a_living_attempt_that_was_cancelled_is_told_again_to_stop() -> None:
    line = Line(kept(1, STOPPING, attempt=2, found=AttemptFate.ALIVE, lease="L"))
    assert line.begun == [Stop(1, 2, False), WatchLease("L")]
    line.exits(1, Exit(None, 15, EndReason.CANCELLED))
    assert line.ends == {1: EndReason.CANCELLED}


@pytest.mark.parametrize("found", [AttemptFate.ENDED, AttemptFate.LOST])
def test_an_attempt_that_is_over_waits_for_its_end_to_be_told(found: AttemptFate) -> None:
    line = Line(kept(1, RUNNING, attempt=1, found=found, lease="L"))
    assert line.begun == [WatchLease("L")]
    if found is AttemptFate.ENDED:
        line.exits(1, Exit(4))
        assert line.ends == {1: EndReason.FAILED}
    else:
        line.loses(1)
        assert line.ends == {1: EndReason.LOST}


def test_an_interrupted_job_ends_as_such() -> None:
    line = Line(kept(1, RUNNING, attempt=1, found=AttemptFate.INTERRUPTED, lease="L", tries_left=3))
    assert line.ends == {1: EndReason.INTERRUPTED}
    (end,) = [action for action in line.begun if isinstance(action, SaveAttemptEnd)]
    assert (end.attempt, end.reason) == (1, EndReason.INTERRUPTED)


def test_an_interrupted_job_runs_again_if_it_was_asked_to() -> None:
    line = Line(
        kept(1, RUNNING, attempt=1, found=AttemptFate.INTERRUPTED, lease="L", may_requeue=True)
    )
    assert line.ends == {}
    assert line.asked == [1]
    line.grants(1)
    assert line.launched == [(1, 2)]


def test_an_interrupted_job_that_was_cancelled_does_not_run_again() -> None:
    line = Line(
        kept(1, STOPPING, attempt=1, found=AttemptFate.INTERRUPTED, lease="L", may_requeue=True)
    )
    assert list(line.ends) == [1]


def test_what_comes_after_what_is_so_again() -> None:
    jobs = [kept(2, RUNNING, attempt=1, found=AttemptFate.ALIVE), kept(3, after=[1, 2])]
    line = Line(*jobs, ends={1: True})
    assert line.why(3) == "waiting for job 2 to finish"
    line.exits(2)
    assert line.asked == [3]


def test_those_after_a_bad_end_are_skipped_also_when_the_queue_was_away() -> None:
    line = Line(kept(2, after=[1]), kept(3, after=[2]), ends={1: False})
    assert line.ends == {2: EndReason.SKIPPED, 3: EndReason.SKIPPED}


def test_a_job_that_was_cleaned_away_had_ended_well() -> None:
    """Had it ended badly, those after it would have been skipped in the same moment."""
    line = Line(kept(2), kept(3, after=[1, 2]))
    assert line.why(3) == "waiting for job 2 to finish"


def test_those_after_an_interrupted_job_are_skipped() -> None:
    line = Line(kept(1, RUNNING, attempt=1, found=AttemptFate.INTERRUPTED), kept(2, after=[1]))
    assert line.ends == {1: EndReason.INTERRUPTED, 2: EndReason.SKIPPED}


def test_a_drained_queue_comes_up_drained() -> None:
    line = Line(kept(1), is_drained=True)
    assert line.asked == []
    line.drains(False)
    assert line.asked == [1]


# --- what cannot be carried out, and damaged records ---------------------------------------


def test_a_job_whose_lease_cannot_be_asked_for_ends_with_the_reason_and_others_go_on() -> None:
    line = Line()
    line.submits(1, 2, a_spec(3, after=[1]))
    line.tell(ActionFailed(1.0, 1, 1, "its record is damaged"))
    assert line.ends == {1: EndReason.LOST, 3: EndReason.SKIPPED}
    assert line.texts[1] == "its record is damaged"
    assert line.asked == [2]


def test_a_job_that_cannot_be_launched_ends_with_the_reason_and_gives_its_lease_back() -> None:
    line = Line()
    line.submits(a_spec(1, retries=3), a_spec(2))
    line.grants(1, "L")
    line.tell(ActionFailed(1.0, 1, 1, "its record is damaged"))
    assert line.ends == {1: EndReason.LOST}
    assert line.said(ReturnLease) == [ReturnLease("L")]
    assert [one.reason for one in line.said(SaveAttemptEnd)] == [EndReason.LOST]
    assert line.engine.counts() == {"running": 0, "queued": 1, "held": 0}


def test_a_launch_that_failed_for_a_cancelled_job_leaves_it_cancelled() -> None:
    line = Line()
    line.submits(1)
    line.grants(1)
    line.cancels(1)
    line.tell(ActionFailed(1.0, 1, 1, "its record is damaged"))
    assert line.ends == {1: EndReason.CANCELLED}


@pytest.mark.parametrize("attempt", [0, 2])
def test_a_failed_action_of_another_attempt_means_nothing(attempt: int) -> None:
    line = Line()
    line.submits(1)
    line.grants(1)
    assert line.tell(ActionFailed(1.0, 1, attempt, "late")) == []


def test_a_damaged_job_that_waited_is_set_aside_and_takes_along_what_needs_it() -> None:
    line = Line(
        kept(1, after=[2]), kept(2, fault="damaged"), kept(3), kept(4, after=[After(2, False)])
    )
    assert line.ends == {2: EndReason.LOST, 1: EndReason.SKIPPED}
    assert line.texts[2] == "damaged"
    assert line.asked == [3, 4]


def test_a_damaged_job_that_runs_goes_on_and_is_never_run_again() -> None:
    line = Line(kept(1, RUNNING, attempt=1, tries_left=5, found=AttemptFate.ALIVE, fault="damaged"))
    assert line.state(1) is RUNNING
    line.exits(1, FAILED)
    assert (line.ends, line.texts) == ({1: EndReason.LOST}, {1: "damaged"})


def test_a_damaged_job_that_ends_well_has_ended_well() -> None:
    line = Line(kept(1, RUNNING, attempt=1, found=AttemptFate.ALIVE, fault="damaged"))
    line.exits(1, OK)
    assert line.ends == {1: EndReason.OK}


@pytest.mark.parametrize("found", [AttemptFate.NOT_BEGUN, AttemptFate.INTERRUPTED])
def test_a_damaged_job_is_not_run_again_after_a_restart(found: AttemptFate) -> None:
    line = Line(kept(1, STARTING, attempt=1, may_requeue=True, found=found, fault="damaged"))
    assert line.ends == {1: EndReason.LOST}
    assert line.launched == []


# --- every wait has a reason ---------------------------------------------------------------


def test_each_wait_says_why() -> None:
    line = Line(limits=WindowLimits(window=1, running=2))
    line.submits(1, 2, 3, 4)
    line.submits(a_spec(5, after=[1, 2]))
    line.submits(6, is_held=True)
    assert line.why(1) == "asking for a GPU"
    line.awaits(1, "no GPU has 4 GiB free")
    assert line.why(1) == "no GPU has 4 GiB free"
    assert line.why(2) == "behind 1 other job of yours"
    assert line.why(5) == "waiting for jobs 1, 2 to finish"
    assert line.why(6) == "held: run `grn release` to let it start"
    line.awaits(1, "needs 2 GPUs at once")
    assert line.why(1) == "needs 2 GPUs at once"
    line.grants(1)
    line.awaits(1, "heard too late")
    assert line.why(1) == "starting"
    line.starts(1)
    assert line.why(1) == "running"
    line.runs(2)
    assert line.why(3) == "this queue runs at most 2 jobs at a time"
    line.cancels(1)
    assert line.why(1) == "stopping"
    line.loses_negotiator()
    assert line.why(3) == NO_NEGOTIATOR
    line.drains()
    assert line.why(3) == "the queue is paused: run `grn drain --off` to resume"
    assert line.why(6).startswith("held")


def test_a_reason_names_jobs_of_this_queue_by_their_ids() -> None:
    line = Line()
    line.submits(1, 2)
    line.grants(1, "1f2e3d4c")
    line.starts(1)
    line.awaits(2, "GPU 0 has a.py (lease 1f2e3d4c, exclusive), GPU 1 has b.py (lease 5a6b7c8d)")
    assert line.why(2) == "GPU 0 has a.py (job 1, exclusive), GPU 1 has b.py (lease 5a6b7c8d)"
    line.exits(1)
    assert line.why(2).startswith("GPU 0 has a.py (lease 1f2e3d4c, exclusive)")


def test_an_old_reason_is_not_told_of_a_new_try() -> None:
    line = Line()
    line.submits(a_spec(1, retries=1))
    line.awaits(1, "no room")
    line.runs(1)
    line.exits(1, FAILED)
    assert line.why(1) == "asking for a GPU"


def test_a_reason_for_a_job_that_is_gone_means_nothing() -> None:
    line = Line()
    assert line.awaits(7, "no room") == []


def test_jobs_are_counted() -> None:
    line = Line()
    line.submits(1, 2, 3, is_held=True)
    line.submits(4)
    line.runs(4)
    assert line.engine.counts() == {"running": 1, "queued": 0, "held": 3}
    line.tell(HoldAsked(1.0, (1, 2), is_held=False))
    line.tell(CancelAsked(2.0, (3,)))
    assert line.engine.counts() == {"running": 1, "queued": 2, "held": 0}


# --- groups --------------------------------------------------------------------------------


def test_when_its_submitter_ends_a_group_is_cancelled_and_nothing_else() -> None:
    line = Line()
    line.submits(1, 2, submitter="one")
    line.submits(3, submitter="two")
    line.submits(4)
    line.runs(1)

    line.tell(SubmitterGone(line.at, "one"))

    assert line.said(Stop) == [Stop(1, 1, is_now=False)]
    assert line.ends == {2: EndReason.CANCELLED}
    assert line.texts[2] == "the process that submitted it has ended"
    line.exits(1, Exit(None, 15, EndReason.CANCELLED))
    assert line.ends[1] is EndReason.CANCELLED
    assert line.asked == [3, 4]


def test_a_tied_job_waits_for_its_submitter_before_it_runs_again() -> None:
    line = Line()
    line.submits(1, submitter="one", retries=1)
    line.runs(1)
    line.exits(1, FAILED)

    assert (line.state(1), line.asked) == (QUEUED, [])
    line.releases(1)
    assert line.asked == [1]


def test_an_attempt_that_never_began_is_repeated_without_its_submitter() -> None:
    line = Line(kept(1, STARTING, attempt=1, found=AttemptFate.NOT_BEGUN, submitter="one"))

    assert line.asked == [1]


@pytest.mark.parametrize("exit", [FAILED, Exit(127, because=EndReason.NOT_RUNNABLE)])
def test_a_failure_ends_the_line_of_a_group_that_is_to_fail_fast(exit: Exit) -> None:
    line = Line()
    mine = {"group": "g", "submitter": "one", "is_fail_fast": True}
    line.submits(1, 2, 3, **mine)
    line.submits(4, **mine | {"group": "other"})
    line.runs(1, 2)
    line.exits(1, exit)

    assert line.ends.keys() == {1, 3}
    assert line.ends[3] is EndReason.CANCELLED
    assert line.texts[3] == "job 1 of its group has failed"
    assert line.state(2) is RUNNING
    assert line.asked == [4]


def test_a_retry_and_a_cancel_are_no_failures_of_a_group() -> None:
    line = Line()
    line.submits(1, 2, 3, group="g", is_fail_fast=True, retries=1)
    line.runs(1)
    line.exits(1, FAILED)
    line.cancels(2)

    assert line.ends.keys() == {2}


# --- leases of attempts that are over ------------------------------------------------------


def test_while_the_negotiator_is_asked_the_next_job_is_prepared() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.submits(2)
    exit = Exit(0, ran_s=finish.SHORT_S)
    asked = SettleLease(1, 1, "lease-1", exit)
    assert line.exits(1, exit, settled=None) == [asked, Prepare(2, 1)]


@pytest.mark.parametrize("exit", [Exit(1), Exit(0, ran_s=finish.SHORT_S)], ids=["failed", "long"])
def test_the_negotiator_is_asked_before_the_end_of_an_attempt_is_judged(exit: Exit) -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    assert line.exits(1, exit, settled=None) == [SettleLease(1, 1, "lease-1", exit)]
    assert line.state(1) is RUNNING
    line.exits(1, exit)
    assert line.ends == {1: EndReason.OK if exit.status == 0 else EndReason.FAILED}
    assert not line.said(ReturnLease)


def test_an_attempt_without_a_lease_is_judged_at_once() -> None:
    line = Line(kept(1, RUNNING, attempt=1, found=AttemptFate.ENDED))
    line.exits(1, Exit(4), settled=None)
    assert line.ends == {1: EndReason.FAILED}


def test_the_lease_of_a_lost_attempt_is_returned() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.loses(1)
    assert line.said(ReturnLease) == [ReturnLease("lease-1")]


def test_the_lease_of_an_attempt_that_never_began_is_returned() -> None:
    line = Line(kept(1, STARTING, attempt=1, found=AttemptFate.NOT_BEGUN, lease="L"))
    assert ReturnLease("L") in line.begun


def test_a_cancel_that_overtook_the_start_is_sent_again() -> None:
    line = Line()
    line.submits(1)
    line.grants(1)
    line.cancels(1)
    assert line.starts(1) == [Stop(1, 1, is_now=False)]


# --- what a node has found -------------------------------------------------------------------


def _finds(line: Line, fate: AttemptFate, job: int = 1, attempt: int = 1) -> list[object]:
    return [*line.tell(AttemptFound(line.at, job, attempt, fate, "gpu2 went down"))]


def test_an_attempt_that_a_node_has_found_alive_goes_on() -> None:
    line = Line()
    line.submits(1)
    line.grants(1)
    assert _finds(line, AttemptFate.ALIVE) == []
    assert line.state(1) is RUNNING
    line.exits(1)
    assert line.ends == {1: EndReason.OK}


def test_a_cancel_that_a_cut_swallowed_is_repeated_when_the_attempt_is_found_alive() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    line.cancels(1)
    assert _finds(line, AttemptFate.ALIVE) == [Stop(1, 1, is_now=False)]
    line.exits(1, Exit(None, signal=15, because=EndReason.CANCELLED))
    assert line.ends == {1: EndReason.CANCELLED}


def test_an_attempt_that_never_began_on_its_node_is_asked_for_again() -> None:
    line = Line()
    line.submits(1)
    line.grants(1, "gpu2/life/L")
    actions = _finds(line, AttemptFate.NOT_BEGUN)
    assert ReturnLease("gpu2/life/L") in actions
    assert line.state(1) is QUEUED
    assert line.asked == [1]
    line.grants(1)
    assert line.launched == [(1, 1), (1, 2)]


@pytest.mark.parametrize("may_requeue", [False, True])
def test_an_attempt_that_went_down_with_its_node_is_interrupted(may_requeue: bool) -> None:
    line = Line()
    line.submits(1, may_requeue=may_requeue)
    line.runs(1)
    _finds(line, AttemptFate.INTERRUPTED)
    (end,) = line.said(SaveAttemptEnd)
    assert (end.reason, end.exit.text) == (EndReason.INTERRUPTED, "gpu2 went down")
    if may_requeue:
        assert line.state(1) is QUEUED
        assert line.asked == [1]
    else:
        assert line.ends == {1: EndReason.INTERRUPTED}
        assert line.texts[1] == "gpu2 went down while it ran"


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        (AttemptFate.NOT_BEGUN, EndReason.CANCELLED),
        (AttemptFate.INTERRUPTED, EndReason.INTERRUPTED),
    ],
)
def test_a_cancelled_attempt_that_is_found_gone_ends_and_is_not_run_again(
    fate: AttemptFate, reason: EndReason
) -> None:
    line = Line()
    line.submits(1, may_requeue=True)
    line.runs(1)
    line.cancels(1)
    _finds(line, fate)
    assert line.ends == {1: reason}


def test_what_is_found_of_another_attempt_or_an_ended_job_means_nothing() -> None:
    line = Line()
    line.submits(1)
    line.runs(1)
    assert _finds(line, AttemptFate.INTERRUPTED, attempt=2) == []
    assert _finds(line, AttemptFate.INTERRUPTED, job=7) == []
    line.exits(1)
    assert _finds(line, AttemptFate.INTERRUPTED) == []
    assert line.ends == {1: EndReason.OK}


# --- limited arrays, and edits ---------------------------------------------------------------


def test_no_more_jobs_of_an_array_run_at_once_than_its_limit() -> None:
    line = Line()
    line.submits(1, 2, 3, 4, array=1, array_limit=2)
    line.submits(5)
    assert line.asked == [1, 2, 5]
    assert line.why(3) == "its array runs at most 2 jobs at a time"
    line.grants(1)
    assert line.asked == [2, 5]
    line.tell(CancelAsked(line.at, (2,)))
    assert line.asked == [5, 3]
    line.tell(HoldAsked(line.at, (3,)))
    assert line.asked == [5, 4]
    line.tell(HoldAsked(line.at, (3,), is_held=False))
    assert line.asked == [5, 4]
    line.tell(CancelAsked(line.at, (4,)))
    assert line.asked == [5, 3]


def test_the_limit_of_an_array_holds_after_a_restart() -> None:
    runs = Kept(a_spec(1, array=1, array_limit=1), JobState.RUNNING, 1, place=1, lease="one")
    waits = Kept(a_spec(2, array=1, array_limit=1), JobState.QUEUED, place=2)
    line = Line(runs._replace(found=AttemptFate.ALIVE), waits)
    assert line.asked == []


def test_an_edited_job_asks_again_with_its_new_needs() -> None:
    line = Line()
    line.submits(1, retries=2)
    line.tell(Edited(line.at, a_spec(1, gpus=2, priority=7, retries=3)))
    assert [action.spec.gpus for action in line.said(AskLease)] == [2]
    assert (line.saved[1].priority, line.saved[1].tries_left) == (7, 3)
