"""A job inside a job uses the lease that is there; asking again could wait for itself."""

from __future__ import annotations

import pytest

from tests.conftest import Negotiators, Scripts
from tests.harness import Story, wait_for

NESTED = """
    import asyncio, multiprocessing, os, subprocess, sys
    import grn
    from act import gate, say

    # As large as a GPU: a second lease could only wait for the first.
    @grn.job("inner", exclusive=True)
    def inner(where):
        say(where, os.environ["GRN_LEASE"], os.environ["CUDA_VISIBLE_DEVICES"])
        return where

    def in_call():
        inner("call")

    def in_subprocess():
        subprocess.run([sys.executable, __file__, "inner"], check=True)

    def in_fork():
        pid = os.fork()
        if pid == 0:
            inner("fork")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    def in_pool(how):
        with multiprocessing.get_context(how).Pool(2) as pool:
            assert pool.map(inner, [how] * 4) == [how] * 4

    def in_task():
        async def task():
            await asyncio.gather(*(asyncio.to_thread(inner, "thread") for _ in range(2)))
        asyncio.run(task())

    @grn.job("outer", exclusive=True)
    def outer(how):
        say("outer", os.environ["GRN_LEASE"], os.environ["CUDA_VISIBLE_DEVICES"])
        if how in ("fork pool", "spawn pool"):
            in_pool(how.split()[0])
        else:
            globals()["in_" + how]()
        say("outer", os.environ["GRN_LEASE"], os.environ["CUDA_VISIBLE_DEVICES"])
        gate("end")

    if __name__ == "__main__":
        inner("subprocess") if sys.argv[1] == "inner" else outer(sys.argv[1])
"""


@pytest.mark.parametrize("how", ["call", "subprocess", "fork", "fork pool", "spawn pool", "task"])
def test_the_lease_of_the_outer_job_serves(story: Story, negotiator: Negotiators, how: str) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("end")
    job = story.start_script(NESTED, how)
    wait_for(lambda: sum(line.startswith("outer") for line in story.said()) == 2, story.said)
    (lease,) = here.leases()
    assert {line.partition(" ")[2] for line in story.said()} == {f"{lease['id']} 0"}
    assert len(story.said()) >= 3
    assert (lease["pid"], lease["state"], lease["label"]) == (job.pid, "running", "outer")
    story.gate("end").open()
    job.ended_well()
    assert here.leases() == []


def test_a_command_under_exec_inside_a_job_uses_its_lease_and_leaves_it(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("end")
    job = story.start_script(
        """
        import subprocess, sys
        import grn
        from act import gate, say

        @grn.job("outer", exclusive=True)
        def outer():
            inner = "import os; from act import say; say(os.environ['GRN_LEASE'])"
            subprocess.run([sys.argv[1], "exec", "--", sys.executable, "-c", inner], check=True)
            say("outer goes on")
            gate("end")

        outer()
        """,
        str(script("grn")),
    )
    story.hear("outer goes on")
    (lease,) = here.leases()
    assert story.said()[0] == lease["id"]
    assert (lease["pid"], lease["state"]) == (job.pid, "running")
    story.gate("end").open()
    assert job.ended_well().err == ""
    assert here.leases() == []


def test_a_decorated_job_in_a_command_under_exec_uses_its_lease(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    here = negotiator("virtual:1x512MiB")
    path = story.write(
        "job.py",
        """
        import os
        import grn
        from act import say

        @grn.job(exclusive=True)
        def job():
            say("inside", os.environ["GRN_LEASE"])

        say("outside", os.environ["GRN_LEASE"])
        job()
        """,
    )
    story.start(script("grn"), "exec", "--exclusive", "--", "python3", path).ended_well()
    outside, inside = story.said()
    assert outside.split()[1] == inside.split()[1]
    assert here.leases() == []


def test_a_pool_made_inside_a_job_asks_for_itself_when_the_job_has_ended(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    ended = story.run_script(
        """
        import multiprocessing, os
        import grn

        @grn.job(mem="64MiB")
        def inner(number):
            return os.environ["GRN_LEASE"]

        @grn.job(mem="64MiB")
        def outer():
            pool = multiprocessing.get_context("fork").Pool(2)
            assert set(pool.map(inner, range(4))) == {os.environ["GRN_LEASE"]}
            return pool, os.environ["GRN_LEASE"]

        pool, over = outer()
        leases = pool.map(inner, range(4), chunksize=1)
        assert len({over, *leases}) == 5, (over, leases)
        pool.terminate()
        pool.join()
        """
    )
    assert ended.err == ""
    assert here.leases() == []


def test_after_its_job_has_ended_a_process_asks_for_itself(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("go")
    story.gate("end")
    job = story.start_script(
        """
        import os, subprocess, sys
        import grn
        from act import gate, say

        @grn.job(mem="64MiB")
        def job(where):
            say(where, os.environ["GRN_LEASE"])

        if len(sys.argv) == 1:
            @grn.job(mem="64MiB")
            def outer():
                return subprocess.Popen([sys.executable, __file__, "left over"])
            left_over = outer()
            say("outer ended")
            assert left_over.wait() == 0
        else:
            before = os.environ["GRN_LEASE"]
            gate("go")
            job("inner")
            assert os.environ["GRN_LEASE"] == before
        """
    )
    story.hear("outer ended")
    assert here.leases() == []
    story.gate("go").open()
    job.ended_well()
    assert story.said()[1].startswith("inner ")
    assert here.leases() == []
