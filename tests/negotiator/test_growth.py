"""How fast memory grows: a slope that a jump or a wrong sample does not move."""

from __future__ import annotations

import pytest

from grn.model.units import MiB
from grn.negotiator.learn.growth import MAX_POINTS, MIN_POINTS, SPAN_S, Track, runs_out


def a_track(*sizes: float, every_s: float = 1.0) -> Track:
    track = Track()
    for place, size in enumerate(sizes):
        track.add(place * every_s, int(size * MiB))
    return track


@pytest.mark.parametrize(
    ("sizes", "slope"),
    [
        ([100 + 5 * n for n in range(10)], 5.0),
        ([100] * 10, 0.0),
        ([100 - 5 * n for n in range(10)], -5.0),
        ([100, 105, 110, 999, 120, 125, 130, 135], 5.0),  # one wrong sample
        ([100] * 9 + [400], 0.0),  # one jump in a long calm
        ([100, 200], 0.0),  # too few to tell
    ],
)
def test_the_slope_is_that_of_most_samples(sizes: list[float], slope: float) -> None:
    assert a_track(*sizes).slope() / MiB == pytest.approx(slope, abs=0.01)


def test_steps_far_apart_are_growth() -> None:
    """A job that takes 20 MiB more every five seconds, looked at twice a second."""
    sizes = [100 + 20 * (n // 10) for n in range(120)]

    assert a_track(*sizes, every_s=0.5).slope() / MiB == pytest.approx(4.0, rel=0.25)


@pytest.mark.parametrize("every_s", [0.05, 0.5, 5.0])
def test_a_track_stays_small_and_reaches_back_as_far_as_it_is_of_use(every_s: float) -> None:
    track = a_track(*range(4000), every_s=every_s)

    reach_s = track.points[-1][0] - track.points[0][0]
    assert MIN_POINTS <= len(track.points) <= MAX_POINTS
    assert SPAN_S / 2.5 <= reach_s <= SPAN_S + MAX_POINTS * 5.0
    assert track.slope() * every_s / MiB == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("used", "slope", "is_so"),
    [(70, 1.0, False), (71, 1.0, True), (95, 0.1, False), (101, 0.1, True), (101, 0.0, False),
     (101, -1.0, False)],
)  # fmt: skip
def test_memory_runs_out_when_what_grows_reaches_the_limit_in_time(
    used: int, slope: float, is_so: bool
) -> None:
    assert runs_out(used, slope, 100, within_s=30.0) is is_so
