"""G7: a shim is killed: its job is reported as lost at once, its processes end, its lease is free.

How the command would have ended is not known, so it is never said to have ended well.
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.harness import is_running, wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import Rig, gone, kill

# A tree whose branches look different: other sessions, other groups, no environment.
TREE = """
sleep 1000 &
setsid sleep 1000 &
(setsid sh -c 'sleep 1000; true' &)
env -i sleep 1000 &
nohup sleep 1000 >/dev/null 2>&1 &
echo ready
wait
"""
SIZE = 7  # processes of one tree


class Grove:
    """Some trees, and what became of them."""

    def __init__(self, rig: Rig, patience_s: float = 15.0) -> None:
        self._rig = rig
        self._patience_s = patience_s
        self.complaints: list[str] = []
        self.slowest_s = 0.0

    def plant(self, count: int) -> list[int]:
        """Start some trees and wait until they are grown."""
        rig = self._rig
        argvs = [["/bin/sh", "-c", TREE]] * count
        first = rig.ask("submit", **rig.request(argvs))["first"]
        jobs = list(range(first, first + count))
        for job in jobs:
            log = rig.folder(job) / "log"
            wait_for(log.exists, f"{log} to say that it is grown")
        return jobs

    def fell(self, jobs: list[int], *, with_queue: bool) -> None:
        """Kill the shims, and the queue with them; look at what is left."""
        rig = self._rig
        trees = {job: self._processes(job) for job in jobs}
        shims = [rig.shim_of(job) for job in jobs]
        if with_queue:
            assert rig.queue is not None
            rig.queue.kill()
        gone(kill(shims))
        began = time.monotonic()
        if with_queue:
            rig.start()
            began = time.monotonic()
        for job in jobs:
            row = rig.ended(job)
            if (row["reason"], row["status"]) != ("lost", None):
                self.complaints.append(f"job {job} ended as {row['reason']} {row['status']}")
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        try:
            gone((pid for tree in trees.values() for pid in tree), self._patience_s)
        except AssertionError:
            left = {job: [pid for pid in tree if is_running(pid)] for job, tree in trees.items()}
            self.complaints.append(f"processes live on: {left}")
            gone(kill(pid for pids in left.values() for pid in pids))
        if not rig.no_lease_left():
            self.complaints.append(f"leases are left: {rig.leases()}")

    def _processes(self, job: int) -> list[int]:
        """Return all processes below the shim of a job."""
        found = wait_for(lambda: _below(self._rig.shim_of(job), SIZE), f"{SIZE} processes")
        return list(found)


def _below(pid: int, least: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        children = _children(todo.pop())
        found += children
        todo += children
    return found if len(found) >= least else []


def _children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


@pytest.mark.parametrize("with_queue", [False, True], ids=["alone", "with-the-queue"])
def test_killed_shims_are_told_at_once_and_leave_nothing(rig: Rig, with_queue: bool) -> None:
    rig.start()
    grove = Grove(rig)
    for _ in range(3):
        grove.fell(grove.plant(7), with_queue=with_queue)

    print(f"21 shims killed, the slowest seven told within {grove.slowest_s:.2f} s")
    assert not grove.complaints
    assert grove.slowest_s < 15.0  # a second on a machine at rest


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_five_hundred_killed_shims_leave_nothing(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    rig.start()
    grove = Grove(rig)
    for _ in range(50):
        grove.fell(grove.plant(10), with_queue=chance.random() < 0.5)

    assert not grove.complaints


@pytest.mark.parametrize("mutant", ["lost-is-ok", "leave-leftovers"])
def test_the_check_finds_out(rigs: Rigs, mutant: str) -> None:
    rig = rigs(mutant)
    rig.start()
    grove = Grove(rig, patience_s=2.0)
    grove.fell(grove.plant(1), with_queue=False)

    assert grove.complaints


def test_a_lost_job_runs_again_if_it_may(rig: Rig) -> None:
    rig.start()
    marker = rig.story.folder / "once"
    script = f"test -e {marker} && exit 0; touch {marker}; sleep 1000"
    job = rig.submit(["/bin/sh", "-c", script], retry=1)
    wait_for(marker.exists, "the first attempt")
    os.kill(rig.shim_of(job), signal.SIGKILL)
    row = rig.ended(job)

    assert (row["reason"], row["attempt"]) == ("ok", 2)
    assert [one["reason"] for one in row["attempts"]] == ["lost", "ok"]


def test_an_idle_shim_that_is_killed_harms_no_job(rig: Rig) -> None:
    rig.start()
    first = rig.submit(["true"])
    rig.ended(first)
    for _ in range(3):
        shims = [pid for pid in rig.story.left_behind() if pid in _shims(rig)]
        for _ in kill(shims):
            pass
        job = rig.submit(["true"])
        assert rig.ended(job)["reason"] == "ok"


def _shims(rig: Rig) -> set[int]:
    return set(_children(rig.forker()))


def test_a_queue_that_a_job_has_started_is_not_taken_for_a_part_of_the_job(rig: Rig) -> None:
    """`grn submit` inside a job starts the queue when none runs: it then has the job's mark."""
    rig.start()
    job = rig.submit(["sleep", "1000"])
    rig.running(job)
    shim = rig.shim_of(job)
    mark = wait_for(lambda: _mark_of(_children(shim)), "the mark of the command")
    assert rig.queue is not None
    rig.queue.kill()
    rig.start(GRN_JOB_TAG=mark)
    other = rig.submit(["sleep", "1000"])
    rig.running(other)
    os.kill(shim, signal.SIGKILL)

    assert rig.ended(job)["reason"] == "lost"
    assert rig.row(other)["state"] == "running"
    rig.ask("cancel", jobs=[other], now=True)
    assert rig.ended(other)["reason"] == "cancelled"


def _mark_of(pids: list[int]) -> str:
    for pid in pids:
        with open(f"/proc/{pid}/environ") as file:
            for one in file.read().split("\0"):
                if one.startswith("GRN_JOB_TAG="):
                    return one.partition("=")[2]
    return ""
