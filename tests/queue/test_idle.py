"""Jobs that hold GPUs and do not use them: the hook, giving way, and the end."""

from __future__ import annotations

from grn.queue.events import Action, RunIdleHook, Stop
from grn.queue.jobs import finish
from grn.queue.jobs.job import EndReason, JobState, Settlement
from tests.queue.builders import CANCELLED, FAILED, OK, Line, a_spec

HOOK = RunIdleHook(1, 1800.0, 4096)
STOP = Stop(1, 1, is_now=False)


def running(**changes: object) -> Line:
    line = Line()
    line.submits(a_spec(1, **changes))
    line.runs(1)
    return line


def test_the_hook_runs_for_an_idle_job_which_goes_on() -> None:
    line = running()

    assert line.is_idle(1) == [HOOK]
    assert line.state(1) is JobState.RUNNING


def test_a_job_that_is_to_end_is_stopped_once_and_has_timed_out() -> None:
    line = running(retries=3)

    assert line.is_idle(1, is_to_end=True) == [STOP, HOOK]
    assert line.is_idle(1, is_to_end=True) == []
    line.exits(1, CANCELLED, Settlement("failed"))
    assert line.ends == {1: EndReason.TIMED_OUT}
    assert "less than 5% of it for 30m00s" in line.texts[1]


def test_a_job_that_ended_by_itself_before_it_was_stopped_keeps_its_end() -> None:
    for exit, reason in ((OK, EndReason.OK), (FAILED, EndReason.FAILED)):
        line = running()
        line.is_idle(1, is_to_end=True)
        line.exits(1, exit, Settlement("failed"))

        assert line.ends == {1: reason}


def test_a_cancel_of_a_job_that_is_ended_as_idle_is_a_cancel() -> None:
    line = running()
    line.is_idle(1, is_to_end=True)
    line.cancels(1)
    line.exits(1, CANCELLED, Settlement("cancelled"))

    assert line.ends == {1: EndReason.CANCELLED}


def test_a_request_to_end_that_comes_before_the_shim_is_repeated() -> None:
    line = Line()
    line.submits(1)
    line.grants(1)
    line.is_idle(1, is_to_end=True)

    assert line.starts(1) == [STOP]


def test_an_idle_job_gives_way_though_it_does_not_yield_and_runs_again() -> None:
    line = running()
    found: list[Action] = line.is_asked_to_yield(1, is_idle=True)

    assert found == [Stop(1, 1, is_now=False, is_yield=True)]
    line.exits(1, CANCELLED, Settlement("yielded"))
    assert (line.state(1), line.ends) == (JobState.QUEUED, {})


def test_a_lease_that_is_not_known_is_ignored() -> None:
    assert Line().is_idle(7, is_to_end=True) == []


def test_only_an_exit_by_the_stop_is_told_as_idle() -> None:
    assert finish.as_idle(FAILED, "idle") is FAILED
    assert finish.as_idle(CANCELLED, "idle").because is EndReason.TIMED_OUT
