"""Who holds a GPU and does not use it: from loads to what follows."""

from __future__ import annotations

from typing import Any

import pytest

from grn.model.gpu import GpuHealth
from grn.model.job import IdleRule, Outcome
from grn.model.units import GiB
from grn.negotiator.actions import AskYield, TellIdle, TellIdleStranger
from grn.negotiator.learn.idle_leases import Idleness, Sample
from grn.negotiator.queries import views
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import NO_GUARD, Story, a_use, a_virtual_gpu, some_gpus

LIMIT_S, AFTER_S = 1800.0, 1200.0
SHOW = Rules(NO_GUARD, yield_after_s=10.0)


def ruled(rule: IdleRule, **changes: Any) -> Rules:
    return Rules(NO_GUARD, yield_after_s=10.0, idle_rule=rule, **changes)


def a_story(rules: Rules = SHOW, gpus: int = 1, **changes: Any) -> Story:
    story = Story(some_gpus(gpus), rules, **changes)
    story.load_pct = dict.fromkeys(range(gpus), 0.0)
    return story


def a_job(story: Story, key: str = "a", gib: int = 4, **changes: Any) -> None:
    story.asks(key, mem_bytes=gib * GiB, **changes)
    story.memory[key] = gib * GiB


def since(story: Story, key: str = "a") -> float | None:
    return story.engine.view.leases[story.leases[key].id].idle_since


def told(story: Story, kind: type) -> list[Any]:
    return [action for action in story.actions if isinstance(action, kind)]


# --- the sums ------------------------------------------------------------------------------


def changes(loads: list[float | None], step_s: float = 10.0, limit_s: float = 300.0) -> list[Any]:
    """Return the changes of one lease with these loads, with the time of each."""
    idleness, found = Idleness(), []
    for number, load in enumerate(loads):
        at = number * step_s
        found += [(at, one.since) for one in idleness.seen(at, [Sample("a", load, limit_s)])]
        idleness.check()
    return found


def test_one_is_idle_after_its_limit_since_its_first_quiet_window() -> None:
    assert changes([0.0] * 40) == [(300.0, 0.0)]


def test_work_ends_idleness_at_once_and_the_time_begins_anew() -> None:
    found = changes([0.0] * 35 + [1.0] + [0.0] * 40)

    assert found == [(300.0, 0.0), (350.0, None), (650.0, 350.0)]


def test_one_that_works_a_little_all_the_time_is_idle() -> None:
    assert changes([0.04] * 40) == [(300.0, 0.0)]


def test_a_short_burst_in_each_window_is_work() -> None:
    assert changes(([0.2] + [0.0] * 2) * 20) == []


def test_a_load_that_is_not_known_is_not_idle() -> None:
    assert changes([None] * 60) == []
    assert changes([0.0] * 35 + [None] * 10)[1:] == [(360.0, None)]


def test_a_sample_without_an_answer_does_not_end_idleness() -> None:
    assert changes([0.0] * 10 + [None] + [0.0] * 30) == [(300.0, 0.0)]


def test_what_was_before_a_long_gap_does_not_count() -> None:
    assert changes([0.0] * 5, step_s=200.0) == []


def test_more_looks_than_needed_are_skipped() -> None:
    idleness = Idleness()
    idleness.seen(0.0, [Sample("a", 0.0, LIMIT_S)])

    assert not idleness.is_due(0.5)
    assert idleness.is_due(3.0)


# --- leases --------------------------------------------------------------------------------


def test_a_lease_without_load_is_idle_after_half_an_hour() -> None:
    story = a_story()
    a_job(story)
    story.passes(LIMIT_S - 10)
    assert since(story) is None

    story.passes(20)
    assert since(story) == pytest.approx(10.0, abs=10)
    assert not told(story, TellIdle)


def test_a_busy_gpu_does_not_tell_which_of_two_leases_is_idle() -> None:
    story = a_story()
    a_job(story, "a")
    a_job(story, "b")
    story.load_pct[0] = 60.0
    story.passes(2 * LIMIT_S)

    assert (since(story, "a"), since(story, "b")) == (None, None)


def test_the_loads_of_processes_tell_which_of_two_leases_is_idle() -> None:
    story = a_story()
    a_job(story, "a")
    a_job(story, "b")
    story.load_pct[0] = 60.0
    story.own_pct = {"a": 59.0, "b": 1.0}
    story.passes(2 * LIMIT_S)

    assert since(story, "a") is None
    assert since(story, "b") is not None


def test_a_lease_that_uses_one_of_its_gpus_is_not_idle() -> None:
    story = a_story(gpus=2)
    a_job(story, gpus=2)
    story.load_pct[1] = 50.0
    story.passes(2 * LIMIT_S)

    assert since(story) is None


def test_a_gpu_that_does_not_answer_shows_no_idleness() -> None:
    story = a_story()
    a_job(story)
    story.health[0] = GpuHealth.UNKNOWN
    story.passes(2 * LIMIT_S)
    story.health.clear()
    story.load_pct[0] = None
    story.passes(2 * LIMIT_S)

    assert since(story) is None


def test_a_first_run_is_not_idle() -> None:
    story = a_story(Rules(NO_GUARD, idle_limit_s=10.0, idle_after_s=5.0))
    story.asks()
    story.memory["a"] = GiB
    story.passes(25)

    assert story.engine.view.leases["lease-a"].is_probe
    assert since(story) is None


def test_a_lease_is_not_idle_in_its_first_minutes() -> None:
    story = a_story()
    a_job(story, idle_limit_s=60.0)
    story.passes(AFTER_S - 20)
    assert since(story) is None

    story.passes(40)
    assert since(story) is not None


def test_a_limit_of_zero_watches_only_jobs_with_one_of_their_own() -> None:
    story = a_story(Rules(NO_GUARD, idle_limit_s=0.0, idle_after_s=0.0))
    a_job(story, "a")
    a_job(story, "b", idle_limit_s=60.0)
    story.passes(LIMIT_S * 2)

    assert since(story, "a") is None
    assert since(story, "b") is not None


def test_what_a_lease_was_idle_is_kept_when_it_works_again_and_when_it_ends() -> None:
    story = a_story()
    a_job(story)
    story.passes(LIMIT_S + 100)
    story.load_pct[0] = 100.0
    story.passes(60)
    lease = story.engine.view.leases["lease-a"]

    assert lease.idle_since is None
    assert lease.idled_s == pytest.approx(LIMIT_S + 100, abs=30)
    assert lease.idle_s(story.at) == lease.idled_s


def test_a_lease_that_was_idle_is_so_after_a_restart() -> None:
    story = a_story()
    a_job(story)
    story.passes(LIMIT_S + 100)
    lease = story.engine.view.leases["lease-a"]
    again = a_story(leases=[lease], at=story.at + 5)
    again.memory["a"] = 4 * GiB
    again.looks()
    assert since(again) == lease.idle_since

    again.load_pct[0] = 100.0
    again.passes(60)
    assert since(again) is None


def test_a_dead_job_is_not_idle() -> None:
    story = a_story()
    a_job(story, pid=7)
    story.passes(LIMIT_S + 100)
    story.dies("a")

    assert since(story) is None


def test_a_virtual_gpu_tells_the_load_of_each_process() -> None:
    story = Story([a_virtual_gpu()], SHOW)
    story.load_pct[0] = 90.0
    a_job(story, "a")
    a_job(story, "b")
    a_job(story, "c")
    story.own_pct = {"a": 90.0, "b": 0.0}  # of c nothing is known
    story.passes(2 * LIMIT_S)

    assert [since(story, key) is not None for key in "abc"] == [False, True, False]


# --- strangers -----------------------------------------------------------------------------


def a_stranger(story: Story, used_bytes: int | None = 3 * GiB) -> None:
    story.strangers[0] = [a_use(9001, used_bytes)]


def strangers(story: Story) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = views.status(story.engine.view, story.at)["gpus"][0]
    return found["idle_strangers"]  # type: ignore[call-overload,no-any-return]


def test_a_stranger_is_idle_with_its_user_and_its_memory() -> None:
    story = a_story()
    a_stranger(story)
    story.passes(LIMIT_S + 100)

    (row,) = strangers(story)
    assert (row["pid"], row["user"], row["used_bytes"]) == (9001, 1, 3 * GiB)
    assert row["idle_for_s"] == pytest.approx(LIMIT_S + 100, abs=20)


def test_a_stranger_that_is_gone_or_works_again_is_not_idle() -> None:
    for change in ({"strangers": {}}, {"load_pct": {0: 80.0}}):
        story = a_story()
        a_stranger(story)
        story.passes(LIMIT_S + 100)
        for name, value in change.items():
            setattr(story, name, value)
        story.passes(70)

        assert strangers(story) == []


def test_a_desktop_is_not_worth_a_word() -> None:
    story = a_story()
    a_stranger(story, 100 << 20)
    story.passes(LIMIT_S * 2)

    assert strangers(story) == []


# --- what follows --------------------------------------------------------------------------


def test_the_rule_to_tell_tells_once() -> None:
    story = a_story(ruled(IdleRule.TELL))
    a_job(story)
    a_stranger(story)
    found: list[Any] = []
    while story.at < 2 * LIMIT_S:
        story.looks(10.0)
        found += told(story, TellIdle) + told(story, TellIdleStranger)

    lease, stranger = sorted(found, key=lambda one: type(one).__name__)
    assert (lease.lease.id, lease.held_bytes, lease.gpus) == ("lease-a", 4 * GiB, (0,))
    assert not lease.is_to_end
    assert lease.idle_s >= LIMIT_S
    assert (stranger.pid, stranger.user, stranger.gpu) == (9001, 1, 0)


def test_the_rule_to_end_ends_jobs_of_a_queue_and_tells_others() -> None:
    story = a_story(ruled(IdleRule.END))
    a_job(story, "queued", is_queued=True)
    a_job(story, "other")
    found: list[Any] = []
    while story.at < LIMIT_S + 100:
        story.looks(10.0)
        found += told(story, TellIdle)

    assert {one.lease.request.key: one.is_to_end for one in found} == {
        "queued": True,
        "other": False,
    }
    assert list(story.engine.view.idle_ending) == ["lease-queued"]
    story.ends("queued", Outcome.FAILED)
    story.passes(20)
    assert not story.engine.view.idle_ending


def test_the_end_of_an_idle_job_is_asked_for_again_after_a_restart() -> None:
    story = a_story(ruled(IdleRule.END))
    a_job(story, is_queued=True)
    story.passes(LIMIT_S + 100)
    lease = story.engine.view.leases["lease-a"]
    again = a_story(ruled(IdleRule.END), leases=[lease], at=story.at + 5)
    again.memory["a"] = 4 * GiB
    again.looks()

    assert [one.is_to_end for one in told(again, TellIdle)] == [True]


def asked(story: Story, seconds: float) -> list[str]:
    """Return the keys of the leases that are asked to give way in some time."""
    found: list[str] = []
    until = story.at + seconds
    while story.at < until:
        story.looks(10.0)
        found += [one.lease.request.key for one in told(story, AskYield)]
    return found


def test_an_idle_job_of_a_queue_gives_way_only_if_another_waits() -> None:
    story = a_story(ruled(IdleRule.YIELD))
    a_job(story, "idle", gib=20, is_queued=True)
    assert asked(story, LIMIT_S + 100) == []

    story.asks("next", mem_bytes=20 * GiB)
    assert asked(story, 60) == ["idle"]
    assert "asked to give way" in story.text("next")
    del story.memory["idle"]
    assert story.ends("idle", Outcome.YIELDED) + story.looks() == ["next"]


def test_an_idle_job_outside_a_queue_is_not_asked_nor_one_that_works() -> None:
    story = a_story(ruled(IdleRule.YIELD))
    a_job(story, "idle", gib=20)
    story.passes(LIMIT_S + 100)
    story.asks("next", mem_bytes=20 * GiB)
    assert asked(story, 60) == []

    story = a_story(ruled(IdleRule.YIELD))
    a_job(story, "busy", gib=20, is_queued=True)
    story.passes(LIMIT_S + 100)
    story.load_pct[0] = 90.0
    story.passes(70)
    story.asks("next", mem_bytes=20 * GiB)
    assert asked(story, 60) == []


def test_the_longest_idle_gives_way_before_one_that_yields() -> None:
    story = a_story(ruled(IdleRule.YIELD))
    a_job(story, "yields", gib=12, yields=True)
    a_job(story, "idle", gib=12, is_queued=True)
    story.load_pct[0] = 60.0
    story.own_pct = {"yields": 60.0, "idle": 0.0}
    story.passes(LIMIT_S + 100)
    story.asks("next", mem_bytes=12 * GiB)

    assert asked(story, 60) == ["idle"]
