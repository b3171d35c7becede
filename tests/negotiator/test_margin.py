"""How careful estimates are, and what makes them more or less so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import SaveNumber
from grn.negotiator.learn.memory.margin import FIRST_MARGIN, Experience, Margin, spread_within
from grn.negotiator.learn.memory.type_profiles import CHANCE
from tests.builders import Story, a_profile, a_run, an_engine, some_gpus


def after(*spreads: float) -> float:
    experience = Experience()
    for number, spread in enumerate(spreads):
        experience.shown(number, spread)
    return experience.margin.spread


@pytest.mark.parametrize(
    ("spreads", "spread"),
    [
        ([], 0.15),
        ([0.01], 0.15),  # one type does not set the rule for all
        ([0.01] * 4, 0.03),  # never less than this
        ([0.05] * 9, 0.05),
        ([0.05] * 4 + [0.3] * 5, 0.15),
        ([2.0] * 9, 0.6),
    ],
)
def test_the_spread_of_new_types_is_that_of_the_middle_one(spreads, spread) -> None:
    assert after(*spreads) == pytest.approx(spread)


def test_a_type_that_was_forgotten_counts_no_more() -> None:
    experience = Experience()
    for number in range(5):
        experience.shown(number, 0.01)
    experience.shown(0, 0.5)
    for number in range(5):
        experience.shown(number, None)

    assert experience.margin.spread == 0.15


@pytest.mark.parametrize(
    ("groups", "spread"),
    [
        ([[1.0, 1.0, 1.0, 1.0]], None),  # too few
        ([[1.0] * 5], 0.0),
        ([[1.0] * 3, [9.0] * 3], 0.0),  # what arguments explain is no chance
        ([[1.0, 2.0] * 4], 0.53),
        ([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]], None),
    ],
)
def test_a_spread_is_that_within_groups(groups, spread) -> None:
    assert spread_within(groups) == (None if spread is None else pytest.approx(spread, abs=0.01))


@given(st.lists(st.booleans(), max_size=300))
def test_the_chance_stays_within_its_limits(ends: list[bool]) -> None:
    experience = Experience()
    for is_short in ends:
        experience.ended(is_short)

    assert 0.005 <= experience.margin.chance <= 0.1


def test_one_run_in_two_hundred_that_runs_out_changes_nothing_in_the_long_run() -> None:
    experience = Experience()
    for number in range(2000):
        experience.ended(number % 200 == 199)

    assert experience.margin.chance == pytest.approx(FIRST_MARGIN.chance, rel=0.01)


def test_a_run_that_runs_out_makes_all_estimates_wider() -> None:
    experience = Experience()
    before = [experience.margin.headroom([0.0] * count) for count in (1, 2)]
    experience.ended(True)

    after = [experience.margin.headroom([0.0] * count) for count in (1, 2)]
    assert all(late > 1.05 * early for early, late in zip(before, after, strict=True))


def test_less_is_added_where_runs_of_other_types_are_alike() -> None:
    careful, bold = Margin(spread=0.15), Margin(spread=0.03)

    assert careful.headroom([5.0]) == pytest.approx(0.36, abs=0.01)
    assert bold.headroom([5.0]) == pytest.approx(0.064, abs=0.001)


def test_only_what_has_changed_is_worth_writing_down() -> None:
    experience = Experience()
    experience.ended(False)
    assert experience.chance_to_save() is None
    experience.ended(True)
    chance = experience.chance_to_save()
    assert chance == experience.margin.chance
    assert experience.chance_to_save() is None

    again = Experience()
    again.resume(chance)
    assert again.margin.chance == chance
    assert again.chance_to_save() is None


# --- stories -------------------------------------------------------------------------------


def test_types_that_are_all_alike_let_a_new_one_be_estimated_tightly() -> None:
    old = [a_profile(*[4 * GiB] * 6, job_type=f"{n}.py") for n in range(6)]
    lonely = Story(profiles=(a_profile(4 * GiB),))
    among = Story(profiles=(*old, a_profile(4 * GiB)))
    for story in (lonely, among):
        story.asks("a")

    assert among.reserved("a") < 4.6 * GiB < 5.4 * GiB < lonely.reserved("a")


def test_what_was_learned_of_one_type_reaches_the_others_run_by_run() -> None:
    """Estimates of other types are drawn anew, one with each run that ends."""
    old = [a_profile(*[4 * GiB] * 4, job_type=f"{n}.py") for n in range(5)]
    story = Story(some_gpus(1), profiles=(*old, a_profile(4 * GiB)))
    story.asks("before")
    story.ends("before", peak_bytes=4 * GiB)
    for turn in range(3):
        for number in range(5):
            story.asks(f"{turn}.{number}", job_type=f"{number}.py")
            story.ends(f"{turn}.{number}", peak_bytes=4 * GiB)
    assert story.engine.view.memory.margin.spread == 0.03

    story.asks("after")

    assert story.reserved("after") < 4.6 * GiB


def test_running_out_of_memory_is_counted_and_kept_over_a_restart() -> None:
    story = Story(some_gpus(1), profiles=(a_profile(4 * GiB, 4 * GiB),))
    story.asks("other", job_type="other", mem_bytes=4 * GiB)
    story.asks("a")
    story.ends("a", outcome=Outcome.OUT_OF_MEMORY, peak_bytes=8 * GiB)
    (saved,) = [action for action in story.actions if isinstance(action, SaveNumber)]

    assert saved.name == CHANCE
    assert saved.value < FIRST_MARGIN.chance
    again = an_engine(numbers=((saved.name, saved.value),))
    assert again.view.memory.margin.chance == saved.value


@pytest.mark.parametrize(("peak_bytes", "is_bolder"), [(16 << 20, False), (4 * GiB, True)])
def test_runs_that_use_next_to_nothing_make_estimates_no_bolder(
    peak_bytes: int, is_bolder: bool
) -> None:
    story = Story(some_gpus(1), profiles=(a_profile(peak_bytes, peak_bytes),))
    for number in range(30):
        story.asks(f"{number}")
        story.ends(f"{number}", peak_bytes=peak_bytes)

    assert (story.engine.view.memory.margin.chance > FIRST_MARGIN.chance) is is_bolder


@pytest.mark.parametrize(
    "wish",
    [{"mem_bytes": 5 * GiB}, {"attempt": 1}, {"is_exclusive": True}, {"job_type": "unknown.py"}],
)
def test_only_our_own_estimates_are_held_against_us(wish) -> None:
    story = Story(some_gpus(2), profiles=(a_profile(4 * GiB, 4 * GiB),))
    story.asks("a", **wish)
    story.asks("neighbour", mem_bytes=2 * GiB)
    story.ends("a", outcome=Outcome.OUT_OF_MEMORY, peak_bytes=8 * GiB)

    assert story.engine.view.memory.margin.chance == FIRST_MARGIN.chance


def test_a_failed_run_says_nothing_of_how_much_types_differ() -> None:
    runs = [a_run(4 * GiB)] * 5 + [a_run(20 * GiB, Outcome.FAILED)] * 5
    engine = an_engine(profiles=tuple(a_profile(*runs, job_type=str(n)) for n in range(5)))

    assert engine.view.memory.margin.spread == 0.03
