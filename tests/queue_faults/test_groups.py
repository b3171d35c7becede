"""A job that is tied to the process that submitted it ends with that process, however it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from grn.client import queue
from grn.errors import GrnError
from tests.harness import Job, wait_for
from tests.queue_faults.rig import Rig, gone

# Submits, says so, and stays; a forked child may keep the connection open for longer.
SUBMITTER = """
import os, signal, sys
from grn.client import queue
from grn.client.connection import drive
from grn.client.submit import request, wanted

line = queue.connect()
shared = {**request(mem=1 << 20, after=()), "group": "mine", "tied": "tied" in sys.argv}
job = wanted(["/bin/sh", "-c", "setsid sleep 1000 & echo $! >> pids; wait"])
last = {**wanted(["true"]), "log": os.path.abspath("last.log")}
drive(line.send({"op": "submit", "key": os.urandom(8).hex(), "jobs": [job, last], **shared}))
open("sent", "w").close()
drive(line.receive(None))
if "fork" in sys.argv and os.fork() == 0:
    os.setsid()
    os.environ.clear()
    signal.pause()
open("submitted", "w").close()
signal.pause()
"""


def submitter(rig: Rig, *words: str) -> Job:
    """Start a process that submits two jobs, of which the first runs with a process of its own."""
    job = rig.story.start_script(SUBMITTER, *words)
    wait_for(lambda: (rig.story.folder / "submitted").exists(), lambda: job.err)
    rig.running(1)
    wait_for(lambda: pids(rig), "the job to run")
    return job


def pids(rig: Rig) -> list[int]:
    path: Path = rig.story.folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def is_cancelled(rig: Rig) -> None:
    """Wait until the first job was ended, with its tree."""
    assert rig.ended(1)["reason"] == "cancelled"
    gone(pids(rig))


@pytest.mark.parametrize("words", [("tied",), ("tied", "fork")], ids=["alone", "forked"])
def test_a_killed_submitter_takes_its_group_along(rig: Rig, words: tuple[str, ...]) -> None:
    rig.start()
    job = submitter(rig, *words)
    job.kill()

    is_cancelled(rig)
    assert rig.row(1)["group"] == "mine"


def test_a_submitter_that_ends_while_the_queue_is_down_takes_its_group_along(rig: Rig) -> None:
    daemon = rig.start()
    job = submitter(rig, "tied")
    daemon.kill()
    job.kill()
    rig.start()

    is_cancelled(rig)


def test_a_submitter_that_lives_keeps_its_group_through_a_restart(rig: Rig) -> None:
    rig.start()
    job = submitter(rig, "tied")
    rig.restart()
    assert rig.running(1)["reason"] is None

    job.signal(signal.SIGTERM)
    is_cancelled(rig)


def test_a_job_that_is_not_tied_outlives_its_submitter(rig: Rig) -> None:
    rig.start()
    submitter(rig).kill()

    assert rig.ended(2)["reason"] == "ok"
    assert rig.running(1)["reason"] is None


def test_a_submitter_that_is_gone_leaves_nothing(rig: Rig) -> None:
    """What it has sent may be read when it has ended."""
    daemon = rig.start()
    daemon.process.send_signal(signal.SIGSTOP)
    job = rig.story.start_script(SUBMITTER, "tied")
    wait_for(lambda: (rig.story.folder / "sent").exists(), lambda: job.err)
    job.kill()
    daemon.process.send_signal(signal.SIGCONT)

    wait_for(rig.is_answering, "the queue")
    assert all(row["state"] == "ended" for row in rig.rows().values())


def test_what_both_outputs_say_is_added_to_a_log_of_its_own(rig: Rig, tmp_path: Path) -> None:
    rig.start()
    log = tmp_path / "log"
    log.write_text("before\n")
    words = ["/bin/sh", "-c", "echo out; echo err >&2; echo out"]
    request = rig.request([words, words])
    request["jobs"][0]["log"] = str(log)
    request["jobs"][1]["log"] = str(tmp_path / "no" / "folder")
    first = rig.ask("submit", **request)["first"]

    assert rig.ended(first)["reason"] == "ok"
    assert log.read_text() == "before\nout\nerr\nout\n"
    assert rig.ended(first + 1)["reason"] == "not-runnable"


def test_a_log_must_be_named_in_full(rig: Rig) -> None:
    rig.start()
    request = rig.request([["true"]])
    request["jobs"][0]["log"] = "log"
    with pytest.raises(GrnError, match="absolute path"):
        queue.ask({"op": "submit", **request})
