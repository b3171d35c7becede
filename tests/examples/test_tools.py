"""The examples with tools that start commands: make, Snakemake, torchrun, a notebook."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import ROOT, Example, Runs, python_with
from tests.harness import Story

HERE = Path(sys.executable)
BEST = "seed 2 error 0.0038\n"


def trained(text: str) -> set[str]:
    """Return who was trained, without where, which varies."""
    return set(re.findall(r"^(seed \d: trained with \d+ MiB) on GPU [01]$", text, re.MULTILINE))


SEEDS = {f"seed {seed}: trained with 80 MiB" for seed in (1, 2, 3)}


@pytest.mark.skipif(not shutil.which("make"), reason="NOT RUN: there is no make here")
def test_make_trains_on_gpus_with_room_and_does_nothing_twice(example: Example, runs: Runs) -> None:
    folder = example("make")
    first = runs(folder, "make -j 3", python=HERE, gpus="2x512MiB")

    assert trained(first.out) == SEEDS
    assert (folder / "best.txt").read_text() == BEST
    second = runs(folder, "make -j 3", python=HERE, gpus="2x512MiB")
    assert trained(second.out) == set()


@pytest.mark.skipif(not shutil.which("make"), reason="NOT RUN: there is no make here")
def test_a_training_that_fails_under_make_leaves_no_result(example: Example, runs: Runs) -> None:
    folder = example("make")
    script = folder / "train.py"
    script.write_text(script.read_text() + "    raise SystemExit(7)\n")
    command = "make model-1.txt; test $? -eq 2 && ls"
    ended = runs(folder, command, python=HERE, gpus="1x512MiB")

    assert "Error 7" in ended.err
    assert "model-1.txt" not in ended.out.split("GPU 0")[1]


@pytest.mark.slow
def test_snakemake_trains_on_gpus_with_room(example: Example, runs: Runs) -> None:
    folder = example("snakemake")
    python = python_with("snakemake")
    ended = runs(folder, "snakemake --cores 3", python=python, gpus="2x512MiB")

    assert trained(ended.out) == SEEDS
    assert (folder / "best.txt").read_text() == BEST
    assert "4 of 4 steps (100%) done" in ended.err


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_jobs_of_two_gpus_each_meet_at_ports_of_their_own(example: Example, runs: Runs) -> None:
    folder = example("torchrun")
    script = folder / "train.py"  # both stay until both are there, however long each takes to start
    script.write_text(script.read_text().replace("    if rank == 0:\n", STAY_FOR_THE_OTHER))
    ended = runs(
        folder,
        "grn exec --gpus 2 -- torchrun --standalone --nproc-per-node=2 train.py",
        "python spawn.py",
        python=python_with("torch"),
        gpus="4x1GiB",
        limit_s=200,
    )

    # Not by lines: both print at the same moment, each its text and then the end of its line.
    found = re.findall(r"2 processes on GPUs (\d,\d), port (\d+): loss (\d+\.\d{3})", ended.out)
    assert sorted(gpus for gpus, _, _ in found) == ["0,1", "2,3"]
    assert len({port for _, port, _ in found} - {"29500"}) == 2
    assert all(float(loss) < 1 for _, _, loss in found)  # it starts at about 8


STAY_FOR_THE_OTHER = """\
    if rank == 0:
        import pathlib, time
        pathlib.Path(f"here-{os.environ['MASTER_PORT']}").touch()
        until = time.monotonic() + 120
        while len(list(pathlib.Path().glob("here-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
"""


def outputs(notebook: Path) -> list[str]:
    """Return what each cell of a notebook shows, as text."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    shown = []
    for cell in cells:
        parts = cell.get("outputs", [])
        lines = [part.get("text") or part["data"]["text/plain"] for part in parts]
        shown.append("".join("".join(part) for part in lines))
    return shown


@pytest.mark.slow
def test_the_notebook_runs_and_shows_again_what_is_stored_in_it(
    example: Example, runs: Runs
) -> None:
    folder = example("notebook")
    python = python_with("nbclient")
    command = "jupyter execute --output=again train.ipynb"
    runs(folder, command, python=python, gpus="1x512MiB")

    stored = outputs(ROOT / "examples" / "notebook" / "train.ipynb")
    assert stored == outputs(folder / "again.ipynb")
    assert "notebook::fit runs: 3 known: True" in "".join(stored)


def results_of(folder: Path) -> list[dict[str, Any]]:
    """Return the table of the one sweep in a folder."""
    (table,) = folder.glob("sweeps/*/results.jsonl")
    return [json.loads(line) for line in table.read_text().splitlines()]


@pytest.mark.slow
def test_trainings_with_lightning_are_swept_and_their_losses_read(
    example: Example, runs: Runs
) -> None:
    folder = example("lightning")
    sweep = "grn sweep 'python train.py --lr {lr} --epochs 1' -p lr 0.01 0.001 --minimize loss"
    runs(folder, sweep, python=python_with("lightning"), gpus="2x2GiB")

    losses = {run["lr"]: run["loss"] for run in results_of(folder)}
    assert losses["0.01"] < losses["0.001"]


@pytest.mark.slow
def test_accelerate_takes_the_gpu_of_its_job(example: Example, runs: Runs) -> None:
    folder = example("accelerate")
    python = python_with("accelerate")
    ended = runs(folder, "grn exec -- python train.py", python=python, gpus="1x2GiB")

    assert re.fullmatch(r"1 process on GPU 0: loss 0\.0\d+\n", ended.out)


@pytest.mark.slow
def test_a_run_of_wandb_knows_the_job_that_made_it(
    example: Example, runs: Runs, story: Story
) -> None:
    folder = example("wandb")
    story.env["WANDB_MODE"] = "offline"
    sweep = "grn sweep 'python train.py --lr {lr}' -p lr 0.1 0.3 --minimize loss"
    runs(folder, sweep, python=python_with("wandb"), gpus="2x1GiB")

    losses = {run["lr"]: run["loss"] for run in results_of(folder)}
    assert losses["0.3"] < losses["0.1"]
    kept = [path.read_bytes() for path in folder.glob("wandb/offline-run-*/run-*.wandb")]
    assert len(kept) == 2
    assert all(b"grn_job" in run for run in kept)
