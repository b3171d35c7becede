"""Jobs through a pilot on a real Ray, against the queue of one machine and against Ray's own tasks.

Needs `.venv-ray`, which `make test-engines` makes. All three run `true` on four slots of this
machine, in turns. A task of Ray is kept warm: Ray ends the worker of a GPU task otherwise.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import rig

from grn.client import queue
from grn.client.submit import submit_many
from grn.errors import GrnError
from tests.sites.ray_rig import VARIABLES, RayRig, python_with_ray

SLOTS = 4
COMMANDS = 1000
ROUNDS = 3
GRN = "from grn.cli.main import main; main()"
TASKS = f"""
import subprocess, time
@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def run():
    subprocess.run(["true"], check=True)
ray.get([run.remote() for _ in range({SLOTS} * 10)])
for line in sys.stdin:
    began = time.perf_counter()
    ray.get([run.remote() for _ in range(int(line))])
    print(time.perf_counter() - began, flush=True)
"""


def measure() -> list[rig.Figure]:
    """Measure all three in turns."""
    local, pilot, tasks = [], [], []
    with _cluster() as cluster, _home(cluster), _tasks(cluster) as run_tasks:
        _run_all(SLOTS, "local")
        _run_all(SLOTS, "cloud")
        for _ in range(ROUNDS):
            local.append(_run_all(COMMANDS, "local"))
            pilot.append(_run_all(COMMANDS, "cloud"))
            tasks.append(run_tasks(COMMANDS))
    ours = statistics.median(pilot)
    what = f"{COMMANDS} x true on {SLOTS} slots of a Ray pilot"
    return [
        rig.Figure(f"{what}, against the local queue", ours, statistics.median(local), "s", 2.5),
        rig.Figure(f"{what}, against warm Ray tasks", ours, statistics.median(tasks), "s", None),
    ]


def _run_all(count: int, at: str) -> float:
    began = time.perf_counter()
    handles = submit_many([["true"]] * count, exclusive=True, at=at)
    for _ in queue.ends([handle.id for handle in handles]):
        pass
    return time.perf_counter() - began


@contextlib.contextmanager
def _cluster() -> Iterator[RayRig]:
    cluster = RayRig()
    try:
        cluster.start(gpus=2 * SLOTS)
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def _home(cluster: RayRig) -> Iterator[None]:
    """Run a queue that has the cluster as a site; it runs with the interpreter that has Ray."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="grn-bench-") as folder:
        gpus = f"virtual:{SLOTS}x512MiB"
        places = {"CONFIG": "config.toml", "RUNTIME_DIR": "run", "STATE_DIR": "state"}
        os.environ.update({f"GRN_{name}": f"{folder}/{path}" for name, path in places.items()})
        os.environ.update(VARIABLES, GRN_GPUS=gpus)
        Path(os.environ["GRN_CONFIG"]).write_text(
            f'[sites.cloud]\nray = "{cluster.address}"\ngpus = {SLOTS}\npilots = 1\n'
            f'env = {{ GRN_GPUS = "{gpus}", GRN_RUNTIME_DIR = "{folder}/n" }}\n'
        )
        try:
            _grn("ls")
            yield
        finally:
            with contextlib.suppress(GrnError):
                queue.ask({"op": "stop"}, may_start=False)
            _grn("stop")
            cluster.clear()
            os.environ.clear()
            os.environ.update(before)


def _grn(*words: str) -> None:
    subprocess.run([python_with_ray(), "-c", GRN, *words], stdout=subprocess.DEVNULL, check=True)


@contextlib.contextmanager
def _tasks(cluster: RayRig) -> Iterator[Callable[[int], float]]:
    """Run a program of Ray that starts so many tasks as it is told."""
    command, environment = cluster.command(TASKS)
    process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)  # fmt: skip
    with process:

        def run(count: int) -> float:
            print(count, file=process.stdin, flush=True)
            return float(process.stdout.readline() if process.stdout else 0)

        yield run


if __name__ == "__main__":
    rig.main("Ray", measure)
