"""G2: the queue is killed at each system call of one job's way, and of its own start.

`strace` strikes at the Nth call of a kind; N grows until the job comes through unharmed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from grn.errors import GrnError
from tests.harness import is_running, wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.ledger import Ledger
from tests.queue_faults.rig import Rig

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None or os.getuid() != 0,
    reason="STRACE IS MISSING, or we are not root: no kill at every system call was tried",
)
# What changes the disk, starts something or tells somebody.
DURABLE = ("pwrite64", "fdatasync", "sendto", "sendmsg", "socketpair", "openat", "unlink")
OTHERS = ("epoll_wait", "recvfrom", "pread64", "read", "close", "epoll_ctl", "accept4", "lseek")
# And the same for the start of the queue, with about how many there are.
AT_START = {
    "pwrite64": 8, "fdatasync": 1, "flock": 4, "mkdir": 5, "write": 4, "unlink": 1, "bind": 1,
    "chmod": 1, "listen": 2, "socketpair": 2, "vfork": 1, "pidfd_open": 1, "pipe2": 1,
}  # fmt: skip


@contextmanager
def struck(pid: int, call: str, number: int) -> Iterator[None]:
    """Kill a process at its Nth system call of a kind from now on."""
    what = f"inject={call}:signal=SIGKILL:when={number}"
    argv = ["strace", "-p", str(pid), "-o", "/dev/null", "-e", f"trace={call}", "-e", what]
    tracer = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: _tracer_of(pid) != "0" or not is_running(pid), "strace to attach")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait()


def _tracer_of(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "gone"
    return next(line.split()[1] for line in text.splitlines() if line.startswith("TracerPid"))


@dataclass
class Sweep:
    """Kills one after the other, and a job for each."""

    rig: Rig
    points: int = 0
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.rig.story.folder / "ledger")

    def strike(self, call: str, number: int) -> bool:
        """Kill at one point of a job's way; False when the job came through unharmed."""
        rig, daemon = self.rig, self.rig.queue
        assert daemon is not None
        name = f"{call}.{number}"
        request = rig.request([self.ledger.command(name)], key=f"{random.getrandbits(96):024x}")
        with struck(daemon.pid, call, number):
            try:
                self.ledger.note(name, rig.ask("submit", **request)["first"])
            except (GrnError, OSError):
                pass  # not told: it may be in or not
            is_harmed = self._await(name)
        if is_harmed:
            self.points += 1
            daemon.kill()
            rig.start()
        self._check(name, request)
        return is_harmed

    def _await(self, name: str) -> bool:
        """Wait for the end of the job or of the queue; True for the latter."""
        rig, daemon = self.rig, self.rig.queue
        assert daemon is not None

        def is_over() -> bool:
            if not is_running(daemon.pid):
                return True
            try:
                return rig.row(self.ledger.told[name])["state"] == "ended"
            except (GrnError, OSError, KeyError):
                return False

        wait_for(is_over, f"{name} to end")
        return not is_running(daemon.pid)

    def _check(self, name: str, request: dict[str, object]) -> None:
        """The job has ended once and well; one that nobody was told of may be new to the queue."""
        rig = self.rig
        if self.ledger.told.get(name, 0) not in {0, *rig.rows()}:
            self.complaints.append(f"{name} was accepted and is lost")
        first = rig.ask("submit", **request)["first"]
        self.ledger.note(name, first)
        rig.ended(first)

    def result(self) -> list[str]:
        """Return all that is wrong after the last point."""
        complaints = self.complaints + self.ledger.check(self.rig.rows())
        if not self.rig.no_lease_left():
            complaints.append(f"leases are left: {self.rig.leases()}")
        return complaints


def _way_of_a_job(rig: Rig, calls: tuple[str, ...], most: int) -> Sweep:
    rig.start_negotiator()
    rig.start()
    sweep = Sweep(rig)
    for call in calls:
        number = 1
        while number <= most and sweep.strike(call, number):
            number += 1
    return sweep


@pytest.mark.timeout(300)
def test_a_kill_at_any_durable_step_of_a_job_loses_nothing_and_repeats_nothing(rig: Rig) -> None:
    sweep = _way_of_a_job(rig, DURABLE, most=40)

    print(f"{sweep.points} points")
    assert not sweep.result()
    assert sweep.points >= 20


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_kill_at_any_other_step_of_a_job_loses_nothing_and_repeats_nothing(rig: Rig) -> None:
    sweep = _way_of_a_job(rig, OTHERS, most=60)

    print(f"{sweep.points} points")
    assert not sweep.result()
    assert sweep.points >= 30


def test_the_sweep_finds_out_a_queue_that_answers_before_it_has_written(rigs: Rigs) -> None:
    sweep = _way_of_a_job(rigs("commit-late"), ("pwrite64",), most=2)

    assert any("lost" in one for one in sweep.result())


# --- the queue's own start -----------------------------------------------------------------


def _start_struck(rig: Rig, call: str, number: int) -> bool:
    """Start the queue and kill it at one point of its start; False when it gets ready."""
    what = f"inject={call}:signal=SIGKILL:when={number}"
    daemon = rig.spawn("strace", "-D", "-o", "/dev/null", "-e", f"trace={call}", "-e", what)
    line = daemon.line()
    daemon.kill()
    return line != "ready"


def _starts(rig: Rig, points: Iterator[tuple[str, int]]) -> tuple[int, list[str]]:
    """Kill starts of a queue that has work in every state; return how many, and what is wrong."""
    ledger = Ledger(rig.story.folder / "ledger")
    done, unharmed = 0, set()
    for call, number in points:
        if call in unharmed:
            continue
        rig.start()
        for turn, seconds in enumerate((0, 0.2, 1.0)):  # over, over when it starts, running
            name = f"{call}.{number}.{turn}"
            ledger.note(name, rig.submit(ledger.command(name, seconds)))
        wait_for(lambda: len(ledger.begun()) == len(ledger.told), "all to run")
        assert rig.queue is not None
        rig.queue.kill()
        if _start_struck(rig, call, number):
            done += 1
        else:
            unharmed.add(call)
    rig.start()
    for job_id in ledger.told.values():
        rig.ended(job_id)
    return done, ledger.check(rig.rows())


def test_a_kill_during_the_start_of_the_queue_harms_no_job(rig: Rig, seed: int) -> None:
    chance = random.Random(seed)
    all_points = [(call, number + 1) for call, most in AT_START.items() for number in range(most)]
    some = chance.sample(all_points, 6)
    done, complaints = _starts(rig, iter(some))

    print(f"{done} starts killed: {some}")
    assert not complaints
    assert done


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_kill_at_any_step_of_the_start_of_the_queue_harms_no_job(rig: Rig) -> None:
    every = [(call, number) for call in AT_START for number in range(1, 40)]
    every += [("openat", number) for number in range(20, 400, 8)]  # at first all of Python's
    done, complaints = _starts(rig, iter(every))

    print(f"{done} starts killed")
    assert not complaints
    assert done >= 40
