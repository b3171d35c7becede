"""Leases that give way: which are asked, when, and for whom the room is kept."""

from __future__ import annotations

from typing import Any

import pytest

from grn.model.gpu import Gpu
from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import AskYield
from grn.negotiator.events import WaitReason
from grn.negotiator.schedule.room.ledger import Rules
from grn.negotiator.schedule.room.room_index import MANY
from tests.builders import NO_GUARD, Story, a_profile, a_run, some_gpus

RULES = Rules(NO_GUARD, yield_after_s=10.0)
WHOLE = {"mem_bytes": 24 * GiB}


def a_story(gpus: list[Gpu] | int = 1, **changes: Any) -> Story:
    gpus = some_gpus(gpus) if isinstance(gpus, int) else gpus
    return Story(gpus, changes.pop("rules", RULES), **changes)


def asked(story: Story) -> list[str]:
    """Return the keys whose leases were asked to give way by the latest step."""
    return [one.lease.request.key for one in story.actions if isinstance(one, AskYield)]


def test_a_request_without_room_asks_a_yielding_lease_and_gets_its_gpu() -> None:
    story = a_story()
    story.asks("low", yields=True, **WHOLE)
    story.asks("high", after_s=5.0, **WHOLE)
    story.looks(after_s=9.0)
    assert asked(story) == []

    story.looks(after_s=1.0)
    assert asked(story) == ["low"]
    assert story.why("high") is WaitReason.PREEMPTING
    assert "asked to give way" in story.text("high")
    story.looks()
    assert asked(story) == []  # once
    assert story.ends("low", outcome=Outcome.YIELDED) == ["high"]


def test_no_lease_is_asked_for_a_request_that_yields_itself() -> None:
    story = a_story()
    story.asks("low", yields=True, **WHOLE)
    story.asks("also low", yields=True, **WHOLE)
    story.looks(after_s=100.0)

    assert asked(story) == []


def test_a_lease_that_does_not_yield_is_never_asked() -> None:
    story = a_story()
    story.asks("high", **WHOLE)
    story.asks("urgent", is_urgent=True, **WHOLE)
    story.looks(after_s=100.0)

    assert asked(story) == []


def test_an_urgent_request_asks_at_once() -> None:
    story = a_story()
    story.asks("low", yields=True, **WHOLE)
    story.asks("urgent", is_urgent=True, after_s=1.0, **WHOLE)

    assert asked(story) == ["low"]


def test_a_user_has_a_limited_number_of_urgent_jobs() -> None:
    story = a_story(2)
    story.asks("low", yields=True, **WHOLE)
    story.asks("low too", yields=True, **WHOLE)
    story.asks("first", is_urgent=True, after_s=1.0, job_type="a.py", **WHOLE)
    assert len(asked(story)) == 1

    story.asks("second", is_urgent=True, after_s=1.0, job_type="b.py", **WHOLE)
    assert asked(story) == []
    story.looks(after_s=10.0)
    assert len(asked(story)) == 1  # as any other request


def test_a_lease_is_left_alone_until_it_has_run_as_long_as_stated() -> None:
    story = a_story()
    story.asks("low", yields=True, at_least_s=60.0, **WHOLE)
    story.asks("high", **WHOLE)
    story.looks(after_s=59.0)
    assert asked(story) == []

    story.looks(after_s=1.0)
    assert asked(story) == ["low"]


def test_the_lease_that_loses_least_is_asked() -> None:
    story = a_story(2)
    story.asks("old", yields=True, **WHOLE)
    story.asks("young", after_s=100.0, yields=True, **WHOLE)
    story.asks("high", after_s=1.0, **WHOLE)
    story.looks(after_s=10.0)

    assert asked(story) == ["young"]


def test_a_job_that_is_nearly_done_is_not_asked_while_another_can_be() -> None:
    runs = [a_run(20 * GiB, duration_s=100.0, load=1.0) for _ in range(5)]
    profile = a_profile(*runs, job_type="short.py")
    story = a_story(2, profiles=(profile,))
    story.asks("old", yields=True, **WHOLE)
    story.asks("nearly done", after_s=10.0, job_type="short.py", yields=True, **WHOLE)
    story.asks("high", after_s=60.0, **WHOLE)
    story.looks(after_s=10.0)

    assert asked(story) == ["old"]


def test_only_leases_whose_end_makes_the_difference_are_asked() -> None:
    story = a_story(2)
    for number in range(3):  # the youngest are on the other GPU
        story.asks(f"small {number}", yields=True, mem_bytes=8 * GiB, slots=("0",))
    story.asks("large", after_s=50.0, yields=True, slots=("1",), **WHOLE)
    story.asks("high", after_s=1.0, mem_bytes=16 * GiB, slots=("0",))
    story.looks(after_s=10.0)

    assert len(asked(story)) == 2
    assert "large" not in asked(story)


def test_room_is_made_on_several_gpus_at_once() -> None:
    story = a_story(2)
    story.asks("low", yields=True, **WHOLE)
    story.asks("low too", yields=True, **WHOLE)
    story.asks("wide", gpus=2, **WHOLE)
    story.looks(after_s=10.0)
    assert sorted(asked(story)) == ["low", "low too"]

    assert story.ends("low", outcome=Outcome.YIELDED) == []
    assert story.ends("low too", outcome=Outcome.YIELDED) == ["wide"]


def test_freed_gpus_are_kept_for_the_request_that_others_gave_way_to() -> None:
    story = a_story(2)
    story.asks("low", yields=True, **WHOLE)
    story.asks("low too", yields=True, **WHOLE)
    story.asks("wide", gpus=2, **WHOLE)
    story.looks(after_s=10.0)
    story.ends("low", outcome=Outcome.YIELDED)

    assert story.asks("small", mem_bytes=GiB, job_type="small.py") == []
    assert story.ends("low too", outcome=Outcome.YIELDED) == ["wide"]


def test_nothing_is_kept_for_a_request_that_was_withdrawn() -> None:
    story = a_story()
    story.asks("low", yields=True, **WHOLE)
    story.asks("high", **WHOLE)
    story.looks(after_s=10.0)
    story.gives_up("high")

    story.ends("low", outcome=Outcome.YIELDED)
    assert story.asks("another", **WHOLE) == ["another"]


def test_of_many_gpus_those_of_yielding_leases_are_found() -> None:
    story = a_story(MANY + 2)
    for number in range(MANY + 2):
        story.asks(f"l{number}", yields=number == MANY, job_type=f"{number}.py", **WHOLE)
    story.asks("high", is_urgent=True, **WHOLE)

    assert asked(story) == [f"l{MANY}"]
    assert story.ends(f"l{MANY}", outcome=Outcome.YIELDED) == ["high"]


def test_a_yielding_lease_costs_half_in_fair_share() -> None:
    story = a_story(2)
    story.asks("low", user=1, yields=True, **WHOLE)
    story.asks("high", user=2, **WHOLE)
    story.looks(after_s=1.0)

    usage = story.engine.view.usage
    assert usage.rate(1) == pytest.approx(usage.rate(2) / 2)
