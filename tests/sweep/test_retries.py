"""Which tasks are run once more."""

from __future__ import annotations

import pytest

from grn.model.oom_retry import MAX_MEMORY_ATTEMPTS, MAX_SPARED
from grn.sweep.retries import CommandRetries, past
from grn.sweep.task import CommandEnd, Slot, Task

TASK = Task(1, ("train",), "train")
GPU = Slot("0", {})


def failed(task: Task = TASK, slot: Slot = GPU, **how: object) -> CommandEnd:
    return CommandEnd(task, slot, 1, 0.0, 1.0, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_task_is_run_again_as_often_as_asked(retries: int) -> None:
    tries = CommandRetries(retries)
    answers = [tries.after(failed()) for _ in range(retries + 2)]

    assert answers == [TASK] * retries + [None, None]


def test_each_task_has_its_own_tries() -> None:
    tries, other = CommandRetries(1), TASK.but(number=2)

    assert tries.after(failed()) == TASK
    assert tries.after(failed(other)) == other
    assert tries.after(failed()) is None


def test_out_of_memory_beside_others_asks_for_more_room_and_costs_no_try() -> None:
    tries, task = CommandRetries(1), TASK
    for attempt in range(1, MAX_MEMORY_ATTEMPTS + 1):
        again = tries.after(failed(task, is_out_of_memory=True, was_alone=False))
        assert again == task.but(attempt=attempt)
        task = again

    assert tries.after(failed(task, is_out_of_memory=True, was_alone=False)) == task
    assert tries.after(failed(task, is_out_of_memory=True, was_alone=False)) is None


def test_out_of_memory_alone_on_a_gpu_is_a_failure_like_others() -> None:
    assert CommandRetries(0).after(failed(is_out_of_memory=True, was_alone=True)) is None


def test_out_of_memory_alone_goes_on_on_a_larger_gpu_and_costs_no_try() -> None:
    task = TASK.but(attempt=MAX_MEMORY_ATTEMPTS)
    again = CommandRetries(0).after(
        failed(task, is_out_of_memory=True, was_alone=True, has_larger=True)
    )
    assert again == task.but(attempt=MAX_MEMORY_ATTEMPTS + 1)


def test_what_no_gpu_will_ever_do_is_not_tried_again() -> None:
    assert (
        CommandRetries(5).after(failed(slot=Slot("", {}), trouble="more than any GPU has")) is None
    )


def test_a_victim_is_run_again_as_it_is_so_often_and_then_with_more_room() -> None:
    tries, task = CommandRetries(0), TASK
    how = {"is_out_of_memory": True, "was_alone": False, "is_victim": True, "because": "b took it"}
    for spared in range(1, MAX_SPARED + 1):
        again = tries.after(failed(task, **how))
        assert again == task.but(spared=spared, past="b took it")
        task = again

    assert tries.after(failed(task, **how)) == task.but(attempt=1)


def test_what_made_room_for_others_gets_more_room_and_costs_no_try() -> None:
    again = CommandRetries(0).after(failed(is_requeued=True, because="made room for b"))

    assert again == TASK.but(attempt=1, past="made room for b")


def test_what_made_room_too_late_has_run_out_of_memory() -> None:
    how = {"is_requeued": True, "is_out_of_memory": True}

    assert CommandRetries(0).after(failed(**how, was_alone=True)) is None
    assert CommandRetries(0).after(failed(**how, was_alone=False, is_victim=True)) == TASK.but(
        spared=1
    )


def test_a_failure_of_its_own_is_not_told_as_what_others_did() -> None:
    assert CommandRetries(1).after(failed(TASK.but(past="made room for b"))) == TASK


def test_why_tries_were_not_enough_is_told_in_their_order() -> None:
    first = past(failed(is_requeued=True, because="made room for b"), 1)
    both = past(failed(is_out_of_memory=True), 2, first)

    assert both == "attempt 1: requeued, made room for b; attempt 2: out-of-memory"
