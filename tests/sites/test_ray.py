"""A site on a real Ray: pilots come and go, and no job is lost or run twice for it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import grn
from tests.harness import GRN, Job, is_running, wait_for
from tests.queue.daemon import Queue, being_here
from tests.sites.ray_rig import VARIABLES, RayRig, python_with_ray

pytestmark = [pytest.mark.engines, pytest.mark.slow]
HOME_GPUS = "virtual:1x256MiB"
AGENT, ADAPTER = "grn.queue.sites.agent.process", "grn.queue.sites.pilots.ray"


class Home(Queue):
    """A queue with one site, `cloud`."""

    rig: RayRig

    @property
    def python(self) -> str:  # type: ignore[override]
        return str(python_with_ray())

    def start(self, *words: str, **options: Any) -> Job:
        return self.story.start(self.python, *GRN[1:], *words, **options)

    def write_site(self, *lines: str) -> None:
        """Write the settings file: the site with these lines in its table."""
        env = {
            "GRN_GPUS": "virtual:2x512MiB", "GRN_SAMPLE_S": "0.1", "GRN_GRACE_TO_END_S": "1",
            "GRN_RUNTIME_DIR": f"{self.story.folder}/n", "STORY": str(self.story.folder),
            "PYTHONPATH": self.story.env["PYTHONPATH"],
        }  # fmt: skip
        pairs = ", ".join(f'{name} = "{value}"' for name, value in env.items())
        table = [f'ray = "{self.rig.address}"', "gpus = 2", "idle = '60s'", f"env = {{ {pairs} }}"]
        names = {line.partition(" ")[0] for line in lines}
        kept = [line for line in table if line.partition(" ")[0] not in names]
        text = "\n".join(["[sites.cloud]", *kept, *lines])
        Path(self.story.env["GRN_CONFIG"]).write_text(f"{text}\n")

    def at_cloud(self, text: str, *flags: str) -> int:
        """Submit a line of shell to the site."""
        return self.sh(text, "--at", "cloud", *flags)

    def runs(self, text: str, *flags: str) -> int:
        """Submit a line of shell to the site, and wait until it runs there."""
        job = self.at_cloud(f"echo runs; {text}", *flags)
        self.says(job, "runs")
        return job

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {row["node"]: row for row in self.ask("sites")["nodes"]}

    def pilot_of(self, job: int) -> str:
        """Return the pilot of a job's last attempt."""
        return str(self.job(job)["attempts"][-1]["lease"].partition("/")[0])

    def has_trouble(self, text: str) -> None:
        """Wait until the site shows a trouble."""
        wait_for(lambda: any(text in row["trouble"] for row in self.nodes().values()),
                 lambda: f"{text!r} in {self.nodes()}")  # fmt: skip

    def why_says(self, job: int, text: str) -> None:
        """Wait until a job waits for a reason."""
        wait_for(lambda: text in self.job(job)["why"], lambda: f"{text!r} in {self.job(job)}")

    def processes(self, *words: str) -> list[int]:
        """Return the processes of this story whose command has all these words."""
        return [pid for pid in self.story.left_behind() if set(words) <= set(_command(pid))]

    def kill_all(self, *words: str) -> None:
        """Kill processes without a chance to clean up; there must be some."""
        _kill(wait_for(lambda: self.processes(*words), f"a process with {words}"))

    def pilot_folders(self) -> list[Path]:
        return list(self.story.folder.glob("n-*-pilots/*"))


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # the end of one may end another
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, pids)), f"{pids} to be gone")


Homes = Callable[..., Home]


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayRig]:
    """Run one cluster for all tests of this process."""
    made = RayRig()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def rig(cluster: RayRig) -> Iterator[RayRig]:
    """Use the cluster, and leave it without pilots and further nodes."""
    yield cluster
    cluster.clear()


@contextmanager
def _a_home(rig: RayRig, lines: tuple[str, ...]) -> Iterator[Home]:
    made = Home.begin(HOME_GPUS, **VARIABLES)
    assert isinstance(made, Home)
    made.rig = rig
    made.write_site(*lines)
    with being_here(made):
        try:
            yield made
        finally:
            if made.is_answering():
                made.cancel_all()
            rig.clear()
            made.end()


@pytest.fixture
def homes(rig: RayRig) -> Iterator[Homes]:
    """Make a home whose site has these lines in its table."""
    with ExitStack() as stack:
        yield lambda *lines: stack.enter_context(_a_home(rig, lines))


@pytest.fixture
def home(homes: Homes) -> Home:
    return homes()


# --- a job ---------------------------------------------------------------------------------


def test_status_output_and_variables_of_jobs_in_a_pilot(home: Home) -> None:
    good = home.at_cloud("echo out $GRN_ALLOCATION; echo err >&2", "--env", "GRN_SEPARATE_STDERR=1")
    bad = home.at_cloud("exit 3")
    killed = home.at_cloud("kill -9 $$")
    bare = home.at_cloud("env | grep -c ^RAY_")
    cancelled = home.runs("setsid sleep 1000 & sleep 1000")
    home.ask("cancel", jobs=[cancelled])

    assert home.ended(good)["reason"] == "ok"
    pilot = home.pilot_of(good)
    assert sorted(home.log(good).splitlines()) == ["err", f"out {pilot}"]
    assert home.log(good, "err") == "err\n"
    assert (home.ended(bad)["reason"], home.job(bad)["status"]) == ("failed", 3)
    assert (home.ended(killed)["reason"], home.job(killed)["signal"]) == ("failed", 9)
    assert home.ended(cancelled)["reason"] == "cancelled"
    assert not home.processes("sleep", "1000")
    assert home.nodes()[pilot]["gpu_bytes"] == [512 << 20] * 2
    home.ended(bare)
    assert home.log(bare) == "0\n"


def test_long_output_arrives_whole_and_in_order(home: Home) -> None:
    job = home.at_cloud("seq 1 300000")
    home.ended(job)

    assert home.log(job) == "".join(f"{number}\n" for number in range(1, 300_001))


def test_a_pilot_has_the_gpus_that_ray_gave_it(homes: Homes) -> None:
    """Two pilots of one GPU each: the two GPUs are different ones."""
    home = homes("gpus = 1", "pilots = 2")
    home.gate("end")
    one, two = (home.runs("echo gpu $CUDA_VISIBLE_DEVICES; gate end", "--exclusive") for _ in "12")
    home.gate("end").open()
    home.ended(one)
    home.ended(two)

    assert home.pilot_of(one) != home.pilot_of(two)
    assert {home.log(one), home.log(two)} == {"runs\ngpu 0\n", "runs\ngpu 1\n"}


def test_no_more_pilots_than_the_site_allows(homes: Homes, rig: RayRig) -> None:
    home = homes("pilots = 1", "gpus = 1")
    home.gate("all")
    jobs = [home.at_cloud("gate all", "--exclusive") for _ in range(3)]
    home.in_state(jobs[0], "running")
    home.gate("all").open()

    assert {home.ended(job)["reason"] for job in jobs} == {"ok"}
    assert len({home.pilot_of(job) for job in jobs}) == 1


def test_a_pilot_that_ray_cannot_place_waits_and_is_withdrawn_with_its_job(
    homes: Homes, rig: RayRig
) -> None:
    home = homes("gpus = 5")
    job = home.at_cloud("true")
    home.why_says(job, "waiting for a node with 5 GPUs")
    assert len(_pilot_names(rig)) == 1
    home.ask("cancel", jobs=[job])

    wait_for(lambda: not _pilot_names(rig), "the pilot to be withdrawn")


def _pilot_names(rig: RayRig) -> list[str]:
    code = "print(*(one['name'] for one in ray.util.list_named_actors(all_namespaces=True)))"
    return rig.run(code).split()


# --- the end of a pilot ----------------------------------------------------------------------


def test_a_killed_actor_interrupts_its_jobs_and_requeues_those_that_ask(
    home: Home, rig: RayRig
) -> None:
    """Nothing of its jobs goes on, though Ray does not know them."""
    plain = home.runs("setsid sleep 1000 & sleep 1000")
    polite = home.runs("trap 'exit 0' TERM; while :; do sleep 0.1; done")
    again = home.runs("test $GRN_ATTEMPT = 2 || sleep 1000", "--requeue", "--retry", "3")
    first = home.pilot_of(plain)
    _kill(rig.pilots())

    for job in (plain, polite):
        assert home.ended(job)["reason"] == "interrupted", home.job(job)
        assert home.job(job)["text"] == f"the pilot {first} was killed while it ran"
    assert (home.ended(again)["reason"], home.job(again)["attempt"]) == ("ok", 2)
    assert home.pilot_of(again) != first
    assert not home.processes("sleep", "1000")
    assert [path.name for path in home.pilot_folders()] == [home.pilot_of(again)]


def test_an_actor_ended_through_ray_is_told_so(home: Home, rig: RayRig) -> None:
    job = home.runs("sleep 1000")
    pilot = home.pilot_of(job)
    (name,) = (
        one for one in rig.run(
            "print(*(f\"{one['namespace']} {one['name']}\""
            " for one in ray.util.list_named_actors(all_namespaces=True)), sep='\\n')"
        ).splitlines()
    )  # fmt: skip
    namespace, actor = name.split()
    rig.run("ray.kill(ray.get_actor(sys.argv[2], namespace=sys.argv[1]))", namespace, actor)

    assert actor == pilot
    assert home.ended(job)["text"] == f"the pilot {pilot} was ended by ray.kill while it ran"
    assert not home.processes("sleep", "1000")


def test_actor_and_agent_killed_together_leave_no_process(home: Home, rig: RayRig) -> None:
    """The adapter sweeps the node before it says that the pilot is gone."""
    job = home.runs("setsid sleep 1000 & sleep 1000")
    (agent,) = home.processes(AGENT)
    _kill([agent, *rig.pilots()])

    assert home.ended(job)["reason"] == "interrupted"
    assert not home.processes("sleep", "1000")
    # The actor may have begun to start another agent, which finds that it is alone, and leaves.
    wait_for(lambda: not home.pilot_folders(), home.pilot_folders)


def test_a_dead_node_interrupts_its_jobs(homes: Homes, rig: RayRig) -> None:
    node = rig.add("second", gpus=2)
    home = homes('options = ["resources.second=1"]')
    plain = home.runs("sleep 1000")
    again = home.runs("test $GRN_ATTEMPT = 2 || sleep 1000", "--requeue")
    pilot = home.pilot_of(plain)
    node.kill_raylet()
    rig.nodes.pop("second").close()

    assert home.ended(plain)["reason"] == "interrupted"
    assert home.job(plain)["text"] == f"the pilot {pilot} lost its node while it ran"
    assert not home.processes("sleep", "1000")
    rig.add("second", gpus=2)
    assert (home.ended(again)["reason"], home.job(again)["attempt"]) == ("ok", 2)


def test_an_idle_pilot_leaves_and_another_comes_when_there_is_work(
    homes: Homes, rig: RayRig
) -> None:
    home = homes('idle = "2s"')
    first = home.at_cloud("true")
    home.ended(first)
    wait_for(lambda: not rig.pilots(), "the pilot to leave")
    wait_for(lambda: not home.pilot_folders(), home.pilot_folders)
    second = home.at_cloud("true")

    assert home.ended(second)["reason"] == "ok"
    assert home.pilot_of(first) != home.pilot_of(second)


def test_a_pilot_leaves_without_its_queue(homes: Homes, rig: RayRig) -> None:
    home = homes('idle = "2s"')
    home.ended(home.at_cloud("true"))
    home.ask("stop")

    wait_for(lambda: not rig.pilots(), "the pilot to leave")
    wait_for(lambda: not home.pilot_folders(), home.pilot_folders)


# Ray's head is told at once that a process is there for a pilot, and that the pilot is killed. If
# it takes them in this order, it forgets the process and its GPUs, which is about every second try.
FORGOTTEN = """
import asyncio, os, signal, threading, time
from grn.queue.sites.pilots import ray as adapter
from grn.queue.sites.pilots.ray_actor import PilotOrder
from grn.sites import SiteConfig

@ray.remote(num_gpus=2, num_cpus=0)
class Holder:
    def pid(self):
        return os.getpid()

@ray.remote(num_cpus=0)
def warm():
    time.sleep(0.2)

ray.cloudpickle.register_pickle_by_value(adapter.ray_actor)
site = SiteConfig("cloud", "ray", address="auto", gpus=2)
head = int(sys.argv[1])

async def is_forgotten(cluster, name):
    holder = Holder.remote()
    held = ray.get(holder.pid.remote())
    await cluster.start(name)
    ray.get([warm.remote() for _ in range(2)])  # two processes without work
    pilot = ray.get_actor(name)
    os.kill(head, signal.SIGSTOP)
    os.kill(held, signal.SIGKILL)  # the node gives the GPUs to the pilot
    time.sleep(0.5)
    killing = threading.Thread(target=ray.kill, args=(pilot,))
    killing.start()
    time.sleep(0.5)
    os.kill(head, signal.SIGCONT)
    killing.join()
    return not await has_free_gpus()

async def has_free_gpus():
    for _ in range(50):
        if ray.available_resources().get("GPU", 0) == 2:
            return True
        await asyncio.sleep(0.1)
    return False

async def main():
    cluster = adapter.RayCluster(ray, site, lambda name: PilotOrder(name, "0" * 12, "", 60.0, {}))
    for number in range(20):
        name = f"cloud-{number:010x}"
        if await is_forgotten(cluster, name):
            print("forgotten", await cluster.sweep(name, "") or "swept", await has_free_gpus())
            break

asyncio.run(main())
"""


def test_gpus_of_a_pilot_withdrawn_while_ray_starts_it_are_free_again(rig: RayRig) -> None:
    (head,) = rig.head.processes("gcs/gcs_server")

    assert "forgotten swept True\n" in rig.run(FORGOTTEN, str(head))


# --- what else may break ---------------------------------------------------------------------


def test_a_killed_agent_is_started_again_and_finds_its_jobs(home: Home, rig: RayRig) -> None:
    home.gate("end")
    job = home.runs("gate end; echo ended; exit 4")
    (actor,) = rig.pilots()
    home.kill_all(AGENT)
    home.ended(home.at_cloud("true"))
    home.gate("end").open()

    assert (home.ended(job)["reason"], home.job(job)["status"]) == ("failed", 4)
    assert home.job(job)["attempt"] == 1
    assert home.log(job) == "runs\nended\n"
    assert rig.pilots() == [actor]


def test_the_agent_of_an_older_version_is_replaced_and_its_jobs_go_on(home: Home) -> None:
    home.gate("end")
    job = home.runs("gate end; exit 5")
    (agent,) = home.processes(AGENT)
    (version,) = home.story.folder.glob("n-*-pilots/**/version")
    assert version.read_text() == grn.__version__
    version.write_text("0.0.1")
    home.kill_all("grn.queue.sites.agent.pipe")
    wait_for(lambda: home.processes(AGENT) not in ([], [agent]), "another agent")
    home.gate("end").open()

    assert home.ended(job)["status"] == 5
    assert home.job(job)["attempt"] == 1


def test_a_killed_adapter_is_started_again_and_finds_its_pilots(home: Home, rig: RayRig) -> None:
    home.gate("end")
    job = home.runs("gate end; echo ended")
    (actor,) = rig.pilots()
    home.kill_all(ADAPTER)
    wait_for(lambda: home.processes(ADAPTER), "another adapter")
    home.ended(home.at_cloud("true"))
    home.gate("end").open()

    assert (home.ended(job)["reason"], home.job(job)["attempt"]) == ("ok", 1), home.job(job)
    assert home.log(job) == "runs\nended\n"
    assert rig.pilots() == [actor]


def test_a_pilot_that_ended_while_no_adapter_lived_is_told(home: Home, rig: RayRig) -> None:
    job = home.runs("setsid sleep 1000 & sleep 1000")
    (agent,), pilot = home.processes(AGENT), home.pilot_of(job)
    home.kill_all(ADAPTER)
    _kill([agent, *rig.pilots()])

    assert home.ended(job)["reason"] == "interrupted"
    assert home.job(job)["text"] == f"the pilot {pilot} is not known to Ray any more while it ran"
    assert not home.processes("sleep", "1000")


def test_jobs_go_on_while_the_queue_is_away(home: Home, rig: RayRig) -> None:
    home.gate("end")
    job = home.runs("gate end; echo ended; exit 4")
    home.kill()
    home.gate("end").open()
    wait_for(lambda: not home.processes("flock"), "the job to end")
    home.fine("ls")

    assert (home.ended(job)["reason"], home.job(job)["status"]) == ("failed", 4)
    assert home.log(job) == "runs\nended\n"


def test_a_head_that_does_not_answer_is_no_end_of_a_job(home: Home, rig: RayRig) -> None:
    home.gate("end")
    job = home.runs("gate end")
    (server,) = rig.head.processes("gcs/gcs_server")
    os.kill(server, signal.SIGSTOP)
    try:
        home.has_trouble("does not answer")
        assert home.job(job)["state"] == "running"
        home.gate("end").open()
        assert home.ended(job)["reason"] == "ok"
    finally:
        os.kill(server, signal.SIGCONT)
    assert home.ended(home.at_cloud("true"))["reason"] == "ok"


# --- the command line ------------------------------------------------------------------------


def test_a_site_is_checked_before_it_is_added(homes: Homes, rig: RayRig) -> None:
    home = homes()
    words = ("site", "add", "other", "--ray")
    good = home(*words, rig.address, "--gpus", "1")
    large = home(*words, rig.address, "--gpus", "9")
    nowhere = home(*words, "127.0.0.1:1", "--gpus", "1")
    client = home(*words, "ray://127.0.0.1:10001")
    bare = home(*words, rig.address, "--python", "/usr/bin/nowhere")

    assert good.out.splitlines()[0].startswith("other: Ray 2.")
    assert "1 node with 2 GPUs, grn " in good.out
    assert "none has 9 GPUs for a pilot now" in large.out
    assert nowhere.err.splitlines()[0] == (
        "other: no Ray cluster answers at 127.0.0.1:1: Connection refused"
    )
    assert "ray:// are not supported" in client.err
    assert "/usr/bin/nowhere: No such file or directory" in bare.err


def test_without_ray_the_site_says_how_to_get_it_and_the_job_waits(rig: RayRig) -> None:
    """Run with an interpreter that has grn and not Ray."""
    if python_with_ray() == Path(sys.executable):
        pytest.skip("this interpreter has Ray")
    made = Queue.begin(HOME_GPUS, **VARIABLES)
    Path(made.story.env["GRN_CONFIG"]).write_text(f'[sites.cloud]\nray = "{rig.address}"\n')
    with being_here(made):
        try:
            job = made.sh("true", "--at", "cloud")
            wait_for(lambda: "`pip install ray`" in made.job(job)["why"], lambda: made.job(job))
            check = made("site", "check", "cloud")
        finally:
            made.end()

    assert "Ray is not installed beside grn here" in check.err
    assert check.code == 1


def test_a_cluster_of_another_version_is_told_in_one_line(homes: Homes, rig: RayRig) -> None:
    code = (
        "import json\n"
        "from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put\n"
        "from ray._private import ray_constants\n"
        "key, space = b'CLUSTER_METADATA', ray_constants.KV_NAMESPACE_CLUSTER\n"
        "told = json.loads(_internal_kv_get(key, namespace=space))\n"
        "before, told['ray_version'] = told['ray_version'], sys.argv[1]\n"
        "_internal_kv_put(key, json.dumps(told), overwrite=True, namespace=space)\n"
        "print(before)"
    )
    home = homes()
    version = rig.run(code, "1.2.3").strip()
    try:
        job = home.at_cloud("true")
        home.why_says(job, "runs Ray 1.2.3 and Python 3.")
        home.why_says(job, f"and here is Ray {version} and Python 3.")
        home.why_says(job, ": `pip install ray==1.2.3`")
        assert home.job(job)["state"] == "queued"
    finally:
        rig.run(code, version, before="ray.__version__ = '1.2.3'")

    assert home.ended(job)["reason"] == "ok"
