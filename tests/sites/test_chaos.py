"""Whatever is killed, cut off or loses power: no job is lost, repeated unasked, or misreported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.harness import Story, hang_up
from tests.sites.chaos import Chaos, PilotChaos, SiteRig
from tests.sites.machines import NamespaceMachine, namespaces_needed
from tests.sites.pilot_sites import PilotSite
from tests.sites.site_ledger import SiteLedger, Wanted
from tests.sites.site_under_test import Home, SiteUnderTest, SshSite

SHORT_S = 14.0
SOAK_S = 600.0
PILOTS_S = 20.0
Campaigns = Callable[..., Chaos]


@pytest.fixture
def campaigns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Campaigns]:
    """Make campaigns: `campaigns(seed)`, or with the name of a mutant."""
    namespaces_needed()
    made: list[tuple[Home, list[NamespaceMachine]]] = []

    def make(seed: int, mutant: str = "") -> Chaos:
        home = Home(SiteRig(Story.begin(), mutant))
        for name in ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG"):
            monkeypatch.setenv(name, home.story.env[name])
        site = SshSite(home.story, hosts=0)
        machines: list[NamespaceMachine] = []
        made.append((home, machines))
        for number in (1, 2):
            machines.append(NamespaceMachine(home.story, site.keys, f"node{number}"))
            machines[-1].start()
        site.machines.extend(machines)
        home.add(site)
        home.rig.start()
        return Chaos(home, machines, seed)

    yield make
    hang_up()
    for home, machines in made:
        home.rig.close()
        for machine in machines:
            machine.remove()
        home.story.end()


@pytest.mark.timeout(400)
def test_no_fault_loses_repeats_or_misreports_a_job(campaigns: Campaigns, seed: int) -> None:
    result = campaigns(seed).run(SHORT_S, least_faults=8)

    print(result)
    assert not result.complaints, str(result)
    assert result.jobs >= 20
    assert result.faults.total() >= 8


@pytest.mark.kinds("slurm", "ray")  # ssh has a campaign with losses of power
@pytest.mark.timeout(400)
def test_no_fault_around_pilots_loses_repeats_interrupts_or_misreports_a_job(
    home: Home, site: SiteUnderTest, seed: int
) -> None:
    home.ran("true")  # a pilot is there
    result = PilotChaos(home, cast(PilotSite, site), seed).run(PILOTS_S, least_faults=4)

    print(result)
    assert not result.complaints, str(result)
    assert result.jobs >= 20
    assert result.faults.total() >= 4
    assert "interrupted" not in result.reasons, str(result)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_fault_of_a_long_campaign_loses_repeats_or_misreports_a_job(
    campaigns: Campaigns, seed: int
) -> None:
    result = campaigns(seed).run(SOAK_S)

    print(result)
    assert not result.complaints, str(result)


LONG = pytest.mark.soak  # one mutant shows on each commit that the campaign can fail


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("mutant", "complaint"),
    [
        ("append-logs", "its log is wrong"),
        pytest.param("cut-is-dead", "FALSELY INTERRUPTED|ran again although", marks=LONG),
        pytest.param("start-again", "ran again unasked|ran again although", marks=LONG),
    ],
)
def test_the_campaign_finds_out(
    campaigns: Campaigns, seed: int, mutant: str, complaint: str
) -> None:
    for turn in range(10):  # a busy machine runs few jobs between two faults
        result = campaigns(seed + turn, mutant).run(6.0)
        found = re.search(complaint, "\n".join(result.complaints))
        if found:
            break

    print(result)
    assert found, str(result)


def test_an_interrupted_job_that_somebody_cancelled_need_not_run_again(tmp_path: Path) -> None:
    ledger = SiteLedger(tmp_path / "ledger")
    ledger.command("j1", Wanted(0, 3, may_requeue=True), 1.0)
    ledger.told["j1"] = 1
    ledger.path.write_text("b j1 1 node1 boot1 1.0\n")
    ledger.note_power_loss("node1", "boot1")
    row = {"state": "ended", "reason": "interrupted", "attempt": 1, "status": None, "folder": None,
           "lease": "node1/boot1/L1", "text": "node1 went down while it ran"}  # fmt: skip

    assert ledger.check({1: row}) == ["j1 (job 1): was not run again although it may be"]
    ledger.cancelled.add("j1")
    assert ledger.check({1: row}) == []
