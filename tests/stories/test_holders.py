"""Leases end with the process that holds them, and with nothing else."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import Negotiators
from tests.gpus.standin.build import StandIn, gpu
from tests.harness import Story, wait_for

MiB = 1 << 20
ALONE = {"mem": "400MiB"}  # of 512: no two of them share a GPU
# A job whose child takes memory and outlives it; the argument says how the child comes to be.
WITH_CHILD = """
    import os, subprocess, sys
    import grn
    from act import gate, say, take

    def child():
        kept = take(200)
        say("child runs")
        gate("child")
        os._exit(0)

    @grn.job("parent", mem="400MiB")
    def job():
        if sys.argv[1] == "program":
            subprocess.Popen([sys.executable, __file__, "child"])
        elif os.fork() == 0:
            if sys.argv[1] == "session":
                os.setsid()
            child()
        gate("parent")

    child() if sys.argv[1] == "child" else job()
"""


def test_a_killed_holder_hands_its_gpu_on(story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x512MiB")
    first = story.hold("a", **ALONE)
    story.hear("a runs")
    second = story.hold("b", **ALONE)
    here.wait_for_waiting(1)

    first.kill()
    story.hear("b runs")
    # Its memory is free before the dead process is gone from /proc, and its lease with it.
    assert [lease["pid"] for lease in here.wait_for_leases(1)] == [second.pid]
    wait_for(lambda: "outcome=killed" in here.log, "the line of its end")
    story.gate("b").open()
    second.ended_well()


@pytest.mark.parametrize("how", ["fork", "session", "program"])
def test_a_gpu_is_handed_on_only_when_the_memory_of_left_over_children_is_gone(
    story: Story, negotiator: Negotiators, how: str
) -> None:
    here = negotiator("virtual:1x512MiB")
    for name in ("parent", "child"):
        story.gate(name)
    parent = story.start_script(WITH_CHILD, how)
    story.hear("child runs")
    wait_for(lambda: (here.leases()[0]["used_bytes"] or 0) > 200 * MiB, "the child to be measured")
    second = story.hold("second", **ALONE)
    here.wait_for_waiting(1)

    parent.kill()
    wait_for(lambda: here.leases()[0]["state"] == "draining")
    (lease,) = here.leases()
    assert lease["used_bytes"] > 200 * MiB
    assert "its process is gone; GPU 0 still shows its memory" in lease["why"]
    assert len(here.waiting()) == 1
    story.gate("child").open()
    story.hear("second runs")
    wait_for(lambda: [lease["pid"] for lease in here.leases()] == [second.pid])
    story.gate("second").open()
    second.ended_well()


@pytest.mark.parametrize("how", ["fork", "session", "program"])
def test_a_child_that_was_never_looked_at_keeps_the_lease_of_a_killed_holder(
    story: Story, negotiator: Negotiators, how: str
) -> None:
    here = negotiator("virtual:1x512MiB", GRN_SAMPLE_S="60")
    for name in ("parent", "child"):
        story.gate(name)
    parent = story.start_script(WITH_CHILD, how)
    story.hear("child runs")
    parent.kill()
    wait_for(lambda: here.leases()[0]["state"] == "draining")
    second = story.hold("second", **ALONE)
    here.wait_for_waiting(1)
    story.gate("child").open()
    story.hear("second runs")
    story.gate("second").open()
    second.ended_well()


@pytest.mark.parametrize("how", ["fork", "program"])
def test_a_child_without_gpu_memory_keeps_the_lease_of_a_killed_holder(
    story: Story, standin: StandIn, negotiator: Negotiators, how: str
) -> None:
    """It may be about to take what was promised to its job."""
    standin.write(gpu("GPU-aaaa"))
    here = negotiator(None)
    for name in ("parent", "child"):
        story.gate(name)
    parent = story.start_script(WITH_CHILD.replace("400MiB", "6GiB"), how)
    story.hear("child runs")
    parent.kill()
    wait_for(lambda: here.leases()[0]["state"] == "draining")
    second = story.hold("second", mem="4GiB")
    here.wait_for_waiting(1)
    assert here.leases()[0]["reserved_bytes"] == 6 << 30
    story.gate("child").open()
    story.hear("second runs")
    story.gate("second").open()
    second.ended_well()


def test_a_draining_lease_stays_so_over_a_restart(story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x512MiB")
    for name in ("parent", "child"):
        story.gate(name)
    parent = story.start_script(WITH_CHILD, "program")
    story.hear("child runs")
    wait_for(lambda: (here.leases()[0]["used_bytes"] or 0) > 200 * MiB, "the child to be measured")
    parent.kill()
    wait_for(lambda: here.leases()[0]["state"] == "draining")

    here.kill()
    here.start()
    wait_for(lambda: here.leases()[0]["used_bytes"], "the child to be found again")
    assert here.leases()[0]["state"] == "draining"
    story.gate("child").open()
    here.wait_for_leases(0)


def test_a_stopped_holder_keeps_its_lease(story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x512MiB")
    first = story.hold("a", **ALONE)
    story.hear("a runs")
    second = story.hold("b", **ALONE)
    here.wait_for_waiting(1)
    first.signal(signal.SIGSTOP)
    stopped_at = here.leases()[0]["for_s"]
    story.gate("a").open()

    wait_for(lambda: here.leases()[0]["for_s"] > stopped_at + 1)
    (lease,) = here.leases()
    assert (lease["pid"], lease["state"]) == (first.pid, "running")
    assert [row["pid"] for row in here.waiting()] == [second.pid]
    first.signal(signal.SIGCONT)
    first.ended_well()
    story.gate("b").open()
    second.ended_well()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whoever_stops_waiting_takes_the_request_back(
    story: Story, negotiator: Negotiators, signum: int
) -> None:
    here = negotiator("virtual:1x512MiB")
    first = story.hold("a", **ALONE)
    story.hear("a runs")
    second = story.hold("b", **ALONE)
    here.wait_for_waiting(1)

    second.signal(signum)
    assert second.wait().code != 0
    assert ("KeyboardInterrupt" in second.err) == (signum == signal.SIGINT)
    here.wait_for_waiting(0)
    story.gate("a").open()
    first.ended_well()
    assert here.leases() == []
    assert story.said() == ["a runs", "a ends"]


def test_an_interrupt_that_is_caught_leaves_the_process_a_good_client(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    first = story.hold("a", **ALONE)
    story.hear("a runs")
    second = story.start_script(
        """
        import grn
        from act import say

        @grn.job(mem="400MiB")
        def job():
            say("second runs")

        try:
            job()
        except KeyboardInterrupt:
            say("interrupted")
        job()
        """
    )
    here.wait_for_waiting(1)
    second.signal(signal.SIGINT)
    story.hear("interrupted")
    here.wait_for_waiting(1)
    story.gate("a").open()
    first.ended_well()
    second.ended_well()
    assert story.said() == ["a runs", "interrupted", "a ends", "second runs"]


def test_holders_killed_one_after_the_other_never_share(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    jobs = {story.hold(name, **ALONE).pid: name for name in "abcdef"}
    by_pid = {job.pid: job for job in story.jobs}
    for _ in jobs:
        lease = wait_for(lambda: next(iter(here.leases()), None), "a holder")
        story.hear(f"{jobs[lease['pid']]} runs")
        assert [held["pid"] for held in here.leases()] == [lease["pid"]]
        by_pid[lease["pid"]].kill()
        wait_for(lambda gone=lease["id"]: gone not in [held["id"] for held in here.leases()])
    assert sorted(story.said()) == [f"{name} runs" for name in "abcdef"]
