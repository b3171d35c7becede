"""Tasks as a group of jobs in the queue: through kills of either side, retries and outer leases."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grn.client import queue
from grn.fixed_slots.runner import Runner
from grn.group.choose_runner import runner_for
from grn.group.group_runner import FIRST, GroupRunner
from grn.group.roles import RunControl
from grn.group.task import CommandEnd, Needs, Task
from tests.conftest import Negotiators
from tests.group.runner_parts import Ear, Listed, sh
from tests.harness import Job, Story, is_running, wait_for

pytestmark = pytest.mark.submits
SMALL = Needs(mem_bytes=8 << 20)
OOM = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"
NESTED = {"gpus": 2, "mem": "64MiB"}


@pytest.fixture
def here(story: Story, monkeypatch: pytest.MonkeyPatch) -> Story:
    """Let this process run tasks in a story."""
    for name, value in story.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(story.folder)
    return story


def run(
    *tasks: Task, on_end: Callable[[RunControl, CommandEnd], None] | None = None, **options: object
) -> Ear:
    ear = Ear(on_end)
    runner_for(Listed(tasks), ear, "group", **options).run()  # type: ignore[arg-type]
    return ear


def test_tasks_are_jobs_of_their_group_with_their_logs(
    here: Story, negotiator: Negotiators, tmp_path: Path
) -> None:
    negotiator()
    line = "echo $X; pwd; echo bad >&2; exit 3"
    task = sh(line, needs=SMALL, log_path=str(tmp_path / "log"), environment={"X": "y"})
    ear = run(task, sh("true", 2, needs=SMALL), sh("kill -9 $$", 3, needs=SMALL))

    assert ear.statuses == {line: 3, "true": 0, "kill -9 $$": -9}
    assert (tmp_path / "log").read_text() == f"y\n{here.folder}\nbad\n"
    assert {label for label, _ in ear.starts} == set(ear.statuses)
    rows = queue.ask({"op": "list", "group": "group"})["jobs"]
    assert len(rows) == 3
    assert queue.ask({"op": "list", "group": "other"})["jobs"] == []


def test_the_first_tasks_are_submitted_before_the_others_are_made(
    here: Story, negotiator: Negotiators
) -> None:
    negotiator()

    class Slow(Listed):
        def next_task(self) -> Task | None:
            if len(self.tasks) == 20:  # the first ones are in the queue by now
                wait_for(lambda: len(queue.ask({"op": "list", "group": "group"})["jobs"]) == FIRST)
            return super().next_task()

    ear = Ear()
    tasks = [sh(f"exit {number % 3}", number, needs=SMALL) for number in range(FIRST + 20)]
    runner_for(Slow(tasks), ear, "group").run()
    assert sorted(one.task.number for one in ear.ends) == list(range(FIRST + 20))
    assert all(one.status == one.task.number % 3 for one in ear.ends)


def test_what_can_never_run_is_refused_and_the_rest_runs(
    here: Story, negotiator: Negotiators
) -> None:
    negotiator("virtual:1x256MiB")
    large = sh("true", 1, needs=Needs(mem_bytes=1 << 40))
    nul = Task(2, ("echo", "a\0b"), "nul", needs=SMALL)
    long = Task(3, ("echo", "x" * (5 << 20)), "long", needs=SMALL)
    ear = run(large, nul, sh("echo", 4, needs=SMALL), long)

    ends = {ended.task.number: ended for ended in ear.ends}
    assert [ends[one].status for one in (1, 2, 3, 4)] == [126, 126, 126, 0]
    assert "memory" in ends[1].trouble
    assert "NUL" in ends[2].trouble
    assert "too long" in ends[3].trouble


def test_a_failure_is_told_before_it_is_repeated(
    here: Story, negotiator: Negotiators, tmp_path: Path
) -> None:
    negotiator()
    count = tmp_path / "count"

    def clear(_: RunControl, ended: CommandEnd) -> None:
        with count.open("a") as file:
            file.write("x")

    line = f"test $(cat {count} | wc -c) = 2"
    count.write_text("")
    ear = run(sh(line, needs=SMALL), on_end=clear, retries=5)

    assert [(one.status, one.runs_again, one.is_counted) for one in ear.ends] == [
        (1, True, True), (1, True, True), (0, False, False),
    ]  # fmt: skip
    assert len(ear.starts) == 3


def test_out_of_memory_is_known_by_the_end_of_the_log(
    here: Story, negotiator: Negotiators, tmp_path: Path
) -> None:
    negotiator()
    task = sh(f"echo '{OOM}'; exit 1", needs=SMALL, log_path=str(tmp_path / "log"))
    assert run(task).ends[-1].is_out_of_memory


def test_a_listener_that_breaks_leaves_nothing_running(
    here: Story, negotiator: Negotiators, tmp_path: Path
) -> None:
    negotiator()

    def fail(_: RunControl, ended: CommandEnd) -> None:
        raise ZeroDivisionError

    wait = f"echo $$ > {tmp_path}/pid; exec sleep 1000"
    first = f"until test -s {tmp_path}/pid; do sleep 0.01; done"
    with pytest.raises(ZeroDivisionError):
        run(sh(first, 1, needs=SMALL), sh(wait, 2, needs=SMALL), on_end=fail)

    assert not is_running(int((tmp_path / "pid").read_text()))


# --- kills ---------------------------------------------------------------------------------


def batch(story: Story, *lines: str) -> Job:
    (story.folder / "jobs.txt").write_text("\n".join(f"[mem=8MiB] {line}" for line in lines))
    grn = (sys.executable, "-c", "from grn.cli.main import main; main()")
    return story.start(*grn, "batch", "jobs.txt")


def kill_queue() -> None:
    pid = queue.ask({"op": "ping"}, may_start=False)["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), "the queue to be gone")


def pid_in(story: Story) -> int:
    path = story.folder / "pid"
    wait_for(lambda: path.exists() and path.read_text().strip(), "the job to run")
    return int(path.read_text())


@pytest.mark.parametrize("also_queue", [False, True], ids=["batch", "both"])
def test_a_killed_batch_takes_its_jobs_along(
    here: Story, negotiator: Negotiators, also_queue: bool
) -> None:
    negotiator()
    job = batch(here, "setsid sleep 1000 & echo $! > pid; wait", "true")
    pid = pid_in(here)
    if also_queue:
        kill_queue()
    job.kill()
    queue.ask({"op": "ping"})

    wait_for(lambda: not is_running(pid), "what left the tree to be ended")
    alive = {"op": "list", "which": "alive"}
    wait_for(lambda: not queue.ask(alive)["jobs"], "the group to be cancelled")


def test_a_batch_goes_on_when_its_queue_is_killed(here: Story, negotiator: Negotiators) -> None:
    negotiator()
    gate = here.gate("go")
    wait = "echo $$ > pid; flock -s gates/go true"
    job = batch(here, wait, *["echo x >> ran"] * 3)
    pid_in(here)
    kill_queue()
    gate.open()

    ended = job.wait()
    assert ended.code == 0, ended
    assert "4 ok, 0 failed" in ended.out
    assert (here.folder / "ran").read_text().split() == ["x"] * 3


def test_a_job_that_is_cancelled_by_hand_counts_as_interrupted(
    here: Story, negotiator: Negotiators
) -> None:
    negotiator()
    job = batch(here, "echo $$ > pid; exec sleep 1000", "true")
    pid_in(here)
    (row,) = queue.ask({"op": "list", "which": "alive", "group": "jobs.txt"})["jobs"][:1]
    queue.ask({"op": "cancel", "jobs": [row["id"]]})

    ended = job.wait()
    assert ended.code == 1
    assert "line 1: interrupted" in ended.err
    assert "1 ok, 0 failed, 1 interrupted" in ended.out


# --- inside a job --------------------------------------------------------------------------


def test_inside_a_job_tasks_share_its_gpus_each_for_one_at_a_time(
    here: Story, negotiator: Negotiators, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there = negotiator("virtual:2x256MiB")
    here.hold("outer", **NESTED)
    here.hear("outer runs")
    monkeypatch.setenv("GRN_LEASE", there.leases()[0]["id"])
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # opens when there is somebody on either side
    one = "echo $CUDA_VISIBLE_DEVICES $GRN_GPU_COUNT >>{}; echo {}{}"
    first = sh(one.format(tmp_path / "a", ">", fifo), 1)
    second = sh(one.format(tmp_path / "b", "$(cat <", f"{fifo})"), 2)
    both = sh(f"echo $CUDA_VISIBLE_DEVICES >>{tmp_path}/c", 3, needs=Needs(gpus=2))
    ear = run(first, second, both)

    assert [ended.status for ended in ear.ends] == [0, 0, 0]
    assert sorted((tmp_path / name).read_text() for name in "ab") == ["0 1\n", "1 1\n"]
    assert [slot for _, slot in ear.starts] == ["0", "1", "0,1"]
    assert len(there.leases()) == 1
    here.gate("outer").open()


def test_a_lease_that_is_over_is_none(
    here: Story, negotiator: Negotiators, monkeypatch: pytest.MonkeyPatch
) -> None:
    negotiator()
    monkeypatch.setenv("GRN_LEASE", "00000000")
    assert isinstance(runner_for(Listed([]), Ear(), "group"), GroupRunner)
    monkeypatch.delenv("GRN_LEASE")
    assert not isinstance(runner_for(Listed([]), Ear(), "group"), Runner)


# --- in the background ---------------------------------------------------------------------

GRN = (sys.executable, "-c", "from grn.cli.main import main; main()")
SWEEP = ("sweep", "flock -s gates/go echo {x}", "-p", "x", "1", "2", "--mem", "8MiB")


@pytest.mark.parametrize(
    ("words", "name"),
    [(("batch", "jobs.txt"), "jobs.txt"), ((*SWEEP, "--name", "mine"), "mine")],
    ids=["batch", "sweep"],
)
def test_what_is_detached_goes_on_and_can_be_looked_at_from_anywhere(
    here: Story, negotiator: Negotiators, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    negotiator()
    gate = here.gate("go")
    lines = ["[mem=8MiB] flock -s gates/go echo 1", "[mem=8MiB] exit 3"]
    (here.folder / "jobs.txt").write_text("\n".join(lines))
    begun = here.start(*GRN, *words, "--detach").ended_well()
    assert "--attach" in begun.err
    second = here.start(*GRN, *words, "--detach").wait()
    assert (second.code, "in the background already" in second.err) == (2, True)
    rows = {"op": "list", "group": name}
    wait_for(lambda: queue.ask(rows)["jobs"], "the group to be there")

    looking = here.start(*GRN, words[0], "--attach", name, cwd=tmp_path)
    gate.open()
    ended = looking.wait()
    assert ended.code == (1 if words[0] == "batch" else 0), ended
    assert "[2/2]" in ended.out


def test_a_detached_batch_that_is_killed_is_told(here: Story, negotiator: Negotiators) -> None:
    negotiator()
    here.gate("go")
    (here.folder / "jobs.txt").write_text("[mem=8MiB] echo $$ > pid; flock -s gates/go true")
    begun = here.start(*GRN, "batch", "jobs.txt", "--detach").ended_well()
    pid = pid_in(here)
    os.kill(int(begun.err.partition("process ")[2].partition(";")[0]), signal.SIGKILL)

    ended = here.start(*GRN, "batch", "--attach", "jobs.txt").wait()
    assert (ended.code, "was killed" in ended.err) == (4, True)
    wait_for(lambda: not is_running(pid), "the job to be cancelled")
    assert here.start(*GRN, "batch", "--attach", "other.txt").wait().code == 2
