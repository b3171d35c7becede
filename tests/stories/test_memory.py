"""What a job uses is what its whole process tree uses, and too much of it has consequences."""

from __future__ import annotations

import pytest

from tests.conftest import Negotiators
from tests.gpus.standin.build import GiB, StandIn, gpu
from tests.harness import Negotiator, Story, wait_for

MiB = 1 << 20
A, B = "GPU-aaaa", "GPU-bbbb"
TREE = """
    import os, subprocess, sys
    import grn
    from act import gate, say, take

    def child():
        kept = take(150)
        say("child runs")
        gate("child")
        os._exit(0)

    def program():
        return subprocess.Popen([sys.executable, __file__, "child"])

    def forked(step):
        pid = os.fork()
        if pid == 0:
            step()
            os._exit(0)
        return pid

    def orphaned_program():
        def middle():
            os.setsid()
            program()
        os.waitpid(forked(middle), 0)

    def orphaned_fork():
        def middle():
            os.setsid()
            forked(child)
            gate("middle")
        os.waitpid(forked(middle), 0)
        say("middle ends")

    @grn.job("tree", mem="300MiB")
    def job(how):
        {"fork": lambda: forked(child), "program": program, "orphaned program": orphaned_program,
         "orphaned fork": orphaned_fork}[how]()
        gate("job")

    child() if sys.argv[1] == "child" else job(sys.argv[1])
"""


def used_bytes(here: Negotiator) -> int:
    """Return what the one lease uses, as the negotiator sees it."""
    (lease,) = here.leases()
    return lease["used_bytes"] or 0


def a_look_later(here: Negotiator) -> None:
    """Wait until the negotiator has looked at the machine a few times more."""
    seen_at = here.leases()[0]["for_s"]
    wait_for(lambda: here.leases()[0]["for_s"] > seen_at + 0.5)


@pytest.mark.parametrize("how", ["fork", "program", "orphaned program", "orphaned fork"])
def test_memory_of_children_counts(story: Story, negotiator: Negotiators, how: str) -> None:
    here = negotiator()
    for name in ("job", "child", "middle"):
        story.gate(name)
    job = story.start_script(TREE, how)
    story.hear("child runs")
    wait_for(lambda: used_bytes(here) > 150 * MiB, "the child to be measured")
    if how == "orphaned fork":  # it has been seen as a child of the job, and is known for good
        story.gate("middle").open()
        story.hear("middle ends")
        a_look_later(here)
        assert used_bytes(here) > 150 * MiB

    story.gate("child").open()
    wait_for(lambda: used_bytes(here) < 150 * MiB, "the child to be gone")
    story.gate("job").open()
    job.ended_well()
    (profile,) = here.profiles()
    assert 150 * MiB < profile["largest_bytes"] < 300 * MiB


def test_a_job_shorter_than_the_pace_of_looking_is_measured(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator(GRN_SAMPLE_S="60")
    story.gate("a").open()
    story.hold("a", take=200).ended_well()
    (profile,) = here.profiles()
    assert 200 * MiB < profile["largest_bytes"] < 260 * MiB


def test_a_job_that_overflows_its_virtual_gpu_is_killed_as_out_of_memory(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    job = story.hold("a", take=600)
    assert job.wait().code == -9
    here.wait_for_leases(0)
    assert "reason=virtual-gpu-overflow" in here.log
    wait_for(lambda: "outcome=oom" in here.log, lambda: here.log)
    assert here.history()[0]["outcome"] == "failed"  # it was alone: the job's own fault


def test_only_the_job_that_overflows_is_killed(story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x512MiB")
    neighbour = story.hold("neighbour", type="neighbour", mem="150MiB", take=100)
    story.hear("neighbour runs")
    job = story.hold("a", mem="150MiB", take=500)
    assert job.wait().code == -9
    here.wait_for_leases(1)
    assert [run["outcome"] for run in here.history()] == ["oom"]
    story.gate("neighbour").open()
    neighbour.ended_well()


# On the stand-in for a driver, with a fake torch


def test_the_peak_that_torch_tells_is_what_is_remembered(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    standin.write(gpu(A))
    here = negotiator(None, GRN_SAMPLE_S="60")
    story.run_script(
        """
        import grn, torch

        @grn.job()
        def job():
            x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
            del x
            torch.cuda.empty_cache()  # at the end the driver shows next to nothing

        job()
        """
    )
    (run,) = here.history()
    assert run["peak_bytes"] == GiB + 512 * MiB  # as torch says, and the usual context


def test_memory_of_a_programs_child_counts_on_a_gpu(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    standin.write(gpu(A))
    here = negotiator(None)
    for name in ("job", "child"):
        story.gate(name)
    job = story.start_script(
        """
        import subprocess, sys
        import grn
        from act import gate, say

        @grn.job("tree", mem="3GiB")
        def job():
            subprocess.Popen([sys.executable, __file__, "child"])
            gate("job")

        if len(sys.argv) > 1:
            import torch
            x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
            gate("child")
        else:
            job()
        """
    )
    wait_for(lambda: here.leases() and used_bytes(here) == GiB + 300 * MiB, "the child's memory")
    for name in ("child", "job"):
        story.gate(name).open()
    job.ended_well()


def test_a_process_stays_on_the_gpu_it_has_touched(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    standin.write(gpu(A), gpu(B))
    story.gate("stranger")
    stranger = story.start_script(
        """
        import torch
        from act import gate, say
        x = torch.empty(6 * 2**30, dtype=torch.uint8, device="cuda:1")
        say("stranger runs")
        gate("stranger")
        """,
        name="stranger.py",
    )
    story.hear("stranger runs")
    here = negotiator(None)
    story.gate("go")
    job = story.start_script(
        """
        import os
        import grn, torch
        from act import gate, say

        kept = []

        @grn.job(mem="3GiB")
        def job():
            kept.append(torch.empty(2**30, dtype=torch.uint8, device="cuda"))
            say(os.environ["CUDA_VISIBLE_DEVICES"])

        job()
        gate("go")
        job()
        """
    )
    story.hear(A)  # GPU 1 has too little room
    story.gate("stranger").open()
    stranger.ended_well()
    wait_for(lambda: here.status()["gpus"][1]["used_bytes"] == 0)
    story.gate("go").open()  # now it has the most
    job.ended_well()
    assert story.said() == ["stranger runs", A, A]


TOUCHES_FIRST = """
    import os
    import grn, torch
    from act import say

    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")

    @grn.job(mem="3GiB")
    def job():
        say(os.environ["CUDA_VISIBLE_DEVICES"])

    job()
"""


@pytest.mark.parametrize(("visible", "stays"), [("1", B), (B, B), ("0", A), (None, A)])
def test_a_process_that_touched_a_gpu_before_its_first_lease_gets_that_one(
    story: Story, standin: StandIn, negotiator: Negotiators, visible: str | None, stays: str
) -> None:
    standin.write(gpu(A), gpu(B))
    negotiator(None)
    story.run_script(TOUCHES_FIRST, env={"CUDA_VISIBLE_DEVICES": visible})
    assert story.said() == [stays]


def test_a_process_that_cannot_be_moved_is_told_so(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    standin.write(gpu(A), gpu(B))
    here = negotiator(None)
    job = story.start_script(TOUCHES_FIRST, env={"CUDA_VISIBLE_DEVICES": "1,0"})
    assert job.wait().code == 1
    assert "CUDA already runs in this process on GPU 1,0" in job.err
    assert here.leases() == []


def test_a_call_out_of_memory_beside_a_neighbour_is_repeated_with_more_room(
    story: Story, standin: StandIn, negotiator: Negotiators
) -> None:
    standin.write(gpu(A, total=4 * GiB))
    here = negotiator(None)
    script = """
        import sys
        import grn, torch
        from act import gate, say

        @grn.job(sys.argv[1], mem="1GiB", retry_oom=2)
        def job():
            say(sys.argv[1], "begins")
            x = torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
            say(sys.argv[1], "has its memory")
            gate(sys.argv[1])

        job()
    """
    for name in ("neighbour", "job"):
        story.gate(name)
    neighbour = story.start_script(script, "neighbour")
    story.hear("neighbour has its memory")
    job = story.start_script(script, "job")
    (waiting,) = here.wait_for_waiting(1)
    assert (waiting["pid"], waiting["attempt"]) == (job.pid, 1)
    assert story.said()[-1] == "job begins"

    story.gate("neighbour").open()
    neighbour.ended_well()
    story.hear("job has its memory")
    (lease,) = here.leases()
    assert lease["reserved_bytes"] > 3 * GiB // 2
    story.gate("job").open()
    job.ended_well()
    assert story.said().count("job begins") == 2
    outcomes = [run["outcome"] for run in here.history()]
    assert sorted(outcomes) == ["ok", "ok", "oom"]
