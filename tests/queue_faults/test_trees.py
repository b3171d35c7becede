"""G8: cancel ends the whole tree of a job, whichever way its processes try to get out of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.harness import wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.escapes import WAYS
from tests.queue_faults.rig import Rig

SCRIPT = str(Path(__file__).with_name("escapes.py"))
GRACE_S = 1.0  # as the rig sets it


class Prison:
    """Jobs that try to get away, and who of them is out."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._mark = f"MARK-{rig.story.folder.name}"
        self.jobs: dict[str, int] = {}

    def let_in(self, way: str, turn: int = 0) -> None:
        name = f"{way}.{turn}"
        ready = self._rig.story.folder / name
        argv = [sys.executable, "-S", "-E", SCRIPT, way, str(ready), f"{self._mark}-{name}"]
        self.jobs[name] = self._rig.submit(argv)

    def all_try(self) -> None:
        """Wait until all have done what they can."""
        for name in self.jobs:
            wait_for((self._rig.story.folder / name).exists, f"{name} to try")

    def survivors(self) -> list[str]:
        """Return the names of those that still run somewhere."""
        marks = {word for pid in os.listdir("/proc") for word in self._marks_of(pid)}
        return sorted(word.removeprefix(f"{self._mark}-") for word in marks)

    def _marks_of(self, pid: str) -> list[str]:
        """Return the marks in the command line of a process, whose first thread may be over."""
        try:
            threads = os.listdir(f"/proc/{pid}/task") if pid.isdigit() else []
            texts = [Path(f"/proc/{pid}/task/{one}/cmdline").read_text() for one in threads]
        except OSError:
            return []
        words = [word for text in texts for word in text.split("\0")]
        return [word for word in words if word.startswith(self._mark)]

    def cancel(self, *, now: bool = False) -> tuple[list[str], float]:
        """Cancel all; return who survives, and after how long all were over."""
        began = time.monotonic()
        self._rig.ask("cancel", jobs=list(self.jobs.values()), now=now)
        for job_id in self.jobs.values():
            self._rig.ended(job_id)
        return self.survivors(), time.monotonic() - began


@pytest.mark.parametrize("now", [False, True], ids=["kindly", "at-once"])
def test_cancel_leaves_no_process_whichever_way_it_tries_to_get_out(rig: Rig, now: bool) -> None:
    rig.start()
    prison = Prison(rig)
    for way in WAYS:
        prison.let_in(way)
    prison.all_try()
    survivors, took_s = prison.cancel(now=now)

    print(f"{len(WAYS)} ways, {took_s:.2f} s")
    assert not survivors
    assert took_s < (0 if now else GRACE_S) + 20  # on a machine at rest it is within one second
    assert {rig.row(job)["reason"] for job in prison.jobs.values()} <= {"cancelled", "ok"}
    assert rig.no_lease_left()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_fifty_cancels_of_each_way_leave_no_process(rig: Rig, way: str) -> None:
    rig.start()
    for turn in range(10):
        prison = Prison(rig)
        for place in range(5):
            prison.let_in(way, 5 * turn + place)
        prison.all_try()
        survivors, _ = prison.cancel()
        assert not survivors


def test_the_check_finds_out_a_shim_that_ends_the_group_of_its_command_only(rigs: Rigs) -> None:
    rig = rigs("end-group")
    rig.start()
    prison = Prison(rig)
    for way in ("new-session", "double-fork"):
        prison.let_in(way)
    prison.all_try()

    assert prison.cancel(now=True)[0] == ["double-fork.0", "new-session.0"]


def test_a_killed_shim_leaves_no_process_either(rig: Rig) -> None:
    rig.start()
    prison = Prison(rig)
    for way in WAYS.keys() - {"fork-loop", "fork-loop-in-sessions"}:  # too quick to be met
        prison.let_in(way)
    prison.all_try()
    for job_id in prison.jobs.values():
        os.kill(rig.shim_of(job_id), signal.SIGKILL)
    reasons = {rig.ended(job_id)["reason"] for job_id in prison.jobs.values()}

    assert reasons == {"lost"}
    wait_for(lambda: not prison.survivors(), prison.survivors, 20.0)
    assert rig.no_lease_left()
