"""Stories of jobs that the kernel kills for the host's memory: whose fault it was, what is learned.

The kernel tells how many processes it has killed, not which; a death without another cause that
is told soon after is explained by it.
"""

from __future__ import annotations

from typing import Any

import pytest

from grn.model.host import HostSize
from grn.model.job import Outcome, Run
from grn.model.units import GiB
from grn.negotiator.actions import SaveRun, Settle
from grn.negotiator.endings import KERNEL_S
from grn.negotiator.events import KernelKilled, LeaseSettled
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import NO_GUARD, Story, a_profile, a_run, some_gpus

HOST = HostSize(16, 64 * GiB)
SMALL: dict[str, Any] = {"mem_bytes": GiB}
KILLED, OUT_OF_RAM = Outcome.KILLED, Outcome.OUT_OF_RAM


def a_story(**more: Any) -> Story:
    return Story(some_gpus(4), Rules(guard=NO_GUARD), host=HOST, **more)


def two_jobs(ram_gib: int = 16, beside_gib: int = 16) -> Story:
    """Return a story with a (16 GiB reserved) beside b, and what they use of the host."""
    story = a_story()
    story.asks("a", **SMALL, ram_bytes=16 * GiB)
    story.asks("b", **SMALL, ram_bytes=16 * GiB, job_type="b.py", label="b.py")
    story.ram = {"a": ram_gib * GiB, "b": beside_gib * GiB}
    story.looks()
    return story


def the_kernel_kills(story: Story, count: int = 1, after_s: float = 1.0) -> None:
    story.tell(KernelKilled(story.at + after_s, count))


def settled(story: Story) -> LeaseSettled:
    return next(action.settled for action in story.actions if isinstance(action, Settle))


def saved_run(story: Story) -> Run | None:
    return next((one.run for one in story.actions if isinstance(one, SaveRun)), None)


def test_a_job_that_ends_by_a_kill_soon_after_one_of_the_kernel_is_out_of_ram() -> None:
    story = two_jobs(ram_gib=30)
    the_kernel_kills(story)
    story.ends("a", KILLED)

    assert settled(story).outcome is OUT_OF_RAM
    assert settled(story).because == (
        "ran out of host memory: it needed 30.0 GiB where 16.0 GiB were reserved"
    )
    assert not settled(story).was_alone
    run = saved_run(story)
    assert run is not None
    assert (run.outcome, run.ram_bytes) == (OUT_OF_RAM, 30 * GiB)


def test_a_holder_that_vanishes_then_is_out_of_ram_too() -> None:
    story = two_jobs()
    the_kernel_kills(story)
    story.dies("a")

    assert settled(story).outcome is OUT_OF_RAM


@pytest.mark.parametrize("told", [Outcome.FAILED, Outcome.OK, Outcome.CANCELLED])
def test_a_job_that_ends_in_another_way_is_not(told: Outcome) -> None:
    story = two_jobs()
    the_kernel_kills(story)
    story.ends("a", told)

    assert settled(story).outcome is told


def test_a_kill_that_is_not_the_kernels_is_a_failure() -> None:
    story = two_jobs()
    story.ends("a", KILLED)
    assert settled(story).outcome is Outcome.FAILED

    the_kernel_kills(story)
    story.ends("b", KILLED, after_s=KERNEL_S + 1)  # too long ago to have been this one
    assert settled(story).outcome is Outcome.FAILED


def test_each_kill_explains_one_death() -> None:
    story = two_jobs()
    the_kernel_kills(story)
    story.ends("a", KILLED)
    assert settled(story).outcome is OUT_OF_RAM
    story.ends("b", KILLED)
    assert settled(story).outcome is Outcome.FAILED


def test_a_job_within_its_reservation_is_a_victim_of_one_that_is_not() -> None:
    story = two_jobs(ram_gib=12, beside_gib=50)
    the_kernel_kills(story)
    story.ends("a", KILLED)

    assert settled(story).is_victim
    assert settled(story).because == (
        "ran out of host memory because b.py (lease lease-b) beside it grew beyond what it had "
        "(50.0 GiB of 16.0 GiB)"
    )
    run = saved_run(story)
    assert run is None or run.outcome is Outcome.FAILED  # its estimate does not grow
    story.ends("b", peak_bytes=GiB)
    run = saved_run(story)
    assert run is not None
    assert run.note == "took the room of train.py, which ran out of memory"


def test_a_job_within_its_reservation_is_a_victim_of_strangers_that_took_reserved_memory() -> None:
    story = two_jobs(ram_gib=12)
    story.foreign_ram = 36 * GiB  # 32 are reserved
    story.looks()
    the_kernel_kills(story)
    story.ends("a", KILLED)

    assert settled(story).is_victim
    assert "processes without a lease had 36.0 GiB of it" in settled(story).because


def test_strangers_that_used_what_nobody_had_reserved_are_not_to_blame() -> None:
    story = two_jobs(ram_gib=12)
    story.foreign_ram = 30 * GiB
    story.looks()
    the_kernel_kills(story)
    story.ends("a", KILLED)

    assert not settled(story).is_victim
    assert settled(story).because == "ran out of host memory: 16.0 GiB were not enough"


def test_alone_on_the_machine_no_more_room_is_possible() -> None:
    story = a_story()
    story.asks("a", **SMALL, ram_bytes=60 * GiB)
    the_kernel_kills(story)
    story.ends("a", KILLED)

    assert settled(story).was_alone
    assert settled(story).because == (
        "ran out of host memory although it was alone on this machine"
    )


def test_a_limit_of_its_own_is_nobody_elses_fault() -> None:
    story = two_jobs(ram_gib=12, beside_gib=50)
    story.ends("a", OUT_OF_RAM, is_limit=True)

    assert settled(story).was_alone  # no more room follows
    assert not settled(story).is_victim
    assert settled(story).because == "reached its own limit of 16.0 GiB of host memory"


def test_the_next_run_of_its_type_gets_more() -> None:
    story = a_story(profiles=(a_profile(a_run(GiB, ram_bytes=10 * GiB, cpus=1.0)),))
    story.asks("a")
    story.asks("b", **SMALL, ram_bytes=GiB, job_type="b.py")
    had = story.leases["a"].ram_bytes
    the_kernel_kills(story)
    story.ends("a", KILLED)

    story.asks("c")
    assert story.leases["c"].ram_bytes >= 1.3 * had
    the_kernel_kills(story)
    story.ends("c", KILLED)
    story.asks("d")
    assert story.leases["d"].ram_bytes >= 1.3 * story.leases["c"].ram_bytes


def test_a_job_that_died_before_it_used_a_gpu_raises_the_estimate_too() -> None:
    story = two_jobs(ram_gib=30)
    story.memory = {}
    the_kernel_kills(story)
    story.ends("a", KILLED)
    story.ends("b", peak_bytes=GiB)
    story.asks("c", **SMALL)

    assert story.leases["c"].ram_bytes >= 30 * GiB


def test_where_the_host_is_not_limited_a_kill_of_the_kernel_is_told_all_the_same() -> None:
    story = Story(some_gpus(2))
    story.asks("a", **SMALL)
    story.asks("b", **SMALL)
    the_kernel_kills(story)
    story.ends("a", KILLED)

    assert settled(story).outcome is OUT_OF_RAM
    assert settled(story).because == "was killed by the kernel: host memory ran out"
