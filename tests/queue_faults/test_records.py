"""The record of an attempt is removed, emptied or damaged: the attempt never runs a second time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from grn.queue.local import attempt_files as attempts
from tests.harness import wait_for
from tests.queue_faults.rig import Rig, gone

STATUS = 7
DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda path: os.truncate(path, 0),
    "overwritten": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
}


class Silent:
    """A job that prints nothing, says in a file that it runs, and waits."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.runs, self.gate = rig.story.folder / "runs", rig.story.folder / "go"
        line = f"echo run >>{self.runs}; until [ -e {self.gate} ]; do sleep 0.02; done;"
        self.job = rig.submit(["/bin/sh", "-c", f"{line} exit {STATUS}"])
        wait_for(self.runs.exists, "the job to run")
        self.shim = rig.shim_of(self.job)
        self.record = Path(attempts.record_of(str(rig.folder(self.job))))

    def end(self) -> tuple[str, int | None, int]:
        """Return how it ended: the reason, the status, the number of the last attempt."""
        row = self.rig.ended(self.job)
        assert self.runs.read_text() == "run\n", "it ran twice"
        return row["reason"], row["status"], row["attempt"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_running_job_whose_record_is_damaged_keeps_its_end(rig: Rig, damage: str) -> None:
    rig.start()
    silent = Silent(rig)
    DAMAGES[damage](silent.record)
    rig.restart()
    assert rig.row(silent.job)["state"] == "running"
    silent.gate.touch()

    assert silent.end() == ("failed", STATUS, 1)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_job_whose_record_is_damaged_after_its_end_is_lost_and_not_run_again(
    rig: Rig, damage: str
) -> None:
    """So it is when a file system is shut down and mounted again: what was not synced is gone."""
    rig.start()
    silent = Silent(rig)
    assert rig.queue is not None
    rig.queue.kill()
    silent.gate.touch()
    gone([silent.shim])
    DAMAGES[damage](silent.record)
    rig.start()

    assert silent.end() == ("lost", None, 1)


def test_a_job_whose_shim_and_record_are_gone_is_lost_and_its_processes_ended(rig: Rig) -> None:
    rig.start()
    silent = Silent(rig)
    silent.record.unlink()
    os.kill(silent.shim, signal.SIGKILL)

    assert silent.end() == ("lost", None, 1)
    assert not rig.marked(silent.job)


def test_without_the_notes_of_shims_living_processes_tell_that_a_job_has_begun(rig: Rig) -> None:
    rig.start()
    silent = Silent(rig)
    assert rig.queue is not None
    rig.queue.kill()
    os.kill(silent.shim, signal.SIGKILL)
    silent.record.unlink()
    for notes in rig.story.folder.rglob("begun"):
        notes.unlink()
    rig.start()

    assert silent.end() == ("lost", None, 1)


def test_the_notes_of_shims_are_dropped_when_the_queue_is_empty(rig: Rig) -> None:
    rig.start()
    silent = Silent(rig)
    (notes,) = rig.story.folder.rglob("begun")
    rig.ended(rig.submit(["true"]))
    assert len(notes.read_text().splitlines()) == 2
    silent.gate.touch()

    assert silent.end() == ("failed", STATUS, 1)
    wait_for(lambda: notes.read_text() == "", "the notes to be dropped")
    rig.ended(rig.submit(["true"]))  # by a shim that has the file open
    wait_for(lambda: notes.read_text() == "", "the notes to be dropped")


@pytest.mark.parametrize("is_alive", [True, False])
def test_files_of_an_attempt_that_cannot_be_used_cost_its_own_job_only(
    rig: Rig, is_alive: bool
) -> None:
    rig.start()
    silent = Silent(rig)
    assert rig.queue is not None
    rig.queue.kill()
    if not is_alive:
        silent.gate.touch()
        gone([silent.shim])
    silent.record.unlink()
    silent.record.mkdir()
    rig.start()
    other = rig.submit(["true"])

    assert rig.ended(other)["reason"] == "ok"
    assert is_alive == (rig.row(silent.job)["state"] == "running")
    silent.gate.touch()
    assert silent.end() == ("lost", None, 1)
    assert "Is a directory: it is not run again" in rig.row(silent.job)["why"]
