"""Jobs on other machines, against the local queue of the same run: one ssh host, Slurm, Ray.

Both run `true` on four slots of this machine, in turns, each in a queue that keeps everything.
An sshd, a Slurm and a Ray of their own are started on loopback; what is not installed is skipped
with a line that says so. One `sbatch` for each job and warm tasks of Ray are shown beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rig

from grn.client import queue
from grn.client.submit import submit_many
from grn.errors import GrnError
from grn.protocol.lease_messages import GrantedGpus
from grn.queue.events import AskLease
from grn.queue.jobs.lease_window import WindowLimits
from grn.queue.sites.agent.pipe import GREETING
from grn.queue.sites.leases.choice import MAX_ASKED
from grn.queue.sites.router import Router
from tests.harness import Story, hang_up
from tests.queue.builders import a_spec
from tests.queue.sites.fakes import FakeLoop, FakeNode, FakeSite
from tests.sites.ray_rig import VARIABLES, RayRig, python_with_ray
from tests.sites.site_under_test import SshSite
from tests.sites.slurm_rig import PARTITION, Slurm

SLOTS = 4
COMMANDS = 1000
BATCH_JOBS = 20
ROUNDS = 5
GPUS = f"virtual:{SLOTS}x512MiB"
PACE = {"GRN_GPUS": GPUS, "GRN_SAMPLE_S": "0.5"}  # the usual pace, not that of tests
GRN = "from grn.cli.main import main; main()"
MOST = {"lab": 1.5, "uni": 1.4, "cloud": 2.5}
KINDS = {"lab": "one ssh host", "uni": "a Slurm pilot", "cloud": "a Ray pilot"}
AGENT_MB = 40.0
ROUND_TRIP_S, ROUND_TRIPS, SINGLE_JOBS = 0.2, 3.0, 11
NODES, DECISIONS, DECISION_MS = 50, 2000, 1.0
LINE, IDLE_S, IDLE_PERCENT = 100_000, 20.0, 1.0
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


# A line that takes its time: standard input and output to an address, each half a round trip late.
SLOW_LINE = """
import os, queue, socket, sys, threading, time
def carry(read, write):
    waiting = queue.SimpleQueue()
    def send():
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            if not data:
                os._exit(0)
            write(data)
    threading.Thread(target=send, daemon=True).start()
    while True:
        data = read(65536)
        waiting.put((time.monotonic() + float(sys.argv[3]) / 2, data))
        if not data:
            return
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
back = threading.Thread(target=carry, args=(line.recv, lambda data: os.write(1, data)))
back.start()
carry(lambda size: os.read(0, size), line.sendall)
back.join()
"""


# A node that greets and answers pings, and has no negotiator, in the place of `ssh`.
STAND_IN = f"""#!{sys.executable} -SE
import json, os, struct
def say(message):
    body = json.dumps(message).encode()
    os.write(1, struct.pack(">IB", len(body), 0) + body + bytes([10]))
def read(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            raise SystemExit
        data += more
    return data
os.write(1, {GREETING!r})
while True:
    length, _ = struct.unpack(">IB", read(5))
    message = json.loads(read(length + 1))
    if message["op"] == "ping":
        say({{"ev": "pong"}})
    elif message["op"] == "hello":
        about = {{"version": message["version"], "epoch": "1", "agent": str(os.getpid())}}
        say({{"ev": "hello", **about}})
        say({{"ev": "negotiator", "up": False, "text": "none here"}})
"""


def measure() -> list[rig.Figure]:
    """Measure each kind of site that can be had here."""
    figures = [*asyncio.run(_decisions()), _idle()]
    try:
        figures.append(_round_trips())
    except pytest.skip.Exception as missing:
        print(f"SKIPPED round trips: {missing}", file=sys.stderr)
    for name, site in {"lab": _ssh, "uni": _slurm, "cloud": _ray}.items():
        try:
            figures += _measure_site(name, site)
        except pytest.skip.Exception as missing:
            print(f"SKIPPED {KINDS[name]}: {missing}", file=sys.stderr)
    return figures


async def _decisions() -> list[rig.Figure]:
    """Time the router alone with many nodes and a full window of requests.

    However long the queue is, only its window is asked for. A grant withdraws the other requests
    of its job, and looks for nodes for all that wait.
    """
    nodes = {f"n{number}": FakeNode(f"n{number}") for number in range(NODES)}
    router = Router("cafe", FakeLoop(), lambda _: FakeSite())  # type: ignore[arg-type,return-value]
    router.set_nodes(nodes.values())  # type: ignore[arg-type]
    window = WindowLimits().window
    spent_ms: list[float] = []
    most = 0
    for job in range(1, window + DECISIONS):
        asked = AskLease(a_spec(job), 1, 0)
        spent_ms.append(_spent_ms(lambda: router.leases.ask(asked, {})))  # noqa: B023 - at once
        holders = [node for node in nodes.values() if job in node.leases.asked]
        most = max(most, len(holders))
        first = job - window + 1
        if first > 0:
            node = next(node for node in nodes.values() if first in node.leases.asked)
            del node.leases.asked[first]
            grant = GrantedGpus(f"L{first}", "0", gpus=(0,))
            spent_ms.append(_spent_ms(lambda: router.granted(node, first, grant)))  # type: ignore[arg-type] # noqa: B023
    router.close()
    p99_ms = rig.percentile(spent_ms, 99)
    return [
        rig.Figure(f"decision with {NODES} nodes, p99", p99_ms, DECISION_MS, "ms"),
        rig.Figure(f"nodes asked for a job, of {NODES}", most, MAX_ASKED, ""),
    ]


def _idle() -> rig.Figure:
    """Measure a queue with many nodes and a long line while nothing happens."""
    story = Story.begin()
    try:
        ssh = story.folder / "bin" / "ssh"
        ssh.parent.mkdir()
        ssh.write_text(STAND_IN)
        ssh.chmod(0o755)
        story.env["PATH"] = f"{ssh.parent}:{os.environ['PATH']}"
        hosts = json.dumps([f"n{number}" for number in range(NODES)])
        _write_settings(story, "lab", f"ssh = {hosts}\n")
        with _home(story):
            submit_many([["true"]] * LINE, hold=True, at="lab")
            while not all(row["heard_at"] for row in queue.ask({"op": "sites"})["nodes"]):
                time.sleep(0.1)
            pid = queue.ask({"op": "ping"})["pid"]
            time.sleep(IDLE_S / 4)
            before_s = _cpu_s(pid)
            time.sleep(IDLE_S)
            spent = (_cpu_s(pid) - before_s) / IDLE_S
    finally:
        story.end()
    what = f"queue with {NODES} nodes and {LINE:,} jobs, nothing to do: of a core"
    return rig.Figure(what, 100 * spent, IDLE_PERCENT, "%")


def _cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    runs = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(run.read_text().split()[0]) for run in runs) / 1e9


def _round_trips() -> rig.Figure:
    """Count the round trips between a submit and its end on a node behind a slow line."""
    story = Story.begin()
    story.env |= PACE
    site = SshSite(story, env=PACE)
    relay = Path(story.folder, "slow_line.py")
    relay.write_text(SLOW_LINE)
    words = f"{sys.executable} {relay} %h %p {ROUND_TRIP_S}"
    site.start()
    try:
        table = site.table().replace(
            'options = ["-F"', f'options = ["-o", "ProxyCommand={words}", "-F"'
        )
        Path(story.env["GRN_CONFIG"]).write_text(table)
        with _home(story):
            for at in ("local", "lab"):
                _run_all(2 * SLOTS, at)
            took = {at: [_run_all(1, at) for _ in range(SINGLE_JOBS)] for at in ("local", "lab")}
        site.close()
    finally:
        story.end()
    added_s = statistics.median(took["lab"]) - statistics.median(took["local"])
    what = f"one submit and its end on a node {ROUND_TRIP_S * 1000:.0f} ms away, added"
    return rig.Figure(what, added_s / ROUND_TRIP_S, ROUND_TRIPS, "round trips")


def _spent_ms(decide: Callable[[], None]) -> float:
    began = time.thread_time()
    decide()
    return (time.thread_time() - began) * 1000


def _measure_site(name: str, site: Site) -> list[rig.Figure]:
    """Run the same jobs at home, on the site, and with its engine alone, in turns."""
    story = Story.begin()
    story.env |= PACE
    try:
        with site(story) as peer, _home(story):
            for at in ("local", name):
                _run_all(2 * SLOTS, at)
            took: dict[str, list[float]] = {"local": [], name: [], "peer": []}
            for _ in range(ROUNDS):
                took["local"].append(_run_all(COMMANDS, "local"))
                took[name].append(_run_all(COMMANDS, name))
                if peer is not None:
                    took["peer"].append(peer.run())
            agents = _resident_mb(story, b"grn.queue.sites.agent.process")
    finally:
        story.end()
    here, there = statistics.median(took["local"]), statistics.median(took[name])
    what = f"{COMMANDS} x true on {SLOTS} slots of {KINDS[name]}"
    figures = [rig.Figure(f"{what}, against the local queue", there, here, "s", MOST[name])]
    if peer is not None:
        alone = statistics.median(took["peer"])
        figures.append(rig.Figure(f"{what}, against {peer.what}", there, alone, "s", None))
    return [*figures, rig.Figure(f"agent on {KINDS[name]}: memory", max(agents), AGENT_MB, "MB")]


def _run_all(count: int, at: str) -> float:
    began = time.perf_counter()
    handles = submit_many([["true"]] * count, exclusive=True, at=at)
    for _ in queue.ends([handle.id for handle in handles]):
        pass
    return time.perf_counter() - began


# --- home and its sites --------------------------------------------------------------------


class Peer:
    """What an engine offers by itself for the same jobs."""

    def __init__(self, what: str, run: Callable[[], float]) -> None:
        self.what = what
        self.run = run


Site = Callable[[Story], "contextlib.AbstractContextManager[Peer | None]"]


@contextlib.contextmanager
def _home(story: Story) -> Iterator[None]:
    """Run a queue with the sites of the story's settings; this process asks it."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(story.environment())
    try:
        _grn(story, "ls")
        yield
    finally:
        with contextlib.suppress(GrnError):
            queue.ask({"op": "stop"}, may_start=False)
        with contextlib.suppress(subprocess.CalledProcessError):  # nobody needed a negotiator
            _grn(story, "stop")
        hang_up()
        os.environ.clear()
        os.environ.update(before)


def _grn(story: Story, *words: str) -> None:
    python = story.env.get("PYTHON_OF_HOME", sys.executable)
    subprocess.run([python, "-c", GRN, *words], stdout=subprocess.DEVNULL, check=True,
                   cwd=story.folder)  # fmt: skip


def _write_settings(story: Story, name: str, table: str) -> None:
    Path(story.env["GRN_CONFIG"]).write_text(f"[sites.{name}]\n{table}")


@contextlib.contextmanager
def _ssh(story: Story) -> Iterator[None]:
    """Start an sshd on loopback, with folders of its own."""
    site = SshSite(story, env=PACE)
    site.start()
    try:
        Path(story.env["GRN_CONFIG"]).write_text(site.table())
        yield
    finally:
        site.close()


@contextlib.contextmanager
def _slurm(story: Story) -> Iterator[Peer]:
    """Start a Slurm of one node; the peer is one batch job for each command."""
    cluster = Slurm(nodes=1, gpus=SLOTS)
    try:
        cluster.start()
        story.env.update(cluster.variables)
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in PACE.items())
        _write_settings(story, "uni", f'slurm = true\npartition = "{PARTITION}"\ngpus = {SLOTS}\n'
                        f'pilots = 1\nidle = "600s"\nenv = {{ {pairs} }}\n')  # fmt: skip

        def run() -> float:
            began = time.perf_counter()
            batch = ["sbatch", "--wait", "--gres=gpu:0", "--output=/dev/null", "--wrap=true"]
            words = [*batch, f"--partition={PARTITION}", f"--array=1-{BATCH_JOBS}%{SLOTS}"]
            cluster.run(*words)
            return (time.perf_counter() - began) * COMMANDS / BATCH_JOBS

        yield Peer(f"one sbatch each ({BATCH_JOBS}, scaled)", run)
    finally:
        cluster.close()


@contextlib.contextmanager
def _ray(story: Story) -> Iterator[Peer]:
    """Start a Ray; the peer is its own tasks in warm workers, which it ends otherwise."""
    python = python_with_ray()
    cluster = RayRig()
    try:
        cluster.start(gpus=2 * SLOTS)
        variables = {**PACE, "GRN_RUNTIME_DIR": f"{story.folder}/n", "STORY": str(story.folder),
                     "PYTHONPATH": story.env["PYTHONPATH"]}  # fmt: skip
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in variables.items())
        story.env.update(VARIABLES, PYTHON_OF_HOME=str(python))
        _write_settings(story, "cloud", f'ray = "{cluster.address}"\ngpus = {SLOTS}\npilots = 1\n'
                        f'idle = "600s"\nenv = {{ {pairs} }}\n')  # fmt: skip
        with _tasks(cluster) as run:
            yield Peer("warm Ray tasks", run)
        cluster.clear()
    finally:
        cluster.close()


@contextlib.contextmanager
def _tasks(cluster: RayRig) -> Iterator[Callable[[], float]]:
    """Run a program of Ray that starts as many tasks as it is told."""
    command, environment = cluster.command(TASKS)
    process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)  # fmt: skip
    with process:

        def run() -> float:
            print(COMMANDS, file=process.stdin, flush=True)
            return float(process.stdout.readline() if process.stdout else 0)

        yield run


def _resident_mb(story: Story, word: bytes) -> list[float]:
    """Return the memory of each process of a story that has a word in its command line."""
    found = []
    for pid in story.left_behind():
        with contextlib.suppress(OSError, IndexError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if word in words:
                status = Path(f"/proc/{pid}/status").read_text()
                found.append(int(status.partition("VmRSS:")[2].split()[0]) / 1000)
    return found


if __name__ == "__main__":
    rig.main("sites", measure)
