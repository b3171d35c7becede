"""A client in a pid namespace of its own, as in a container with the socket mounted."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import Negotiators
from tests.harness import Story, unshare, wait_for
from tests.queue.daemon import GRN

MiB = 1 << 20
PIDS = ("--pid", "--fork", "--kill-child", "--mount-proc")
JOB = """
    import os
    import grn
    from act import gate, say, take

    @grn.job("contained", mem="300MiB")
    def job():
        kept = take(150)
        say(os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"])
        gate("job")

    job()
"""


def test_a_contained_job_is_leased_by_uuid_and_measured(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    story.gate("job")
    path = story.write("job.py", JOB)
    job = story.start(*unshare(*PIDS), sys.executable, path)
    wait_for(story.said)
    inner_pid, visible = story.said()[0].split()
    (lease,) = here.leases()
    assert visible == f"VIRTUAL-{lease['gpus'][0]}"
    pids = Path(f"/proc/{lease['pid']}/status").read_text().partition("NSpid:")[2].split("\n")[0]
    assert pids.split() == [str(lease["pid"]), inner_pid]
    wait_for(lambda: (here.leases()[0]["used_bytes"] or 0) > 150 * MiB, "it to be measured")
    story.gate("job").open()
    job.ended_well()
    assert here.leases() == []


def test_a_contained_job_that_is_killed_frees_its_gpu(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("job")
    job = story.start(*unshare(*PIDS), sys.executable, story.write("job.py", JOB))
    wait_for(story.said)
    job.kill()
    here.wait_for_leases(0)
    story.gate("next").open()
    story.hold("next", mem="400MiB").ended_well()


def test_a_contained_job_is_adopted_after_a_restart(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    story.gate("job")
    job = story.start(*unshare(*PIDS), sys.executable, story.write("job.py", JOB))
    wait_for(story.said)
    (before,) = here.leases()
    here.kill()
    here.start()
    assert [lease["id"] for lease in here.leases()] == [before["id"]]
    story.gate("job").open()
    job.ended_well()
    assert here.leases() == []


def test_who_is_contained_cannot_stop_the_negotiator(story: Story, negotiator: Negotiators) -> None:
    """Root of a container has the number of root, and only that."""
    here = negotiator()
    for words in (("stop",), ("audit",)):
        ended = story.start(*unshare(*PIDS), *GRN, *words).wait()
        assert ended.code == 2, ended
        assert "not in a container" in ended.err
    assert here.is_answering()
    assert "stop" in story.start(*GRN, "audit").ended_well().out  # that it was refused is noted
