"""A queue or a negotiator that is started inside a job outlives that job, and so do its jobs."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest

from grn.proc.spawn import oom_score
from tests.harness import is_running, wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import Rig, gone, kill

GRN = Path(sys.executable).with_name("grn")
STATUS = 7  # of the inner job
WAYS = ("submit", "wait")  # how a command inside a job starts a queue
ENDS = ("end", "cancel", "cancel-now", "kill-shim")  # of the outer job


class Inside:
    """An outer job in which a command starts the queue anew, and a job of that queue."""

    def __init__(self, rig: Rig, turn: int = 0) -> None:
        self.rig = rig
        self.folder = rig.story.folder / f"turn{turn}"
        self.folder.mkdir()
        self.outer = self.inner = self.queue = 0

    def _file(self, name: str) -> Path:
        return self.folder / name

    def _until(self, name: str) -> str:
        return f"while [ ! -e {self._file(name)} ]; do sleep 0.02; done"

    def begin(self, way: str) -> None:
        """Run a job whose command starts a queue; return when a job of that queue runs."""
        inner = self._file("inner.sh")
        inner.write_text(f"touch {self._file('runs')}; {self._until('over')}; exit {STATUS}\n")
        submit = f"{GRN} submit --mem 8MiB -- /bin/sh {inner}"
        commands = {"submit": submit, "wait": f"{GRN} wait 9999; {submit}"}
        line = f"touch {self._file('began')}; {self._until('go')}; {commands[way]};"
        self.outer = self.rig.submit(["/bin/sh", "-c", f"{line} {self._until('leave')}"])
        wait_for(self._file("began").exists, "the outer job to begin")
        self._end_queue(is_kind=way == "wait")
        self._file("go").touch()
        wait_for(self._file("runs").exists, f"the inner job to run\n{self.rig.tail()}")
        self.inner = max(self.rig.rows())
        (self.queue,) = self.rig.services()["queue"]

    def _end_queue(self, *, is_kind: bool) -> None:
        for pid in self.rig.services()["queue"]:
            os.kill(pid, signal.SIGTERM if is_kind else signal.SIGKILL)
            gone([pid])

    def end(self, how: str) -> None:
        """End the outer job and wait until the queue knows."""
        match how:
            case "end":
                self._file("leave").touch()
            case "kill-shim":
                os.kill(self.rig.shim_of(self.outer), signal.SIGKILL)
            case _:
                self.rig.ask("cancel", jobs=[self.outer], now=how == "cancel-now")
        reason = self.rig.ended(self.outer)["reason"]
        assert reason == {"end": "ok", "kill-shim": "lost"}.get(how, "cancelled")
        assert not self.rig.marked(self.outer)

    def check(self) -> None:
        """Check that the queue and its job live on, and that the job ends as its own."""
        assert is_running(self.queue), self.rig.tail()
        assert oom_score(self.queue) == oom_score("self")
        assert self.rig.row(self.inner)["state"] == "running"
        self._file("over").touch()
        row = self.rig.ended(self.inner)
        assert (row["reason"], row["status"]) == ("failed", STATUS)
        assert row["attempt"] == 1


@pytest.mark.parametrize(("way", "how"), [("submit", "end"), ("wait", "cancel"), *(
    ("submit", how) for how in ENDS[2:])])  # fmt: skip
def test_a_queue_that_a_job_has_started_outlives_the_job(rig: Rig, way: str, how: str) -> None:
    rig.start()
    inside = Inside(rig)
    inside.begin(way)
    inside.end(how)
    inside.check()


def test_the_shims_of_a_killed_inner_queue_live_on_when_the_outer_job_ends(rig: Rig) -> None:
    rig.start()
    inside = Inside(rig)
    inside.begin("submit")
    os.kill(inside.queue, signal.SIGKILL)
    gone([inside.queue])
    shim = rig.shim_of(inside.outer)
    (inside.folder / "leave").touch()
    gone([shim])  # its queue is gone, so it leaves once the end is written
    inside.queue = rig.start().pid

    assert rig.ended(inside.outer)["reason"] == "ok"
    inside.check()


def test_the_check_finds_out_a_shim_that_ends_daemons_as_well(rigs: Rigs) -> None:
    rig = rigs("end-daemons")
    rig.start()
    inside = Inside(rig)
    inside.begin("submit")
    (inside.folder / "leave").touch()

    gone([inside.queue])


@pytest.mark.parametrize("how", ["end", "cancel-now"])
def test_a_negotiator_that_a_job_has_started_outlives_the_job(rig: Rig, how: str) -> None:
    """It counts nowhere as the job's, and it manages all GPUs, not the job's alone."""
    first = rig.start_negotiator()
    rig.start()
    story = rig.story.folder
    line = (
        f"touch {story}/began; while [ ! -e {story}/go ]; do sleep 0.02; done;"
        f" env -u GRN_LEASE {GRN} start --background; touch {story}/up;"
        f" while [ ! -e {story}/leave ]; do sleep 0.02; done"
    )
    job = rig.submit(["/bin/sh", "-c", line])
    wait_for((story / "began").exists, "the job to begin")
    wait_for(lambda: [one for one in rig.leases() or () if one["pid"]], "its lease to be bound")
    os.kill(rig.queue.pid, signal.SIGSTOP)  # else the queue would start one
    first.kill()
    (story / "go").touch()
    wait_for((story / "up").exists, "a negotiator of the job's")
    os.kill(rig.queue.pid, signal.SIGCONT)
    (pid,) = rig.services()["negotiator"]
    if how == "end":
        (story / "leave").touch()
    else:
        rig.ask("cancel", jobs=[job], now=True)
    rig.ended(job)

    assert is_running(pid)
    assert rig.no_lease_left()
    assert rig.ended(rig.submit(["true"]))["reason"] == "ok"
    assert is_running(pid)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])
def test_a_job_that_a_line_of_a_batch_has_submitted_outlives_the_batch(
    rig: Rig, signum: int
) -> None:
    rig.start_negotiator()
    story = rig.story
    lines = story.write("lines.txt", f"{GRN} submit -- sleep 1000; echo $$ >line; sleep 1001\n")
    batch = story.start(GRN, "batch", lines)
    wait_for(lambda: (story.folder / "line").exists() and 2 in rig.rows(), "a job of the line")
    rig.running(2)
    (queue,) = rig.services()["queue"]
    batch.signal(signum)
    batch.wait()
    gone([int((story.folder / "line").read_text())])

    assert is_running(queue)
    assert rig.row(2)["state"] == "running"
    rig.ask("cancel", jobs=[2], now=True)
    assert rig.ended(2)["reason"] == "cancelled"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_many_queues_inside_jobs_outlive_them(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    rig.start()
    rounds = 40
    for turn in range(rounds):
        inside = Inside(rig, turn)
        inside.begin(chance.choice(WAYS))
        if chance.random() < 0.3:
            list(kill([inside.queue]))
            gone([inside.queue])
            inside.queue = rig.start().pid
        inside.end(chance.choice(ENDS))
        inside.check()
    print(f"seed {seed}: {rounds} queues started inside jobs, none ended with its job")
