"""G1, G3, G5: whatever is killed and whenever, no accepted job is lost, run twice or killed."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from tests.harness import wait_for
from tests.queue_faults.campaign import Campaign
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.ledger import Ledger
from tests.queue_faults.rig import Rig

KILLS = 20  # a thousand by `make soak`
ADOPTED = 40


@pytest.mark.timeout(300)
def test_twenty_kills_lose_no_job_run_none_twice_and_kill_none(rig: Rig, seed: int) -> None:
    result = Campaign(rig, seed).run(KILLS)

    print(result)
    assert not result.complaints, str(result)
    assert result.jobs >= 5 * KILLS


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("mutant", "complaint"),
    [
        ("commit-late", "is lost|was given to"),
        ("run-again", "times"),
        pytest.param("kill-at-start", "killed", marks=pytest.mark.soak),  # rare: up to 8 campaigns
    ],
)
def test_the_campaign_finds_out(rigs: Rigs, seed: int, mutant: str, complaint: str) -> None:
    for turn in range(8):  # a busy machine runs few jobs between two kills
        result = Campaign(rigs(mutant), seed + turn).run(12)
        found = re.search(complaint, "\n".join(result.complaints))
        if found:
            break

    print(result)
    assert found, str(result)


def test_jobs_that_run_on_without_a_queue_are_all_adopted(rig: Rig) -> None:
    """Some end while there is none; its whole process group is killed, as service managers do."""
    ledger = Ledger(rig.story.folder / "ledger")
    daemon = rig.start()
    for turn in range(ADOPTED):
        name, seconds = f"j{turn}", 1000 if turn == 0 else 1.5 if turn % 2 else 6.0
        ledger.note(name, rig.submit(ledger.command(name, seconds, turn % 8)))
    wait_for(lambda: len(ledger.begun()) == ADOPTED, "all to run")
    os.killpg(daemon.pid, signal.SIGKILL)
    daemon.kill()
    wait_for(lambda: ledger.over() >= ADOPTED // 2, "half of them to end")
    began = time.monotonic()
    rig.start()
    took_s = time.monotonic() - began
    rig.ask("cancel", jobs=[ledger.told.pop("j0")], now=True)
    wait_for(lambda: not rig.ask("list", which="alive")["jobs"], "all to end")
    rows = rig.rows()

    print(f"{ADOPTED} jobs adopted, ready within {took_s:.2f} s")
    assert rows.pop(1)["reason"] == "cancelled"
    assert not ledger.check(rows)
    assert took_s < 20  # 0.4 s on a machine at rest
    assert rig.no_lease_left()
