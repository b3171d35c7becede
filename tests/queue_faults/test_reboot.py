"""The machine goes down: what ran is told to be interrupted, and runs again only if it may.

A reboot is simulated: all processes are killed and the journal says another boot.
"""

from __future__ import annotations

from typing import Any

from grn.queue.local import attempt_files as attempts
from tests.harness import wait_for
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import Rig, gone, kill

# Runs long the first time only.
ONCE = 'test -e "$0" && exit 5; : > "$0"; sleep 1000'
LATER = 'until test -e "$0"; do sleep 0.02; done; exit 4'


def _reboot(rig: Rig) -> None:
    gone(kill(list(rig.story.left_behind())))
    assert rig.queue is not None
    rig.queue.kill()
    rig.change("UPDATE attempts SET boot = 'the boot before'")
    rig.start()


def _through_a_reboot(rig: Rig) -> dict[str, dict[str, Any]]:
    """Reboot under jobs in every state and return how each of them ended."""
    rig.start()
    marks = {name: rig.story.folder / name for name in ("plain", "requeue", "stopping")}
    jobs = {
        name: rig.submit(["/bin/sh", "-c", ONCE, str(mark)], requeue=name == "requeue")
        for name, mark in marks.items()
    }
    jobs["held"] = rig.submit(["/bin/sh", "-c", "exit 3"], held=True)
    jobs["after"] = rig.submit(["true"], after=[[jobs["plain"], True]])
    gate = rig.story.folder / "over"
    jobs["over"] = rig.submit(["/bin/sh", "-c", LATER, str(gate)])
    for mark in marks.values():
        wait_for(mark.exists, "all to run")
    rig.running(jobs["over"])
    rig.ask("cancel", jobs=[jobs["stopping"]])
    assert rig.queue is not None
    rig.queue.kill()
    gate.touch()
    over = str(rig.folder(jobs["over"]))
    wait_for(lambda: attempts.read_exit(over), "one to end without a queue")
    _reboot(rig)
    rig.ask("hold", jobs=[jobs["held"]], held=False)
    return {name: rig.ended(job) for name, job in jobs.items()}


def test_a_reboot_interrupts_what_ran_and_runs_again_what_may_be(rig: Rig) -> None:
    rows = _through_a_reboot(rig)
    ends = {name: (row["reason"], row["status"], row["attempt"]) for name, row in rows.items()}

    assert ends["plain"] == ("interrupted", None, 1)
    assert ends["requeue"] == ("failed", 5, 2)
    assert ends["stopping"][0] in ("interrupted", "cancelled")
    assert ends["held"] == ("failed", 3, 1)
    assert ends["after"][0] == "skipped"
    assert ends["over"] == ("failed", 4, 1)
    assert [one["reason"] for one in rows["requeue"]["attempts"]] == ["interrupted", "failed"]
    assert rig.no_lease_left()


def test_the_check_finds_out_a_queue_that_does_not_notice_a_reboot(rigs: Rigs) -> None:
    rows = _through_a_reboot(rigs("same-boot"))

    assert rows["plain"]["reason"] != "interrupted"
