"""Bookings: which requests are kept off booked GPUs, and when a booking begins, lapses and ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from grn.errors import NeverFits, UsageError
from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import AskYield, DropBooking, SaveBooking
from grn.negotiator.events import Booking, BookingMade, BookingRemoved, Sampled, WaitReason
from grn.negotiator.schedule.booking_plan import planned
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import NO_GUARD, Story, a_profile, a_run, some_gpus

WALL = 1_800_000_000.0  # the wall clock when a story begins
ADA, BOB = 2000, 1000  # requests of a story are bob's
HOUR = 3600.0
DAY = 24 * HOUR
WHOLE = {"mem_bytes": 24 * GiB}
RULES = Rules(NO_GUARD, yield_after_s=10.0)


def a_story(gpus: int = 1, **changes: Any) -> Story:
    rules = changes.pop("rules", RULES)
    return Story(some_gpus(gpus), rules, wall_offset_s=WALL, **changes)


def a_wish(from_s: float, for_s: float, count: int = 1, **changes: Any) -> Booking:
    start = WALL + from_s
    return structs.replace(Booking(0, ADA, "ada", count, start, start + for_s), **changes)


def books(
    story: Story, from_s: float, for_s: float = HOUR, count: int = 1, **changes: Any
) -> list[str]:
    """Book GPUs for ada, from a time of the story on; return the keys that got granted."""
    made = story.engine.view.admitted(a_wish(from_s, for_s, count, **changes), story.at)
    return story.tell(BookingMade(story.at, made))


def booked(story: Story, number: int = 1) -> list[int]:
    """Return the GPUs of a booking, by index."""
    gpus = story.engine.view.bookings[number].gpus
    return [story.engine.view.books[uuid].gpu.index for uuid in gpus]


def asked(story: Story) -> list[str]:
    return [one.lease.request.key for one in story.actions if isinstance(one, AskYield)]


def dropped(story: Story) -> list[str]:
    return [one.because for one in story.actions if isinstance(one, DropBooking)]


def lasting(seconds: float, job_type: str = "known.py") -> Any:
    """Return the profile of a type that usually takes so long."""
    return a_profile(*[a_run(20 * GiB, duration_s=seconds) for _ in range(5)], job_type=job_type)


# --- who is kept off -------------------------------------------------------------------------


def test_a_job_of_unknown_duration_is_not_started_on_gpus_that_are_booked_soon() -> None:
    story = a_story()
    books(story, from_s=HOUR)

    assert story.asks("b", **WHOLE) == []
    assert story.why("b") is WaitReason.BOOKED
    assert "GPU 0 is booked by ada from" in story.text("b")


def test_a_job_that_usually_ends_before_the_start_is_granted() -> None:
    story = a_story(profiles=(lasting(1000.0),))
    books(story, from_s=1201.0)

    assert story.asks("b", job_type="known.py") == ["b"]


def test_a_job_ends_before_the_start_only_with_the_caution_of_backfill() -> None:
    story = a_story(profiles=(lasting(1000.0),))
    books(story, from_s=1199.0)

    assert story.asks("b", job_type="known.py") == []
    assert story.why("b") is WaitReason.BOOKED


def test_a_job_that_gives_way_is_granted_until_the_start_and_asked_then() -> None:
    story = a_story()
    books(story, from_s=60.0)
    assert story.asks("b", yields=True, **WHOLE) == ["b"]

    story.looks(after_s=59.0)
    assert asked(story) == []
    story.looks(after_s=1.0)
    assert asked(story) == ["b"]
    story.looks()
    assert asked(story) == []  # once


def test_a_job_that_gives_way_only_after_the_start_is_kept_off() -> None:
    story = a_story()
    books(story, from_s=60.0)

    assert story.asks("b", yields=True, at_least_s=61.0, **WHOLE) == []


def test_a_far_booking_keeps_off_only_jobs_known_to_run_into_it() -> None:
    story = a_story(2, profiles=(lasting(4 * DAY),))
    books(story, from_s=3 * DAY, count=2)

    assert story.asks("long", job_type="known.py") == []
    assert story.asks("unknown", **WHOLE) == ["unknown"]


def test_a_job_whose_time_limit_ends_it_before_the_start_is_granted() -> None:
    story = a_story(2, profiles=(lasting(4 * HOUR),))
    books(story, from_s=HOUR, count=2)

    assert story.asks("late", time_limit_s=HOUR + 1, **WHOLE) == []
    assert story.asks("unknown", time_limit_s=HOUR, **WHOLE) == ["unknown"]
    assert story.asks("known", job_type="known.py", time_limit_s=HOUR) == ["known"]


def test_a_long_time_limit_does_not_keep_a_job_of_unknown_duration_off() -> None:
    story = a_story()
    books(story, from_s=3 * DAY)

    assert story.asks("b", time_limit_s=7 * DAY, **WHOLE) == ["b"]


def test_the_gpu_of_a_booking_is_the_one_that_a_time_limit_frees() -> None:
    story = a_story(2)
    story.asks("a", **WHOLE)
    story.asks("b", time_limit_s=HOUR, **WHOLE)

    books(story, from_s=2 * HOUR)

    assert booked(story) == story.gpus("b")


def test_a_job_of_the_user_is_granted_before_and_within_the_booking() -> None:
    story = a_story(2)
    books(story, from_s=60.0, count=2)

    assert story.asks("before", user=ADA, **WHOLE) == ["before"]
    story.looks(after_s=60.0)
    assert story.asks("within", user=ADA, **WHOLE) == ["within"]


def test_within_the_booking_no_job_of_another_user_is_granted_there() -> None:
    story = a_story(profiles=(lasting(1.0),))
    books(story, from_s=60.0)
    story.looks(after_s=60.0)

    assert story.asks("b", yields=True) == []
    assert story.asks("c", job_type="known.py") == []
    assert story.text("c").startswith("GPU 0 is booked by ada from")


def test_other_gpus_are_not_affected() -> None:
    story = a_story(2)
    books(story, from_s=60.0)

    assert story.asks("b", **WHOLE) == ["b"]
    assert booked(story) not in [story.gpus("b")]
    assert story.asks("c", **WHOLE) == []


def test_a_job_of_the_user_is_placed_on_booked_gpus_first() -> None:
    story = a_story(3)
    books(story, from_s=0.0, able=("GPU-2",))

    assert story.asks("a", user=ADA, **WHOLE) == ["a"]
    assert story.gpus("a") == [2]


def test_a_job_that_waits_for_a_first_run_is_told_so_and_not_of_the_booking() -> None:
    story = a_story(2)
    story.asks("first", slots=("0",))
    books(story, from_s=0.0, able=("GPU-1",))

    assert story.asks("second") == []
    assert story.why("second") is WaitReason.FIRST_RUN_ELSEWHERE


def test_a_process_that_stays_on_its_gpu_is_not_moved_to_a_booked_one() -> None:
    story = a_story(2)
    books(story, from_s=0.0, able=("GPU-1",))

    assert story.asks("a", user=ADA, stay=("GPU-0",), **WHOLE) == ["a"]
    assert story.gpus("a") == [0]


def test_what_waits_is_granted_when_the_booking_ends() -> None:
    story = a_story()
    books(story, from_s=0.0, for_s=100.0)
    story.asks("b", **WHOLE)
    assert story.passes(99.0) == []

    assert story.looks(after_s=1.0) == ["b"]
    assert dropped(story) == ["over"]


def test_what_waits_is_granted_when_the_booking_is_removed() -> None:
    story = a_story()
    books(story, from_s=0.0)
    story.asks("b", **WHOLE)

    assert story.tell(BookingRemoved(story.at, 1)) == ["b"]


def test_what_waits_of_its_user_is_granted_when_it_books() -> None:
    story = a_story()
    books(story, from_s=0.0, for_s=1000.0, user=BOB, user_name="bob")
    story.asks("a", user=ADA, **WHOLE)
    story.tell(BookingRemoved(story.at, 1))
    assert "a" in story.leases

    story.asks("second", user=ADA, **WHOLE)
    books(story, from_s=10.0)
    assert story.ends("a") == ["second"]


def test_a_starving_job_reserves_no_gpus_that_are_booked() -> None:
    story = a_story(2, rules=replace(RULES, patience_s=30.0))
    books(story, from_s=HOUR)
    (kept,) = booked(story)
    story.asks("b", gpus=2, **WHOLE)
    story.passes(100.0)

    assert story.why("b") is WaitReason.BOOKED
    assert story.asks("ada's", user=ADA, slots=(f"GPU-{kept}",), **WHOLE) == ["ada's"]


def test_the_room_made_for_a_request_is_given_up_when_it_is_booked() -> None:
    story = a_story(2)
    story.asks("low", yields=True, **WHOLE)
    story.asks("low too", yields=True, **WHOLE)
    story.asks("wide", gpus=2, **WHOLE)
    story.looks(after_s=10.0)
    assert sorted(asked(story)) == ["low", "low too"]
    books(story, from_s=60.0)
    story.looks()

    assert story.engine.view.claims == {}


# --- which GPUs --------------------------------------------------------------------------------


def test_the_gpus_that_are_free_first_are_chosen() -> None:
    story = a_story(3, profiles=(lasting(100.0),))
    story.asks("unknown", slots=("0",), **WHOLE)
    story.asks("known", job_type="known.py", slots=("1",))
    books(story, from_s=HOUR)
    assert booked(story) == [2]

    books(story, from_s=HOUR, for_s=HOUR)
    assert booked(story, 2) == [1]


def test_another_gpu_is_chosen_when_one_is_free_before() -> None:
    story = a_story(2)
    story.asks("b", slots=("0",), **WHOLE)
    story.asks("c", slots=("1",), **WHOLE)
    books(story, from_s=HOUR)
    assert booked(story) == [0]

    story.ends("c")
    story.passes(10.0)
    assert booked(story) == [1]


def test_a_gpu_that_is_not_free_at_the_start_is_replaced_by_the_first_that_is() -> None:
    story = a_story(2)
    story.asks("b", slots=("0",), **WHOLE)
    story.asks("c", slots=("1",), **WHOLE)
    books(story, from_s=10.0)
    story.passes(60.0)
    story.ends("c")
    story.passes(10.0)

    assert booked(story) == [1]
    assert story.asks("d", **WHOLE) == []
    story.ends("b")
    assert "d" in story.leases  # on the other


def test_at_the_start_booked_gpus_are_free_of_jobs_that_were_granted_since() -> None:
    story = a_story(3, profiles=(lasting(100.0),))
    books(story, from_s=1000.0, count=2)
    for number in range(12):
        story.asks(f"unknown {number}", mem_bytes=12 * GiB)
        story.asks(f"known {number}", job_type="known.py")
    ends = {key: story.at + 100.0 for key in story.leases if key.startswith("known")}
    while story.at < 1000.0:
        story.looks(after_s=5.0)
        ends |= {
            key: story.at + 100.0
            for key in story.leases
            if key.startswith("known") and key not in ends
        }
        for key in [key for key, at in ends.items() if at <= story.at]:
            ends[key] = float("inf")
            story.ends(key, after_s=0.0)
    on_booked = [
        lease
        for lease in story.engine.view.leases.values()
        if set(lease.gpus) & set(story.engine.view.bookings[1].gpus)
    ]

    assert [lease for lease in on_booked if lease.request.user != ADA] == []


# --- beginning and end ---------------------------------------------------------------------


def test_an_unused_booking_lapses() -> None:
    story = a_story()
    books(story, from_s=60.0)
    story.passes(60.0)
    story.passes(899.0)
    assert len(story.engine.view.bookings) == 1

    story.passes(1.0)
    assert dropped(story) == ["unused"]


def test_a_booking_that_was_used_once_does_not_lapse() -> None:
    story = a_story()
    books(story, from_s=0.0, for_s=HOUR)
    story.asks("a", user=ADA, **WHOLE)
    story.ends("a")  # no look has shown it
    story.passes(1800.0)

    assert story.engine.view.bookings[1].is_used


def test_a_booking_does_not_lapse_while_its_user_waits() -> None:
    story = a_story()
    story.asks("late", **WHOLE)
    books(story, from_s=0.0)
    story.asks("a", user=ADA, **WHOLE)
    story.passes(1800.0)
    assert story.ends("late") == ["a"]

    assert len(story.engine.view.bookings) == 1


def test_a_clock_that_is_set_moves_the_booking() -> None:
    story = a_story()
    books(story, from_s=HOUR)
    story.asks("b", yields=True, **WHOLE)

    story.tell(Sampled(1.0, (), wall_offset_s=WALL + HOUR))
    assert asked(story) == ["b"]
    story.tell(Sampled(2.0, (), wall_offset_s=WALL))
    story.ends("b", Outcome.YIELDED)
    assert story.asks("c", yields=True, **WHOLE) == ["c"]
    story.tell(Sampled(4.0, (), wall_offset_s=WALL + HOUR))
    assert asked(story) == ["c"]


def test_a_booking_survives_a_restart() -> None:
    story = a_story()
    books(story, from_s=HOUR)
    saved = tuple(one.booking for one in story.actions if isinstance(one, SaveBooking))

    story = a_story(bookings=saved)
    assert story.asks("b", **WHOLE) == []
    assert story.why("b") is WaitReason.BOOKED


def test_a_booking_of_gpus_that_are_gone_is_kept_with_those_that_are_left() -> None:
    saved = a_wish(HOUR, HOUR, 2, id=7, gpus=("GPU-0", "GPU-1"))
    story = a_story(1, bookings=(saved,))
    story.looks()

    assert booked(story, 7) == [0]
    with pytest.raises(UsageError, match="0 are free"):
        story.engine.view.admitted(a_wish(HOUR, HOUR), story.at)


# --- admission -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (a_wish(-HOUR, HOUR), "which is past"),
        (a_wish(HOUR, 0.0), "no length"),
        (a_wish(HOUR, -HOUR), "no length"),
        (a_wish(HOUR, float("nan")), "no length"),
        (a_wish(HOUR, 8 * DAY), "at most 7 days long; you asked for 8"),
        (a_wish(15 * DAY, HOUR), "at most 14 days ahead"),
        (a_wish(HOUR, HOUR, 3), "you asked for 3 GPUs; this machine has 2"),
    ],
)
def test_a_booking_that_cannot_be_is_refused_in_one_line(wish: Booking, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        a_story(2).engine.view.admitted(wish, 0.0)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert isinstance(caught.value, NeverFits) == (wish.count == 3)


def test_more_gpus_than_are_free_then_are_refused_with_what_is_free_when() -> None:
    story = a_story(3)
    books(story, from_s=HOUR, for_s=HOUR, count=2)

    with pytest.raises(UsageError, match=r"of 3 GPUs, 1 is free .*: ada has 2 from") as caught:
        story.engine.view.admitted(a_wish(1.5 * HOUR, HOUR, 2), story.at)
    assert "Book 1; 2 GPUs can be booked for 1h00m from" in caught.value.hint
    assert story.engine.view.admitted(a_wish(2 * HOUR, HOUR, 3), story.at)


def test_a_user_has_a_limited_number_of_bookings() -> None:
    story = a_story()
    for number in range(3):
        books(story, from_s=HOUR * (number + 1))

    with pytest.raises(UsageError, match=r"at most 3 bookings at a time; yours: 1, 2, 3"):
        story.engine.view.admitted(a_wish(10 * HOUR, HOUR), story.at)
    assert story.engine.view.admitted(a_wish(10 * HOUR, HOUR, user=BOB), story.at)


def test_a_user_may_have_a_limited_part_of_the_gpus_booked_at_a_time() -> None:
    story = a_story(4, rules=replace(RULES, booking_share=0.5))
    books(story, from_s=HOUR)

    with pytest.raises(UsageError, match="at most 2 GPUs"):
        story.engine.view.admitted(a_wish(1.5 * HOUR, HOUR, 2), story.at)
    assert story.engine.view.admitted(a_wish(2 * HOUR, HOUR, 2), story.at)
    assert story.engine.view.admitted(a_wish(1.5 * HOUR, HOUR, 2, user=BOB), story.at)


def test_bookings_move_to_other_gpus_where_that_makes_room() -> None:
    early = a_wish(0.0, HOUR, id=1, gpus=("GPU-0",))
    late = a_wish(HOUR, HOUR, id=2, gpus=("GPU-1",))
    both = a_wish(0.0, 2 * HOUR, id=3)

    found = planned([early, late, both], ["GPU-0", "GPU-1"], WALL - 1)

    assert found is not None
    assert {one.id: one.gpus for one in found} == {1: ("GPU-0",), 2: ("GPU-0",), 3: ("GPU-1",)}


def test_a_booking_of_few_gpus_gets_them_though_others_could_have_them() -> None:
    any_gpu = a_wish(HOUR, 2 * HOUR, id=1, gpus=("GPU-0",))
    one_gpu = a_wish(2 * HOUR, HOUR, id=2, able=("GPU-0",))

    found = planned([any_gpu, one_gpu], ["GPU-0", "GPU-1"], WALL)

    assert found is not None
    assert {one.id: one.gpus for one in found} == {1: ("GPU-1",), 2: ("GPU-0",)}
