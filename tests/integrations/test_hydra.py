"""`hydra/launcher=grn` against Hydra itself, with real processes on virtual GPUs."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from tests.conftest import Negotiators
from tests.harness import Ended, Job, Story, is_running, wait_for
from tests.integrations.pages import ROOT, blocks, commands

pytest.importorskip("hydra")
pytestmark = pytest.mark.submits
APP = """
    import os
    import hydra
    from act import gate, say

    @hydra.main(version_base=None)
    def train(config):
        say(config.x, os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        {body}

    if __name__ == "__main__":
        train()
"""


def launch(story: Story, body: str, *overrides: str) -> Job:
    words = ("--multirun", "hydra/launcher=grn", "hydra.launcher.mem=64MiB", *overrides)
    return story.start_script(APP.format(body=body), *words, name="app.py")


def launched(story: Story, body: str, *overrides: str) -> Ended:
    return launch(story, body, *overrides).wait()


def test_the_example_of_the_page_runs_all_its_jobs(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    story.write("train.py", blocks("integrations/hydra.md", "python")[0])
    (command,) = commands("integrations/hydra.md")
    assert command.startswith("python ")
    job = story.start(sys.executable, *command.split()[1:], "hydra.sweep.dir=out")
    out = job.ended_well().out
    assert "Launching 4 jobs on negotiated GPUs" in out
    for number in range(4):
        log = (story.folder / "out" / str(number) / "train.log").read_text()
        assert "on GPU" in log
        assert (story.folder / "out" / str(number) / ".hydra" / "config.yaml").exists()
    (profile,) = here.profiles()
    assert profile["label"] == "train.py::train"
    seen = {(run["args"]["lr"], run["args"]["batch_size"]) for run in profile["history"]}
    assert seen == {(lr, size) for lr in (0.1, 0.01) for size in (32, 64)}


def test_jobs_run_at_once_each_under_its_own_lease(story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:2x512MiB")
    story.gate("go")
    job = launch(story, 'gate("go")', "+x=1,2,3")
    wait_for(lambda: len(story.said()) == 3)
    said = [line.split() for line in story.said()]
    assert {int(pid) for _, pid, _ in said} == {lease["pid"] for lease in here.leases()}
    assert {gpu for _, _, gpu in said} == {"0", "1"}
    story.gate("go").open()
    job.ended_well()
    here.wait_for_leases(0)


def test_so_many_run_or_wait_at_once_as_the_option_says(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    body = 'say("end", config.x)'
    launched(story, body, "+x=1,2,3", "hydra.launcher.parallel=1")
    firsts = [line.split()[0] for line in story.said()]
    assert firsts == ["1", "end", "2", "end", "3", "end"]


def test_the_choice_can_stand_in_the_configuration(story: Story, negotiator: Negotiators) -> None:
    here = negotiator()
    story.write("conf/train.yaml", """
        defaults: [_self_, override hydra/launcher: grn]
        lr: 0
        hydra: {launcher: {mem: 100MiB, gpus: 2}, job: {chdir: true}, sweep: {dir: out}}
    """)  # fmt: skip
    story.run_script(
        """
        import os, hydra
        from act import say
        from hydra.core.hydra_config import HydraConfig

        @hydra.main(version_base=None, config_path="conf", config_name="train")
        def train(config):
            where = os.getcwd()
            say(config.lr, where, os.environ["GRN_GPU_COUNT"], HydraConfig.get().job.num)

        train()
        """,
        *("-m", "lr=1,2"),
    )
    lines = [line.split() for line in story.said()]
    here_is = str(story.folder / "out")
    assert sorted(lines) == [["1", f"{here_is}/0", "2", "0"], ["2", f"{here_is}/1", "2", "1"]]
    assert [profile["runs"] for profile in here.profiles()] == [2]


@pytest.mark.slow
def test_a_job_that_fails_or_dies_leaves_the_others_alone(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    body = "assert config.x != 1, 'one is too few'; config.x == 2 and os._exit(7); say('good')"
    ended = launched(story, body, "+x=1,2,3")
    assert ended.code == 1
    assert "good" in story.said()
    assert "Error executing job with overrides: ['+x=1']" in ended.err
    assert "one is too few" in ended.err
    assert "app.py" in ended.err  # where it was raised
    outcomes = sorted(run["outcome"] for run in here.history())
    assert outcomes == ["failed", "failed", "ok"]
    ended = launched(story, "os._exit(7)", "+x=4")
    assert ended.code == 1
    assert "ended as failed: exit status 7" in ended.err


def test_a_job_that_runs_out_of_memory_is_run_again_if_asked_for(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    body = (
        "said = open(os.environ['STORY'] + '/said').read().splitlines()\n"
        "        if len(said) < 2: raise RuntimeError('CUDA out of memory')"
    )
    assert launched(story, body, "+x=1", "hydra.launcher.retry_oom=1").code == 0
    assert len(story.said()) == 2


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_job_outlives_the_program(story: Story, negotiator: Negotiators, signum: int) -> None:
    here = negotiator()
    story.gate("never")
    job = launch(story, 'gate("never")', "+x=1,2")
    wait_for(lambda: len(story.said()) == 2)
    job.signal(signum)
    assert job.wait().code != 0
    pids = [int(line.split()[1]) for line in story.said()]
    wait_for(lambda: not any(is_running(pid) for pid in pids), "all to end")
    here.wait_for_leases(0)


def test_a_wrong_option_is_told_and_nothing_runs(story: Story, negotiator: Negotiators) -> None:
    negotiator()
    ended = launched(story, "pass", "+x=1", "hydra.launcher.mem=much")
    assert ended.code == 1
    assert "much" in ended.err
    ended = launched(story, "pass", "+x=1", "+hydra.launcher.memory=1GiB")
    assert "there is no option memory" in ended.err
    assert story.said() == []


def test_a_program_with_another_launcher_loads_nothing_of_grn(story: Story) -> None:
    done = story.run_script(
        """
        import sys
        import hydra

        @hydra.main(version_base=None)
        def app(config):
            print("hydra_plugins.grn_launcher" in sys.modules)
            print([name for name in sys.modules if name.startswith("grn.")])

        app()
        """,
        "hydra.output_subdir=null",
        "hydra.run.dir=.",
    )
    assert done.out == "True\n[]\n"


def test_the_wheel_ships_what_hydra_looks_for() -> None:
    packages = re.findall(r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert '"src/hydra_plugins"' in packages[0]
    found = [path.name for path in (ROOT / "src" / "hydra_plugins").glob("*.py")]
    assert found == ["grn_launcher.py"]  # no __init__: other projects have their parts there too
