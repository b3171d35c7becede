"""The decaying usage of each user, and turns between users by it."""

import pytest

from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.events import SaveUse, Stopping
from grn.negotiator.schedule.room.ledger import Rules
from grn.negotiator.schedule.turns.fair_share import SAVE_S, Shares, Usage
from grn.negotiator.schedule.turns.order import WaitingRequest
from tests.builders import NO_GUARD, Story, a_profile, a_request, a_run, some_gpus

HOUR, DAY = 3600.0, 86400.0
ADA, BOB, EVE = 1, 2, 3
BIG = {"mem_bytes": 24 * GiB}


def some_shares(**used_h):
    """Return shares of users who have had so much; ada, bob and eve."""
    usage = Usage(DAY, {})
    names = {"ada": ADA, "bob": BOB, "eve": EVE}
    usage.load([SaveUse(names[name], hours, 0.0) for name, hours in used_h.items()], 0.0)
    return Shares(Rules(), usage), usage


def joined(shares, key, user, cost_h=1.0, sequence=0, **changes):
    is_short = changes.pop("is_short", False)
    request = a_request(key, user=user, **changes)
    return shares.join(WaitingRequest(request, sequence, 0.0, is_short, cost_h), 0.0)


def in_turn(shares, waiting):
    return [one.request.key for one in sorted(waiting, key=shares.turn)]


def test_who_has_had_less_goes_first_until_both_have_had_the_same():
    shares, _ = some_shares(ada=2.5)
    waiting = [joined(shares, f"a{n}", ADA, sequence=n) for n in range(3)]
    waiting += [joined(shares, f"b{n}", BOB, sequence=3 + n) for n in range(5)]

    assert in_turn(shares, waiting) == ["b0", "b1", "b2", "a0", "b3", "a1", "b4", "a2"]


def test_a_user_alone_keeps_the_order_of_its_requests():
    shares, _ = some_shares(ada=50.0)
    waiting = [joined(shares, str(n), ADA, cost_h=5.0 - n, sequence=n) for n in range(5)]

    assert in_turn(shares, waiting) == ["0", "1", "2", "3", "4"]


def test_what_waits_in_another_class_does_not_hold_a_request_back():
    shares, _ = some_shares()
    for number in range(50):
        joined(shares, f"x{number}", ADA, sequence=number)
    first = joined(shares, "a", ADA, sequence=50, priority=1)
    second = joined(shares, "b", BOB, sequence=51, priority=1)

    assert in_turn(shares, [second, first]) == ["a", "b"]


def test_a_grant_moves_nobody_who_waits():
    shares, usage = some_shares(bob=0.5)
    waiting = [joined(shares, f"a{n}", ADA, sequence=n) for n in range(4)]
    waiting += [joined(shares, f"b{n}", BOB, sequence=4 + n) for n in range(4)]
    before = in_turn(shares, waiting)
    while waiting:
        first = min(waiting, key=shares.turn)
        waiting.remove(first)
        shares.given(first)
        usage.began(first.request.key, first.request.user, 1.0, HOUR, at=0.0)
        assert shares.update(0.0) == []
        assert in_turn(shares, waiting) == before[-len(waiting) :] or not waiting


def test_who_gives_up_lets_its_users_own_requests_move_up():
    shares, _ = some_shares()
    mine = [joined(shares, f"a{n}", ADA, sequence=n) for n in range(10)]
    for one in mine[:9]:
        shares.gave_up(one)
    shares.update(0.0)
    other = joined(shares, "b", BOB, sequence=10)

    assert in_turn(shares, [other, mine[9]]) == ["a9", "b"]


def test_what_was_taken_back_costs_nothing():
    shares, _ = some_shares()
    stays = joined(shares, "a", ADA, cost_h=0.1, sequence=0)
    for one in [joined(shares, f"x{n}", ADA, sequence=1 + n) for n in range(99)][::-1]:
        shares.gave_up(one)
    last = joined(shares, "z", ADA, sequence=100)
    others = [joined(shares, f"b{n}", BOB, sequence=101 + n) for n in range(2)]

    assert in_turn(shares, [stays, last, *others]) == ["a", "b0", "z", "b1"]


def test_short_types_go_first_but_not_of_one_who_has_had_far_more_than_others():
    orders = []
    for hours in (0.1, 5.0):
        shares, _ = some_shares(ada=hours)
        short = joined(shares, "short", ADA, is_short=True, sequence=0)
        long = joined(shares, "long", BOB, sequence=1)
        shares.update(0.0)
        orders.append(in_turn(shares, [long, short]))

    assert orders == [["short", "long"], ["long", "short"]]


def test_those_whose_jobs_take_longer_than_thought_fall_back():
    shares, usage = some_shares()
    first = joined(shares, "a0", ADA, cost_h=0.1)
    rest = [joined(shares, f"a{n}", ADA, cost_h=0.1, sequence=n) for n in (1, 2)]
    other = [joined(shares, f"b{n}", BOB, cost_h=1.0, sequence=2 + n) for n in range(2)]
    shares.given(first)
    usage.began("a0", ADA, 1.0, 360.0, at=0.0)
    before = in_turn(shares, [*rest, *other])
    usage.follow("a0", 1.0, 10 * HOUR)

    assert shares.update(10 * HOUR) == [ADA]
    assert before == ["b0", "a1", "a2", "b1"]
    assert in_turn(shares, [*rest, *other]) == ["b0", "b1", "a1", "a2"]


# --- through the engine --------------------------------------------------------------------


def played(story, rounds, last):
    """Let the job that runs end after an hour, again and again; return who came next."""
    order = []
    for _ in range(rounds):
        story.looks(HOUR - 1)
        (last,) = story.ends(last)
        order.append(last)
    return order


def a_busy_story(**remembered):
    story = Story(
        rules=Rules(NO_GUARD, patience_s=1e9, **remembered.pop("rules", {})), **remembered
    )
    story.asks("x", user=EVE, **BIG)
    return story


HOURLY = a_profile(a_run(GiB, duration_s=HOUR))


def test_who_used_everything_yesterday_goes_after_who_comes_today():
    story = a_busy_story(profiles=(HOURLY,), uses=(SaveUse(ADA, 3.0, 0.0),))
    for number in range(4):
        story.asks(f"a{number}", user=ADA, **BIG)
    for number in range(6):
        story.asks(f"b{number}", user=BOB, **BIG)

    assert played(story, 10, "x")[:7] == ["b0", "b1", "b2", "a0", "b3", "a1", "b4"]


def test_of_two_who_always_wait_each_gets_as_much_as_its_weight_says():
    story = a_busy_story(profiles=(HOURLY,), rules={"weights": {BOB: 3.0}})
    for number in range(12):
        story.asks(f"a{number}", user=ADA, **BIG)
    for number in range(12):
        story.asks(f"b{number}", user=BOB, **BIG)
    names = [key[0] for key in played(story, 12, "x")]

    assert names.count("b") == 9


def test_what_users_have_had_survives_the_negotiator():
    story = a_busy_story()
    story.looks(HOUR)
    saved = story.engine.handle(Stopping(story.at))
    (use,) = [action for action in saved if isinstance(action, SaveUse)]
    again = Story(at=2 * HOUR, uses=(use,))

    assert use.user == EVE
    assert again.engine.view.usage.used_h(EVE, 2 * HOUR) == pytest.approx(use.used_h, rel=0.05)
    assert use.used_h > 0.8


def test_many_groups_are_sorted_in_anew_step_by_step():
    story = a_busy_story()
    for number in range(600):
        story.asks(f"a{number}", user=ADA, job_type=f"t{number}", **BIG)
    story.asks("b", user=BOB, **BIG)
    story.engine.view.usage.began("other", ADA, 4.0, 100 * HOUR, story.at)
    for _ in range(12):
        story.looks(100.0)
    groups = list(story.engine.view.waitlist.in_turn())

    assert groups[0].head.request.key == "b"
    assert [group.head.request.key for group in groups[1:]] == [f"a{n}" for n in range(600)]
    assert [group.turn for group in groups] == sorted(
        map(story.engine.view.turn, (g.head for g in groups))
    )


def test_one_that_asks_again_with_another_priority_changes_its_place():
    story = a_busy_story()
    for number in range(3):
        story.asks(f"a{number}", user=ADA, **BIG)
    story.asks("a2", user=ADA, priority=5, **BIG)
    story.asks("b", user=BOB, **BIG)

    assert played(story, 4, "x") == ["a2", "b", "a0", "a1"]


def test_fair_shares_leave_no_gpu_idle():
    story = Story(some_gpus(2), uses=(SaveUse(ADA, 100.0, 0.0),))
    story.asks("b", user=BOB, **BIG)
    assert story.asks("a", user=ADA, **BIG) == ["a"]
    assert story.ends("a", Outcome.OK) == []


def test_one_that_turns_out_to_be_short_leaves_the_line_of_the_others():
    shares, _ = some_shares()
    waiting = [joined(shares, str(n), ADA, sequence=n) for n in range(4)]
    waiting[2] = shares.becomes(waiting[2], is_short=True)
    others = [joined(shares, "b", BOB, cost_h=0.5, sequence=9)]

    assert in_turn(shares, waiting + others) == ["2", "0", "b", "1", "3"]


def test_the_only_one_of_its_user_may_turn_out_to_be_short():
    shares, _ = some_shares(ada=3.0)
    alone = shares.becomes(joined(shares, "a", ADA), is_short=True)
    shares.gave_up(alone)

    assert not shares.are_several()
    assert shares.before(ADA, 0.0) == 0


# --- accounts of usage ---------------------------------------------------------------------


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
