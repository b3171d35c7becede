"""Stories of processes: those that are gone, those that stay, and those with two leases."""

import pytest

from grn.model.gpu import GpuHealth
from grn.model.job import Outcome
from grn.model.units import GiB
from grn.negotiator.actions import DropLease, SaveLease
from grn.negotiator.events import LeaseState, WaitReason
from tests.builders import Story, a_gpu, a_profile, a_use, a_virtual_gpu, some_gpus

BIG, SMALL = {"mem_bytes": 20 * GiB}, {"mem_bytes": 4 * GiB}


# --- the dead ------------------------------------------------------------------------------


def test_the_memory_of_a_dead_holder_counts_until_the_driver_shows_it_gone():
    story = Story()
    story.asks("a", **BIG)
    story.memory["a"] = 18 * GiB
    story.looks()
    story.asks("b", **BIG)

    assert story.dies("a") == []
    assert story.engine.view.leases["lease-a"].state is LeaseState.DRAINING
    assert story.looks() == []
    assert story.free() == 6 * GiB  # what it reserved and never used is free now
    del story.memory["a"]
    assert story.looks() == ["b"]
    assert "lease-a" not in story.engine.view.leases


def test_a_dead_holder_that_was_never_seen_keeps_its_reservation_until_a_look():
    story = Story()
    story.asks("a", **BIG)
    story.asks("b", **BIG)

    assert story.dies("a") == []
    assert story.free() == 4 * GiB
    assert story.looks() == ["b"]


def test_a_dead_holder_is_freed_bit_by_bit_as_its_processes_go():
    story = Story()
    story.asks("a", **BIG)
    story.memory["a"] = 20 * GiB
    story.looks()
    story.dies("a")
    free = []
    for left in (20, 12, 5):
        story.memory["a"] = left * GiB
        story.looks()
        free.append(story.free() // GiB)

    assert free == [4, 12, 19]


def test_each_step_of_a_death_is_saved():
    story = Story()
    story.asks("a", **SMALL)
    story.memory["a"] = 3 * GiB
    story.looks()
    story.dies("a")
    (first,) = [action.lease for action in story.actions if isinstance(action, SaveLease)]
    story.looks()
    (second,) = [action.lease for action in story.actions if isinstance(action, SaveLease)]
    story.looks()
    assert not [action for action in story.actions if isinstance(action, SaveLease)]
    del story.memory["a"]
    story.looks()

    assert (first.state, first.outcome) == (LeaseState.DRAINING, Outcome.KILLED)
    assert (first.reserved, second.reserved) == ((4 * GiB,), (0,))
    assert DropLease("lease-a") in story.actions


@pytest.mark.parametrize("health", [GpuHealth.UNKNOWN, GpuHealth.LOST])
def test_a_silent_gpu_does_not_show_memory_gone(health):
    story = Story()
    story.asks("a", **BIG)
    story.memory["a"] = 18 * GiB
    story.looks()
    story.dies("a")
    del story.memory["a"]
    story.health[0] = health
    story.looks()

    assert "lease-a" in story.engine.view.leases
    assert story.free() == 4 * GiB
    story.health[0] = GpuHealth.OK
    story.looks()
    assert story.engine.view.leases == {}


def test_a_dead_job_on_two_gpus_is_gone_when_both_show_it():
    story = Story(some_gpus(2))
    story.asks("a", gpus=2, **BIG)
    story.memory["a"] = 18 * GiB
    story.looks()
    story.dies("a")
    del story.memory["a"]
    story.health[1] = GpuHealth.UNKNOWN
    story.looks()
    assert "lease-a" in story.engine.view.leases
    story.health[1] = GpuHealth.OK
    story.looks()

    assert story.engine.view.leases == {}


def test_a_holder_dies_once():
    story = Story()
    story.asks("a", **SMALL)
    story.dies("a")
    story.dies("a")

    assert story.actions == []


def test_the_memory_of_a_dead_job_on_a_virtual_gpu_drains_too():
    story = Story([a_virtual_gpu()])
    story.asks("a", **BIG)
    story.memory["a"] = 18 * GiB
    story.looks()
    story.asks("b", **BIG)

    assert story.dies("a") == []
    del story.memory["a"]
    assert story.looks() == ["b"]


# --- the living who let go -----------------------------------------------------------------


def test_what_a_live_process_keeps_after_its_lease_is_a_strangers():
    story = Story()
    story.asks("a", pid=5, **SMALL)
    story.memory["a"] = 3 * GiB
    story.looks()
    story.asks("b", mem_bytes=24 * GiB)

    assert story.ends("a") == []
    assert story.engine.view.books["GPU-0"].strangers_bytes == 3 * GiB
    assert story.looks() == []
    del story.memory["a"]
    assert story.looks() == ["b"]


def test_on_a_virtual_gpu_the_memory_goes_with_the_lease():
    story = Story([a_virtual_gpu()])
    story.asks("a", pid=5, **SMALL)
    story.memory["a"] = 3 * GiB
    story.looks()
    story.asks("b", mem_bytes=24 * GiB)

    assert story.ends("a") == ["b"]


def test_a_process_may_use_again_what_it_kept():
    story = Story()
    story.asks("a", pid=5, **BIG)
    story.memory["a"] = 20 * GiB
    story.looks()
    story.ends("a")
    story.looks()

    assert story.asks("b", pid=6, **BIG) == []
    assert story.asks("c", pid=5, **BIG) == ["c"]


def test_a_process_that_kept_memory_stays_on_that_gpu():
    story = Story(some_gpus(2))
    story.asks("a", pid=5, **SMALL)
    story.memory["a"] = 3 * GiB
    story.looks()
    story.ends("a")
    story.looks()
    story.asks("x", slots=("0",), **BIG)  # it fills the rest of GPU 0

    assert story.asks("b", pid=5, mem_bytes=6 * GiB) == []
    assert story.why("b") is WaitReason.STAYS_ON_ITS_GPU
    assert "GPU 0" in story.text("b")
    assert story.ends("x") == ["b"]
    assert story.gpus("b") == [0]


# --- those that stay -----------------------------------------------------------------------


def test_a_process_that_says_it_stays_is_not_moved():
    story = Story(some_gpus(2))
    story.asks("x", slots=("0",), **BIG)

    assert story.asks("a", stay=("GPU-0",), **SMALL) == ["a"]
    assert story.gpus("a") == [0]


def test_another_thread_of_a_process_gets_the_gpu_of_the_first():
    story = Story(some_gpus(2))
    story.asks("a", pid=5, mem_bytes=8 * GiB)

    assert story.asks("b", pid=5, mem_bytes=8 * GiB) == ["b"]
    assert story.asks("c", pid=6, mem_bytes=8 * GiB) == ["c"]
    assert (story.gpus("a"), story.gpus("b"), story.gpus("c")) == ([0], [0], [1])
    assert story.asks("d", pid=5, mem_bytes=9 * GiB) == []
    assert story.why("d") is WaitReason.STAYS_ON_ITS_GPU


def test_a_parent_is_not_bound_to_the_gpus_of_its_children():
    story = Story(some_gpus(2))
    story.asks("x", slots=("0",), **SMALL)

    assert story.asks("a", pid=5, is_command=True, **BIG) == ["a"]
    assert story.asks("b", pid=5, is_command=True, **BIG) == ["b"]
    assert sorted(story.gpus("a") + story.gpus("b")) == [0, 1]
    story.ends("x")
    story.ends("a")
    assert story.asks("c", pid=5, **BIG) == ["c"]


def test_a_process_is_free_to_go_anywhere_once_it_has_nothing_left():
    story = Story(some_gpus(2))
    story.asks("a", pid=5, **SMALL)
    story.ends("a")
    story.asks("x", slots=("0",), **BIG)

    assert story.asks("b", pid=5, **BIG) == ["b"]
    assert story.gpus("b") == [1]


def test_a_thread_that_must_stay_does_not_hold_up_its_like():
    story = Story(some_gpus(2))
    story.asks("x", slots=("0",), job_type="x.py", **BIG)
    story.asks("y", slots=("1",), job_type="y.py", **BIG)
    for key, pid in (("a", 5), ("b", 5), ("c", 6)):  # alike, and none of them bound to a GPU yet
        story.asks(key, pid=pid, mem_bytes=14 * GiB)
    assert story.ends("x") == ["a"]  # now b must go to GPU 0 too, where there is no room

    assert story.ends("y") == ["c"]
    assert story.gpus("c") == [1]
    assert story.why("b") is WaitReason.STAYS_ON_ITS_GPU
    assert story.ends("a") == ["b"]


def test_threads_of_two_processes_do_not_wait_for_each_other_for_ever():
    story = Story()
    story.asks("x", job_type="x.py", **BIG)
    for key, pid in (("p1", 5), ("q1", 6), ("p2", 5), ("q2", 6)):
        story.asks(key, pid=pid, mem_bytes=16 * GiB)
    assert story.ends("x") == ["p1"]
    story.memory["p1"] = 15 * GiB
    story.looks()

    assert story.ends("p1") == ["p2"]  # its process keeps the memory: there is no room for q1


def test_a_process_that_got_one_gpu_while_it_waited_for_two_is_told_why_it_waits():
    story = Story(some_gpus(2))
    story.asks("x", slots=("0",), **BIG)
    assert story.asks("a", pid=5, gpus=2, **BIG) == []
    assert story.asks("b", pid=5, **BIG) == ["b"]

    assert story.why("a") is WaitReason.STAYS_ON_ITS_GPU


# --- two leases in one process -------------------------------------------------------------


def test_two_leases_in_one_process_share_what_it_uses():
    story = Story()
    story.asks("a", pid=5, mem_bytes=8 * GiB)
    story.asks("b", pid=5, mem_bytes=8 * GiB)
    story.memory = {"a": 10 * GiB, "b": 0}  # nobody can tell whose thread has it
    story.looks()

    measured = story.engine.view.books["GPU-0"].measured
    assert measured == {"lease-a": 5 * GiB, "lease-b": 5 * GiB}
    assert story.free() == 8 * GiB


def test_what_two_leases_shared_stays_counted_when_one_ends():
    story = Story()
    story.asks("a", pid=5, mem_bytes=6 * GiB)
    story.asks("b", pid=5, mem_bytes=6 * GiB)
    story.memory = {"a": 10 * GiB, "b": 0}
    story.looks()
    story.ends("a")
    story.looks()

    assert story.free() == 13 * GiB  # 10 and a tenth: it has more than b reserved


def test_a_tree_of_processes_is_one_job():
    story = Story()
    story.asks("a", pid=5, **SMALL)
    story.strangers[0] = [a_use(50, 5 * GiB, "lease-a"), a_use(51, 6 * GiB, "lease-a")]
    story.looks()

    assert story.engine.view.books["GPU-0"].measured == {"lease-a": 11 * GiB}
    assert story.free() == 24 * GiB - 11 * GiB * 11 // 10


def test_a_first_run_by_a_process_that_stays_counts_its_own_memory_as_free():
    story = Story(profiles=(a_profile(4 * GiB, job_type="known.py"),))
    story.asks("a", pid=5, job_type="known.py")
    story.memory["a"] = 15 * GiB
    story.looks()
    story.ends("a")

    assert story.asks("b", pid=5) == ["b"]
    assert story.reserved("b") == 24 * GiB


def test_a_process_on_a_gpu_that_is_not_managed_is_free_to_choose():
    story = Story([a_gpu(0)])

    assert story.asks("a", pid=5, stay=("GPU-7",), **SMALL) == ["a"]
