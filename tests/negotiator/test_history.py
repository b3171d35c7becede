"""The recent past: even steps, curves that never grow too long, ends in order, all bounded."""

from __future__ import annotations

import pytest

from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.queries import history as past
from grn.negotiator.queries.history import Curve, GpuPast, History
from tests.builders import Story, a_lease


def test_a_curve_keeps_the_highest_sample_of_each_step() -> None:
    curve = Curve(began_at=100.0)
    for at, used in ((100.1, 5), (100.9, 3), (101.2, 7)):
        curve.add(at, used)

    assert (curve.step_s, curve.values) == (1.0, [5, 7])


def test_a_curve_of_days_is_no_longer_than_one_of_minutes_and_keeps_its_peak() -> None:
    curve = Curve(began_at=0.0)
    for second in range(200_000):
        curve.add(float(second), 9 if second == 77_777 else 1)

    assert len(curve.values) <= past.MAX_POINTS
    assert max(value or 0 for value in curve.values) == 9
    place = next(place for place, value in enumerate(curve.values) if value == 9)
    assert place * curve.step_s <= 77_777 < (place + 1) * curve.step_s


def test_time_in_which_nobody_looked_is_unknown_in_a_curve() -> None:
    curve = Curve(began_at=0.0)
    curve.add(0.0, 4)
    curve.add(3.5, 6)

    assert curve.values == [4, None, None, 6]


def test_a_sample_that_is_late_by_one_step_leaves_no_gap_in_a_curve() -> None:
    curve = Curve(began_at=0.0)
    curve.add(0.0, 4)
    curve.add(2.1, 6)

    assert curve.values == [4, 6, 6]


def test_a_sample_the_driver_did_not_give_is_unknown_and_never_zero() -> None:
    gpu = GpuPast()
    for second in range(125):
        gpu.add(float(second), (None, None))

    assert set(gpu.recent) == {(None, None)}
    assert list(gpu.minutes) == [(None, None)] * 2


def test_minutes_hold_the_highest_memory_and_the_mean_load() -> None:
    gpu = GpuPast()
    for second in range(121):
        gpu.add(float(second), (second, 100.0 if second % 2 else 0.0))

    assert list(gpu.minutes) == [(59, 50.0), (119, 50.0)]


def test_minutes_without_samples_are_unknown() -> None:
    gpu = GpuPast()
    gpu.add(0.0, (1, 1.0))
    gpu.add(200.0, (2, 2.0))

    assert list(gpu.minutes) == [(1, 1.0), (None, None), (None, None)]


def test_fast_looks_do_not_fill_the_past() -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=GiB)
    for _ in range(100):
        story.looks(after_s=0.02)
        history.sampled(story.engine.view, story.at)

    assert len(history.gpus["GPU-0"].recent) <= 3


def test_a_lease_has_its_curve_for_a_while_after_its_end() -> None:
    story, history = Story(), History()
    story.asks("a", mem_bytes=GiB)
    story.memory["a"] = GiB // 2
    story.looks()
    history.sampled(story.engine.view, story.at)
    history.ended(story.leases["a"], story.at, Outcome.OK, GiB // 2)

    assert history.curves["lease-a"].values[-1] == GiB // 2
    assert [end.outcome for end in history.ends] == [Outcome.OK]


@pytest.mark.parametrize("count", [past.MAX_ENDS + 100])
def test_old_ends_and_their_curves_are_forgotten(count: int) -> None:
    history = History()
    for number in range(count):
        lease = a_lease(f"k{number}")
        history.curves[lease.id] = Curve(0.0)
        history.ended(lease, float(number), Outcome.FAILED, None)

    assert len(history.ends) == past.MAX_ENDS
    assert len(history.curves) == past.ENDS_WITH_CURVES
    assert history.outcomes()["failed"] == count
    assert [end.number for end in history.ended_since(count - 2)] == [count - 1, count]
