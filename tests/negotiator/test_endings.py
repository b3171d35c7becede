"""How leases end: timers, reports, and what overflows a virtual GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grn.model.gpu import GpuKind
from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import KillProcesses, SetTimer, Settle
from grn.negotiator.endings import COMMAND_S, REPORT_S, overflowing
from grn.negotiator.events import (
    HolderChanged,
    HolderGone,
    LeaseState,
    ReporterJoined,
    ReporterLost,
    TimerFired,
)
from tests.builders import Story, a_gpu, a_holder, a_reading, a_use, a_virtual_gpu


def held(story: Story) -> bool:
    return story.engine.view.leases["lease-a"].state is LeaseState.HELD


def settled(story: Story) -> list[Settle]:
    return [action for action in story.actions if isinstance(action, Settle)]


def timers(story: Story) -> list[float]:
    return [action.at for action in story.actions if isinstance(action, SetTimer)]


def a_story(**changes: Any) -> Story:
    story = Story()
    story.asks("a", mem_bytes=4 * GiB, **changes)
    return story


def test_a_dead_holder_ends_its_lease_at_once() -> None:
    story = a_story()
    story.tell(HolderGone(1.0, "lease-a"))

    (end,) = settled(story)
    assert (end.settled.outcome, end.is_lost) == (Outcome.KILLED, True)
    assert not held(story)


def test_a_command_has_two_seconds_to_bind_the_lease_of_a_dead_asker() -> None:
    story = a_story(pid=5, is_command=True)
    story.tell(HolderGone(1.0, "lease-a"))
    assert timers(story) == [1.0 + COMMAND_S]
    assert held(story)

    story.tell(HolderChanged(2.0, "lease-a", a_holder(6)))
    story.tell(TimerFired(1.0 + COMMAND_S))
    assert held(story)


def test_a_command_lease_that_nobody_binds_ends_with_the_timer() -> None:
    story = a_story(pid=5, is_command=True)
    story.tell(HolderGone(1.0, "lease-a"))
    story.tell(TimerFired(2.0))
    assert held(story), "the timer of another lease"
    story.tell(TimerFired(1.0 + COMMAND_S))

    assert not held(story)


def test_a_reporter_has_half_a_second_to_say_how_a_job_ended() -> None:
    story = a_story()
    story.tell(ReporterJoined(0.5, "lease-a"))
    story.tell(HolderGone(1.0, "lease-a"))
    assert timers(story) == [1.0 + REPORT_S]
    story.ends("a", Outcome.FAILED, after_s=0.1)

    (end,) = settled(story)
    assert (end.settled.outcome, end.is_lost) == (Outcome.FAILED, False)
    assert story.tell(TimerFired(1.0 + REPORT_S)) == []


def test_a_reporter_that_ends_what_a_job_left_behind_is_waited_for() -> None:
    story = a_story()
    story.tell(HolderChanged(0.5, "lease-a", a_holder(6), is_reported=True))
    story.memory["a"] = GiB
    story.looks()
    story.tell(HolderGone(story.at, "lease-a"))
    (first,) = timers(story)
    story.tell(TimerFired(first))
    (second,) = timers(story)
    assert second == first + REPORT_S
    assert held(story)
    del story.memory["a"]
    story.looks(0.1)
    story.tell(TimerFired(second))

    assert not held(story)


@pytest.mark.parametrize("is_gone_first", [False, True])
def test_without_its_reporter_a_dead_holder_ends_its_lease_at_once(is_gone_first: bool) -> None:
    story = a_story()
    story.tell(ReporterJoined(0.5, "lease-a"))
    events = [HolderGone(1.0, "lease-a"), ReporterLost(1.0, "lease-a")]
    for event in events if is_gone_first else events[::-1]:
        story.tell(event)

    assert not held(story)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_a_command_lease_that_no_command_used_is_shown_as_not_started(outcome: Outcome) -> None:
    story = a_story(pid=5, is_command=True)
    story.ends("a", outcome)

    (end,) = settled(story)
    assert (end.settled.outcome, end.shown) == (outcome, Outcome.NOT_STARTED)


def test_a_command_that_was_not_found_teaches_nothing_about_a_type() -> None:
    story = a_story(pid=5, is_command=True)
    story.memory["a"] = GiB
    story.looks()
    story.ends("a", Outcome.FAILED)

    assert story.engine.view.memory.profiles() == []


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_a_command_that_ran_is_shown_as_it_ended(outcome: Outcome) -> None:
    story = a_story(pid=5, is_command=True)
    story.ends("a", outcome, resident_bytes=1)

    (end,) = settled(story)
    assert end.shown is outcome


@pytest.mark.parametrize(("kind", "peak"), [(GpuKind.CARD, 3 * GiB), (GpuKind.VIRTUAL, 2 * GiB)])
def test_the_peak_is_what_was_reported_for_that_kind_of_gpu(kind: GpuKind, peak: int) -> None:
    story = Story([replace(a_gpu(), kind=kind)])
    story.asks("a", mem_bytes=4 * GiB)
    story.ends("a", peak_bytes=GiB, gpu_peak_bytes=3 * GiB, resident_bytes=2 * GiB)

    assert settled(story)[0].settled.peak_bytes == peak


# --- overflow ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_job_killed_for_overflowing_a_virtual_gpu_ran_out_of_memory(is_reported: bool) -> None:
    story = Story([a_virtual_gpu(total_bytes=10 * GiB)])
    story.asks("a", pid=5, mem_bytes=4 * GiB)
    story.memory["a"] = 11 * GiB
    story.looks()
    assert [one for one in story.actions if isinstance(one, KillProcesses)] == [
        KillProcesses("lease-a", 0, (5,))
    ]
    story.looks()
    assert not [one for one in story.actions if isinstance(one, KillProcesses)], "once is enough"
    if is_reported:
        story.ends("a", Outcome.FAILED)
    else:
        story.dies("a")

    assert settled(story)[0].settled.outcome is Outcome.OUT_OF_MEMORY


FULL = a_virtual_gpu(total_bytes=10 * GiB)


def of_two(first_gib: int, second_gib: int) -> Any:
    return a_reading(FULL, a_use(1, first_gib * GiB, "A"), a_use(2, second_gib * GiB, "B"))


@pytest.mark.parametrize(
    ("before", "now", "ended"),
    [
        (of_two(4, 4), of_two(5, 5), ()),  # just full
        (of_two(4, 4), of_two(4, 7), ("B",)),
        (of_two(4, 4), of_two(7, 4), ("A",)),
        (of_two(8, 1), of_two(8, 3), ("B",)),  # the larger one has not grown
        (of_two(4, 4), of_two(5, 6), ("B",)),  # both have: the one that grew more
        (a_reading(FULL, a_use(1, 8 * GiB, "A")), of_two(8, 3), ("B",)),  # a newcomer
        (None, of_two(3, 8), ("B",)),
        (of_two(4, 4), a_reading(FULL, used_bytes=None), ()),
    ],
)
def test_the_one_whose_growth_overflowed_is_ended(before: Any, now: Any, ended: Any) -> None:
    assert overflowing(FULL, now, before) == ended


def test_a_process_under_two_leases_ends_both() -> None:
    now = a_reading(FULL, a_use(1, 11 * GiB, "A", "B"), a_use(2, GiB, "C"))

    assert overflowing(FULL, now, None) == ("A", "B")


def test_nobody_else_is_named_while_one_that_overflowed_is_still_there() -> None:
    before, now = of_two(8, 1), of_two(8, 3)
    assert overflowing(FULL, now, before) == ("B",)
    assert overflowing(FULL, now, before, {"A"}) == ()
    assert overflowing(FULL, now, before, {"C"}) == ("B",)


def test_growth_is_that_of_a_lease_not_of_a_process() -> None:
    """A fresh child of an old job is not a newcomer."""
    before = a_reading(FULL, a_use(1, 4 * GiB, "A"), a_use(2, 4 * GiB, "B"))
    now = a_reading(FULL, a_use(3, 5 * GiB, "A"), a_use(2, 6 * GiB, "B"))

    assert overflowing(FULL, now, before) == ("B",)


def test_a_real_card_refuses_by_itself() -> None:
    card = a_gpu(total_bytes=10 * GiB)

    assert overflowing(card, of_two(8, 8), None) == ()
