"""A job that runs out of GPU memory: whose fault it was, and what follows."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.queue.daemon import Queue, a_queue

MiB = 1 << 20
# Says so on its first try only, as a program does that found less memory than it was promised.
ONCE = """
if [ $GRN_ATTEMPT = 1 ]; then
  echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 90.00 MiB' >&2; exit 1
fi
echo fine
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
    assert row["text"] == "ran out of GPU memory although it was alone on its GPU"
    assert queue("wait", str(job)).code == 1


def test_a_job_that_overflows_its_virtual_gpu_has_run_out_of_memory(queue: Queue) -> None:
    text = "import time; kept = b'x' * (700 << 20); time.sleep(600)"
    job = queue.submit("--mem", "64MiB", "--", sys.executable, "-c", text)
    row = queue.ended(job)
    assert (row["reason"], row["signal"]) == ("out-of-memory", 9)
