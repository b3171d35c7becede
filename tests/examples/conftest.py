"""What the tests of examples share: a copy of the example, and tools that are not in `.venv`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import Ended, Job, Story, wait_for

ROOT = Path(__file__).resolve().parents[2]
# Made by `make test` and by `make mnist`.
ENVIRONMENTS = (".venv-examples", ".venv-mnist")
ASK = "import sys, importlib.util as u; sys.exit(u.find_spec(sys.argv[1]) is None)"

Example = Callable[[str], Path]
Runs = Callable[..., Ended]


def python_with(package: str) -> Path:
    """Find an interpreter that has a package and grn; skip, and say so, where there is none."""
    places = [Path(sys.executable), *(ROOT / name / "bin/python" for name in ENVIRONMENTS)]
    for python in places:
        command = [str(python), "-I", "-c", ASK, package]
        if python.exists() and subprocess.run(command, check=False).returncode == 0:
            return python
    pytest.skip(f"NOT RUN: no environment here has {package}; `make test` makes one if pip can")


@pytest.fixture
def example(story: Story) -> Example:
    """Copy an example into the story, where it may leave files."""
    story.env["HOME"] = story.env["TMPDIR"] = str(story.folder)  # some tools keep files there
    story.env["OMP_NUM_THREADS"] = "1"

    def copy(name: str) -> Path:
        left = shutil.ignore_patterns("__pycache__", ".*")
        return Path(shutil.copytree(ROOT / "examples" / name, story.folder / name, ignore=left))

    return copy


@pytest.fixture
def runs(story: Story) -> Runs:
    """Run commands as `grn-run` does, with the programs of an environment first on the PATH."""

    def run(folder: Path, *commands: str, python: Path, gpus: str, limit_s: float = 180) -> Ended:
        settings = {
            "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
            "GRN_GPUS": f"virtual:{gpus}",
            "PYTHONDONTWRITEBYTECODE": None,  # else each process compiles a framework anew
        }
        job = story.start(
            Path(sys.executable).with_name("grn-run"),
            *commands,
            cwd=folder,
            env=settings,
        )
        return ended_well(job, limit_s)

    return run


def ended_well(job: Job, limit_s: float) -> Ended:
    """Wait longer than for a small script: frameworks take seconds to import."""
    wait_for(lambda: not job.is_running, lambda: f"its end: {job.out}{job.err}", limit_s)
    return job.ended_well()
