"""What follows when memory ran out, for all who run jobs again."""

from __future__ import annotations

import pytest

from grn.model.oom_retry import MAX_SPARED, Had, again, again_on_host


@pytest.mark.parametrize(
    ("had", "is_victim", "most", "then"),
    [
        (Had(), False, 2, (1, 0)),
        (Had(1, 2), False, 2, (2, 2)),
        (Had(2, 0), False, 2, None),
        (Had(), True, 2, (0, 1)),
        (Had(2, 0), True, 2, (2, 1)),  # not counted against the tries with more room
        (Had(0, MAX_SPARED), True, 2, (1, MAX_SPARED)),
        (Had(2, MAX_SPARED), True, 2, None),
        (Had(), True, 0, None),  # nobody asked for another try
        (Had(), False, 0, None),
    ],
)
def test_a_victim_has_the_same_room_again_and_others_more(
    had: Had, is_victim: bool, most: int, then: tuple[int, int] | None
) -> None:
    following = again(had, is_victim, most)

    assert (following and (following.more, following.spared)) == then


def test_a_larger_gpu_is_tried_however_often_room_was_given_before_if_tries_were_asked_for() -> (
    None
):
    following = again(Had(2, 0), False, 2, has_larger=True)
    assert following is not None
    assert following.more == 3
    assert again(Had(), False, 0, has_larger=True) is None


def test_a_command_that_had_the_largest_gpu_to_itself_is_not_run_again() -> None:
    assert again(Had(), False, 2, was_alone=True) is None
    assert again(Had(), False, 2, has_larger=True, was_alone=True) == Had(1, 0)
    assert again(Had(), True, 2, was_alone=True) == Had(0, 1), "strangers had taken its room"


def test_the_negotiator_is_told_whether_it_needs_more_room_or_was_wronged() -> None:
    assert Had().told() == {}
    assert Had(300, 2).told() == {"attempt": 100, "spared": True}


@pytest.mark.parametrize(
    ("had", "is_victim", "most", "then"),
    [
        (Had(), False, 2, (0, 1)),
        (Had(1, 2), False, 2, None),
        (Had(1, 2), True, 1, (1, 3)),  # others took its room: up to three times, uncounted
        (Had(1, MAX_SPARED), True, 9, None),
        (Had(), True, 0, None),  # nobody asked for another try
        (Had(), False, 0, None),
    ],
)
def test_after_host_memory_the_request_stays_as_it_is(
    had: Had, is_victim: bool, most: int, then: tuple[int, int] | None
) -> None:
    following = again_on_host(had, is_victim, most)

    assert (following and (following.more, following.spared)) == then
