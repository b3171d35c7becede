"""Host memory and cores: stated, learned and guessed needs, strangers, jobs without GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from grn.model.host import HostSize
from grn.model.job import Outcome
from grn.model.units import GiB, MiB
from grn.negotiator.actions import SaveRun, Settle
from grn.negotiator.events import WaitReason
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import NO_GUARD, Story, a_profile, a_run, some_gpus

HOST = HostSize(16, 64 * GiB)
SMALL = {"mem_bytes": GiB}
HUNGRY: dict[str, Any] = {**SMALL, "ram_bytes": 16 * GiB}


def a_story(**more: Any) -> Story:
    return Story(some_gpus(4), Rules(guard=NO_GUARD), host=HOST, **more)


def test_stated_memory_adds_up_to_the_host_and_the_rest_waits() -> None:
    story = a_story()
    granted = [key for key in "abcdef" if story.asks(key, **HUNGRY)]

    assert granted == list("abcd")
    assert story.why("e") is WaitReason.NO_RAM
    assert story.text("e") == (
        "needs 16.0 GiB of host memory (as stated); 0 is free: jobs have 64.0 GiB"
    )
    assert story.ends("a") == ["e"]
    assert story.ends("b") == ["f"]


def test_stated_cores_add_up_to_the_host_and_the_rest_waits() -> None:
    story = a_story()
    granted = [key for key in "abc" if story.asks(key, **SMALL, cpus=6.0)]

    assert granted == ["a", "b"]
    assert story.why("c") is WaitReason.CPUS_BUSY
    assert "needs 6 cores (as stated); 4 of 16 are free: jobs have 12" in story.text("c")
    assert story.asks("d", **SMALL, cpus=4.0) == ["d"]
    assert story.ends("d") == []
    assert story.ends("a") == ["c"]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"ram_bytes": 65 * GiB}, "you asked for 65.0 GiB of host memory; this machine has 64"),
        ({"cpus": 17.0}, "you asked for 17 cores; this machine has 16"),
        ({"cpus": 17.0, "gpus": 0}, "you asked for 17 cores"),
    ],
)
def test_a_need_that_the_host_can_never_meet_is_refused(asked: Any, text: str) -> None:
    story = a_story()
    story.asks("a", **asked)

    assert text in story.refusals[0].message


def test_all_of_the_host_may_be_asked_for() -> None:
    assert a_story().asks("a", **SMALL, ram_bytes=64 * GiB, cpus=16.0) == ["a"]


def test_memory_of_strangers_is_respected() -> None:
    story = a_story()
    story.foreign_ram = 40 * GiB
    story.looks()

    assert story.asks("a", **HUNGRY) == ["a"]
    assert story.asks("b", **HUNGRY) == []
    assert "processes without a lease use 40.0 GiB" in story.text("b")
    story.foreign_ram = 0
    assert story.looks() == ["b"]


def test_load_of_strangers_takes_at_most_half_of_the_cores() -> None:
    story = a_story()
    story.foreign_cores = 16.0
    story.looks()
    granted = [key for key in "abc" if story.asks(key, **SMALL, cpus=4.0)]

    assert granted == ["a", "b"]
    assert "processes without a lease use 16" in story.text("c")


def test_memory_and_cores_are_learned_from_runs() -> None:
    story = a_story()
    story.asks("a", **SMALL)
    story.ram["a"], story.cores["a"] = 16 * GiB, 6.0
    story.passes(30, every_s=5)
    story.ends("a", peak_bytes=GiB)
    run = next(one.run for one in story.actions if isinstance(one, SaveRun))

    assert (run.ram_bytes, run.cpus, run.peak_cpus) == (16 * GiB, 6.0, 6.0)
    granted = [key for key in "bcdef" if story.asks(key, **SMALL)]
    assert granted == ["b", "c"]  # one run leaves much headroom
    assert story.why("d") is WaitReason.NO_RAM
    assert "16.0 GiB at most in 1 run" in story.text("d")
    story.ram["b"] = story.ram["c"] = 16 * GiB
    assert story.passes(70) == ["d"]  # those that are flat need less of it


def test_learned_needs_of_cores_may_exceed_the_cores_by_little() -> None:
    run = a_run(GiB, ram_bytes=GiB, cpus=6.0, peak_cpus=8.0)
    story = a_story(profiles=(a_profile(run),))
    granted = [key for key in "abcd" if story.asks(key, **SMALL)]

    assert granted == ["a", "b", "c"]
    assert story.why("d") is WaitReason.CPUS_BUSY
    assert "usual in 1 run" in story.text("d")


def test_a_running_job_shows_the_need_of_its_siblings() -> None:
    story = a_story()
    story.asks("a", **SMALL)
    story.ram["a"] = 40 * GiB
    story.looks()

    assert story.asks("b", **SMALL) == []
    assert story.why("b") is WaitReason.NO_RAM
    assert "a run that is still going uses" in story.text("b")


def test_first_runs_of_unknown_types_get_a_third_of_the_host_until_one_has_shown_its_need() -> None:
    story = a_story()
    story.foreign_ram = 40 * GiB
    story.looks()
    granted = [key for key in "abcd" if story.asks(key, job_type=key)]
    assert granted == list("abc")
    assert story.why("d") is WaitReason.NO_RAM

    story.ram = dict.fromkeys("abcd", GiB)
    assert story.passes(200) == ["d"]


def test_types_that_state_their_gpu_memory_get_their_part_of_the_host() -> None:
    story = a_story()
    granted = [key for key in "abcdefgh" if story.asks(key, job_type=key, **SMALL)]
    assert granted == list("abcdefgh")


def test_a_host_that_does_not_tell_the_memory_of_jobs_delays_first_runs_for_two_minutes() -> None:
    story = a_story()
    granted = [key for key in "abcd" if story.asks(key, job_type=key)]

    assert granted == list("abc")
    assert story.passes(130) == ["d"]


def test_an_unknown_type_is_guessed_from_other_types() -> None:
    known = a_run(6 * GiB, ram_bytes=10 * GiB, cpus=1.0)
    story = a_story(profiles=(a_profile(known, job_type="known.py"),))
    for key in "abcde":
        story.asks(key, job_type="known.py")
    assert story.asks("new", job_type="new.py", mem_bytes=14 * GiB) == []
    assert "guessed from other types" in story.text("new")


def test_a_host_without_jobs_takes_a_learned_need_of_any_size() -> None:
    story = a_story(profiles=(a_profile(a_run(GiB, ram_bytes=70 * GiB, cpus=40.0)),))
    story.foreign_ram, story.foreign_cores = 20 * GiB, 12.0
    story.looks()

    assert story.asks("a") == ["a"]
    assert story.asks("b") == []


def test_a_starving_request_gets_the_host_before_smaller_ones() -> None:
    story = Story(some_gpus(4), Rules(guard=NO_GUARD, patience_s=60.0), host=HOST)
    story.asks("a", **SMALL, ram_bytes=30 * GiB)
    story.asks("b", **SMALL, ram_bytes=30 * GiB)
    assert story.asks("large", **SMALL, ram_bytes=50 * GiB) == []
    assert story.asks("c", **SMALL, ram_bytes=4 * GiB) == ["c"]
    story.passes(70)

    assert story.asks("late", **SMALL, ram_bytes=GiB, after_s=1.0) == []
    assert "is reserved for a job that has waited longer" in story.text("late")
    story.ends("c")
    assert story.ends("a") == []
    assert "large" in story.ends("b")


# --- jobs without GPUs ------------------------------------------------------------------------


def test_a_job_without_gpus_is_limited_by_cores_and_memory_only() -> None:
    story = Story(host=HOST)
    story.asks("gpu", is_exclusive=True)
    granted = [key for key in "abcde" if story.asks(key, gpus=0, cpus=5.0, ram_bytes=GiB)]

    assert granted == ["a", "b", "c"]
    assert story.leases["a"].gpus == ()
    assert story.why("d") is WaitReason.CPUS_BUSY
    assert story.ends("a") == ["d"]


def test_the_first_run_of_a_type_without_gpus_is_measured_before_others_start() -> None:
    story = a_story()
    assert story.asks("a", gpus=0) == ["a"]
    assert story.asks("b", gpus=0) == []
    assert story.why("b") is WaitReason.FIRST_RUN_ELSEWHERE
    assert story.asks("other", gpus=0, job_type="other.py") == ["other"]
    story.ram["a"], story.cores["a"] = 20 * GiB, 2.0
    story.looks()
    assert story.passes(70) == ["b"]

    lease = story.engine.view.leases[story.leases["b"].id]
    assert 20 * GiB < lease.ram_bytes < 30 * GiB
    assert lease.cpus == pytest.approx(2.0, rel=0.1)


def test_runs_without_gpus_say_nothing_of_gpu_memory() -> None:
    story = a_story()
    story.asks("a", gpus=0)
    story.ram["a"], story.cores["a"] = 2 * GiB, 3.0
    story.passes(30, every_s=5)
    story.ends("a")
    profile = story.engine.view.memory.profiles()[0]

    assert (profile.model, profile.runs[0].ram_bytes) == ("host", 2 * GiB)
    assert story.asks("b", gpus=0) == ["b"]
    assert story.asks("c", gpus=0) == ["c"]
    assert story.asks("gpu") == ["gpu"]
    assert story.leases["gpu"].is_probe


def test_a_job_without_gpus_that_dies_frees_the_host() -> None:
    story = a_story()
    story.asks("a", gpus=0, ram_bytes=60 * GiB)
    story.asks("b", gpus=0, ram_bytes=60 * GiB)
    story.dies("a")

    story.looks()
    assert "b" in story.leases


def test_a_job_without_gpus_that_ran_out_of_gpu_memory_has_failed() -> None:
    story = a_story()
    story.asks("a", gpus=0)
    story.ends("a", outcome=Outcome.OUT_OF_MEMORY)

    (settled,) = (action.settled for action in story.actions if isinstance(action, Settle))
    assert settled.outcome is Outcome.FAILED


def test_the_ledger_is_as_before_after_a_restart() -> None:
    story = a_story()
    story.asks("a", **HUNGRY, cpus=2.0)
    again = a_story(leases=(story.leases["a"],))

    assert again.engine.view.host.booked_bytes == 16 * GiB
    assert again.engine.view.host.booked_cpus == 2.0


def test_small_memory_is_not_lost_in_rounding() -> None:
    story = a_story(profiles=(a_profile(a_run(GiB, ram_bytes=100 * MiB, cpus=0.1)),))
    granted = [key for key in map(str, range(50)) if story.asks(key, **SMALL)]

    assert len(granted) == 50
