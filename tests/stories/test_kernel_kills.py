"""Jobs that the kernel's OOM killer ends: real kills, in a control group with little memory."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn.proc import memory_limit
from tests.conftest import Negotiators
from tests.harness import GRN, TWO_SMALL, Story, wait_for
from tests.memory_group import a_memory_group
from tests.queue.daemon import Queue, a_queue

MiB = 1 << 20
# Takes 400 MiB in a group that has 64, which ends it by SIGKILL; `once` in its first attempt only.
HOG = """
import os, sys
group, once = sys.argv[1:]
if once == "always" or os.environ["GRN_ATTEMPT"] == "1":
    with open(group + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    held = b"x" * (400 << 20)
print("fine")
"""
# The same in a child, as in a worker of PyTorch's data loader.
IN_A_CHILD = f"""
import os, subprocess, sys
if os.environ["GRN_ATTEMPT"] == "1":
    child = subprocess.run([sys.executable, "-c", {HOG!r}, sys.argv[1], "always"])
    sys.exit(f"RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. {{child}}")
print("fine")
"""


@pytest.fixture(autouse=True)
def one_at_a_time(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run no two of these side by side: the kernel counts its kills for the whole machine."""
    with (tmp_path_factory.getbasetemp().parent / "kernel-kills.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def group() -> Iterator[Path]:
    with a_memory_group(64 * MiB) as made:
        yield made


@pytest.fixture
def queue() -> Iterator[Queue]:
    with a_queue("virtual:1x2GiB") as begun:
        yield begun


@pytest.mark.parametrize("code", [HOG, IN_A_CHILD])
def test_a_job_that_the_kernel_kills_beside_others_runs_again_with_more_room(
    queue: Queue, group: Path, code: str
) -> None:
    queue.gate("shares")
    sharer = queue.sh("echo up; gate shares")
    queue.says(sharer, "up")
    job = queue.submit("--mem", "1GiB", "--", sys.executable, "-c", code, str(group), "once")
    row = queue.ended(job)
    first, second = row["attempts"]

    assert (first["reason"], second["reason"]) == ("out-of-ram", "ok")
    assert "ran out of host memory" in first["text"]
    shown = queue.fine("show", str(job))
    assert "out-of-ram" in shown
    queue.gate("shares").open()
    queue.ended(sharer)


def test_alone_on_the_machine_it_is_not_run_again(queue: Queue, group: Path) -> None:
    job = queue.submit("--mem", "1GiB", "--", sys.executable, "-c", HOG, str(group), "always")
    row = queue.ended(job)

    assert (row["reason"], row["signal"], row["attempt"]) == ("out-of-ram", 9, 1)
    assert row["text"] == "ran out of host memory although it was alone on this machine"
    assert "out-of-ram" in queue.fine("ls", "--all")
    assert queue("wait", str(job)).code == 137


def test_a_kill_by_somebody_else_is_a_failure(queue: Queue) -> None:
    job = queue.submit("--mem", "16MiB", "--shell", "--", "kill -9 $$")

    assert queue.ended(job)["reason"] == "failed"


def test_a_kill_by_the_kernel_before_any_job_ran_is_no_jobs(group: Path) -> None:
    with a_queue("virtual:1x2GiB", GRN_SAMPLE_S="60") as queue:  # as at rest
        queue.wake()
        counted_at = time.monotonic()
        hog = [sys.executable, "-c", HOG, str(group), "always"]
        killed = subprocess.run(hog, env={"GRN_ATTEMPT": "1"}, check=False)
        assert killed.returncode == -signal.SIGKILL
        wait_for(lambda: time.monotonic() > counted_at + 0.1, "the count to be old")
        job = queue.submit("--mem", "16MiB", "--shell", "--", "kill -9 $$")

        assert queue.ended(job)["reason"] == "failed"


def test_exec_says_that_the_kernel_killed_it(
    story: Story, negotiator: Negotiators, group: Path
) -> None:
    negotiator(TWO_SMALL)
    words = ("exec", "--mem", "400MiB", "--", sys.executable, "-c", HOG, group, "always")
    ended = story.start(*GRN, *words).wait()

    assert ended.code == 137
    assert "grn: the command ran out of host memory although it was alone" in ended.err


def test_a_job_that_reaches_its_stated_memory_is_ended_and_not_run_again(queue: Queue) -> None:
    way = memory_limit.here()
    if way.why_not:
        pytest.skip(f"`--ram` limits no job on this machine: {way.why_not}")
    code = "held = b'x' * (400 << 20)"
    words = ("--mem", "1GiB", "--ram", "64MiB")
    row = queue.ended(queue.submit(*words, "--", sys.executable, "-c", code))

    assert (row["reason"], row["attempt"]) == ("out-of-ram", 1)
    assert row["text"] == "reached its own limit of 64.0 MiB of host memory"


def test_a_job_within_its_stated_memory_runs_as_ever(queue: Queue) -> None:
    words = ("--mem", "16MiB", "--ram", "512MiB", "--", "sh", "-c", "exit 7")

    assert queue.ended(queue.submit(*words))["status"] == 7
    assert queue("exec", *words).code == 7
    missing = queue.submit("--mem", "16MiB", "--ram", "512MiB", "--", "no-such-program")
    assert queue.ended(missing)["reason"] == "not-runnable"
