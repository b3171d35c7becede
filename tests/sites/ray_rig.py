"""A real Ray cluster on this machine: a head and more nodes, all of them on loopback.

Its GPUs exist by number only. It has a folder, a port and an environment of its own, and nothing of
it is left afterwards: every process of it has a mark.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.harness import DEADLINE_S, is_running, wait_for

MARK = "NO RAY"
ROOT = Path(__file__).resolve().parents[2]
ASK = "import sys, importlib.util as u; sys.exit(u.find_spec('ray') is None)"
OBJECT_STORE_BYTES = 80 << 20
# Ray replaces the address of loopback by that of a network card, which the first variable prevents;
# only a head starts with it, so more nodes are started by code. The others let the head notice a
# dead node within seconds.
MORE_NODES = (
    "from ray._private import ray_constants, services; ray_constants.ENABLE_RAY_CLUSTER = True; "
    "services.resolve_ip_for_localhost = str; from ray.scripts.scripts import main; main()"
)
VARIABLES = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_worker_register_timeout_seconds": "120",
}


@functools.cache
def python_with_ray() -> Path:
    """Return the interpreter that has Ray and grn; skip where there is none."""
    for python in (ROOT / ".venv-ray/bin/python", Path(sys.executable)):
        if (
            python.exists()
            and subprocess.run([python, "-I", "-c", ASK], check=False).returncode == 0
        ):
            return python
    pytest.skip(f"{MARK}: `make test-engines` installs it into .venv-ray if pip can")


class RayNode:
    """One node: the command that has started it, and stays in the foreground."""

    def __init__(self, cluster: RayRig, name: str, words: list[str]) -> None:
        self.name = name
        self._cluster = cluster
        self._log = cluster.folder / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python_with_ray(), "-c", MORE_NODES, "start", "--block", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**cluster.environment(), "RAY_RIG_NODE": name}, cwd=cluster.folder,
            )  # fmt: skip
        wait_for(self._is_ready, lambda: f"{name} to start: {self._log.read_text()}")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return "Ray runtime started" in self._log.read_text()

    def processes(self, *words: str) -> list[int]:
        """Return the processes of Ray itself on this node whose command has one of these words."""
        mark = f"RAY_RIG_NODE={self.name}".encode()
        pids = [pid for pid in self._cluster.processes() if mark in _environment(pid)]
        return [pid for pid in pids if not words or any(word in _command(pid) for word in words)]

    def kill_raylet(self) -> None:
        """Kill the daemon of this node as a power cut would."""
        pids = self.processes("raylet/raylet")
        assert len(pids) == 1, pids
        os.kill(pids[0], signal.SIGKILL)

    def kill(self) -> None:
        """Kill everything of Ray on this node at once, as a power cut would."""
        self._process.kill()
        while pids := self.processes():
            for pid in pids:
                _kill(pid)
        self._process.wait(DEADLINE_S)

    def pilots(self) -> list[int]:
        """Return the processes of pilots' actors."""
        return self.processes("ray::GrnPilot")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(DEADLINE_S)


class RayRig:
    """One cluster."""

    def __init__(self) -> None:
        python_with_ray()
        self.folder = Path(tempfile.mkdtemp(prefix="grn-r", dir="/tmp"))
        self.port = _free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.nodes: dict[str, RayNode] = {}

    def environment(self) -> dict[str, str]:
        foreign = ("GRN_", "RAY_", "CUDA_", "STORY", "PYTHON")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**kept, **VARIABLES, "RAY_RIG": str(self.folder)}

    def start(self, gpus: int = 2) -> None:
        """Start the head."""
        words = [
            "--head", f"--port={self.port}", "--include-dashboard=false", "--num-cpus=2",
            f"--temp-dir={self.folder}", *_sizes(gpus),
        ]  # fmt: skip
        self.nodes["head"] = RayNode(self, "head", words)

    def add(self, name: str, gpus: int) -> RayNode:
        """Start one more node, with a resource of its name."""
        words = [f"--address={self.address}", "--num-cpus=1", *_sizes(gpus)]
        words.append(f'--resources={{"{name}": 100}}')
        self.nodes[name] = RayNode(self, name, words)
        return self.nodes[name]

    @property
    def head(self) -> RayNode:
        return self.nodes["head"]

    def command(self, code: str, before: str = "") -> tuple[list[str], dict[str, str]]:
        """Return the command and the variables of Python that is connected to the cluster."""
        begin = f"import ray, sys\n{before}\nray.init({self.address!r}, log_to_driver=False)\n"
        return [str(python_with_ray()), "-c", begin + code], self.environment()

    def run(self, code: str, *words: str, before: str = "") -> str:
        """Run Python that is connected to the cluster; return what it prints."""
        command, env = self.command(code, before)
        done = subprocess.run(
            [*command, *words], env=env, check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def pilots(self) -> list[int]:
        return [pid for node in self.nodes.values() for pid in node.pilots()]

    def clear(self) -> None:
        """End all pilots, and the nodes that a test has added."""
        self.end_pilots()
        for name in [name for name in self.nodes if name != "head"]:
            self.nodes.pop(name).close()

    def end_pilots(self) -> None:
        for pid in self.pilots():
            _kill(pid)

    def processes(self) -> list[int]:
        """Return all processes of the cluster."""
        mark = f"RAY_RIG={self.folder}".encode()
        return [pid for pid in _pids() if mark in _environment(pid) and is_running(pid)]

    def close(self) -> None:
        """End it, and all that is left of it."""
        for node in reversed(self.nodes.values()):
            node.close()
        for pid in self.processes():
            _kill(pid)
        wait_for(lambda: not self.processes(), lambda: f"{self.processes()} to end")
        shutil.rmtree(self.folder)


def _sizes(gpus: int) -> list[str]:
    return [
        "--node-ip-address=127.0.0.1", f"--num-gpus={gpus}", "--disable-usage-stats",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
    ]  # fmt: skip


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_for(lambda: not is_running(pid), f"{pid} to end")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
