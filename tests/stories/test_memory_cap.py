"""A cap of GPU memory for jobs that run PyTorch: who is told, and what follows when it is reached.

No GPU and no PyTorch: a folder that looks like an environment with PyTorch 2.13, and a program
that ends as PyTorch does under a cap.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.queue.daemon import Queue, a_queue

SAYS = "import os; print(os.environ.get('PYTORCH_CUDA_ALLOC_CONF'))"
REACHES_IT_ONCE = """
import os, sys
print(os.environ.get('PYTORCH_CUDA_ALLOC_CONF'))
if os.environ["GRN_ATTEMPT"] == "1":
    sys.exit("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 2.00 "
             "GiB of which 1.90 GiB is free. 640.00 MiB allowed; Of the allocated memory")
"""


@pytest.fixture
def queue() -> Iterator[Queue]:
    with a_queue("virtual:1x2GiB") as begun:
        yield begun


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Return the interpreter of an environment with PyTorch."""
    (tmp_path / "lib/python3.11/site-packages/torch-2.13.0.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    return str(tmp_path / "bin/python")


def test_a_job_that_reaches_its_cap_alone_is_run_again_with_a_higher_one(
    queue: Queue, python: str
) -> None:
    job = queue.submit("--mem", "128MiB", "--", python, "-S", "-c", REACHES_IT_ONCE)
    row = queue.ended(job)
    first, second = row["attempts"]

    assert (first["reason"], second["reason"]) == ("out-of-memory", "ok")
    assert first["text"] == "reached its cap: 128 MiB were reserved"
    assert second["reserved_bytes"] > first["reserved_bytes"]
    told = float(queue.log(job).strip().partition(":")[2])
    assert told == pytest.approx((second["reserved_bytes"] + (512 << 20)) / (2 << 30), abs=1e-4)


@pytest.mark.parametrize("words", [(), ("--exclusive", "--mem", "128MiB")])
def test_first_runs_and_exclusive_jobs_have_no_cap(
    queue: Queue, python: str, words: tuple[str, ...]
) -> None:
    job = queue.submit(*words, "--", python, "-S", "-c", SAYS)
    queue.ended(job)

    assert queue.log(job) == "None\n"


def test_exec_tells_the_cap_and_a_setting_turns_it_off(python: str) -> None:
    words = ("exec", "--mem", "512MiB", "--", python, "-S", "-c", SAYS)
    with a_queue("virtual:1x2GiB") as queue:
        queue.wake()
        assert queue.fine(*words) == "per_process_memory_fraction:0.5\n"
    with a_queue("virtual:1x2GiB", GRN_MEMORY_CAP="off") as queue:
        queue.wake()
        assert queue.fine(*words) == "None\n"
