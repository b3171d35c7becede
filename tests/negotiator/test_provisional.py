"""Needs by other evidence: runs on GPUs of other models, and runs of other types."""

from __future__ import annotations

from typing import Any

import pytest

from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import Refuse, Settle
from grn.negotiator.learn.memory.provisional import guess_bytes
from tests.builders import Story, a_gpu, a_profile, a_request, a_run

SMALL = a_gpu(0, 8 * GiB, model="Small")
MIDDLE = a_gpu(1, 16 * GiB, model="Middle")
BIG = a_gpu(2, 24 * GiB, model="Big")
GONE = "Card of another machine"


def known(peak_bytes: int, model: str = "Big", **more: Any) -> tuple[Any, ...]:
    return (a_profile(a_run(peak_bytes, **more), model=model),)


def runs_out_alone(story: Story, key: str, used_bytes: int) -> bool:
    """Let a job run out of memory alone on its GPU; return whether it is told of a larger one."""
    story.memory[key] = used_bytes
    story.looks()
    del story.memory[key]
    story.ends(key, Outcome.OUT_OF_MEMORY)
    (end,) = [action for action in story.actions if isinstance(action, Settle)]
    story.memory.clear()
    story.looks()
    return end.settled.has_larger


def test_a_need_learned_on_a_large_gpu_keeps_a_job_off_a_free_small_one() -> None:
    story = Story([SMALL, BIG], profiles=known(12 * GiB))
    assert story.asks("big", job_type="other.py", mem_bytes=20 * GiB) == ["big"]
    assert story.asks("a") == []
    assert story.text("a").startswith("needs 16.6 GiB (12.0 GiB at most")  # on Big, which is busy
    room = "of the GPUs large enough for it, GPU 2 has the most free, 4.0 GiB"
    assert story.text("a").endswith(f"; {room}")  # Small has more
    assert story.asks("b", slots=("0",)) == ["b"]  # nothing else is open to it: it may try
    assert story.ends("big") == ["a"]
    assert story.gpus("a") == [2]


def test_the_wait_names_the_model_that_showed_the_need() -> None:
    story = Story([SMALL, MIDDLE, BIG], profiles=known(12 * GiB))
    needs = story.engine.view.needs(a_request("a"))
    assert (needs["Small"].is_probe, needs["Small"].because) == (False, "as on Big")
    assert needs["Small"].need_bytes == needs["Big"].need_bytes > 16 * GiB
    # It fits there but for the headroom, and is measured again.
    assert (needs["Middle"].is_probe, needs["Middle"].need_bytes) == (True, 16 * GiB)


def test_a_job_that_took_all_of_a_gpu_is_kept_off_a_smaller_one() -> None:
    story = Story([SMALL, BIG], profiles=known(22 * GiB))
    assert story.asks("x", job_type="other.py", mem_bytes=20 * GiB) == ["x"]
    assert story.asks("a") == []
    assert story.ends("x") == ["a"]
    assert story.gpus("a") == [2]


def test_a_type_that_takes_all_of_gpus_of_two_sizes_may_try_on_a_third() -> None:
    profiles = known(22 * GiB) + known(15 * GiB, "Middle")
    story = Story([SMALL, MIDDLE, BIG], profiles=profiles)
    for key, size in (("x", 20), ("y", 12)):
        story.asks(key, job_type=f"{key}.py", mem_bytes=size * GiB)
    assert story.asks("a") == ["a"]
    assert (story.gpus("a"), story.leases["a"].is_probe) == ([0], True)


@pytest.mark.parametrize("grows_to_gib", [12, 14])
def test_a_first_run_that_still_goes_keeps_siblings_off_a_gpu_too_small(grows_to_gib: int) -> None:
    story = Story([SMALL, BIG])
    assert story.asks("first", is_command=True) == ["first"]
    assert story.gpus("first") == [2]
    for step in range(240):  # flat at 12 GiB, or growing all the time
        story.memory["first"] = 12 * GiB + (grows_to_gib - 12) * step * GiB // 240
        story.looks()
    assert story.asks("sibling") == []
    assert story.engine.view.needs(a_request("x"))["Small"].because.startswith("a run on Big used")
    story.memory.clear()
    assert story.ends("first") + story.looks() == ["sibling"]
    assert story.gpus("sibling") == [2]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY])
def test_what_a_failed_run_used_keeps_its_type_off_a_gpu_too_small(outcome: Outcome) -> None:
    story = Story([SMALL, BIG], profiles=known(12 * GiB, outcome=outcome))
    story.asks("x", job_type="x.py", mem_bytes=20 * GiB)
    assert story.asks("a") == []
    assert story.ends("x") == ["a"]
    assert story.gpus("a") == [2]


def test_a_failed_run_on_a_small_gpu_is_the_least_guess_for_a_larger_one() -> None:
    failed = known(15 * GiB, "Middle", outcome=Outcome.FAILED)
    story = Story([SMALL, MIDDLE, BIG], profiles=failed)
    need = story.engine.view.needs(a_request("a"))["Big"]
    assert (need.need_bytes, need.is_probe) == (15 * GiB, True)


def test_arguments_that_needed_more_elsewhere_are_not_tried_where_others_were_enough() -> None:
    small = a_profile(a_run(3 * GiB, arguments=(("batch", 8.0),)), model="Small")
    big = a_profile(a_run(12 * GiB, arguments=(("batch", 64.0),)), model="Big")
    story = Story([SMALL, BIG], profiles=(small, big))
    story.asks("x", job_type="x.py", mem_bytes=20 * GiB)
    assert story.asks("a", arguments=(("batch", 64.0),)) == []
    assert story.asks("b", arguments=(("batch", 8.0),)) == ["b"]
    assert story.ends("x") == ["a"]
    assert story.gpus("a") == [2]


def test_if_no_gpu_has_that_much_the_largest_tries_once_and_both_numbers_are_told() -> None:
    story = Story([SMALL, MIDDLE], profiles=known(30 * GiB, GONE))
    assert story.asks("a", is_command=True) == ["a"]
    assert (story.gpus("a"), story.leases["a"].is_probe) == ([1], True)
    assert not runs_out_alone(story, "a", 15 * GiB)
    assert story.asks("b", is_command=True) == []
    (refused,) = story.refusals
    assert isinstance(refused, Refuse)
    assert refused.message == (
        f"train.py needs 41.1 GiB, as on {GONE}, and ran out of memory on Middle, the largest GPU "
        "it may use here (16.0 GiB)."
    )
    assert story.asks("c", arguments=(("batch", 1.0),)) == ["c"]  # another job than the one it was
    assert story.asks("d", mem_bytes=2 * GiB, is_command=True) == ["d"]  # a word is believed


def test_out_of_memory_alone_goes_on_where_there_is_more_and_only_there() -> None:
    story = Story([SMALL, MIDDLE, BIG])
    story.asks("x", job_type="x.py", mem_bytes=12 * GiB)  # on Big
    story.asks("y", job_type="y.py", mem_bytes=12 * GiB)  # on Middle
    assert story.asks("a", is_command=True) == ["a"]
    assert story.gpus("a") == [0]
    assert runs_out_alone(story, "a", 7 * GiB)
    assert story.asks("a2", is_command=True, attempt=1) == []
    assert "Small" not in story.text("a2")
    assert story.ends("y") == ["a2"]
    assert story.gpus("a2") == [1]
    assert runs_out_alone(story, "a2", 16 * GiB)
    assert story.asks("a3", is_command=True, attempt=2) == []
    assert story.ends("x") == ["a3"]
    assert story.gpus("a3") == [2]
    assert not runs_out_alone(story, "a3", 24 * GiB)


def test_what_it_reached_is_a_lower_bound_for_all_models() -> None:
    story = Story([SMALL, MIDDLE, BIG])
    for key, size in (("x", 17), ("y", 10)):
        story.asks(key, job_type=f"{key}.py", mem_bytes=size * GiB)
    assert story.asks("a", is_command=True) == ["a"]
    story.memory["a"] = 7 * GiB
    story.looks()
    story.memory.clear()
    story.ends("a", Outcome.OUT_OF_MEMORY, asked_bytes=11 * GiB)  # 18 GiB: too much for Middle
    needs = story.engine.view.needs(a_request("a2", attempt=1))
    assert needs["Small"].need_bytes == needs["Middle"].need_bytes == 18 * GiB


def test_a_process_that_has_used_a_gpu_is_not_told_of_a_larger_one() -> None:
    story = Story([SMALL, BIG])
    story.asks("x", job_type="x.py", mem_bytes=20 * GiB)
    assert story.asks("a", pid=7) == ["a"]
    assert not runs_out_alone(story, "a", 7 * GiB)


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_small_gpu_is_open_again_once_a_run_was_enough_there(ends_well: bool) -> None:
    died = a_run(7 * GiB, Outcome.FAILED, ran_out_alone=True)
    runs = (died, a_run(4 * GiB)) if ends_well else (died,)
    story = Story([SMALL, BIG], profiles=(a_profile(*runs, model="Small"),))
    story.asks("x", job_type="x.py", mem_bytes=20 * GiB)
    assert story.asks("a") == (["a"] if ends_well else [])


@pytest.mark.parametrize("stated_bytes", [None, 4 * GiB])
def test_a_job_on_several_gpus_is_not_kept_off_models_that_it_needs(
    stated_bytes: int | None,
) -> None:
    """Only one GPU is as large as the runs on other models tell: it would wait for ever."""
    profiles = known(12 * GiB, "Middle", outcome=Outcome.OUT_OF_MEMORY, ran_out_alone=True)
    story = Story([SMALL, MIDDLE, BIG], profiles=profiles)

    assert story.asks("a", gpus=2, mem_bytes=stated_bytes) == ["a"]


def test_a_job_on_several_gpus_waits_for_those_large_enough_if_there_are_enough() -> None:
    cards = [SMALL, a_gpu(1, 8 * GiB, model="Small"), BIG, a_gpu(3, model="Big")]
    story = Story(cards, profiles=known(12 * GiB))
    story.asks("x", job_type="x.py", mem_bytes=20 * GiB)
    assert story.asks("a", gpus=2) == []
    assert story.asks("b", gpus=2, slots=("0", "1", "2")) == ["b"]  # only one is large enough
    story.ends("b")
    assert story.ends("x") == ["a"]
    assert story.gpus("a") == [2, 3]


@pytest.mark.parametrize(
    ("known_gib", "floor_gib", "guess_gib"),
    [
        ([], 0, 12),
        ([], 15, 15),
        ([], 30, 24),
        ([4], 0, 12),
        ([4], 15, 15),
        ([1] * 8, 0, 12),
        ([1] * 9, 0, 1),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0, 10),
        ([1] * 19 + [20], 0, 1),
        ([1] * 17 + [20, 20, 21], 0, 20),
        ([30], 0, 24),
    ],
)
def test_a_type_never_seen_is_guessed_like_nine_of_ten_others_and_one_of_half_a_gpu(
    known_gib: list[int], floor_gib: int, guess_gib: int
) -> None:
    ranked = [gib * GiB for gib in known_gib]

    assert guess_bytes(ranked, floor_gib * GiB, 24 * GiB) == guess_gib * GiB
