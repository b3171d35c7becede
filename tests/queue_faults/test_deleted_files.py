"""Whatever files are removed under living services: all is reachable again, and nothing is lost."""

from __future__ import annotations

import pytest

from grn import paths
from tests.conftest import Scripts
from tests.queue_faults.campaign import FILES, Blows, Campaign, remove
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.rig import Rig

REMOVALS: Blows = (
    (("queue socket",), 15),
    (("queue lock",), 5),
    (("queue folder",), 10),
    (("negotiator socket",), 10),
    (("negotiator lock",), 5),
    (("runtime folder",), 15),
    (("runtime folder", "queue folder"), 10),
    (("queue socket", "negotiator socket"), 5),
    (("queue lock", "queue"), 5),
    (("runtime folder", "queue"), 10),
    (("negotiator lock", "negotiator"), 5),
    (("negotiator socket", "negotiator lock", "queue"), 5),
    (("queue", "negotiator"), 5),
)


@pytest.mark.timeout(300)
def test_removed_files_lose_no_job_and_leave_one_negotiator(rig: Rig, seed: int) -> None:
    result = Campaign(rig, seed, REMOVALS).run(12)

    print(result)
    assert not result.complaints, str(result)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_three_hundred_removals(rig: Rig, seed: int) -> None:
    result = Campaign(rig, seed, REMOVALS).run(300)

    print(result)
    assert not result.complaints, str(result)
    assert result.jobs >= 1500


def test_the_campaign_finds_a_queue_that_does_not_look(rigs: Rigs, seed: int) -> None:
    campaign = Campaign(rigs("never-look"), seed, ((("queue socket",), 1),), reach_s=5.0)
    result = campaign.run(1)

    print(result)
    assert result.complaints


@pytest.mark.parametrize("name", ["socket", "folder"])
def test_a_command_waits_until_the_queue_is_reachable_again(
    rig: Rig, script: Scripts, name: str
) -> None:
    daemon = rig.start()
    remove(FILES[f"queue {name}"]())

    ended = rig.story.start(script("grn"), "submit", "--", "true").ended_well()

    assert rig.ask("ping")["pid"] == daemon.pid
    assert rig.ended(int(ended.out.split()[-1]))["reason"] == "ok"


def test_a_command_waits_until_the_negotiator_is_reachable_again(rig: Rig, script: Scripts) -> None:
    daemon = rig.start_negotiator()
    remove(paths.runtime_dir())

    rig.story.start(script("grn"), "exec", "--", "true").ended_well()

    assert rig.serving() == [daemon.pid]
