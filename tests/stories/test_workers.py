"""Jobs called from pools, forks, tasks and threads of one program."""

from __future__ import annotations

import pytest

from tests.conftest import Negotiators
from tests.harness import Story, wait_for

ALONE = {"mem": "400MiB"}  # of 512: no two of them share a GPU


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool_each_ask_for_themselves(
    story: Story, negotiator: Negotiators, how: str
) -> None:
    here = negotiator()
    ended = story.run_script(
        """
        import multiprocessing, os, sys
        import grn

        @grn.job(mem="64MiB")
        def job(number):
            return number, os.environ["GRN_LEASE"], os.environ["CUDA_VISIBLE_DEVICES"]

        if __name__ == "__main__":
            job(0)  # leaves a connection in the parent that no child may use
            with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:
                found = pool.map(job, range(12), chunksize=1)
            assert [number for number, _, _ in found] == list(range(12))
            assert len({lease for _, lease, _ in found}) == 12
            assert {visible for _, _, visible in found} <= {"0", "1"}
            assert "GRN_LEASE" not in os.environ
        """,
        how,
    )
    assert ended.err == ""
    wait_for(lambda: not here.leases(), "the leases of workers that were ended")


def test_an_executor_of_processes_passes_results_and_exceptions(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    story.run_script(
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        import grn

        @grn.job(mem="64MiB")
        def job(number):
            if number == 2:
                raise ValueError("two")
            return number

        if __name__ == "__main__":
            with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
                futures = [pool.submit(job, number) for number in range(4)]
            assert [future.result() for future in futures if not future.exception()] == [0, 1, 3]
            assert repr(futures[2].exception()) == "ValueError('two')"
        """
    )
    assert here.leases() == []


def test_a_fork_in_the_middle_of_everything_does_no_harm(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    story.run_script(
        """
        import os
        import grn

        @grn.job(mem="64MiB")
        def job():
            return os.environ["GRN_LEASE"]

        job()
        children = []
        for _ in range(4):
            children.append(os.fork())
            if not children[-1]:
                assert job() != job()
                os._exit(0)
            job()
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
        """
    )
    wait_for(lambda: not here.leases(), "the leases to end")


def test_the_lease_of_a_parent_is_not_ended_by_its_forked_child(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    story.gate("end")
    job = story.start_script(
        """
        import os, sys
        import grn
        from act import gate, say

        @grn.job(mem="64MiB")
        def job():
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                say("child ended")
                gate("end")
            # The child returns from the call too, and leaves by sys.exit.

        job()
        sys.exit()
        """
    )
    story.hear("child ended")
    assert [lease["pid"] for lease in here.leases()] == [job.pid]
    story.gate("end").open()
    job.ended_well()
    assert here.leases() == []


def test_an_event_loop_turns_while_its_job_waits(story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x512MiB")
    holder = story.hold("holder", **ALONE)
    story.hear("holder runs")
    job = story.start_script(
        """
        import asyncio
        import grn
        from act import say

        @grn.job(mem="400MiB")
        async def job():
            say("job runs")
            return "result"

        async def main():
            waiting = asyncio.create_task(job())
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert not waiting.done()
            say("the loop turns")
            assert await waiting == "result"

        asyncio.run(main())
        """
    )
    story.hear("the loop turns")
    assert [row["pid"] for row in here.wait_for_waiting(1)] == [job.pid]
    story.gate("holder").open()
    holder.ended_well()
    job.ended_well()


def test_a_task_that_is_cancelled_while_it_waits_takes_its_request_back(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    story.gate("cancelled")
    holder = story.hold("holder", **ALONE)
    story.hear("holder runs")
    job = story.start_script(
        """
        import asyncio
        import grn
        from act import gate, say

        @grn.job(mem="400MiB")
        async def job():
            say("job runs")

        async def main():
            try:
                await asyncio.wait_for(job(), 0.2)
            except asyncio.TimeoutError:
                say("cancelled")
            gate("cancelled")
            await job()

        asyncio.run(main())
        """
    )
    story.hear("cancelled")
    here.wait_for_waiting(0)
    story.gate("holder").open()
    holder.ended_well()
    story.gate("cancelled").open()
    job.ended_well()
    assert here.leases() == []
    assert story.said() == ["holder runs", "cancelled", "holder ends", "job runs"]


def test_an_async_job_survives_a_restart_while_it_waits(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    holder = story.hold("holder", **ALONE)
    story.hear("holder runs")
    job = story.start_script(
        """
        import asyncio
        import grn
        from act import say

        @grn.job(mem="400MiB")
        async def job():
            say("job runs")

        asyncio.run(job())
        """
    )
    here.wait_for_waiting(1)
    here.kill()
    here.start()
    here.wait_for_waiting(1)
    story.gate("holder").open()
    holder.ended_well()
    job.ended_well()


def test_threads_of_one_program_share_its_gpu(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    for name in ("a", "b"):
        story.gate(name)
    job = story.start_script(
        """
        import os, threading
        import grn
        from act import gate, say

        @grn.job(mem="64MiB")
        def job(name):
            say(name, os.environ["CUDA_VISIBLE_DEVICES"])
            gate(name)

        threads = [threading.Thread(target=job, args=name) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "GRN_LEASE" not in os.environ
        """
    )
    leases = here.wait_for_leases(2)
    assert {lease["pid"] for lease in leases} == {job.pid}
    assert leases[0]["gpus"] == leases[1]["gpus"]  # a process has one CUDA_VISIBLE_DEVICES
    for name in ("a", "b"):
        story.gate(name).open()
    job.ended_well()
    assert here.leases() == []


def test_a_class_based_and_an_imported_job_work_in_spawned_workers(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    story.write(
        "models.py",
        """
        import os
        import grn

        class Model:
            @grn.job(mem="64MiB")
            def train(self, epochs):
                return epochs, bool(os.environ["GRN_LEASE"])
        """,
    )
    story.run_script(
        """
        import multiprocessing
        from models import Model

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                assert pool.map(Model().train, [1, 2]) == [(1, True), (2, True)]
        """
    )
