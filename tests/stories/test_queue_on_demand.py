"""The queue is there when it is needed, outlives who needed it, and comes back by itself."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn.client.daemons import who_answers
from grn.client.negotiator import ask_once
from grn.proc.spawn import own_module
from grn.queue.local import attempt_files as attempts
from tests.conftest import Scripts
from tests.harness import is_running, wait_for
from tests.queue.daemon import GATE, GRN, SMALL, Queue, a_queue


@pytest.fixture
def queue() -> Iterator[Queue]:
    with a_queue(GRN_GRACE_TO_END_S="0.2") as begun:
        begun.starts_on_demand = True
        yield begun


def test_submit_starts_what_is_needed_and_returns_at_once(queue: Queue) -> None:
    queue.gate("shut")
    assert not queue.is_answering()
    ended = queue("submit", *SMALL, "--shell", "--", GATE + "echo up; gate shut")
    assert (ended.code, ended.out, ended.err) == (0, "1\n", "")
    queue.says(1, "up")
    pid, negotiator = queue.pid, who_answers()
    assert queue.sh("true") == 2
    assert queue.ended(2)["reason"] == "ok"
    assert (queue.pid, who_answers()) == (pid, negotiator)
    assert queue.job(1)["state"] == "running"


def test_the_console_script_does_the_same(queue: Queue, script: Scripts) -> None:
    submitted = queue.story.start(script("grn"), "submit", "--", "true").ended_well()
    assert queue.ended(int(submitted.out))["reason"] == "ok"
    waited = queue.story.start(script("grn"), "wait", submitted.out.strip()).wait()
    assert (waited.code, waited.out, waited.err) == (0, "", "")


def test_stopping_the_negotiator_tells_of_the_queue_that_starts_another(queue: Queue) -> None:
    queue("submit", "--hold", "--", "true")
    first = wait_for(who_answers, "a negotiator")

    ended = queue("stop")

    assert "your queue has 1 job and starts another one: run `grn queue stop`" in ended.err
    wait_for(lambda: (who_answers() or first)["pid"] != first["pid"], "the other one")


def test_many_who_need_it_at_once_get_one_queue(queue: Queue) -> None:
    starts = [queue.start("submit", "--hold", "--", "true") for _ in range(6)]
    ids = [int(start.ended_well().out) for start in starts]
    assert sorted(ids) == [1, 2, 3, 4, 5, 6]
    queues = [pid for pid in queue.story.left_behind() if _is_queue(pid)]
    assert queues == [queue.pid]


def _is_queue(pid: int) -> bool:
    begins = "\0".join((*own_module("grn.queue"), "")).encode()
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(begins)
    except OSError:  # it has ended since it was found
        return False


def test_a_job_outlives_the_terminal_it_was_submitted_from(queue: Queue) -> None:
    queue.gate("long")
    line = GATE + "echo up; gate long; echo still here"
    shell = queue.story.start(
        "sh", "-c", '"$@"; kill -HUP 0', "sh", *GRN, "submit", *SMALL, "--shell", "--", line,
        start_new_session=True,
    )  # fmt: skip
    assert shell.wait().code == -signal.SIGHUP
    queue.says(1, "up")
    queue.gate("long").open()
    assert queue.ended(1)["reason"] == "ok"
    assert queue.log(1) == "up\nstill here\n"


def test_short_silent_jobs_leave_one_file_and_are_told_of_all_the_same(queue: Queue) -> None:
    jobs = []
    for status in range(4):
        jobs.append(queue.sh(f"exit {status}"))
        assert queue.ended(jobs[-1])["status"] == status
    state = queue.story.folder / "state" / "queue" / "jobs"
    files = [path.name for path in state.rglob("*") if path.is_file()]
    assert files == [f"{jobs[-1]}.1.run"]
    assert [queue.job(job)["status"] for job in jobs] == [0, 1, 2, 3]
    assert queue.fine("logs", str(jobs[0])) == ""
    queue.fine("clean")
    wait_for(lambda: not list(state.rglob("*.run")), "all files to be deleted")


def test_only_its_user_can_look_inside(queue: Queue) -> None:
    queue.ended(queue.sh("echo hi", umask=0o022))
    state = queue.story.folder / "state"
    own = queue.story.folder / f"run-{os.getuid()}"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (own, own / "queue.sock", state)}
    assert modes == {own: 0o700, own / "queue.sock": 0o600, state: 0o700}
    assert stat.S_IMODE((state / "queue").stat().st_mode) == 0o700
    for path in state.rglob("*"):
        is_secret = not path.is_dir() and path.name != "ballast"
        assert not (is_secret and path.stat().st_mode & 0o077), path


def test_a_killed_queue_finds_its_jobs_again(queue: Queue) -> None:
    for name in ("one", "two"):
        queue.gate(name)
    goes_on, ends = queue.sh("echo up; gate one; exit 3"), queue.sh("echo up; gate two; exit 4")
    waits = queue.sh("true", "--after", f"{goes_on}:any")
    for job in (goes_on, ends):
        queue.says(job, "up")
    folder = queue.job(ends)["folder"]
    queue.kill()
    queue.gate("two").open()  # it ends while nobody looks
    wait_for(lambda: attempts.read_exit(folder), "an exit record")
    queue.fine("queue", "start")
    assert queue.ended(ends)["status"] == 4
    assert queue.job(goes_on)["state"] in ("starting", "running")
    queue.gate("one").open()
    assert queue.ended(goes_on)["status"] == 3
    assert queue.ended(waits)["reason"] == "ok"
    assert [queue.job(job)["attempt"] for job in (goes_on, ends, waits)] == [1, 1, 1]


def test_a_cancel_is_not_forgotten_by_a_killed_queue(queue: Queue) -> None:
    job = queue.sh("trap 'echo heard; exit 1' TERM; echo up; while :; do sleep 0.05; done")
    queue.says(job, "up")
    queue.kill()
    queue.fine("cancel", str(job))
    row = queue.ended(job)
    assert row["reason"] == "cancelled"
    assert "heard" in queue.log(job)


def test_a_killed_shim_is_lost_and_leaves_nothing_running(queue: Queue) -> None:
    job = queue.sh("echo $$; exec sleep 600", "--retry", "0")
    wait_for(lambda: queue.log(job), "its pid")
    pid = int(queue.log(job))
    claim = attempts.read_claim(queue.job(job)["folder"]) or ""
    os.kill(int(claim.split()[0]), signal.SIGKILL)
    row = queue.ended(job)
    assert (row["reason"], row["status"]) == ("lost", None)
    wait_for(lambda: not is_running(pid), "what it left behind to end")
    assert queue("wait", str(job)).code == 125


def test_a_negotiator_that_dies_is_started_again_and_harms_no_job(queue: Queue) -> None:
    queue.gate("long")
    runs = queue.sh("echo up; gate long")
    queue.says(runs, "up")
    negotiator = who_answers()
    assert negotiator is not None
    os.kill(int(str(negotiator["pid"])), signal.SIGKILL)
    following = queue.sh("true")
    assert queue.ended(following)["reason"] == "ok"
    assert queue.job(runs)["state"] == "running"
    queue.gate("long").open()
    assert queue.ended(runs)["reason"] == "ok"
    wait_for(lambda: not ask_once({"op": "status"})["status"]["leases"], "all leases to go")


def test_a_running_limit_is_kept_and_told() -> None:
    with a_queue(GRN_QUEUE_RUNNING="1") as queue:
        queue.gate("shut")
        first, second = queue.sh("echo up; gate shut"), queue.sh("true")
        queue.says(first, "up")
        assert queue.job(second)["why"] == "this queue runs at most 1 job at a time"
        queue.gate("shut").open()
        assert queue.ended(second)["reason"] == "ok"


def test_a_flood_of_output_is_kept_within_its_size() -> None:
    with a_queue(GRN_LOG_SIZE="64KiB") as queue:
        job = queue.sh("echo first; seq 1 100000; echo last")
        row = queue.ended(job)
        kept = [path for path in Path(row["folder"]).iterdir() if path.name.startswith("log")]
        assert sum(path.stat().st_size for path in kept) <= 64 << 10
        out = queue.fine("logs", str(job))
        assert out.startswith("first\n1\n2\n")
        assert out.endswith("99999\n100000\nlast\n")
        assert "too much to keep" in out
