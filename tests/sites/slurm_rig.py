"""A real Slurm on this machine: munged, slurmctld and some slurmd, all on loopback.

Its nodes have GPUs by name only: device files that nobody opens. Nothing of it uses the folders or
ports of a Slurm that is installed here.
"""

from __future__ import annotations

import functools
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness import DEADLINE_S, FOREIGN, is_running, wait_for

MARK = "NO SLURM"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scancel", "scontrol")
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
PARTITION = "gpu"
KILL_WAIT_S = 2
MEMORY_S = 300
CONFIG = """
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=30
KillWait={kill_wait_s}
MinJobAge={memory_s}
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@functools.cache
def slurm_needed() -> None:
    """Skip where there is no Slurm."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"{MARK}: install slurm-wlm and munge (no {' '.join(missing)})")


class Slurm:
    """One cluster, in a folder of its own."""

    def __init__(self, nodes: int = 2, gpus: int = 2) -> None:
        slurm_needed()
        self.folder = Path(tempfile.mkdtemp(prefix="grn-s", dir="/tmp"))
        self.config = self.folder / "slurm.conf"
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._last = 0  # jobs up to this one belong to earlier tests
        for name in ("munge", "state", "dev", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(mode=0o700)
        (self.folder / "munge" / "key").write_bytes(secrets.token_bytes(64))
        (self.folder / "munge" / "key").chmod(0o600)
        ports = _free_ports(nodes + 1)
        rows = [
            f"NodeName={node} NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:{gpus} State=UNKNOWN"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        ]
        devices = [self.folder / "dev" / f"gpu{number}" for number in range(gpus)]
        for device in devices:
            device.touch()
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName={','.join(self.nodes)} Name=gpu File={one}\n" for one in devices)
        )
        self.config.write_text(CONFIG.format(
            host=socket.gethostname(), port=ports[0], user=getpass.getuser(), folder=self.folder,
            kill_wait_s=KILL_WAIT_S, memory_s=MEMORY_S, nodes="\n".join(rows), partition=PARTITION,
        ))  # fmt: skip

    # --- daemons -------------------------------------------------------------------------

    def start(self) -> None:
        """Start all of it and wait until the nodes are ready."""
        munge = self.folder / "munge"
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log",
                 "seed-file": "seed"}  # fmt: skip
        words = [f"--{name}={munge / file}" for name, file in files.items()]
        self._start("munged", "munged", "--foreground", "--force", *words)
        wait_for((munge / "socket").exists, lambda: (munge / "log").read_text())
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_for(self._is_ready, self.logs)

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-f", str(self.config), "-N", node)

    def kill_node(self, node: str, others: Callable[[], list[int]] = list) -> None:
        """Kill everything that runs on a node at once, as a power cut would.

        All of it is stopped first: the manager of a step that outlives its tasks for a moment
        reports their end. `others` are processes there that do not have Slurm's variables.
        """
        mark = f"SLURMD_NODENAME={node}".encode()
        stopped = {self._daemons[node].pid}
        os.kill(self._daemons[node].pid, signal.SIGSTOP)

        def running() -> set[int]:
            tasks = [pid for pid in _pids() if mark in _environment(pid) and self._is_ours(pid)]
            managers = [one for pid in tasks for one in _above(pid) if _name(one) == "slurmstepd"]
            return {pid for pid in (*managers, *tasks, *others()) if is_running(pid)}

        while new := running() - stopped:
            for pid in new:
                _signal(pid, signal.SIGSTOP)
            stopped |= new
        for pid in stopped:
            _signal(pid, signal.SIGKILL)
        self._daemons.pop(node).wait(DEADLINE_S)
        wait_for(lambda: not any(map(is_running, stopped)), lambda: f"{stopped} to end")

    def _is_ours(self, pid: int) -> bool:
        return f"SLURM_CONF={self.config}".encode() in _environment(pid)

    def start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.config))

    def stop_controller(self) -> None:
        """End the controller; what runs goes on. One that is killed forgets its last seconds."""
        self._daemons["slurmctld"].terminate()
        self._daemons.pop("slurmctld").wait(DEADLINE_S)

    def _start(self, name: str, *argv: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.environment(),
                cwd="/", start_new_session=True,
            )  # fmt: skip

    def _kill(self, name: str) -> None:
        process = self._daemons.pop(name)
        process.kill()
        process.wait(DEADLINE_S)

    def _is_ready(self) -> bool:
        states = self.try_run("sinfo", "--noheader", "-N", "-o", "%T").split()
        return states == ["idle"] * len(self.nodes)

    def logs(self) -> str:
        """Return the ends of all logs."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in paths)

    # --- commands ------------------------------------------------------------------------

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables with which commands reach this cluster."""
        return {"SLURM_CONF": str(self.config), "PATH": PATH}

    def environment(self) -> dict[str, str]:
        foreign = (*FOREIGN, "SLURM", "STORY")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**kept, **self.variables}

    def run(self, *argv: str, **options: Any) -> str:
        """Run a command of Slurm, which must end well; return what it printed."""
        done = subprocess.run(
            argv, env=self.environment(), capture_output=True, text=True, check=False, **options
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}\n{self.logs()}"
        return done.stdout

    def try_run(self, *argv: str) -> str:
        """Run a command of Slurm; return what it printed, if anything."""
        done = subprocess.run(
            argv, env=self.environment(), capture_output=True, text=True, check=False
        )
        return done.stdout

    def has_done(self, *argv: str) -> bool:
        """Run a command of Slurm; True when it ended well."""
        return subprocess.run(argv, env=self.environment(), check=False).returncode == 0

    def jobs(self, *states: str) -> dict[int, str]:
        """Return the jobs of this test, with their states; without states all that live."""
        wanted = [f"--states={','.join(states)}"] if states else []
        text = self.run("squeue", "--noheader", "--format=%A %T", *wanted)
        rows = (line.split() for line in text.splitlines())
        return {int(job): state for job, state in rows if int(job) > self._last}

    def state_of(self, job: int) -> str:
        return self.jobs("all").get(job, "")

    def running(self) -> int:
        """Wait until exactly one job runs; return it."""

        def one() -> int:
            running = [job for job, state in self.jobs().items() if state == "RUNNING"]
            return running[0] if len(running) == 1 else 0

        return wait_for(one, lambda: f"one job: {self.jobs('all')}")

    def set_memory(self, memory_s: int) -> None:
        """Let the controller remember ended jobs for so long; daemons may read at any time."""
        text = re.sub(r"MinJobAge=.*", f"MinJobAge={memory_s}", self.config.read_text())
        new = self.folder / "slurm.conf.new"
        new.write_text(text)
        new.replace(self.config)
        self.run("scontrol", "reconfigure")

    def forget(self) -> None:
        """Let a new test begin."""
        self._last = max(self.jobs("all"), default=self._last)

    def mend(self) -> None:
        """Take all nodes into use again, and wait until they are."""
        for node in self.nodes:
            if not self._is_of_use(node):
                self.try_run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        wait_for(lambda: all(map(self._is_of_use, self.nodes)), self.logs)

    def _is_of_use(self, node: str) -> bool:
        state = self.try_run("sinfo", "-h", "-n", node, "-o", "%T").strip()
        return state in ("idle", "mixed", "allocated")

    # --- the end -------------------------------------------------------------------------

    def clear(self) -> None:
        """Cancel all jobs and wait until none is left."""
        if self.jobs():
            self.run("scancel", f"--user={getpass.getuser()}")
        wait_for(lambda: not self.jobs(), lambda: f"{self.jobs()}\n{self.logs()}")

    def close(self) -> None:
        """End all of it."""
        try:
            if "slurmctld" in self._daemons:
                self.clear()
        finally:
            for name in list(self._daemons):
                self._kill(name)
            left = [pid for pid in _pids() if self._is_ours(pid)]
            for pid in left:
                _kill(pid)
            wait_for(lambda: not any(map(is_running, left)), f"{left} to end")
            shutil.rmtree(self.folder)


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody uses; all are held until the last is found."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _pids() -> list[int]:
    own = os.getpid()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != own]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _above(pid: int) -> list[int]:
    """Return the processes above one, the nearest first."""
    found: list[int] = []
    while pid > 1 and (stat := _stat(pid)):
        pid = int(stat.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def _name(pid: int) -> str:
    return _stat(pid).partition("(")[2].rpartition(")")[0]


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""


def _kill(pid: int) -> None:
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
