"""What is reserved for types whose runs differ, and when it is given back."""

from __future__ import annotations

import math

import pytest

from grn.model.job import Argument, Outcome, Profile
from grn.model.units import GiB, MiB
from grn.negotiator.events import WaitReason
from grn.negotiator.learn.arguments import Beyond, less_beyond
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.margin import Experience, Margin
from grn.negotiator.schedule.room.ledger import Guard, Rules
from tests.builders import Story, a_profile, a_run, some_gpus


def soon(*peaks_gib: float, grown: float = 0.02) -> Profile:
    """Return a type whose runs of 1,000 s had their memory after 20 s."""
    runs = [a_run(int(gib * GiB), duration_s=1000.0, grown=grown) for gib in peaks_gib]
    return a_profile(*runs)


# --- a run that has its memory ---------------------------------------------------------------


def test_a_run_as_old_as_others_were_when_they_had_their_memory_keeps_what_it_uses() -> None:
    story = Story(profiles=(soon(4, 9, 12),))
    story.asks("a")
    assert story.reserved("a") > 12 * GiB
    story.memory["a"] = 4 * GiB

    story.passes(40, every_s=5.0)
    assert story.reserved("a") > 12 * GiB
    story.passes(10, every_s=5.0)
    assert story.reserved("a") == int(4 * GiB * 1.05) + 256 * MiB


def test_a_run_with_less_than_any_before_it_is_watched_longer() -> None:
    story = Story(profiles=(soon(4, 9, 12),))
    story.asks("a")
    story.memory["a"] = GiB

    story.passes(170)
    assert story.reserved("a") > 12 * GiB
    story.passes(30)
    assert story.reserved("a") < 2 * GiB


def test_a_run_of_a_type_that_grows_for_long_keeps_what_others_had() -> None:
    story = Story(profiles=(soon(4, 9, 12, grown=0.9),))
    story.asks("a")
    story.memory["a"] = 4 * GiB

    story.passes(600)
    assert story.reserved("a") > 12 * GiB


def test_a_second_try_gives_back_what_it_does_not_use() -> None:
    story = Story(profiles=(soon(4, 9, 12),))
    story.asks("a", attempt=2)
    assert story.free() == 0
    story.memory["a"] = 6 * GiB

    story.passes(60, every_s=5.0)
    assert story.reserved("a") < 7 * GiB


def after_two_of_4_gib(story: Story, code: str = "") -> int:
    """Let two jobs run until each has settled at 4 GiB; return the reservation of a third."""
    for name in ("a", "b"):
        story.asks(name, code=code)
        story.memory[name] = 4 * GiB
    story.passes(60, every_s=5.0)
    story.asks("c", code=code)
    return story.reserved("c")


def test_a_run_that_has_its_memory_counts_before_it_ends() -> None:
    story = Story(profiles=(soon(4),))
    story.asks("alone")
    before = story.reserved("alone")
    story.ends("alone", outcome=Outcome.CANCELLED)
    after = after_two_of_4_gib(story)

    assert before > 1.3 * 4 * GiB
    assert after < 1.15 * 4 * GiB
    for name in ("a", "b"):
        story.ends(name, outcome=Outcome.CANCELLED)
    story.asks("d")
    assert story.reserved("d") > 1.3 * 4 * GiB  # they ended too early to tell


def test_the_largest_of_the_runs_that_are_going_counts() -> None:
    story = Story(profiles=(soon(4),))
    story.asks("a")
    story.memory["a"] = 5 * GiB
    story.passes(60, every_s=5.0)
    story.asks("b")

    assert story.reserved("b") > 5 * GiB


def test_a_run_that_is_going_does_not_count_for_types_that_grow_for_long() -> None:
    story = Story(profiles=(soon(4, grown=0.9),))

    assert after_two_of_4_gib(story) > 1.3 * 4 * GiB


# --- how much is reserved --------------------------------------------------------------------


def logs(*sizes: float) -> list[float]:
    return [math.log(size) for size in sizes]


def test_the_headroom_falls_with_the_number_of_runs_however_much_they_differ() -> None:
    margin = Margin(spread=0.5)

    assert margin.headroom(logs(1)) > 1.0
    assert 0.2 < margin.headroom(logs(1, 3)) < 0.4
    assert margin.headroom(logs(1, 1, 1, 1, 1, 3, 3, 3)) == pytest.approx(0.05)


def test_a_type_with_few_runs_is_believed_to_differ_as_much_as_others() -> None:
    margin = Margin(span=math.log(3), max_span=math.log(5))

    assert margin.headroom(logs(2)) == pytest.approx(2.0)
    assert margin.headroom(logs(1, 3)) < 1.5


def test_no_type_is_believed_to_differ_more_than_any_has() -> None:
    assert Margin(spread=0.5).headroom(logs(1)) > 1.0
    bound = Margin(spread=0.5, max_span=math.log(1.5)).headroom(logs(1))
    assert bound == pytest.approx(0.66, abs=0.01)


def test_spans_count_once_three_types_have_shown_theirs() -> None:
    experience = Experience()
    for number, span in enumerate((0.2, 0.4)):
        experience.shown(number, 0.1, span, 8)
    assert (experience.margin.span, experience.margin.max_span) == (0.0, math.inf)

    experience.shown(2, None, 1.0, 2)  # of two runs: they tell how much runs may differ,
    assert (experience.margin.span, experience.margin.max_span) == (0.4, math.inf)
    experience.shown(2, 0.1, 1.2, 5)  # and not how much they differ at most
    assert (experience.margin.span, experience.margin.max_span) == (0.4, 1.2)


WIDTHS: tuple[tuple[Argument, ...], ...] = tuple((("width", float(n)),) for n in (1, 2, 4))


def test_arguments_do_not_tell_while_runs_with_the_same_ones_differ() -> None:
    widths = [a_run(size * GiB, arguments=WIDTHS[size % 2]) for size in (2, 3, 6)]
    vain = [a_run(size * GiB, arguments=WIDTHS[0]) for size in (2, 3, 5, 8, 13)]
    others = [a_profile(*vain, job_type=f"other{number}") for number in range(3)]
    telling = Story(some_gpus(1), profiles=(a_profile(*widths),))
    unsure = Story(some_gpus(1), profiles=(a_profile(*widths), *others))
    for story in (telling, unsure):
        story.asks("a", arguments=WIDTHS[1])

    assert telling.reserved("a") < 5 * GiB
    assert unsure.reserved("a") > 6 * GiB


def test_a_larger_argument_needs_no_less_than_a_smaller_one_although_its_run_is_flat() -> None:
    story = Story(some_gpus(2), profiles=(a_profile(a_run(8 * GiB, arguments=WIDTHS[0])),))
    story.asks("first", arguments=WIDTHS[2])
    story.memory["first"] = 2 * GiB
    story.passes(100)
    story.asks("a", arguments=WIDTHS[2])

    assert story.reserved("first") < 3 * GiB
    assert story.reserved("a") > 8 * GiB


def test_headroom_may_lie_in_half_of_the_guard_and_what_runs_have_used_may_not() -> None:
    rules = Rules(guard=Guard(0.0, 2 * GiB))
    sure = Story(some_gpus(1, 96 * GiB), rules, profiles=(soon(8),))
    unsure = Story(some_gpus(1, 96 * GiB), rules, profiles=(soon(8, grown=0.9),))
    for story in (sure, unsure):
        story.asks("a")

    assert unsure.reserved("a") - sure.reserved("a") == GiB
    assert sure.reserved("a") > 8 * GiB


def test_what_ran_out_of_memory_is_no_bound_once_a_later_run_has_shown_as_much() -> None:
    died = a_run(10 * GiB, Outcome.OUT_OF_MEMORY, reserved_bytes=8 * GiB)
    before = profiling.lower_bound_bytes(a_profile(a_run(4 * GiB), died), 24 * GiB)
    after = profiling.lower_bound_bytes(a_profile(died, a_run(4 * GiB), a_run(10 * GiB)), 24 * GiB)

    assert before > 10 * GiB
    assert after == 0


# --- arguments that were never so large ------------------------------------------------------


def runs_of(*found: tuple[float | str, float]) -> list[profiling.Run]:
    return [a_run(int(gib * GiB), arguments=((_name(value), value),)) for value, gib in found]


def _name(value: float | str) -> str:
    return "model" if isinstance(value, str) else "width"


WIDER = Beyond("width", 2.0)


@pytest.mark.parametrize(
    ("runs", "times"),
    [
        (runs_of((1.0, 4), (2.0, 4)), 2.0),  # too few
        (runs_of((1.0, 4), (1.0, 4), (2.0, 4), (2.0, 4)), 1.0),
        (runs_of((1.0, 4), (1.0, 4), (2.0, 8), (2.0, 8)), 2.0),
        (runs_of((1.0, 4), (1.0, 4), (4.0, 8), (4.0, 8)), 2**0.5),
    ],
)
def test_a_larger_number_needs_as_much_more_as_smaller_ones_have_shown(runs, times) -> None:
    assert less_beyond(WIDER, runs).times == pytest.approx(times)


def test_a_new_word_needs_as_much_more_as_three_words_differ() -> None:
    new: Argument = ("model", "large")
    beyond = Beyond(new[0], math.inf)

    assert math.isinf(less_beyond(beyond, runs_of(("a", 4), ("b", 4))).times)
    assert less_beyond(beyond, runs_of(("a", 4), ("b", 4), ("c", 6))).times == pytest.approx(1.5)


# --- first runs --------------------------------------------------------------------------------


def test_first_runs_of_other_types_start_beside_one_that_grows_slowly() -> None:
    story = Story()
    story.asks("leak", job_type="leak.py")
    story.asks("other", job_type="other.py")
    assert story.why("other") is WaitReason.NO_ROOM_FOR_FIRST_RUN
    granted: list[str] = []
    for step in range(20):
        story.memory["leak"] = int(3 * GiB * (1 + 0.012 * step))
        granted += story.passes(10)

    assert granted == ["other"]
    assert not story.engine.view.leases["lease-leak"].is_probe
    for step in range(20, 80):
        story.memory["leak"] = int(3 * GiB * (1 + 0.012 * step))
        story.memory["other"] = GiB
        story.passes(10)
        assert story.reserved("leak") >= 1.25 * story.memory["leak"]


def test_a_type_that_no_run_has_shown_goes_before_known_long_ones() -> None:
    long = a_profile(a_run(20 * GiB, duration_s=9000.0), job_type="long.py")
    story = Story(profiles=(long,))
    story.asks("a", job_type="long.py")
    story.asks("b", job_type="long.py")
    story.asks("new", job_type="new.py")

    assert story.ends("a") == ["new"]
