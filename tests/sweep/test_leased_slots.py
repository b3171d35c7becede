"""Tasks on negotiated GPUs: real negotiators on virtual GPUs, killed where a story wants it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from grn.errors import GrnError
from grn.sweep.leased_slots import LeasedSlots
from grn.sweep.request import request
from grn.sweep.runner import Runner
from grn.sweep.task import CommandEnd, Needs, Task
from tests.conftest import Negotiators
from tests.harness import Negotiator, Story, is_running, wait_for
from tests.sweep.crew_parts import run, sh

SMALL = Needs(mem_bytes=64 << 20)
ROOT = str(Path(__file__).resolve().parents[2])
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."


def test_a_task_sees_its_lease(negotiator: Negotiators, tmp_path: Path) -> None:
    negotiator()
    log = tmp_path / "log"
    line = "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $GRN_GPU_COUNT $TF_FORCE_GPU_ALLOW_GROWTH"
    changes = {"TF_FORCE_GPU_ALLOW_GROWTH": "mine"}
    ear = run([sh(line, needs=SMALL, log_path=str(log), environment=changes)], LeasedSlots())

    assert ear.ends[0].status == 0
    assert log.read_text() == "0 PCI_BUS_ID 1 mine\n"
    assert ear.starts == [(line, "0")]


def test_many_run_side_by_side_as_memory_allows(negotiator: Negotiators, tmp_path: Path) -> None:
    negotiator("virtual:2x512MiB")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waits = [sh(f"echo >{tmp_path}/{n}; read x <{fifo}", n, needs=SMALL) for n in range(6)]
    # The last opens the gate only when all others run beside it.
    names = " ".join(f"{tmp_path}/{n}" for n in range(6))
    last = f"for f in {names}; do until [ -e $f ]; do sleep 0.01; done; done; yes | head -6 >{fifo}"
    ear = run([*waits, sh(last, 6, needs=SMALL)], LeasedSlots())

    assert len(ear.ends) == 7
    assert {slot for _, slot in ear.starts} == {"0", "1"}


def test_who_waits_hears_the_reason(negotiator: Negotiators) -> None:
    negotiator("virtual:1x512MiB")
    reasons: list[tuple[int, str]] = []
    whole = Needs(is_exclusive=True)
    slots = LeasedSlots(lambda task, reason: reasons.append((task.number, reason)))
    run([sh("sleep 0.2", 1, needs=whole), sh("true", 2, needs=whole)], slots)

    assert (2, "needs a GPU to itself and none is empty") in reasons


def test_a_task_that_never_fits_is_refused_alone(negotiator: Negotiators) -> None:
    negotiator()
    tasks = [sh("true 1", needs=Needs(mem_bytes=1 << 40)), sh("true 2", needs=SMALL),
             sh("true 3", needs=Needs(gpus=9))]  # fmt: skip
    ear = run(tasks, LeasedSlots())

    assert ear.statuses == {"true 1": 126, "true 2": 0, "true 3": 126}
    troubles = {ended.task.label: ended.trouble for ended in ear.ends}
    assert troubles["true 1"].startswith("1.0 TiB of memory are asked for")
    assert troubles["true 3"].startswith("9 GPUs are asked for")


def test_all_is_given_back_and_learned_from(negotiator: Negotiators) -> None:
    here = negotiator()
    run([sh("exec sleep 0.3", needs=Needs(job_type="naps"))], LeasedSlots())

    assert here.leases() == []
    assert [profile["label"] for profile in here.profiles()] == ["naps"]


LOOK = """
import os, time
from grn.client.connection import ask_once
until = time.monotonic() + 60
while [one["pid"] for one in ask_once({"op": "status"})["status"]["leases"]] != [os.getpid()]:
    assert time.monotonic() < until
    time.sleep(0.01)
"""


def test_the_lease_is_bound_to_the_command(negotiator: Negotiators) -> None:
    here = negotiator()
    ear = run([Task(1, (sys.executable, "-c", LOOK), "look", needs=SMALL)], LeasedSlots())

    assert ear.statuses == {"look": 0}
    assert here.leases() == []


# --- out of memory -------------------------------------------------------------------------


def test_out_of_memory_is_seen_in_the_log_and_more_is_asked_for(
    negotiator: Negotiators, tmp_path: Path
) -> None:
    negotiator()
    attempts: list[tuple[int, bool]] = []

    def more(runner: Runner, ended: CommandEnd) -> None:
        attempts.append((ended.task.attempt, ended.is_out_of_memory))
        if ended.is_out_of_memory and ended.task.attempt < 2:
            runner.again(ended.task.but(attempt=ended.task.attempt + 1))

    log = tmp_path / "log"
    line = f'[ -e 2 ] && exit 1; [ -e 1 ] && touch 2; touch 1; echo "{OOM}"; exit 1'
    run([sh(line, log_path=str(log), folder=str(tmp_path))], LeasedSlots(), more)
    # The third attempt failed for another reason: what the log held before does not count.
    assert attempts == [(0, True), (1, True), (2, False)]


def test_a_success_that_speaks_of_memory_is_a_success(
    negotiator: Negotiators, tmp_path: Path
) -> None:
    negotiator()
    ear = run([sh(f"echo '{OOM}'", log_path=str(tmp_path / "log"))], LeasedSlots())

    assert (ear.ends[0].status, ear.ends[0].is_out_of_memory) == (0, False)


def test_the_code_of_a_script_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("1")

    assert len(request(sh("python train.py", folder=str(tmp_path)))["code"]) == 8
    assert "code" not in request(sh("python gone.py", folder=str(tmp_path)))


def test_attempt_type_and_facts_are_told() -> None:
    task = sh("LR=1 python train.py --bs 64 > log", attempt=2, needs=Needs(2, 1 << 30, True, 5))
    message = request(task)

    assert message["type"] == os.path.realpath("train.py")
    assert message["args"] == {"bs": 64.0}
    expected = {"gpus": 2, "mem": 1 << 30, "exclusive": True, "priority": 5, "attempt": 2}
    assert message.items() >= expected.items()


@pytest.mark.parametrize("line", ["it's", "", "A=1 B=2", "\udcff x"])
def test_any_line_can_be_asked_for(line: str) -> None:
    message = request(sh(line))

    message["label"].encode()
    message["type"].encode()


# --- trouble -------------------------------------------------------------------------------


def test_a_negotiator_is_started_on_demand(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**story.env, "GRN_GPUS": "virtual:1x256MiB"}.items():
        monkeypatch.setenv(name, value)
    try:
        assert run([sh("true", needs=SMALL)], LeasedSlots()).statuses == {"true": 0}
        here = Negotiator(story, None)
        assert here.is_answering()  # it goes on for others
    finally:
        os.kill(Negotiator(story, None).ask("ping")["pid"], signal.SIGTERM)


def test_without_a_negotiator_that_can_start_nothing_runs_and_the_reason_is_told(
    story: Story, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRN_GPUS", "virtual:nonsense")
    with pytest.raises(GrnError, match="the negotiator did not start"):
        run([sh(f"touch {tmp_path}/never")], LeasedSlots())
    assert not (tmp_path / "never").exists()


def test_tasks_go_on_and_others_are_asked_for_again_when_the_negotiator_is_killed(
    story: Story, negotiator: Negotiators, tmp_path: Path
) -> None:
    here = negotiator("virtual:1x256MiB")
    whole = Needs(is_exclusive=True)
    gate = tmp_path / "gate"
    killed: list[int] = []

    def kill(task: Task, reason: str) -> None:
        if not killed:  # the second waits while the first runs
            killed.append(here.pid)
            here.kill()
            here.start()
            gate.touch()

    first = f"until [ -e {gate} ]; do sleep 0.01; done"
    ear = run([sh(first, 1, needs=whole), sh("true", 2, needs=whole)], LeasedSlots(kill))
    assert set(ear.statuses.values()) == {0}
    assert len(ear.ends) == 2
    assert killed
    wait_for(lambda: not here.leases(), "all to be given back")


@pytest.mark.slow
def test_a_negotiator_that_is_gone_for_good_is_started_again(
    story: Story, negotiator: Negotiators, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = negotiator("virtual:1x256MiB")
    for name, value in {**story.env, "GRN_GPUS": "virtual:1x256MiB"}.items():
        monkeypatch.setenv(name, value)
    gate = tmp_path / "gate"
    waits: list[str] = []

    def kill(task: Task, reason: str) -> None:
        if not waits:
            here.kill()
            gate.touch()
        waits.append(reason)

    whole = Needs(is_exclusive=True)
    first = f"until [ -e {gate} ]; do sleep 0.01; done"
    try:
        ear = run([sh(first, 1, needs=whole), sh("true", 2, needs=whole)], LeasedSlots(kill))
        assert [ended.status for ended in ear.ends] == [0, 0]
        assert here.ask("ping")["pid"] != here.pid
    finally:
        os.kill(here.ask("ping")["pid"], signal.SIGTERM)


def test_a_crew_that_stops_takes_its_requests_back(
    negotiator: Negotiators, story: Story, tmp_path: Path
) -> None:
    here = negotiator("virtual:1x256MiB")
    whole = Needs(is_exclusive=True)

    def stop(runner: Runner, ended: CommandEnd) -> None:
        runner.stop()

    slots = LeasedSlots()
    never = tmp_path / "never"
    run([sh("false", needs=whole), *[sh(f"touch {never}", needs=whole)] * 5], slots, stop)

    assert not never.exists()
    wait_for(lambda: not here.leases() and not here.waiting(), "all to be given back")
    assert here.process is not None
    assert is_running(here.pid)


def test_stopping_spares_the_negotiator_it_has_started(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**story.env, "GRN_GPUS": "virtual:1x256MiB"}.items():
        monkeypatch.setenv(name, value)
    try:
        run([sh("false", needs=SMALL)], LeasedSlots(), lambda runner, ended: runner.stop())
        assert Negotiator(story, None).is_answering()
    finally:
        os.kill(Negotiator(story, None).ask("ping")["pid"], signal.SIGTERM)


def test_under_a_lease_tasks_run_one_at_a_time_on_it(
    story: Story, negotiator: Negotiators, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = negotiator("virtual:1x256MiB")
    story.hold("outer", mem="64MiB")
    story.hear("outer runs")
    monkeypatch.setenv("GRN_LEASE", here.leases()[0]["id"])
    line = f"mkdir {tmp_path}/alone && sleep 0.02 && rmdir {tmp_path}/alone"
    ear = run([sh(line, number) for number in range(4)], LeasedSlots())
    assert [ended.status for ended in ear.ends] == [0, 0, 0, 0]
    assert len(here.leases()) == 1
    story.gate("outer").open()


def test_under_a_lease_of_two_gpus_two_tasks_run_at_once_each_on_its_own(
    story: Story, negotiator: Negotiators, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = negotiator("virtual:2x256MiB")
    story.hold("outer", mem="64MiB", gpus=2)
    story.hear("outer runs")
    monkeypatch.setenv("GRN_LEASE", here.leases()[0]["id"])
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # opens when there is somebody on either side
    one = "echo $CUDA_VISIBLE_DEVICES $GRN_GPU_COUNT >>{}; echo {}{}"
    first = sh(one.format(tmp_path / "a", ">", fifo), 1)
    second = sh(one.format(tmp_path / "b", "$(cat <", f"{fifo})"), 2)
    both = sh(f"echo $CUDA_VISIBLE_DEVICES >>{tmp_path}/c", 3, needs=Needs(gpus=2))
    ear = run([first, second, both], LeasedSlots())

    assert [ended.status for ended in ear.ends] == [0, 0, 0]
    assert sorted((tmp_path / name).read_text() for name in "ab") == ["0 1\n", "1 1\n"]
    assert [slot for _, slot in ear.starts] == ["0", "1", "0,1"]
    assert len(here.leases()) == 1
    story.gate("outer").open()
