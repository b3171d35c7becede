"""Expected starts and ends: played forward on the engine's own state, never part of a decision."""

from __future__ import annotations

import random

import pytest

from grn.model.job import Outcome, Profile, Run
from grn.model.units import GiB
from grn.negotiator.actions import SaveStart
from grn.negotiator.events import Booking, BookingMade
from grn.negotiator.queries.forecast import (
    MAX_WAITING,
    Asked,
    Forecasts,
    Range,
    at_once,
    forecast,
    inside,
)
from grn.negotiator.schedule.timeline import MEASURED_S
from tests.builders import MODEL, Story, a_request, some_gpus


def known(job_type: str, *durations_s: float, peak_bytes: int = 20 * GiB) -> Profile:
    runs = tuple(
        Run(Outcome.OK, peak_bytes, each, float(place)) for place, each in enumerate(durations_s)
    )
    return Profile(job_type, MODEL, job_type, 7, runs)


def a_story(gpus: int = 1) -> Story:
    return Story(some_gpus(gpus), profiles=(known("train", *[1000.0] * 8),))


def test_a_waiting_job_starts_when_the_running_one_ends() -> None:
    story = a_story()
    story.asks("a", job_type="train")
    story.asks("b", job_type="train")

    found = at_once(forecast(story.engine.view, story.at))

    (end,) = found.ends.values()
    assert end.low_s < 1000 < end.high_s
    assert found.starts == {"b": end}


def test_the_second_in_turn_starts_one_job_later() -> None:
    story = a_story()
    for key in "abc":
        story.asks(key, job_type="train")

    found = at_once(forecast(story.engine.view, story.at)).starts

    assert 1.9 * found["b"].low_s < found["c"].low_s
    assert found["c"].low_s < 2000 < found["c"].high_s


def test_time_that_has_passed_is_not_expected_again() -> None:
    story = a_story()
    story.asks("a", job_type="train")
    story.asks("b", job_type="train")

    late = at_once(forecast(story.engine.view, story.at + 900.0)).starts["b"]

    assert late.high_s < 400


def test_the_end_of_a_job_that_runs_far_longer_than_its_type_is_unknown() -> None:
    story = a_story()
    story.asks("a", job_type="train")
    story.asks("b", job_type="train")

    late = at_once(forecast(story.engine.view, story.at + 5000.0))

    assert late.ends == {}
    assert late.starts["b"].high_s > 0, "who waits for it is still told something"


def test_behind_a_job_of_unknown_duration_a_start_is_guessed_from_other_types() -> None:
    story = a_story()
    story.asks("a", job_type="new", mem_bytes=20 * GiB)
    story.asks("b", job_type="train")

    found = at_once(forecast(story.engine.view, story.at))

    assert found.ends == {}
    assert found.starts["b"].low_s < 500 < found.starts["b"].high_s


def test_a_type_that_still_runs_for_the_first_time_is_guessed_longer_than_so_far() -> None:
    story = a_story()
    story.asks("a", job_type="new", mem_bytes=20 * GiB)
    story.asks("b", job_type="train")

    early = at_once(forecast(story.engine.view, story.at)).starts["b"]
    late = at_once(forecast(story.engine.view, story.at + 5000.0)).starts["b"]

    assert late.low_s > 2 * early.low_s


def test_while_no_duration_is_known_all_is_unknown() -> None:
    story = Story(some_gpus(1))
    for key in "ab":
        story.asks(key, job_type="new", mem_bytes=20 * GiB)

    found = at_once(forecast(story.engine.view, story.at))

    assert found.ends == {}
    assert found.starts == {}


def test_siblings_of_a_first_run_are_expected_to_start_once_it_is_measured() -> None:
    story = Story(some_gpus(1), profiles=(known("train", 1000.0, peak_bytes=2 * GiB),))
    for key in "ab":
        story.asks(key, job_type="new")

    found = at_once(forecast(story.engine.view, story.at)).starts

    assert found == {"b": Range(MEASURED_S, MEASURED_S)}


def test_a_time_limit_bounds_what_is_expected() -> None:
    story = Story(some_gpus(1), profiles=(known("train", *[1000.0] * 8),))
    story.asks("a", job_type="new", mem_bytes=20 * GiB, time_limit_s=500.0)
    story.asks("b", job_type="train", time_limit_s=600.0)
    story.asks("c", job_type="train")

    found = at_once(forecast(story.engine.view, story.at)).starts

    assert 0 < found["b"].low_s < found["b"].high_s < 500
    assert found["c"].high_s <= found["b"].high_s + 600


def test_a_request_that_is_not_made_comes_last_and_changes_nothing() -> None:
    story = a_story()
    for key in "ab":
        story.asks(key, job_type="train")
    forecasts = Forecasts(story.engine.view)

    asked = Asked(a_request("new", job_type="train", is_command=True))
    found = at_once(forecasts.of(asked, story.at))

    assert found is not None
    assert found.low_s > at_once(forecasts.current(story.at)).starts["b"].low_s
    assert [one.request.key for one in story.engine.view.waitlist] == ["b"]


def test_only_the_first_in_turn_are_forecast() -> None:
    story = a_story()
    for number in range(MAX_WAITING + 20):
        story.asks(f"{number:03}", job_type="train")

    found = at_once(forecast(story.engine.view, story.at))

    assert len(found.starts) <= MAX_WAITING
    assert f"{MAX_WAITING + 10:03}" not in found.starts


def test_a_start_is_compared_with_the_first_range_that_was_told() -> None:
    story = a_story()
    for key in "ab":
        story.asks(key, job_type="train")
    forecasts = Forecasts(story.engine.view)
    told = at_once(forecasts.current(story.at)).starts["b"]
    at_once(forecasts.current(story.at + 500.0))

    start = forecasts.granted("b", story.at + 1000.0)

    assert start is not None
    assert (start.low_s, start.high_s, start.waited_s) == (told.low_s, told.high_s, 1000.0)
    assert inside(forecasts.starts) == 1
    assert forecasts.granted("b", story.at) is None


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_a_range_is_as_short_as_holds_four_of_five_starts(factor: float) -> None:
    drawn = random.Random(1)
    starts = [
        SaveStart(1000.0, 1200.0, 900.0, 1300.0, 1100.0 * factor * drawn.uniform(0.8, 1.2))
        for _ in range(200)
    ]

    told = Forecasts(Story().engine.view, starts).stretched(Range(1000.0, 1200.0), 0.0)

    held = sum(told.low_s <= one.waited_s <= told.high_s for one in starts)
    assert held >= 0.8 * len(starts)
    assert told.high_s - told.low_s < 0.45 * 1100.0 * factor


def test_a_range_leaves_out_the_side_with_fewer_starts() -> None:
    starts = [SaveStart(100.0, 100.0, 0.0, 0.0, 10.0 + each) for each in range(190)]
    starts += [SaveStart(100.0, 100.0, 0.0, 0.0, 10000.0)] * 10

    told = Forecasts(Story().engine.view, starts).stretched(Range(1000.0, 1000.0), 0.0)

    assert told.low_s < 500
    assert told.high_s < 2500


def test_requests_that_wait_longer_than_they_were_told_stretch_the_range() -> None:
    story = a_story()
    for number in range(20):
        story.asks(f"{number:02}", job_type="train")
    forecasts = Forecasts(story.engine.view)
    told = at_once(forecasts.current(story.at)).starts
    soon = forecasts.stretched(Range(1000.0, 1200.0), story.at)
    late = forecasts.stretched(Range(1000.0, 1200.0), story.at + 5 * told["19"].high_s)

    assert late.high_s > 2 * soon.high_s
    assert not forecasts.starts


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_give_ranges_in_order(seed: int) -> None:
    drawn = random.Random(seed)
    types = {
        name: known(name, *(drawn.uniform(1, 5000) for _ in range(drawn.randint(1, 9))),
                    peak_bytes=drawn.randint(1, 20) * GiB)
        for name in "pqr"
    }  # fmt: skip
    story = Story(some_gpus(3), profiles=tuple(types.values()))
    forecasts = Forecasts(story.engine.view)
    for number in range(60):
        if story.engine.view.leases and drawn.random() < 0.4:
            lease = drawn.choice(list(story.engine.view.leases.values()))
            if lease.request.key in story.leases:
                story.ends(lease.request.key, after_s=drawn.uniform(0, 2000))
        else:
            story.asks(f"{number}", drawn.uniform(0, 900), job_type=drawn.choice("pqrs"),
                       gpus=drawn.choice((1, 1, 2)), is_exclusive=drawn.random() < 0.1,
                       user=drawn.randint(1, 3))  # fmt: skip
        found = at_once(forecasts.current(story.at))
        ranges = [*found.ends.values(), *found.starts.values()]
        assert all(0 <= one.low_s <= one.high_s for one in ranges), f"seed {seed}"
        assert found.starts.keys() <= {one.request.key for one in story.engine.view.waitlist}


def booked(story: Story, from_s: float, for_s: float) -> None:
    wish = Booking(0, 2000, "ada", 1, story.at + from_s, story.at + from_s + for_s)
    story.tell(BookingMade(story.at, story.engine.view.admitted(wish, story.at)))


def test_a_job_that_would_run_into_a_booking_starts_behind_it() -> None:
    story = a_story()
    booked(story, 1000.0, 500.0)
    story.asks("a", job_type="train")

    assert at_once(forecast(story.engine.view, story.at)).starts == {"a": Range(1500.0, 1500.0)}


def test_a_job_that_ends_before_a_booking_is_expected_before_it() -> None:
    story = a_story()
    booked(story, 5000.0, 500.0)
    for key in "abcdef":
        story.asks(key, job_type="train")

    found = at_once(forecast(story.engine.view, story.at)).starts

    assert found["b"].high_s < 2000.0
    assert found["f"].low_s >= 5500.0


def test_a_request_that_is_not_made_is_expected_around_bookings() -> None:
    story = a_story()
    booked(story, 1000.0, 500.0)
    request = a_request("", mem_bytes=GiB)

    found = [
        at_once(forecast(story.engine.view, story.at, Asked(request, lasts_s))).starts[""]
        for lasts_s in (100.0, 1000.0)
    ]

    assert found == [Range(0.0, 0.0), Range(1500.0, 1500.0)]
