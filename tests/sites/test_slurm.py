"""A site on a real Slurm: pilots come and go, and no job is lost or run twice for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import grn
from tests.harness import PYTHON_PATH, ROOT, SOURCES, is_running, wait_for
from tests.queue.daemon import Queue, being_here
from tests.sites.slurm_rig import MEMORY_S, PARTITION, Slurm

pytestmark = [pytest.mark.engines, pytest.mark.slow]
ENV = 'env = { GRN_GPUS = "virtual:2x512MiB", GRN_SAMPLE_S = "0.1", GRN_GRACE_TO_END_S = "1" }'
HOME_GPUS = "virtual:1x256MiB"


class Home(Queue):
    """A queue with one site, `uni`."""

    slurm: Slurm

    def write_site(self, *lines: str) -> None:
        """Write the settings file: the site with these lines in its table."""
        table = [f'partition = "{PARTITION}"', "gpus = 2", 'idle = "60s"', ENV]
        names = {line.partition(" ")[0] for line in lines}
        kept = [line for line in table if line.partition(" ")[0] not in names]
        text = "\n".join(["[sites.uni]", "slurm = true", *kept, *lines])
        Path(self.story.env["GRN_CONFIG"]).write_text(f"{text}\n")

    def at_uni(self, text: str, *flags: str) -> int:
        """Submit a line of shell to the site."""
        return self.sh(text, "--at", "uni", *flags)

    def runs(self, text: str, *flags: str) -> int:
        """Submit a line of shell to the site, and wait until it runs there."""
        job = self.at_uni(f"echo runs; {text}", *flags)
        self.says(job, "runs")
        return job

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {row["node"]: row for row in self.ask("sites")["nodes"]}

    def node_is(self, pilot: int, state: str) -> None:
        """Wait until the node of a pilot is in a state."""
        name = f"uni-{pilot}"
        wait_for(lambda: self.nodes().get(name, {}).get("state") == state,
                 lambda: f"{name} to be {state}: {self.nodes()}")  # fmt: skip

    def has_trouble(self, text: str) -> None:
        """Wait until the site shows a trouble."""
        wait_for(lambda: any(text in row["trouble"] for row in self.nodes().values()),
                 lambda: f"{text!r} in {self.nodes()}")  # fmt: skip

    def processes(self, *words: str) -> list[int]:
        """Return the processes of this story whose command has all these words."""
        return [pid for pid in self.story.left_behind() if set(words) <= set(_command(pid))]

    def kill_all(self, *words: str) -> None:
        """Kill processes without a chance to clean up; there must be some."""
        pids = wait_for(lambda: self.processes(*words), f"a process with {words}")
        for pid in pids:
            with suppress(ProcessLookupError):  # the end of one may end another
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_running, pids)), f"{pids} to be gone")


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


AGENT = "grn.queue.sites.agent.process"
PILOT, ADAPTER = (f"grn.queue.sites.pilots.{name}" for name in ("pilot", "slurm"))
Homes = Callable[..., Home]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    """Run one cluster for all tests of this process."""
    made = Slurm()
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """Use the cluster, and leave it without jobs and with all of its nodes."""
    cluster.forget()
    yield cluster
    cluster.clear()
    cluster.mend()


@contextmanager
def _a_home(slurm: Slurm, lines: tuple[str, ...]) -> Iterator[Home]:
    made = Home.begin(HOME_GPUS, **slurm.variables)
    assert isinstance(made, Home)
    made.slurm = slurm
    made.write_site(*lines)
    with being_here(made):
        try:
            yield made
        finally:
            if made.is_answering():
                made.cancel_all()
            slurm.clear()
            made.end()


@pytest.fixture
def homes(slurm: Slurm) -> Iterator[Homes]:
    """Make a home whose site has these lines in its table."""
    with ExitStack() as stack:
        yield lambda *lines: stack.enter_context(_a_home(slurm, lines))


@pytest.fixture
def home(homes: Homes) -> Home:
    return homes()


# --- a job ---------------------------------------------------------------------------------


def test_status_output_and_variables_of_jobs_in_a_pilot(homes: Homes, slurm: Slurm) -> None:
    home = homes("pilots = 1")
    good = home.at_uni("echo out $SLURM_JOB_ID; echo err >&2", "--env", "GRN_SEPARATE_STDERR=1")
    bad = home.at_uni("exit 3")
    killed = home.at_uni("kill -9 $$")
    cancelled = home.runs("setsid sleep 1000 & sleep 1000")
    pilot = slurm.running()
    home.ask("cancel", jobs=[cancelled])

    assert home.ended(good)["reason"] == "ok"
    assert sorted(home.log(good).splitlines()) == ["err", f"out {pilot}"]
    assert home.log(good, "err") == "err\n"
    assert (home.ended(bad)["reason"], home.job(bad)["status"]) == ("failed", 3)
    assert (home.ended(killed)["reason"], home.job(killed)["signal"]) == ("failed", 9)
    assert home.ended(cancelled)["reason"] == "cancelled"
    assert not home.processes("sleep", "1000")
    assert home.nodes()[f"uni-{pilot}"]["gpu_bytes"] == [512 << 20] * 2


def test_a_job_that_fits_no_pilot_is_refused_and_places_none(home: Home, slurm: Slurm) -> None:
    before = slurm.jobs("all")
    refused = home.ended(home.at_uni("true", "--gpus", "4"))

    assert refused["reason"] == "refused"
    assert refused["text"] == "uni: its pilots have 2 of the 4 GPUs it needs"
    assert slurm.jobs("all") == before


def test_no_more_pilots_than_the_site_allows(homes: Homes, slurm: Slurm) -> None:
    home = homes("pilots = 2", "gpus = 1")
    home.gate("all")
    jobs = [home.at_uni("gate all", "--exclusive") for _ in range(5)]
    wait_for(lambda: len(slurm.jobs()) == 2, lambda: f"two pilots: {slurm.jobs('all')}")
    wait_for(lambda: sum(home.job(job)["state"] == "running" for job in jobs) >= 2, "two to run")
    home.gate("all").open()

    assert {home.ended(job)["reason"] for job in jobs} == {"ok"}
    assert len(slurm.jobs("all")) == 2


# --- the end of a pilot ----------------------------------------------------------------------


def test_a_cancelled_pilot_interrupts_its_jobs_and_requeues_those_that_ask(
    home: Home, slurm: Slurm
) -> None:
    """What they do when they are told to end is no end of theirs."""
    plain = home.runs("sleep 1000")
    polite = home.runs("trap 'exit 0' TERM; while :; do sleep 0.1; done")
    failing = home.runs("trap 'exit 7' TERM; while :; do sleep 0.1; done")
    again = home.runs("test $GRN_ATTEMPT = 2 || sleep 1000", "--requeue", "--retry", "3")
    first = slurm.running()
    slurm.run("scancel", str(first))

    for job in (plain, polite, failing):
        assert home.ended(job)["reason"] == "interrupted", home.job(job)
        text = home.job(job)["text"]
        assert text == f"the pilot uni-{first} was cancelled (CANCELLED) while it ran"
    assert (home.ended(again)["reason"], home.job(again)["attempt"]) == ("ok", 2)
    assert not home.processes("sleep", "1000")
    assert slurm.running() != first


def test_an_idle_pilot_leaves_by_itself(homes: Homes, slurm: Slurm) -> None:
    home = homes('idle = "2s"')
    home.ended(home.at_uni("true"))
    pilot = slurm.running()
    queue = slurm.run("squeue", "--noheader", f"--job={pilot}", "--format=%j").split("-")[1]
    folder = Path(f"/tmp/grn-{os.getuid()}-{queue[:8]}-{pilot}")
    assert folder.exists()

    wait_for(lambda: slurm.state_of(pilot) == "COMPLETED", lambda: slurm.jobs("all"))
    assert not folder.exists()
    assert home.ended(home.at_uni("true"))["reason"] == "ok"  # in another


def test_a_pilot_that_nobody_needs_any_more_is_not_started(homes: Homes, slurm: Slurm) -> None:
    home = homes('idle = "2s"', "options = ['--begin=now+1hour']")
    job = home.at_uni("true")
    (pilot,) = wait_for(slurm.jobs, lambda: home.nodes())
    wait_for(lambda: f"uni-{pilot} is pending (BeginTime)" in home.job(job)["why"],
             lambda: home.job(job)["why"])  # fmt: skip
    home.ask("cancel", jobs=[job])

    wait_for(lambda: slurm.state_of(pilot) == "CANCELLED", lambda: slurm.jobs("all"))


def test_before_its_time_limit_a_pilot_takes_nothing_new_and_leaves_when_it_is_empty(
    home: Home, slurm: Slurm
) -> None:
    home.gate("end")
    long = home.runs("gate end; echo ended")
    first = slurm.running()
    slurm.run("scontrol", "update", f"JobId={first}", "TimeLimit=20")  # it drains for 30 min
    home.node_is(first, "draining")
    later = home.runs("true")
    home.ended(later)
    second = home.job(later)["attempts"][0]["lease"].partition("/")[0]
    home.gate("end").open()

    assert home.ended(long)["reason"] == "ok"
    assert home.log(long) == "runs\nended\n"
    assert second != f"uni-{first}"
    wait_for(lambda: slurm.state_of(first) == "COMPLETED", lambda: slurm.jobs("all"))


def test_a_node_that_is_set_down_interrupts_its_jobs(home: Home, slurm: Slurm) -> None:
    plain = home.runs("sleep 1000")
    again = home.runs("test $GRN_ATTEMPT = 2 || sleep 1000", "--requeue")
    first = slurm.running()
    (node,) = slurm.run("squeue", "-h", "-o", "%N").split()
    slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    assert home.ended(plain)["reason"] == "interrupted"
    assert home.job(plain)["text"].startswith(f"the pilot uni-{first} lost its node (NODE_FAIL)")
    assert (home.ended(again)["reason"], home.job(again)["attempt"]) == ("ok", 2)
    assert not home.processes("sleep", "1000")


# --- what else may break ---------------------------------------------------------------------


def test_a_killed_agent_is_started_again_and_finds_its_jobs(home: Home, slurm: Slurm) -> None:
    home.gate("end")
    job = home.runs("gate end; echo ended; exit 4")
    home.kill_all(AGENT)
    other = home.at_uni("true")
    home.ended(other)
    home.gate("end").open()

    assert (home.ended(job)["reason"], home.job(job)["status"]) == ("failed", 4)
    assert home.job(job)["attempt"] == 1
    assert home.log(job) == "runs\nended\n"
    assert len(slurm.jobs("all")) == 1


def test_a_killed_pilot_leaves_no_process(home: Home, slurm: Slurm) -> None:
    """Slurm alone would not find what it started: it tracks no orphans here."""
    job = home.runs("setsid sleep 1000 & sleep 1000")
    home.kill_all(PILOT)

    assert home.ended(job)["reason"] == "interrupted"
    assert "failed (FAILED)" in home.job(job)["text"]
    wait_for(lambda: not home.processes("sleep", "1000"), "the job's processes to end")


def test_a_killed_adapter_is_started_again_and_finds_its_pilots(home: Home, slurm: Slurm) -> None:
    home.gate("end")
    job = home.runs("gate end")
    home.kill_all(ADAPTER)
    wait_for(lambda: home.processes(ADAPTER), "another adapter")
    home.ended(home.at_uni("true"))
    home.gate("end").open()

    assert (home.ended(job)["reason"], home.job(job)["attempt"]) == ("ok", 1)
    assert len(slurm.jobs("all")) == 1


def test_a_pilot_that_ended_while_no_adapter_lived_is_told(home: Home, slurm: Slurm) -> None:
    job = home.runs("sleep 1000")
    pilot = slurm.running()
    home.kill_all(ADAPTER)
    slurm.run("scancel", str(pilot))

    assert home.ended(job)["reason"] == "interrupted"


def test_jobs_go_on_while_the_queue_is_away(home: Home, slurm: Slurm) -> None:
    """Their ends are kept for it; those of a pilot that ended meanwhile are told by Slurm."""
    home.gate("end")
    job = home.runs("gate end; echo ended; exit 4")
    home.kill()
    home.gate("end").open()
    wait_for(lambda: not home.processes("flock"), "the job to end")
    home.fine("ls")

    assert (home.ended(job)["reason"], home.job(job)["status"]) == ("failed", 4)
    assert home.log(job) == "runs\nended\n"

    lost = home.runs("sleep 1000")
    home.kill()
    slurm.clear()
    home.fine("ls")
    assert home.ended(lost)["reason"] == "interrupted"


def test_a_controller_that_does_not_answer_is_no_end_of_a_job(home: Home, slurm: Slurm) -> None:
    home.gate("end")
    job = home.runs("gate end")
    slurm.stop_controller()
    try:
        home.has_trouble("Unable to contact slurm controller")
        assert home.job(job)["state"] == "running"
        home.gate("end").open()
        assert home.ended(job)["reason"] == "ok"
    finally:
        slurm.start_controller()
    home.ended(home.at_uni("true"))
    wait_for(lambda: not any(row["trouble"] for row in home.nodes().values()), home.nodes)


def test_a_pilot_that_slurm_has_forgotten_is_told(home: Home, slurm: Slurm) -> None:
    """Without accounts: the controller says that it does not know a number it has given out."""
    job = home.runs("sleep 1000")
    pilot = slurm.running()
    home.kill()
    slurm.clear()
    slurm.set_memory(2)
    try:
        wait_for(lambda: not slurm.state_of(pilot), lambda: slurm.jobs("all"))
        home.fine("ls")
        assert home.ended(job)["reason"] == "interrupted"
        assert "does not remember" in home.job(job)["text"]
    finally:
        slurm.set_memory(MEMORY_S)


def test_a_refused_pilot_is_shown_and_the_job_waits(homes: Homes, slurm: Slurm) -> None:
    home = homes('partition = "nowhere"')
    job = home.at_uni("true")
    home.has_trouble("Invalid partition name specified; `grn site check uni` tells more")
    wait_for(lambda: "Invalid partition" in home.job(job)["why"], lambda: home.job(job)["why"])
    assert home.job(job)["state"] == "queued"
    home.write_site()
    home.ask("sites", reload=True)

    assert home.ended(job)["reason"] == "ok"


def test_an_interpreter_that_is_not_on_the_nodes_is_shown(homes: Homes, slurm: Slurm) -> None:
    home = homes('python = "/nowhere/bin/python"')
    job = home.at_uni("true")
    home.has_trouble("/nowhere/bin/python is not on its node")
    wait_for(lambda: "is not on its node" in home.job(job)["why"], lambda: home.job(job)["why"])

    assert len(slurm.jobs("FAILED")) == 1  # the next try comes later


def test_an_interpreter_without_grn_is_shown(homes: Homes, slurm: Slurm) -> None:
    python = f"{sys.base_prefix}/bin/python3"
    home = homes(f'python = "{python}"', 'env = { PYTHONPATH = "" }')
    job = home.at_uni("true")
    said = f"{python} on its node has no grn of this kind: install grn, or name another"
    home.has_trouble(said)
    wait_for(lambda: said in home.job(job)["why"], lambda: home.job(job)["why"])

    assert home.job(job)["state"] == "queued"


def test_another_version_on_the_nodes_is_told_with_both(homes: Homes, slurm: Slurm) -> None:
    home = homes()
    other = home.story.folder / "other"
    shutil.copytree(SOURCES / "grn", other / "grn", ignore=shutil.ignore_patterns("__pycache__"))
    init = other / "grn" / "__init__.py"
    init.write_text(init.read_text().replace(grn.__version__, "0.0.1"))
    path = f"{other}:{PYTHON_PATH}"
    home.write_site(f'python = "{sys.executable}"',
                    ENV.replace(" }", f', PYTHONPATH = "{path}" }}'))  # fmt: skip
    job = home.at_uni("true")
    said = f"grn 0.0.1 is there and {grn.__version__} here: install this one on its nodes"
    home.has_trouble(said)

    assert home.job(job)["state"] == "queued"


def test_the_agent_of_an_older_version_is_replaced_and_its_jobs_go_on(
    home: Home, slurm: Slurm
) -> None:
    home.gate("end")
    job = home.runs("gate end; exit 5")
    (agent,) = home.processes(AGENT)
    (version,) = Path("/tmp").glob(f"grn-{os.getuid()}-*-{slurm.running()}/run*/**/version")
    assert version.read_text() == grn.__version__
    version.write_text("0.0.1")
    home.kill_all("grn.queue.sites.agent.pipe")
    wait_for(lambda: home.processes(AGENT) not in ([], [agent]), "another agent")
    home.gate("end").open()

    assert home.ended(job)["status"] == 5


# --- the command line ------------------------------------------------------------------------


def test_a_site_is_checked_before_it_is_added(homes: Homes, slurm: Slurm) -> None:
    home = homes()
    words = ("site", "add", "hpc", "--slurm", "--gpus")
    unknown = home(*words, "2", "--partition", "nowhere")
    large = home(*words, "9")
    good = home(*words, "2", "--partition", PARTITION, "--time", "2h", "--option=--cpus-per-task=4")
    bare = home(*words, "2", env={"PATH": "/nowhere"})

    assert unknown.err.splitlines()[0] == f"hpc: there is no partition nowhere, only {PARTITION}."
    assert large.err.splitlines()[0] == (
        "hpc: no node of all partitions has 9 GPUs: the largest has 2 GPUs."
    )
    assert good.code == 0
    assert good.out.splitlines()[0].startswith("hpc: Slurm 2")
    assert f"partition {PARTITION}: 2 nodes for pilots of 2 GPUs and 2h00m" in good.out
    assert "CPU" not in good.out
    assert bare.err.splitlines()[0] == (
        "hpc: there is no sbatch here: run this where you submit to Slurm."
    )


# --- without a site --------------------------------------------------------------------------


def test_the_recipe_for_one_allocation_packs_its_gpus(slurm: Slurm, tmp_path: Path) -> None:
    """The script of the page, word for word; only `train.py` is ours."""
    page = (ROOT / "docs" / "sites-slurm.md").read_text()
    (script,) = re.findall(r"^```sh\n(#!/bin/sh\n#SBATCH .*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "pack.sh").write_text(script)
    (tmp_path / "train.py").write_text(
        "import os, pathlib, sys, time\n"
        "print('ran', sys.argv[2], 'on', os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "pathlib.Path(f'begun-{sys.argv[2]}').touch()\n"
        "while len(list(pathlib.Path().glob('begun-*'))) < 2: time.sleep(0.02)\n"  # two at once
        "sys.exit(sys.argv[2] == '0.3')\n"
    )
    path = f"PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    exports = f"--export=ALL,{path},GRN_GPUS=virtual:2x512MiB,GRN_SAMPLE_S=0.1"
    said = slurm.try_run("sbatch", "--wait", "--chdir", str(tmp_path), exports,
                         str(tmp_path / "pack.sh"))  # fmt: skip
    (job,) = re.findall(r"Submitted batch job (\d+)", said)
    text = (tmp_path / f"pack-{job}.log").read_text()

    ran = sorted(re.findall(r"ran (\S+) on ([01])$", text, re.MULTILINE))
    assert [rate for rate, _ in ran] == ["0.1", "0.3", "1.0"], text
    assert {gpu for _, gpu in ran} == {"0", "1"}  # first runs have a GPU each
    assert slurm.state_of(int(job)) == "FAILED"  # as the second command did
    assert not list(Path("/tmp").glob(f"grn-{job}-*"))
