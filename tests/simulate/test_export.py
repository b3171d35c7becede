"""One's own past, from a real queue, as a workload that can be replayed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn.simulate.sources import read_jobs
from tests.queue.daemon import Queue, being_here

HUNGRY = "import time; held = b'x' * (30 << 20); time.sleep(0.6)"


@pytest.fixture
def queue() -> Iterator[Queue]:
    queue = Queue.begin(GRN_SAMPLE_S="0.05")
    with being_here(queue):
        yield queue
        queue.cancel_all()
        queue.end()


@pytest.mark.process
def test_what_has_run_can_be_replayed(queue: Queue, tmp_path: Path) -> None:
    script, path = tmp_path / "hungry.py", tmp_path / "past.csv"
    script.write_text(HUNGRY)
    for batch in ("8", "16"):
        queue.fine("submit", "--", sys.executable, str(script), "--batch", batch)
    queue.fine("submit", "--", "false")
    queue("wait", "--all")

    queue.fine("history", "--export", str(path))

    jobs = read_jobs(path.read_text(), "past.csv")
    assert [job.arguments for job in jobs] == [(("batch", 8.0),), (("batch", 16.0),)]
    assert len({job.job_type for job in jobs}) == 1
    assert all(job.peak_bytes > 30 << 20 and job.solo_s >= 0.6 for job in jobs)
    told = queue.fine("simulate", "--gpus", "1x8GiB", "--jobs", str(path), "--policy", "grn")
    assert "2 jobs of 1 type" in told
