"""Which runs still count after the job, its code or its memory has changed."""

from __future__ import annotations

import random

import pytest

from grn.model.job import Outcome, Run
from grn.model.units import GiB
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.profiling import counted
from grn.negotiator.queries import views
from tests.builders import Story, a_profile, a_run, some_gpus

OLD, NEW = "0000000a", "0000000b"


def runs(*peaks_gib: float, code: str = "", **changes) -> list[Run]:
    return [a_run(int(gib * GiB), code=code, **changes) for gib in peaks_gib]


def kept(some: list[Run], code: str = "") -> list[int]:
    return counted(some, [profiling.counts_in_full(run) for run in some], code)


# --- code ----------------------------------------------------------------------------------


def test_of_an_older_code_only_the_last_five_runs_count() -> None:
    assert kept(runs(*[4] * 9, code=OLD), NEW) == [4, 5, 6, 7, 8]
    assert kept(runs(*[4] * 9, code=OLD), OLD) == list(range(9))


def test_each_run_of_the_new_code_takes_the_place_of_an_older_one() -> None:
    assert kept(runs(*[4] * 9, code=OLD) + runs(5, 5, code=NEW), NEW) == [6, 7, 8, 9, 10]
    assert kept(runs(*[4] * 9, code=OLD) + runs(*[5] * 6, code=NEW), NEW) == list(range(9, 15))


def test_runs_of_an_unknown_code_and_jobs_of_an_unknown_code_count_all() -> None:
    """Older clients say nothing of their code: nothing changes for them."""
    assert kept(runs(*[4] * 9), NEW) == list(range(9))
    assert kept(runs(*[4] * 5, code=OLD) + runs(*[4] * 4, code=NEW), "") == list(range(9))


def test_two_versions_in_turn_each_have_all_their_own_runs() -> None:
    both = [run for _ in range(10) for run in (*runs(8, code=OLD), *runs(4, code=NEW))]

    for code in (OLD, NEW):
        found = kept(both, code)
        assert {place for place, run in enumerate(both) if run.code == code} <= set(found)
        assert len(found) in (12, 13)  # and what is among the last five


def test_runs_that_failed_do_not_push_out_those_that_count() -> None:
    crashes = [a_run(GiB, Outcome.FAILED, code=f"{n:08x}") for n in range(9)]
    some = runs(*[4] * 6, code=OLD) + crashes

    assert kept(some, NEW)[:5] == [1, 2, 3, 4, 5]


def test_with_each_set_of_arguments_some_runs_are_kept() -> None:
    """Else a larger batch would need another first run after each change of the code."""
    large = runs(*[9] * 7, code=OLD, arguments=(("batch", 64.0), ("seed", 1.0)))
    small = runs(*[2] * 7, code=OLD, arguments=(("batch", 8.0),))

    assert kept(large + small, NEW) == [2, 3, 4, 5, 6, 9, 10, 11, 12, 13]


# --- memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "forgets"),
    [
        ([8] * 6, [4] * 5, True),
        ([8] * 6, [4] * 4, False),
        ([8] * 4, [4] * 6, False),
        ([4] * 6, [8] * 5, True),
        ([8] * 6, [7.5] * 6, False),  # too near to be sure
        ([8, 8, 8, 3, 8, 8], [4] * 6, False),  # it was as small before
        ([8] * 6, [4] * 6 + [8], False),  # and is as large again
    ],
)
def test_runs_before_a_change_of_memory_are_forgotten(before, after, forgets) -> None:
    found = kept(runs(*before, *after))

    assert found == list(range(len(before) if forgets else 0, len(before) + len(after)))


def test_after_two_changes_only_the_last_stretch_counts() -> None:
    assert kept(runs(*[8] * 6, *[4] * 6, *[2] * 6)) == list(range(12, 18))


def test_chance_is_no_change() -> None:
    """A type that is large now and then is not forgotten over a quiet stretch."""
    draw = random.Random(3)
    for _ in range(200):
        some = runs(*(draw.choice([2, 2, 2, 2, 6]) for _ in range(60)))
        largest = max(run.peak_bytes for run in some)
        assert largest == max(some[place].peak_bytes for place in kept(some)) or (
            largest not in [run.peak_bytes for run in some[-20:]]
        )


def test_smaller_arguments_are_no_change_of_memory() -> None:
    large = runs(*[9] * 6, arguments=(("batch", 64.0),))
    small = runs(*[2] * 9, arguments=(("batch", 8.0),))

    assert len(kept(large + small)) == 15


# --- stories -------------------------------------------------------------------------------


def test_another_code_is_no_first_run_and_its_margin_is_no_smaller() -> None:
    story = Story(some_gpus(2), profiles=(a_profile(*runs(*[4] * 50, code=OLD)),))
    story.asks("old", code=OLD)
    story.asks("new", code=NEW)

    assert not story.leases["new"].is_probe
    assert 4.4 * GiB < story.reserved("old") <= story.reserved("new") < 6 * GiB


def test_a_code_that_needs_less_is_believed_once_its_own_runs_count() -> None:
    story = Story(some_gpus(1), profiles=(a_profile(*runs(*[16] * 50, code=OLD)),))
    for number in range(5):
        story.asks(str(number), code=NEW)
        assert story.reserved(str(number)) > 16 * GiB
        story.ends(str(number), peak_bytes=2 * GiB)
    story.asks("new", code=NEW)
    assert story.reserved("new") < 3.5 * GiB
    story.ends("new", peak_bytes=2 * GiB)

    story.asks("old again", code=OLD)
    assert story.reserved("old again") > 16 * GiB


def test_what_does_not_count_any_more_is_said() -> None:
    changed = Story(profiles=(a_profile(*runs(*[16] * 9, code=OLD), *runs(*[2] * 9, code=NEW)),))
    shrunk = Story(profiles=(a_profile(*runs(*[16] * 9), *runs(*[2] * 9)),))

    (code,) = views.profiles(changed.engine.view, None)
    (memory,) = views.profiles(shrunk.engine.view, None)

    assert "not counted: 9 runs of an older code" in code["notes"]
    assert "not counted: 9 runs from before its memory changed" in memory["notes"]
    assert [run["outdated"] for run in code["history"]] == [True] * 9 + [False] * 9
    assert code["largest_bytes"] == memory["largest_bytes"] == 2 * GiB


def test_requests_of_other_codes_wait_apart() -> None:
    story = Story(profiles=(a_profile(*runs(*[20] * 5, code=OLD)),))
    story.asks("x", mem_bytes=23 * GiB)
    for number, code in enumerate((OLD, NEW, OLD)):
        story.asks(f"s{number}", code=code)

    assert len(list(story.engine.view.waitlist.in_turn())) == 2
