"""The MNIST example: the part with PyTorch for real, the tasks, and what `make mnist` checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.conftest import ROOT, Example, Runs, python_with

LEARNED = "grn profiles --json > profiles.json"
MODEL = """
import sys; sys.path.insert(0, "."); sys.argv = ["x"]
from torch_mnist_train import train_job
model = train_job(epochs=1, batch_size=500)
import torch
print(*model(torch.zeros(2, 28, 28, 1)).shape)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_trainings_with_torch_run_under_doit_and_are_learned_from(
    example: Example, runs: Runs
) -> None:
    folder = example("mnist")
    tasks = folder / "example_doit.py"
    tasks.write_text(tasks.read_text().replace("EPOCHS = 3", "EPOCHS = 1"))
    torch_tasks = "doit -d . -f example_doit.py -n 9 1 4 7"
    ended = runs(
        folder,
        f"{torch_tasks} && {LEARNED}",
        python=python_with("torch"),
        gpus="2x2GiB",
        limit_s=200,
    )

    assert sorted(ended.out.splitlines()) == [".  1", ".  4", ".  7"]
    (profile,) = json.loads((folder / "profiles.json").read_text())["profiles"]
    assert profile["label"] == "torch_mnist_train.py::train_job"
    assert profile["known"]
    assert [run["outcome"] for run in profile["history"]] == ["ok"] * 3
    assert sorted(run["args"]["batch_size"] for run in profile["history"]) == [32, 64, 128]
    assert profile["largest_bytes"] > 100 << 20  # more than an interpreter: a framework


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_trained_model_comes_back_to_the_caller(example: Example, runs: Runs) -> None:
    folder = example("mnist")
    (folder / "call.py").write_text(MODEL)
    ended = runs(folder, "python call.py", python=python_with("torch"), gpus="1x2GiB", limit_s=150)

    accuracy, shape = ended.out.splitlines()
    assert accuracy.startswith("torch on cpu: accuracy 0.")
    assert shape == "2 10"


@pytest.mark.parametrize("file", ["example_doit.py", "mnist_doit.py"])
def test_both_files_have_the_tasks_0_to_8_of_three_frameworks(file: str) -> None:
    look = f"import {file[:-3]} as f, json; print(json.dumps(list(f.task_train())))"
    command = [sys.executable, "-B", "-c", look]
    folder = ROOT / "examples" / "mnist"
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    tasks = json.loads(said)

    assert [task["basename"] for task in tasks] == [str(number) for number in range(9)]
    scripts = [action[1] for task in tasks for action in task["actions"]]
    assert {name: scripts.count(name) for name in scripts} == {
        "tf_mnist_train.py": 3,
        "torch_mnist_train.py": 3,
        "jax_mnist_train.py": 3,
    }
    assert all((folder / name).exists() for name in scripts)


def complaint(folder: Path, rows: list[tuple[str, int, int]]) -> str:
    """Ask what `make mnist` thinks of profiles, given as name, runs and size."""
    profiles = [
        {"label": f"{name}_mnist_train.py::train_job", "runs": runs, "largest_bytes": size}
        for name, runs, size in rows
    ]
    learned = folder / "profiles.json"
    learned.write_text(json.dumps({"profiles": profiles}))
    look = (
        "import mnist, pathlib, sys; print(mnist.complaint(pathlib.Path(sys.argv[1]).read_text()))"
    )
    command = [sys.executable, "-c", look, str(learned)]
    done = subprocess.run(
        command, cwd=ROOT / "tools", capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_make_mnist_wants_three_runs_of_each_and_different_profiles(tmp_path: Path) -> None:
    good = [("tf", 3, 700), ("torch", 3, 300), ("jax", 3, 400)]

    assert complaint(tmp_path, good) == "None"
    assert "three runs" in complaint(tmp_path, good[:2])
    assert "three runs" in complaint(tmp_path, [("tf", 2, 700), *good[1:]])
    assert "do not differ" in complaint(tmp_path, [("tf", 3, 300), *good[1:]])
