"""The role that each kind of site plays in the contract tests, and the home they are run from.

`pilot_sites.py` has the sites of Slurm and Ray, and `conftest.py` chooses among them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from grn.client import negotiator
from grn.errors import DaemonError
from tests.harness import GRN, Ended, Job, Story, wait_for
from tests.queue_faults.rig import Rig
from tests.sites.machines import Keys, LoopbackMachine, Machine

HOME_GPUS = "virtual:1x256MiB"
SITE = "lab"
# A line that is dead is noticed within seconds instead of half a minute.
QUICK = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=3")


class SiteUnderTest(Protocol):
    """One site, at least two GPUs of 512 MiB on each of its nodes, and what tests do to it."""

    kind: str
    name: str
    machines: list[Machine]  # where its nodes run

    def table(self) -> str:
        """Return the site's table for the settings file of home."""

    python: str  # of the queue at home

    def start(self) -> None:
        """Make it reachable."""

    def loss(self, node: str) -> str:
        """Return what is told of a job whose node lost its power."""

    def cut(self) -> None:
        """Make all of it unreachable; what runs there goes on."""

    def join(self) -> None:
        """Make it reachable again, after a cut or a loss of power."""

    def lose_power(self) -> None:
        """End everything on its nodes at once; they come back with `join`."""

    def close(self) -> None:
        """End it with all that runs there."""


class SshSite:
    """Hosts by ssh: `LoopbackMachine`s."""

    kind = "ssh"
    python = sys.executable

    def __init__(self, story: Story, hosts: int = 1, env: Mapping[str, str] | None = None) -> None:
        self.name = SITE
        self.keys = Keys(story)
        self.machines: list[Machine] = [
            LoopbackMachine(story, self.keys, f"node{number}", env)
            for number in range(1, hosts + 1)
        ]

    @property
    def options(self) -> tuple[str, ...]:
        return ("-F", str(self.keys.config), *QUICK)

    def table(self) -> str:
        hosts = [machine.name for machine in self.machines]
        return (
            f"[sites.{self.name}]\nssh = {json.dumps(hosts)}\n"
            f"options = {json.dumps(list(self.options))}\n"
        )

    def start(self) -> None:
        for machine in self.machines:
            machine.start()

    def cut(self) -> None:
        for machine in self.machines:
            machine.cut()

    def join(self) -> None:
        self.start()

    def lose_power(self) -> None:
        for machine in self.machines:
            machine.lose_power()

    def loss(self, node: str) -> str:
        return f"{node} went down while it ran"

    def close(self) -> None:
        self.lose_power()


class Home:
    """The user's own machine: its queue, its settings file, its commands."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.story = rig.story
        self.story.env.update(GRN_GPUS=HOME_GPUS, GRN_LOG_SIZE="1MiB")
        self.settings = Path(self.story.env["GRN_CONFIG"])
        self.site: SiteUnderTest | None = None  # the last that was added

    def close(self) -> None:
        """End the queue and all that is left of the story."""
        self.rig.close()
        self.story.end()

    @property
    def machine(self) -> Machine:
        """Return the first machine of the site."""
        assert self.site is not None
        return self.site.machines[0]

    def grn(self, *words: str, cwd: Path | None = None) -> Ended:
        """Run a command of grn."""
        return self.story.start(*GRN, *words, cwd=cwd).wait()

    def grn_well(self, *words: str, cwd: Path | None = None) -> str:
        """Run a command of grn, which must end well; return what it printed."""
        return self.story.start(*GRN, *words, cwd=cwd).ended_well().out

    def grn_aside(self, *words: str) -> Job:
        """Start a command of grn."""
        return self.story.start(*GRN, *words)

    def add(self, site: SiteUnderTest) -> None:
        """Write a site to the settings file."""
        before = self.settings.read_text() if self.settings.exists() else ""
        self.settings.write_text(before + site.table())
        self.rig.python = site.python
        self.site = site

    def submit(self, argv: Sequence[str], at: str = SITE, **more: Any) -> int:
        """Submit a command and return the job; `type` and `log` are of the job itself."""
        own = {name: more.pop(name) for name in ("type", "log") if name in more}
        request = self.rig.request([argv], at=at, **more)
        request["jobs"][0] |= own
        return int(self.rig.ask("submit", **request)["first"])

    def sh(self, script: str, *words: str, **more: Any) -> int:
        """Submit a line of shell; return the job."""
        return self.submit(["/bin/sh", "-c", script, *words], **more)

    def ran(self, script: str, *words: str, **more: Any) -> dict[str, Any]:
        """Run a line of shell and return how it ended."""
        return self.rig.ended(self.sh(script, *words, **more))

    def python(self, text: str, *words: str, **more: Any) -> dict[str, Any]:
        """Run some Python and return how it ended."""
        return self.rig.ended(self.submit([sys.executable, "-c", text, *words], **more))

    def log(self, job: int, *options: str) -> str:
        return self.grn_well("logs", str(job), *options)

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as `grn sites` shows them."""
        return list(self.rig.ask("sites")["nodes"])

    def node_is(self, state: str) -> dict[str, Any]:
        """Wait until some node is in a state; return it."""

        def found() -> dict[str, Any] | None:
            return next((row for row in self.nodes() if row["state"] == state), None)

        row = wait_for(found, lambda: f"a node to be {state}: {self.nodes()}")
        assert row is not None
        return row

    def why(self, job: int) -> str:
        return str(self.rig.row(job)["why"])

    def why_says(self, job: int, text: str) -> str:
        """Wait until the reason why a job waits has a text."""
        wait_for(lambda: text in self.why(job), lambda: f"{text!r} in {self.why(job)!r}")
        return self.why(job)


@contextlib.contextmanager
def seen_from(machine: Machine) -> Iterator[None]:
    """Let this process ask the daemons of a machine."""
    before = {name: os.environ.get(name) for name in machine.grn_env()}
    os.environ.update(machine.grn_env())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def leases_at(machine: Machine) -> list[dict[str, Any]] | None:
    """Return what a machine's negotiator has given away or is asked for, None without one."""
    with seen_from(machine):
        try:
            status = negotiator.status()
        except (DaemonError, OSError):
            return None
        return [*status["leases"], *status["waiting"]]


def profiles_at(machine: Machine) -> Sequence[dict[str, Any]]:
    """Return what a machine's negotiator has learned."""
    with seen_from(machine):
        return list(negotiator.ask_all({"op": "profiles"})["profiles"])
