"""`grn-run` and `glb-run`: commands side by side, with a negotiator where there is none."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.conftest import Negotiators, Scripts
from tests.gpus.standin.build import StandIn, fail, gpu, hang
from tests.harness import TWO_SMALL, Negotiator, Story, wait_for

JOB = """
    import os, sys
    import grn
    from act import gate, say

    @grn.job("job", mem="64MiB")
    def job(name):
        say(name, "runs on", os.environ["CUDA_VISIBLE_DEVICES"])
        gate("job")

    job(sys.argv[1])
"""
# Runs so many tasks at once, as `doit -n 9` does, and prints a line for each.
DOIT_LIKE = """
    import subprocess, sys

    scripts = ["tf_mnist_train.py", "torch_mnist_train.py", "jax_mnist_train.py"]
    tasks = [subprocess.Popen([sys.executable, scripts[n % 3], str(n)]) for n in range(9)]
    for number, task in enumerate(tasks):
        print(f".  {number}", flush=True)
    sys.exit(max(task.wait() for task in tasks))
"""
TRAIN = """
    import os, sys
    import grn
    from act import say, take

    @grn.job()
    def train_job(epochs: int, batch_size: int):
        kept = take(20)
        say(os.path.basename(__file__), sys.argv[1], os.environ["CUDA_VISIBLE_DEVICES"])

    train_job(1, 32)
"""


@pytest.fixture
def virtual(story: Story) -> Story:
    story.env["GRN_GPUS"] = TWO_SMALL
    return story


@pytest.mark.parametrize("name", ["grn-run", "glb-run"])
def test_a_negotiator_is_started_for_the_commands_and_ended_after_them(
    virtual: Story, script: Scripts, name: str
) -> None:
    virtual.gate("job").open()
    path = virtual.write("job.py", JOB)
    ended = virtual.start(script(name), f"{sys.executable} {path} a").ended_well()
    assert ended.err == ""
    assert virtual.said() == ["a runs on 0"]
    assert not Negotiator(virtual, None).is_answering()


def test_a_running_negotiator_is_used_and_left_alone(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    here = negotiator()
    story.gate("job").open()
    path = story.write("job.py", JOB)
    story.start(script("grn-run"), f"{sys.executable} {path} a").ended_well()
    assert here.ask("ping")["pid"] == here.pid
    assert [profile["label"] for profile in here.profiles()] == ["job"]


def test_all_commands_run_at_once_and_all_are_waited_for(virtual: Story, script: Scripts) -> None:
    virtual.gate("job")
    path = virtual.write("job.py", JOB)
    commands = [f"{sys.executable} {path} {name}" for name in "abc"]
    job = virtual.start(script("grn-run"), *commands)
    wait_for(lambda: len(virtual.said()) == 3, "all three to run")
    assert job.is_running
    virtual.gate("job").open()
    job.ended_well()


def test_quotes_and_shell_syntax_work(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    negotiator()
    commands = (
        "echo 'two  blanks' | tr a-z A-Z > one",
        'test -z "$GRN_LEASE" && for i in 1 2; do printf "%s;" "$i * $NAME"; done > two',
        "false || (exit 0)",
    )
    story.start(script("grn-run"), *commands, env={"NAME": "it's"}).ended_well()
    assert (story.folder / "one").read_text() == "TWO  BLANKS\n"
    assert (story.folder / "two").read_text() == "1 * it's;2 * it's;"


def test_output_and_input_are_those_of_the_commands(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    negotiator()
    ended = story.start(script("grn-run"), "echo out; echo err >&2").ended_well()
    assert (ended.out, ended.err) == ("out\n", "err\n")


def test_it_says_which_command_failed_and_fails_too(
    story: Story, negotiator: Negotiators, script: Scripts
) -> None:
    negotiator()
    ended = story.start(script("grn-run"), "echo fine > fine", "exit 3", "kill -9 $$").wait()
    assert ended.code == 3
    assert ended.err == "grn run: exit status 3: exit 3\ngrn run: exit status 137: kill -9 $$\n"
    assert (story.folder / "fine").exists()


def test_a_failing_job_fails_its_command(virtual: Story, script: Scripts) -> None:
    path = virtual.write(
        "job.py",
        """
        import grn

        @grn.job
        def job():
            raise ValueError("mine")

        job()
        """,
    )
    ended = virtual.start(script("grn-run"), f"{sys.executable} {path}", "true").wait()
    assert ended.code == 1
    assert "ValueError: mine" in ended.err
    assert f"exit status 1: {sys.executable} {path}" in ended.err
    assert not Negotiator(virtual, None).is_answering()


def test_where_no_negotiator_can_be_started_the_reason_is_told_and_nothing_is_run(
    story: Story, standin: StandIn, script: Scripts
) -> None:
    standin.write(fail("nvmlInitWithFlags", 9))
    ended = story.start(script("grn-run"), "echo ran > ran").wait()
    assert ended.code != 0
    assert "the NVIDIA driver is not loaded" in ended.err
    assert "--virtual" in ended.err
    assert "Traceback" not in ended.err
    assert not (story.folder / "ran").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_commands_with_their_children_and_the_negotiator(
    virtual: Story, script: Scripts, signum: int
) -> None:
    virtual.gate("job")
    path = virtual.write("job.py", JOB)
    # The shell stays as the parent of the job: a signal must reach both.
    job = virtual.start(script("grn-run"), f"{sys.executable} {path} a; true; exit 9")
    virtual.hear("a runs on 0")
    job.signal(signum)
    assert job.wait().code != 0
    wait_for(lambda: not list(virtual.left_behind()), "all to end")


def test_an_interrupt_while_the_driver_comes_up_leaves_nothing_behind(
    story: Story, standin: StandIn, script: Scripts
) -> None:
    standin.write(gpu("GPU-aaaa"), hang("nvmlInitWithFlags"))
    job = story.start(script("grn-run"), "echo ran > ran")
    wait_for(lambda: standin.sessions, "the driver to be asked")
    job.signal(signal.SIGINT)
    assert job.wait().code == 130
    standin.write(gpu("GPU-aaaa"))
    wait_for(lambda: not list(story.left_behind()), "all to end")
    assert not (story.folder / "ran").exists()


def test_with_debug_it_names_the_log(virtual: Story, script: Scripts) -> None:
    ended = virtual.start(script("grn-run"), "-d", "true").ended_well()
    assert ended.err == f"negotiator log: {virtual.folder}/state/negotiator.log\n"


def test_two_that_start_at_once_share_a_negotiator(virtual: Story, script: Scripts) -> None:
    virtual.gate("job")
    path = virtual.write("job.py", JOB)
    runs = [virtual.start(script("grn-run"), f"{sys.executable} {path} {name}") for name in "ab"]
    wait_for(lambda: len(virtual.said()) == 2, "both to run")
    virtual.gate("job").open()
    for run in runs:
        assert run.ended_well().err == ""


def test_nine_tasks_over_three_scripts_run_each_once(virtual: Story, script: Scripts) -> None:
    path = virtual.write("example_doit.py", DOIT_LIKE)
    names = [f"{kind}_mnist_train.py" for kind in ("tf", "torch", "jax")]
    for name in names:
        virtual.write(name, TRAIN)
    ended = virtual.start(script("grn-run"), f"{sys.executable} {path}").ended_well()
    assert ended.out.splitlines() == [f".  {number}" for number in range(9)]
    ran = [line.split() for line in virtual.said()]
    assert sorted((name, int(number)) for name, number, _ in ran) == sorted(
        (names[number % 3], number) for number in range(9)
    )
    assert {visible for _, _, visible in ran} <= {"0", "1"}
