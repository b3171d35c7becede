"""What one GPUTask instance costs, against a fresh Python that imports the same.

All on one slot, one instance after the other, with folders, marks and log lines. The floor runs
`python -c` with the import of the task's module; both take turns.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import rig

ROUNDS = 5
INSTANCES = 12
TARGET = 1.2

TASK = """
{imports}
from gpu_task_scheduler.gpu_task import GPUTask

class {name}(GPUTask):
    def main(self):
        pass
"""
# From a task that imports next to nothing to one that takes as long to import as numpy does.
IMPORTS = {"light": "", "heavy": "import asyncio, http.client, multiprocessing.pool, unittest.mock"}


def measure() -> list[rig.Figure]:
    """Time instances and bare starts in turn."""
    with _folder(), open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        return [figure for kind in IMPORTS for figure in _measure(kind)]


def _measure(kind: str) -> list[rig.Figure]:
    from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler

    name = f"{kind}_task"
    Path(f"{name}.py").write_text(TASK.format(imports=IMPORTS[kind], name="Task"))
    task_class = __import__(name).Task
    config = {
        "scheduler_config": {"gpu": ["0"], "force_rerun": True},
        "test_config": [{"n": range(INSTANCES)}],
    }

    def instances() -> None:
        GPUTaskScheduler(config, task_class).start()

    def starts() -> None:
        for _ in range(INSTANCES):
            subprocess.run([sys.executable, "-c", f"import {name}"], check=True)

    instances()
    starts()
    ours, floor = [], []
    for _ in range(ROUNDS):
        ours.append(_each_ms(instances))
        floor.append(_each_ms(starts))
    what = f"one instance of a {kind} task, against its imports"
    return [rig.Figure(what, statistics.median(ours), statistics.median(floor), "ms", TARGET)]


def _each_ms(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1000 / INSTANCES


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """Work in a folder of our own, from which modules can be imported."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        os.environ["GRN_RUNTIME_DIR"] = folder  # no negotiator is to be asked
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            os.chdir(before)


if __name__ == "__main__":
    rig.main("GPUTask instances", measure)
