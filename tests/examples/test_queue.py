"""The example of the queue, as its README types it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.conftest import Example, Runs


@pytest.mark.slow
def test_submitted_jobs_run_and_the_report_comes_after_them(example: Example, runs: Runs) -> None:
    folder = example("queue")
    submit = "python submit_jobs.py; code=$?; grn queue stop; exit $code"
    ended = runs(folder, submit, python=Path(sys.executable), gpus="2x512MiB")

    said = [line for line in ended.out.splitlines() if line.startswith(("sub", "job", "seed"))]
    assert said == [
        "submitted 1 2 3 4",
        *(f"job {job}: ok" for job in (1, 2, 3)),
        *(f"seed {seed}: 80 MiB trained" for seed in (0, 1, 2)),
    ]
