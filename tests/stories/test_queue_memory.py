"""A job that runs out of GPU memory: whose fault it was, and what follows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from grn.client.negotiator import ask_once
from tests.harness import wait_for
from tests.queue.daemon import Queue, a_queue

MiB = 1 << 20
# Says so on its first try only, as a program does that found less memory than it was promised.
ONCE = """
if [ $GRN_ATTEMPT = 1 ]; then
  echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB' >&2; exit 1
fi
echo fine
"""

# Holds 170 MiB until its gate is opened.
SHARER = """
import fcntl, sys
held = b"x" * (160 << 20)
print("up", flush=True)
with open(sys.argv[1]) as gate:
    fcntl.flock(gate, fcntl.LOCK_SH)
"""

# Holds 400 MiB; its first attempt does not end by itself.
TOO_LARGE_AT_FIRST = """
import os, signal
held = b"x" * (400 << 20)
if os.environ["GRN_ATTEMPT"] == "1":
    signal.pause()
print("fine")
"""


@pytest.fixture
def queue() -> Iterator[Queue]:
    with a_queue("virtual:1x512MiB") as begun:
        yield begun


def test_out_of_memory_while_sharing_is_tried_again_with_more_room(queue: Queue) -> None:
    queue.gate("shares")
    sharer = queue.sh("echo up; gate shares")
    queue.says(sharer, "up")
    job = queue.sh(ONCE)
    row = queue.ended(job)
    assert row["reason"] == "ok"
    assert queue.log(job) == "fine\n"
    first, second = row["attempts"]
    assert (first["reason"], second["reason"]) == ("out-of-memory", "ok")
    assert second["reserved_bytes"] > first["reserved_bytes"]
    assert queue.job(sharer)["state"] == "running", "a neighbour is never harmed"
    queue.gate("shares").open()
    queue.ended(sharer)


def test_out_of_memory_alone_is_the_jobs_own(queue: Queue) -> None:
    job = queue.sh(ONCE)
    row = queue.ended(job)
    assert (row["reason"], row["status"], row["attempt"]) == ("out-of-memory", 1, 1)
    assert row["text"] == "ran out of GPU memory although it was alone on GPU 0 (512 MiB)"
    assert queue("wait", str(job)).code == 1


def test_a_job_that_overflows_its_virtual_gpu_has_run_out_of_memory(queue: Queue) -> None:
    text = "import signal; kept = b'x' * (700 << 20); signal.pause()"
    job = queue.submit("--mem", "64MiB", "--", sys.executable, "-c", text)
    row = queue.ended(job)
    assert (row["reason"], row["signal"]) == ("out-of-memory", 9)


def test_a_victim_of_a_neighbour_that_grew_is_tried_again_as_it_is() -> None:
    with a_queue("virtual:1x512MiB", GRN_FLAT_S="0.3") as queue:
        queue.gate("shares")
        gate = str(queue.story.folder / "gates" / "shares")
        offender = queue.submit("--mem", "40MiB", "--", sys.executable, "-c", SHARER, gate)
        queue.says(offender, "up")
        lease = queue.job(offender)["lease"]
        wait_for(lambda: _used(lease) > 150 * MiB, "the negotiator to see it")
        job = queue.sh(ONCE.replace("90.00 MiB", "1.00 MiB"), "--mem", "100MiB")
        row = queue.ended(job)
        first, second = row["attempts"]
        assert (first["reason"], second["reason"]) == ("out-of-memory", "ok")
        assert first["reserved_bytes"] == second["reserved_bytes"]
        assert f"(lease {lease}) beside it grew beyond what it had" in first["text"]
        queue.gate("shares").open()
        queue.ended(offender)


def test_a_job_too_large_for_a_small_gpu_goes_on_on_a_larger_one() -> None:
    with a_queue("virtual:1x256MiB+1x1GiB") as queue:
        queue.gate("held")
        holder = queue.sh("echo up; gate held", "--mem", "900MiB")
        queue.says(holder, "up")
        job = queue.submit("--", sys.executable, "-c", TOO_LARGE_AT_FIRST)
        wait_for(lambda: queue.job(job)["attempts"], lambda: queue.job(job))
        queue.gate("held").open()
        row = queue.ended(job)
        first, second = row["attempts"]
        assert (first["reason"], second["reason"]) == ("out-of-memory", "ok")
        assert (first["gpus"], second["gpus"]) == ([0], [1])
        assert "a larger GPU is managed here" in first["text"]
        queue.ended(holder)


def _used(lease: str) -> int:
    leases = {row["id"]: row for row in ask_once({"op": "status"})["status"]["leases"]}
    return leases[lease]["used_bytes"] or 0
