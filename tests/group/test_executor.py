"""`grn.Executor`: functions as jobs of the queue, with the manners of `concurrent.futures`."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import grn
from grn.client import negotiator
from grn.errors import UsageError
from grn.group.executor import Executor
from tests.harness import wait_for
from tests.queue.daemon import Queue, being_here

MEM = "64MiB"


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    queue = Queue.begin()
    with being_here(queue):
        queue.fine("queue", "start")
    yield queue
    with being_here(queue):
        queue.end()


@pytest.fixture
def queue(shared: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Make this process a client of the one queue of this file; no file of a call may be left."""
    with being_here(shared):
        monkeypatch.chdir(shared.story.folder)
        yield shared
        shared.cancel_all()
        calls = shared.story.folder / "state" / "calls"
        wait_for(lambda: not calls.exists() or not list(calls.iterdir()), "files of calls to go")


def test_a_call_is_made_in_a_job_and_its_answer_comes_back(queue: Queue) -> None:
    with grn.Executor(mem=MEM) as pool:
        future = pool.submit(lambda a, b=0: (os.getpid(), os.environ["GRN_JOB_ID"], a + b), 2, b=3)
        pid, job, total = future.result(60)
    assert pid != os.getpid()
    assert (int(job), total) == (future.job.id, 5)
    row = queue.job(future.job.id)
    assert row["reason"] == "ok"
    assert row["label"].endswith("<lambda>")


def test_arguments_of_a_call_are_learned_from(queue: Queue) -> None:
    with Executor(mem=MEM, type="learns") as pool:
        pool.submit(lambda batch, path: None, 16, "a" * 41).result(60)

    def profiles() -> list[dict[str, Any]]:
        return list(negotiator.ask_once({"op": "profiles", "type": "learns"})["profiles"])

    (profile,) = wait_for(profiles, "the run to be known")
    assert [run["args"] for run in profile["history"]] == [{"batch": 16.0}]


def test_calls_are_mapped_in_order(queue: Queue) -> None:
    with Executor(mem=MEM, name="mapped") as pool:
        assert list(pool.map(lambda a, b: a * b, [1, 2, 3], [4, 5, 6], timeout=60)) == [4, 10, 18]


def test_an_exception_comes_back_as_it_was_raised(queue: Queue) -> None:
    def fails() -> None:
        raise ValueError("too large", 3)

    with Executor(mem=MEM) as pool:
        future = pool.submit(fails)
        with pytest.raises(ValueError, match="too large") as caught:
            future.result(60)
    assert caught.value.args == ("too large", 3)
    row = queue.job(future.job.id)
    assert (row["reason"], row["status"]) == ("failed", 1)
    assert "in fails" in queue.log(future.job.id)


def test_a_call_that_ends_its_process_is_a_failed_job(queue: Queue) -> None:
    with Executor(mem=MEM) as pool:
        dies = pool.submit(lambda: os._exit(7))
        leaves = pool.submit(lambda: os.kill(os.getpid(), 9))
        with pytest.raises(grn.JobFailed, match="ended as failed: exit status 7") as caught:
            dies.result(60)
        assert caught.value.exit_code == 7
        with pytest.raises(grn.JobFailed, match="ended by signal 9"):
            leaves.result(60)


def test_a_call_that_ends_its_worker_fails_alone(queue: Queue) -> None:
    def run(number: int) -> int:
        if number == 2:
            os._exit(7)
        return number

    with Executor(mem=MEM, reuse_workers=True, max_workers=1) as pool:
        futures = [pool.submit(run, number) for number in range(5)]
        with pytest.raises(grn.JobFailed, match="exit status 7"):
            futures[2].result(60)
        assert [futures[number].result(60) for number in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert futures[0].job.id == futures[1].job.id != futures[4].job.id


def test_a_shared_worker_repeats_a_failing_call_and_ends_with_a_cancelled_one(queue: Queue) -> None:
    tried = Path(queue.story.folder) / "tried"

    def second_time() -> str:
        with tried.open("a") as file:
            file.write("x")
        if tried.read_text() == "x":
            raise OSError("not yet")
        return "at last"

    with Executor(mem=MEM, retry=1, reuse_workers=True) as pool:
        assert pool.submit(second_time).result(60) == "at last"
        sleeps = pool.submit(lambda: __import__("signal").pause())
        wait_for(lambda: sleeps.job is not None, "the call to begin")
        assert sleeps.cancel()
    assert queue.ended(sleeps.job.id)["reason"] == "cancelled"


def test_all_calls_end_with_their_program(queue: Queue) -> None:
    ended = queue.story.run_script(
        """
        import signal, grn

        future = grn.Executor(mem="64MiB", name="left").submit(signal.pause)
        print(future.job.id)
        """,
        name="leaves.py",
    )
    assert queue.ended(int(ended.out))["reason"] == "cancelled"


def test_inside_a_job_calls_share_its_gpus(queue: Queue) -> None:
    def outer() -> tuple[list[str], list[object]]:
        lease = os.environ["GRN_LEASE"]
        with Executor(mem=MEM) as pool:
            futures = [pool.submit(lambda: os.environ["GRN_LEASE"]) for _ in range(2)]
            return [future.result() == lease for future in futures], [f.job for f in futures]

    with Executor(mem=MEM) as pool:
        assert pool.submit(outer).result(60) == ([True, True], [None, None])


def test_a_call_that_cannot_be_sent_says_so_at_once(queue: Queue) -> None:
    with Executor(mem=MEM) as pool, pytest.raises(UsageError, match="cannot be sent"):
        pool.submit(print, threading.Lock())


def test_an_answer_that_cannot_come_back_says_so(queue: Queue) -> None:
    def odd() -> type:
        class Odd(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__("odd")

        raise Odd(1, 2)

    with Executor(mem=MEM) as pool:
        lock = pool.submit(lambda: __import__("threading").Lock())
        error = pool.submit(odd)
        with pytest.raises(TypeError, match="the answer cannot be sent back"):
            lock.result(60)
        with pytest.raises(grn.JobFailed, match=r"the answer of job \d+ cannot be read"):
            error.result(60)


def test_any_callable_will_do(queue: Queue) -> None:
    with Executor(mem=MEM) as pool:
        partial = pool.submit(functools.partial(pow, 2), 5)
        bound = pool.submit("a,b".split, ",")
        assert (partial.result(60), bound.result(60)) == (32, ["a", "b"])
        assert queue.job(partial.job.id)["label"] == "builtins::pow"


def test_functions_of_the_main_program_and_of_its_folder_are_found(queue: Queue) -> None:
    queue.story.write("beside.py", "def twice(x):\n    return 2 * x\n")
    ended = queue.story.run_script(
        """
        import grn
        from beside import twice

        FACTOR = 10

        def times(x):
            return FACTOR * twice(x)

        if __name__ == "__main__":
            with grn.Executor(mem="64MiB") as pool:
                print(*pool.map(times, [1, 2]))
        """,
        name="program.py",
    )
    assert ended.out == "20 40\n"


def test_cancelling_a_future_cancels_its_job(queue: Queue) -> None:
    pool = Executor(mem=MEM)
    runs = pool.submit(lambda: __import__("signal").pause())
    queue.in_state(runs.job.id, "running")
    waits = Executor(mem=MEM, hold=True).submit(print)
    for future in (runs, waits):
        assert future.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            future.result(60)
        assert queue.ended(future.job.id)["reason"] == "cancelled"
    pool.shutdown()


def test_a_job_cancelled_by_others_cancels_its_future(queue: Queue) -> None:
    future = Executor(mem=MEM, hold=True).submit(print)
    queue.ask("cancel", jobs=[future.job.id])
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(60)


def test_after_shutdown_no_call_is_taken(queue: Queue) -> None:
    pool = Executor(mem=MEM)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(print)


def test_shutdown_waits_for_calls_or_cancels_them(queue: Queue) -> None:
    pool = Executor(mem=MEM)
    fine = pool.submit(lambda: 1)
    pool.shutdown()
    assert fine.done()
    pool = Executor(mem=MEM, hold=True)
    held = pool.submit(print)
    pool.shutdown(wait=False)
    assert not held.done()
    pool.shutdown(cancel_futures=True)
    assert held.done()
    assert queue.ended(held.job.id)["reason"] == "cancelled"


def test_a_call_that_is_cancelled_after_shutdown_ends(queue: Queue) -> None:
    pool = Executor(mem=MEM)
    runs = pool.submit(lambda: __import__("signal").pause())
    queue.in_state(runs.job.id, "running")
    pool.shutdown(wait=False)
    assert runs.cancel()
    pool.shutdown()
    assert queue.ended(runs.job.id)["reason"] == "cancelled"


def test_what_cannot_be_submitted_leaves_nothing(queue: Queue) -> None:
    with Executor(gpus=-1) as pool, pytest.raises(UsageError, match="gpus is -1"):
        pool.submit(print)


def test_a_failing_call_is_tried_again(queue: Queue) -> None:
    def second_time() -> str:
        if os.environ["GRN_ATTEMPT"] == "1":
            raise OSError("not yet")
        return "at last"

    with Executor(mem=MEM, retry=1) as pool:
        assert pool.submit(second_time).result(60) == "at last"


def test_futures_work_with_what_waits_for_futures(queue: Queue) -> None:
    with Executor(mem=MEM) as pool:
        futures = [pool.submit(lambda x=x: x) for x in range(3)]
        done = [future.result() for future in concurrent.futures.as_completed(futures, 60)]
    assert sorted(done) == [0, 1, 2]
    assert Path(queue.story.folder).exists()
