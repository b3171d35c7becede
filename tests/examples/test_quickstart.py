"""The quickstart: a decorated job, and a long one with a stand-in that is measured for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.conftest import Example, Runs

HERE = Path(sys.executable)
SHORT = "short_job: measured with 200 MiB"
LONG = "long_job: 200 MiB for 3 s"


@pytest.mark.slow
def test_the_decorated_job_is_measured_and_then_shares(example: Example, runs: Runs) -> None:
    folder = example("quickstart")
    ended = runs(folder, *["python job.py"] * 3, python=HERE, gpus="2x2GiB")

    assert {line[:-1] for line in ended.out.splitlines()} == {"trained 300 MiB on GPU "}
    assert len(ended.out.splitlines()) == 3


@pytest.mark.slow
def test_the_stand_in_runs_before_the_first_long_job_only(example: Example, runs: Runs) -> None:
    folder = example("quickstart")
    twice = "python stand_in.py && python stand_in.py"
    ended = runs(folder, twice, python=HERE, gpus="2x2GiB")

    assert ended.out.splitlines() == [SHORT, LONG, LONG]
