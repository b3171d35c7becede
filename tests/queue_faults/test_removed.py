"""The folder of a living queue is removed: what it accepted is there for the next one."""

from __future__ import annotations

import shutil

import pytest

from grn.errors import MachineError
from tests.harness import wait_for
from tests.queue_faults.ledger import Ledger
from tests.queue_faults.rig import Rig


def test_no_accepted_job_is_lost_with_the_folder_of_a_living_queue(rig: Rig) -> None:
    ledger = Ledger(rig.story.folder / "ledger")
    rig.start()
    gate = rig.story.folder / "gate"
    ledger.note("runs", rig.submit(ledger.command("runs", gate=gate)))
    wait_for(ledger.begun, "one to run")
    rig.ask("drain")
    ledger.note("before", rig.submit(ledger.command("before")))
    shutil.rmtree(rig.state)
    ledger.note("after", rig.submit(ledger.command("after", status=3)))
    gate.touch()
    rig.ended(ledger.told["runs"])
    rig.restart()
    rig.ask("drain", drained=False)
    wait_for(lambda: not rig.ask("list", which="alive")["jobs"], rig.tail)

    assert not ledger.check(rig.rows())
    assert "action=journal-restored" in rig.log.read_text()


def test_the_journal_is_written_anew_also_when_nobody_submits(rig: Rig) -> None:
    rig.start()
    job = rig.submit(["true"], held=True)
    shutil.rmtree(rig.state / "queue")
    wait_for(rig.database().exists, "the journal to be there again")
    rig.restart()

    assert rig.row(job)["state"] == "held"


def test_a_submit_is_refused_in_words_when_the_journal_cannot_be_written_anew(rig: Rig) -> None:
    rig.start()
    rig.submit(["true"], held=True)
    shutil.rmtree(rig.state / "queue")
    (rig.state / "queue").write_text("in the way")

    with pytest.raises(MachineError, match=r"was removed under this queue.*Running jobs go on"):
        rig.submit(["true"])
    assert rig.is_answering()
