"""How well GPUs do several jobs at once: what durations tell of it."""

from __future__ import annotations

import math
import random

import pytest

from grn.model.job import Outcome, Profile, Run
from grn.model.units import GiB
from grn.negotiator.learn.interference import (
    MAX_GROUPS,
    MAX_PAIRS,
    START_CAP,
    Overlaps,
    cap_of,
    is_worth,
    slowdown,
)


def a_run(duration_s: float, load: float = 1.0, beside: dict[str, float] | None = None,
          batch: float = 32.0, outcome: Outcome = Outcome.OK) -> Run:  # fmt: skip
    """Return a run of which all neighbours are known, with so much load on its GPU."""
    return Run(outcome, GiB, duration_s, 0.0, arguments=(("batch", batch),),
               crowd=math.log(max(1.0, load)), beside=tuple((beside or {}).items()))  # fmt: skip


def taught(power: float, runs: int = 40, noise: float = 0.0) -> Overlaps:
    """Return what was learned from runs on GPUs that slow down by that power."""
    overlaps, draw = Overlaps(), random.Random(1)
    for number in range(runs):
        load = draw.choice((0.8, 1.2, 1.5, 1.8))
        batch = draw.choice((32.0, 64.0))
        time = 20 * batch * slowdown(load, power) * math.exp(draw.gauss(0, noise))
        overlaps.learn(f"type {number % 3}", "card", a_run(time, load, batch=batch))
    return overlaps


@pytest.mark.parametrize("power", [0.4, 0.6, 1.0, 1.4])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_durations_tell_how_well_a_gpu_overlaps(power: float, noise: float) -> None:
    overlaps = taught(power, noise=noise)

    assert overlaps.power("card") == pytest.approx(power, abs=0.25)
    assert abs(overlaps.cap("card") - cap_of(power)) < 0.35


def test_the_better_a_gpu_overlaps_the_more_it_is_shared() -> None:
    caps = [taught(power).cap("card") for power in (0.5, 1.0, 1.5)]

    assert caps[0] > START_CAP >= caps[1] > caps[2]


def test_other_models_are_not_judged_by_it() -> None:
    assert taught(0.5).cap("another card") == START_CAP


def test_one_strange_run_does_not_move_the_cap_far() -> None:
    overlaps = taught(1.0)
    before = overlaps.cap("card")
    overlaps.learn("type 0", "card", a_run(1_000_000, 1.8))

    assert abs(overlaps.cap("card") - before) <= 0.2


def test_runs_of_other_lengths_are_not_compared() -> None:
    """Large batches are run alone and take long; that says nothing of sharing."""
    overlaps = Overlaps()
    for _ in range(20):
        overlaps.learn("type", "card", a_run(5000, 0.9, batch=128))
        overlaps.learn("type", "card", a_run(100, 1.8, batch=32))

    assert overlaps.cap("card") == START_CAP


def test_a_smoke_test_and_long_runs_of_the_same_command_are_not_compared() -> None:
    """What sets them apart is in no argument; the neighbours of the long ones are not to blame."""
    overlaps = Overlaps()
    for one in ("pa.py", "pb.py"):
        overlaps.learn(one, "card", a_run(25, 0.02))
    for _ in range(4):
        for one, other in (("pa.py", "pb.py"), ("pb.py", "pa.py")):
            overlaps.learn(one, "card", a_run(1500, 0.04, {other: 1.0}))

    assert overlaps.slower_beside("pa.py", "card") is None
    assert overlaps.slower_beside("pb.py", "card") is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.KILLED, Outcome.OUT_OF_MEMORY])
def test_only_runs_that_ended_well_tell_something(outcome: Outcome) -> None:
    overlaps = Overlaps()
    for load in (1.0, 1.8) * 20:
        overlaps.learn("type", "card", a_run(100, load, outcome=outcome))

    assert overlaps.power("card") == Overlaps().power("card")


def clashing(more: float, runs: int = 8) -> Overlaps:
    """Return what was learned of two heavy types that slow each other so much more."""
    overlaps = taught(1.0)
    for _ in range(runs):
        for one, other in (("heavy a", "heavy b"), ("heavy b", "heavy a")):
            overlaps.learn(one, "card", a_run(1000, 0.9))
            slow = 1000 * slowdown(1.8, 1.0) * more
            overlaps.learn(one, "card", a_run(slow, 1.8, {other: 1.0}))
    return overlaps


def test_a_pair_that_slows_more_than_its_load_is_known_for_it() -> None:
    overlaps = clashing(1.6)

    for one, other in (("heavy a", "heavy b"), ("heavy b", "heavy a")):
        slower = overlaps.slower_beside(one, "card")
        assert slower is not None
        assert 1.25 < slower[other] < 1.7
    assert overlaps.slower_beside("heavy a", "another card") is None


def test_a_pair_that_slows_as_its_load_tells_is_not() -> None:
    assert clashing(1.0).slower_beside("heavy a", "card") is None


def test_one_run_is_not_enough_to_blame_a_pair() -> None:
    overlaps = taught(1.0)
    overlaps.learn("heavy a", "card", a_run(1000, 0.9))
    overlaps.learn("heavy a", "card", a_run(2000, 1.8, {"heavy b": 1.0}))

    assert overlaps.slower_beside("heavy a", "card") is None


def test_a_pair_that_does_not_clash_any_more_is_forgiven() -> None:
    overlaps = clashing(1.6)
    for _ in range(12):
        overlaps.learn("heavy a", "card", a_run(1800, 1.8, {"heavy b": 1.0}))

    assert overlaps.slower_beside("heavy a", "card") is None


def test_what_was_believed_of_a_pair_that_is_kept_apart_fades() -> None:
    """Not soon, and not by the doing of others; then it is tried once more."""
    overlaps, passed = clashing(1.6), 0
    while overlaps.slower_beside("heavy a", "card") and passed < 200:
        passed += 1
        overlaps.learn("light", "card", a_run(500, 0.4))
        for one in ("heavy a", "heavy b"):
            overlaps.learn(one, "card", a_run(1000, 0.9))

    assert 40 <= passed <= 120
    assert overlaps.slower_beside("heavy b", "card") is None


def test_a_pair_that_clashes_still_is_soon_known_for_it_again() -> None:
    overlaps = clashing(1.6)
    for one in ("heavy a", "heavy b") * 120:
        overlaps.learn(one, "card", a_run(1000, 0.9))
    assert overlaps.slower_beside("heavy a", "card") is None
    for one, other in (("heavy a", "heavy b"), ("heavy b", "heavy a")):
        overlaps.learn(one, "card", a_run(2880, 1.8, {other: 1.0}))

    assert overlaps.slower_beside("heavy a", "card")


@pytest.mark.parametrize(
    ("load", "more", "slower", "power", "is_good"),
    [
        (0.3, 0.3, [1.0], 1.0, True),
        (0.9, 0.9, [1.0], 1.0, True),  # each at 0.56: together 1.11
        (0.9, 0.9, [1.2], 1.0, False),
        (0.4, 0.4, [1.6], 1.0, True),  # each at 0.63
        (0.4, 0.4, [2.0], 1.0, False),
        (1.8, 0.7, [1.0, 1.0, 1.0], 0.6, True),
        (1.8, 0.7, [1.0, 1.0, 1.6], 0.6, False),
    ],
)
def test_one_more_job_is_worth_it_when_more_gets_done(
    load: float, more: float, slower: list[float], power: float, is_good: bool
) -> None:
    assert is_worth(load, more, slower, power) is is_good


def test_a_forgotten_type_clashes_with_nobody() -> None:
    overlaps = clashing(1.6)
    overlaps.forget("heavy a")

    assert overlaps.slower_beside("heavy a", "card") is None
    assert overlaps.slower_beside("heavy b", "card") is None


def test_what_is_remembered_is_bounded() -> None:
    overlaps = Overlaps()
    for number in range(2 * MAX_GROUPS):
        for _ in range(2):
            run = a_run(100, 1.5, {f"other {number}": 1.0})
            overlaps.learn(f"type {number}", "card", run)

    assert len(list(overlaps.pairs)) == MAX_PAIRS


def test_remembered_runs_teach_the_same_again() -> None:
    runs = [a_run(20 * 32 * slowdown(load, 0.5), load) for load in (0.8, 1.5, 1.2, 1.8) * 10]
    first = Overlaps()
    for run in runs:
        first.learn("type", "card", run)
    again = Overlaps()
    again.load([Profile("type", "card", "type", 0, tuple(runs))])

    assert again.power("card") == first.power("card")
    assert again.cap("card") == first.cap("card")
    assert again.cap("card") > START_CAP
