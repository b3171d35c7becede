"""Nodes without sshd: a stand-in `ssh` runs what a queue sends to a host in the host's own folders.

Shows what users see of nodes. What only a real sshd or a real machine can show is tested elsewhere.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness import is_running, wait_for
from tests.queue.daemon import Queue, being_here

SITE = "lab"
_SSH = """\
#!/bin/bash
# ssh ... -- HOST LINE, as sites.ssh_command spells it
host="${@: -2:1}" line="${@: -1}"
folder="$STORY/nodes/$host"
if [ -e "$folder/cut" ] || [ ! -d "$folder" ]; then
  echo "ssh: connect to host $host port 22: No route to host" >&2
  exit 255
fi
while IFS= read -r pair; do export "$pair"; done < "$folder/env"
unset GRN_CONFIG
export GRN_CONFIG="$folder/none.toml" SSH_NODE="$host"
exec /bin/sh -c "$line"
"""


class NodeFolder:
    """One node: a folder with its state, its own GPUs, and a word that cuts it off."""

    def __init__(self, queue: Queue, name: str, gpus: str) -> None:
        self.name = name
        self.story = queue.story
        self.folder = queue.story.folder / "nodes" / name
        self.folder.mkdir(parents=True)
        variables = {
            "GRN_RUNTIME_DIR": self.folder / "run", "GRN_STATE_DIR": self.folder / "state",
            "GRN_GPUS": gpus,
        }  # fmt: skip
        lines = "".join(f"{name}={value}\n" for name, value in variables.items())
        (self.folder / "env").write_text(lines)

    def processes(self, *words: str) -> list[int]:
        """Return the processes of this node, or those with one of these words among theirs."""
        found = []
        for pid in self.story.left_behind():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            is_here = f"SSH_NODE={self.name}".encode() in environment
            if is_here and (not words or any(word in command for word in words)):
                found.append(pid)
        return found

    def kill(self, *words: str) -> None:
        """Kill processes of this node."""
        pids = self.processes(*words)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        wait_for(lambda: not any(map(is_running, pids)), f"{pids} to end")

    def cut(self) -> None:
        """Let nobody reach it; what runs there goes on."""
        (self.folder / "cut").touch()
        self.kill("grn.queue.sites.agent.pipe")

    def join(self) -> None:
        """Let it be reached again."""
        (self.folder / "cut").unlink()


class Home(Queue):
    """A queue with a site of such nodes."""

    nodes: dict[str, NodeFolder]

    def add_nodes(self, *names: str, gpus: str = "virtual:2x512MiB", **table: str) -> None:
        """Write a site with these nodes to the settings, before the queue starts."""
        tools = self.story.folder / "bin"
        tools.mkdir(exist_ok=True)
        ssh = tools / "ssh"
        ssh.write_text(_SSH)
        ssh.chmod(0o755)
        path = os.environ.get("PATH", "/usr/bin:/bin")
        self.story.env["PATH"] = os.pathsep.join((str(tools), path))
        self.nodes = {name: NodeFolder(self, name, gpus) for name in names}
        more = "".join(f"{key} = {value}\n" for key, value in table.items())
        hosts = ", ".join(f'"{name}"' for name in names)
        Path(self.story.env["GRN_CONFIG"]).write_text(
            f'[sites.{SITE}]\nssh = [{hosts}]\npython = "{sys.executable}"\n{more}'
        )

    def node_is(self, name: str, state: str) -> dict[str, Any]:
        """Return a node once it is in a state."""

        def row() -> dict[str, Any]:
            rows = self.ask("sites")["nodes"]
            return next(row for row in rows if row["node"] == name)

        wait_for(lambda: row()["state"] == state, lambda: f"{name} to be {state}: {row()}")
        return row()

    def end(self) -> None:
        """End the queue, then all that is left on the nodes."""
        for node in self.nodes.values():
            if (node.folder / "cut").exists():
                node.join()
        if self.is_answering():
            self.cancel_all()
            pid = self.pid
            self.ask("stop")
            wait_for(lambda: not is_running(pid), "the queue to leave")
        for node in self.nodes.values():
            node.kill()
        self("stop")
        self.story.end()


@contextmanager
def a_home(*names: str, gpus: str = "virtual:1x256MiB", **table: str) -> Iterator[Home]:
    """Begin a story with a queue and nodes; everything is gone at its end."""
    home = Home.begin(gpus)
    assert isinstance(home, Home)
    home.add_nodes(*names, **table)
    with being_here(home):
        try:
            yield home
        finally:
            home.end()
