"""G1, G3, G5: whatever is killed and whenever, no accepted job is lost, run twice or killed."""

from __future__ import annotations

import pytest

from tests.queue_faults.campaign import Campaign
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import Rig

KILLS = 100


def test_a_hundred_kills_lose_no_job_run_none_twice_and_kill_none(rig: Rig, seed: int) -> None:
    result = Campaign(rig, seed).run(KILLS)

    print(result)
    assert not result.complaints, str(result)
    assert result.jobs >= 5 * KILLS


@pytest.mark.parametrize(
    ("mutant", "complaint"),
    [("commit-late", "lost"), ("run-again", "times"), ("kill-at-start", "killed")],
)
def test_the_campaign_finds_out(rigs: Rigs, seed: int, mutant: str, complaint: str) -> None:
    result = Campaign(rigs(mutant), seed).run(12)

    print(result)
    assert any(complaint in one for one in result.complaints), str(result)
