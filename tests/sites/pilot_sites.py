"""Sites of pilots on real engines, in the role of `SiteUnderTest`: one pilot of two GPUs each.

A cut is a controller (Slurm) or head (Ray) that does not answer while the stream is killed. A loss
of power kills every process of the pilot's node, the engine's daemon included.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.harness import Story, wait_for
from tests.sites.machines import GPUS, Machine
from tests.sites.ray_rig import VARIABLES, RayRig, python_with_ray
from tests.sites.site_under_test import SITE
from tests.sites.slurm_rig import PARTITION, Slurm

ADAPTERS = {"slurm": b"grn.queue.sites.pilots.slurm", "ray": b"grn.queue.sites.pilots.ray"}
RAY_NODE = "work"


class Clusters:
    """The engines of one test process, each started when it is first needed."""

    def __init__(self) -> None:
        self._slurm: Slurm | None = None
        self._ray: RayRig | None = None

    @property
    def slurm(self) -> Slurm:
        if self._slurm is None:
            self._slurm = Slurm()
            self._slurm.start()
        return self._slurm

    @property
    def ray(self) -> RayRig:
        if self._ray is None:
            self._ray = RayRig()
            self._ray.start()
        return self._ray

    def close(self) -> None:
        for cluster in (self._slurm, self._ray):
            if cluster is not None:
                cluster.close()


class PilotMachine(Machine):
    """The node of a pilot, as its agent sees it."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.name = "pilot"
        self._sshd = None

    @property
    def env(self) -> Mapping[str, str]:  # type: ignore[override]
        """Return the variables of its agent."""
        agent = wait_for(self.agents, "an agent")[0]
        words = Path(f"/proc/{agent}/environ").read_bytes().decode().split("\0")
        return dict(word.split("=", 1) for word in words if "=" in word)

    def processes(self) -> list[int]:
        """Return all processes of the allocation."""
        return [pid for pid in self.story.left_behind() if allocation_of(pid)]

    def allocation(self) -> str:
        """Return the present allocation; empty without an agent."""
        return next((allocation_of(pid) for pid in self.agents()), "")


def allocation_of(pid: int) -> str:
    """Return the allocation of a process, empty for one of home."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    found = re.search(rb"(?:^|\0)GRN_ALLOCATION=([^\0]*)", words)
    return found[1].decode() if found else ""


class PilotSite:
    """What the sites of both engines share."""

    kind = ""
    python = sys.executable  # of home

    def __init__(self, story: Story, *, more: str = "") -> None:
        self.name = SITE
        self.story = story
        self.machine = PilotMachine(story)
        self.machines: list[Machine] = [self.machine]
        self.more = more
        self.agent_env = {
            "GRN_GPUS": GPUS, "GRN_SAMPLE_S": "0.1", "GRN_GRACE_S": "0.3",
            "GRN_GRACE_TO_END_S": "1",
        }  # fmt: skip

    def table(self) -> str:
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in self.agent_env.items())
        table = f'gpus = 2\npilots = 1\nidle = "600s"\nenv = {{ {pairs} }}\n'
        return f"[sites.{self.name}]\n{self._engine()}{table}{self.more}"

    def _engine(self) -> str:
        raise NotImplementedError

    def adapters(self) -> list[int]:
        """Return the processes that speak for the engine at home."""
        return self._running(ADAPTERS[self.kind])

    def _running(self, word: bytes) -> list[int]:
        return [pid for pid in self.story.left_behind() if word in _command(pid)]

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


class SlurmSite(PilotSite):
    """Pilots of a real Slurm."""

    kind = "slurm"

    def __init__(self, story: Story, clusters: Clusters, *, more: str = "") -> None:
        super().__init__(story, more=more)
        self.cluster = clusters.slurm
        self.cluster.forget()
        story.env.update(self.cluster.variables)
        self._is_cut = False
        self._dark = ""  # the node without power

    def _engine(self) -> str:
        return f'slurm = true\npartition = "{PARTITION}"\n'

    def start(self) -> None:
        pass

    def pipes(self) -> list[int]:
        return [pid for pid in self.story.left_behind() if _command(pid)[:1] == [b"srun"]]

    def cut(self) -> None:
        if not self._is_cut:
            self.cluster.stop_controller()
            self._is_cut = True
        self._kill(self.pipes())

    def join(self) -> None:
        if self._is_cut:
            self.cluster.start_controller()
            self._is_cut = False
        if self._dark:
            down = ("scontrol", "update", f"NodeName={self._dark}", "State=DOWN", "Reason=test")
            wait_for(lambda: self.cluster.has_done(*down), "the node to be set down")
            self.cluster.start_node(self._dark)
            self._dark = ""
            self.cluster.mend()

    def lose_power(self) -> None:
        (self._dark,) = self.cluster.run("squeue", "-h", "-t", "R", "-o", "%N").split()
        self.cluster.kill_node(self._dark, self.machine.processes)
        wait_for(lambda: not self.machine.processes(), self.machine.processes)

    def loss(self, node: str) -> str:
        return f"the pilot {node} lost its node (NODE_FAIL) while it ran"

    def close(self) -> None:
        self.join()
        self.cluster.clear()
        self.cluster.mend()


class RaySite(PilotSite):
    """Pilots of a real Ray, on a node of their own."""

    kind = "ray"

    def __init__(self, story: Story, clusters: Clusters, *, more: str = "") -> None:
        super().__init__(story, more=more)
        self.cluster = clusters.ray
        self.python = str(python_with_ray())
        story.env.update(VARIABLES)
        self.agent_env |= {
            "GRN_RUNTIME_DIR": f"{story.folder}/n", "STORY": str(story.folder),
            "PYTHONPATH": story.env["PYTHONPATH"],
        }  # fmt: skip
        self._stopped: list[int] = []

    def _engine(self) -> str:
        return f'ray = "{self.cluster.address}"\noptions = ["resources.{RAY_NODE}=1"]\n'

    def start(self) -> None:
        if RAY_NODE not in self.cluster.nodes:
            self.cluster.add(RAY_NODE, gpus=2)

    def pipes(self) -> list[int]:
        return self._running(b"grn.queue.sites.agent.pipe")

    def cut(self) -> None:
        if not self._stopped:
            self._stopped = self.cluster.head.processes("gcs/gcs_server")
            for pid in self._stopped:
                os.kill(pid, signal.SIGSTOP)
        self._kill([*self.adapters(), *self.pipes()])

    def join(self) -> None:
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        self._stopped = []
        self.start()

    def lose_power(self) -> None:
        self.cluster.nodes.pop(RAY_NODE).kill()
        self._kill(self.machine.processes())
        wait_for(lambda: not self.machine.processes(), self.machine.processes)

    def loss(self, node: str) -> str:
        return f"the pilot {node} lost its node while it ran"

    def close(self) -> None:
        self.join()
        self.cluster.end_pilots()
        self._kill(self.machine.processes())


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
