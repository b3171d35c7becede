"""A queue is killed while a shim has an order and has not begun its command."""

from __future__ import annotations

import os
import signal

import pytest

from tests.harness import wait_for
from tests.queue_faults.rig import Rig, gone


class Stopped:
    """A job whose shim is stopped before it begins, and whose queue is killed."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.runs = rig.story.folder / "runs"
        rig.start_negotiator()
        rig.start()
        first = rig.submit(["true"])
        self.shim = rig.shim_of(first)
        rig.ended(first)  # its shim is idle now, and is the first to be used again
        os.kill(self.shim, signal.SIGSTOP)
        line = f"echo $GRN_LEASE >>{self.runs}; until [ -e {self.runs}.go ]; do sleep 0.02; done"
        self.job = rig.submit(["/bin/sh", "-c", line])
        rig.running(self.job)
        assert rig.queue is not None
        rig.queue.kill()

    def go_on(self) -> None:
        os.kill(self.shim, signal.SIGCONT)

    def let_go(self) -> None:
        self.runs.with_name("runs.go").touch()


def test_a_command_whose_lease_has_ended_meanwhile_is_run_by_the_next_queue(rig: Rig) -> None:
    stopped = Stopped(rig)
    assert rig.no_lease_left()
    stopped.go_on()
    gone([stopped.shim])
    assert not stopped.runs.exists()
    stopped.let_go()
    rig.start()
    row = rig.ended(stopped.job)

    assert (row["reason"], row["attempt"]) == ("ok", 2)
    assert len(stopped.runs.read_text().split()) == 1
    attempts = rig.ask("show", job=stopped.job)["job"]["attempts"]
    assert [one["reason"] for one in attempts] == ["not-started", "ok"]


def test_a_command_whose_lease_is_still_there_runs_under_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.story.env["GRN_GRACE_S"] = "30"
    stopped = Stopped(rig)
    stopped.go_on()
    wait_for(lambda: stopped.runs.exists() and stopped.runs.read_text(), "the command")
    (lease,) = rig.leases() or ()
    assert stopped.runs.read_text().split() == [lease["id"]]
    rig.start()
    stopped.let_go()
    row = rig.ended(stopped.job)

    assert (row["reason"], row["attempt"]) == ("ok", 1)
    assert stopped.runs.read_text().split() == [lease["id"]]
