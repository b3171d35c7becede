"""What users have had of the GPUs, and how it fades."""

import pytest

from grn.negotiator.events import SaveUse
from grn.negotiator.schedule.usage import SAVE_S, Usage

HOUR, DAY = 3600.0, 86400.0
ADA, BOB = 1, 2


def used(usage, user, at):
    return pytest.approx(usage.used_h(user, at), rel=1e-3)


def test_a_job_on_half_a_gpu_for_an_hour_is_half_an_hour():
    usage = Usage(half_life_s=1000 * DAY)
    usage.began("a", ADA, 0.5, HOUR, at=0.0)
    usage.ended("a", at=HOUR)

    assert used(usage, ADA, HOUR) == 0.5
    assert usage.used_h(BOB, HOUR) == 0.0


def test_half_of_it_is_forgotten_after_a_half_life():
    usage = Usage(half_life_s=DAY)
    usage.load([SaveUse(ADA, 8.0, 0.0)], 0.0)

    assert [usage.used_h(ADA, days * DAY) for days in (0, 1, 2, 3)] == [8.0, 4.0, 2.0, 1.0]


def test_one_gpu_for_ever_comes_to_a_limit():
    usage = Usage(half_life_s=DAY)
    usage.began("a", ADA, 1.0, HOUR, at=0.0)

    assert used(usage, ADA, 40 * DAY) == 24 / 0.6931
    assert used(usage, ADA, DAY) == 12 / 0.6931


def test_looking_often_changes_nothing():
    seldom, often = Usage(DAY), Usage(DAY)
    for usage in (seldom, often):
        usage.began("a", ADA, 2.0, HOUR, at=0.0)
    for at in range(0, 5 * int(HOUR), 100):
        often.follow("a", 2.0, float(at))
        list(often.to_save(float(at)))

    assert often.used_h(ADA, 5 * HOUR) == pytest.approx(seldom.used_h(ADA, 5 * HOUR))


def test_what_runs_counts_to_its_expected_end_at_once():
    usage = Usage(half_life_s=1000 * DAY)
    usage.began("a", ADA, 1.0, HOUR, at=0.0)
    levels = []
    for at in (0.0, HOUR / 2, HOUR, 2 * HOUR):
        usage.follow("a", 1.0, at)
        levels.append(round(usage.level(ADA, at), 2))
    usage.ended("a", at=2 * HOUR)

    assert levels == [1.0, 1.0, 1.25, 2.5]  # one that takes longer is expected to go on for a while
    assert usage.level(ADA, 2 * HOUR) == used(usage, ADA, 2 * HOUR)


def test_a_job_that_ends_early_gives_back_what_was_expected_of_it():
    usage = Usage()
    usage.began("a", ADA, 1.0, 10 * HOUR, at=0.0)
    usage.ended("a", at=36.0)

    assert usage.level(ADA, 36.0) == pytest.approx(0.01, rel=1e-3)


def test_a_job_that_gives_room_back_counts_less_from_then_on():
    usage = Usage(half_life_s=1000 * DAY)
    usage.began("a", ADA, 1.0, HOUR, at=0.0)
    usage.follow("a", 0.25, HOUR)

    assert used(usage, ADA, 3 * HOUR) == 1.5
    assert usage.rate(ADA) == 0.25


def test_a_weight_divides_what_a_user_has_had():
    usage = Usage(DAY, {ADA: 4.0})
    usage.load([SaveUse(ADA, 8.0, 0.0), SaveUse(BOB, 8.0, 0.0)], 0.0)

    assert (usage.level(ADA, 0.0), usage.level(BOB, 0.0)) == (2.0, 8.0)


def test_what_was_used_is_saved_now_and_then_and_in_the_end():
    usage = Usage(1000 * DAY)
    usage.began("a", ADA, 1.0, HOUR, at=0.0)
    first = list(usage.to_save(1.0))
    too_soon = list(usage.to_save(2.0))
    (second,) = usage.to_save(1.0 + SAVE_S)
    usage.ended("a", at=100.0)
    (last,) = usage.to_save(100.0, is_last=True)

    assert (len(first), too_soon) == (1, [])
    assert (second.user, second.at) == (ADA, 1.0 + SAVE_S)
    assert last.used_h == pytest.approx(100 / HOUR, rel=1e-3)
    assert list(usage.to_save(1000.0)) == []  # nothing has changed


def test_after_a_restart_all_goes_on_also_what_ran_in_between():
    before = Usage(DAY)
    before.began("a", ADA, 1.0, HOUR, at=0.0)
    (saved,) = before.to_save(HOUR)
    after = Usage(DAY)
    after.load([saved], 0.0)
    after.resumed("a", ADA, 1.0, since=0.0, at=2 * HOUR)

    assert after.used_h(ADA, 2 * HOUR) == pytest.approx(before.used_h(ADA, 2 * HOUR), rel=0.02)


def test_time_that_a_machine_is_off_counts_as_well():
    usage = Usage(DAY)
    usage.load([SaveUse(ADA, 8.0, at=1e9)], wall_offset_s=1e9 + DAY)  # the clock began anew

    assert usage.used_h(ADA, 0.0) == pytest.approx(4.0)


def test_a_clock_that_was_set_back_adds_nothing():
    usage = Usage(DAY)
    usage.load([SaveUse(ADA, 8.0, at=1e9)], wall_offset_s=1e9 - DAY)

    assert usage.used_h(ADA, 0.0) == 8.0


def test_a_user_of_long_ago_is_forgotten():
    usage = Usage(DAY)
    usage.load([SaveUse(ADA, 5.0, 0.0)], 0.0)

    assert list(usage.to_save(DAY)) == []
    assert list(usage.to_save(100 * DAY)) == [SaveUse(ADA, 0.0, 100 * DAY)]
    assert usage.users() == []
