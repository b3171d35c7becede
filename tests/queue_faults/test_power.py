"""G6: the power fails; whatever a client was told of is there when it is back.

The journal lives on a file system of its own which is cut off in the middle of everything.
"""

from __future__ import annotations

import random
import threading

import pytest

from grn.errors import GrnError
from tests.queue_faults.conftest import Rigs
from tests.queue_faults.disks import CutDisk, cut_disk
from tests.queue_faults.rig import Rig, gone, kill, pause

CLIENTS = 2
JOBS = 3  # in one submit


class Cuts:
    """Power cuts one after the other, while clients submit."""

    def __init__(self, rig: Rig, disk: CutDisk, seed: int) -> None:
        self._rig = rig
        self._disk = disk
        self._chance = random.Random(seed)
        self._is_cut = threading.Event()
        self.told: dict[int, str] = {}
        self.complaints: list[str] = []
        rig.state = disk.point / "state"
        rig.story.env["GRN_STATE_DIR"] = str(rig.state)
        rig.start_negotiator(GRN_STATE_DIR=str(rig.story.folder / "state"))

    def cut(self) -> None:
        """Let clients submit for a moment, cut the power, and look at what is left."""
        rig = self._rig
        self._is_cut.clear()
        daemon = rig.start()
        clients = [threading.Thread(target=self._submit) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        pause(self._chance.uniform(0.03, 0.35))
        self._is_cut.set()  # what is answered from here on would have been heard by nobody
        self._disk.cut()
        daemon.kill()
        for client in clients:
            client.join()
        gone(kill(self._users_of_the_disk()))
        self._disk.come_back()
        rig.start()
        rows = rig.rows()
        lost = [job_id for job_id in self.told if job_id not in rows]
        swapped = [one for one, name in self.told.items() if rows.get(one, {}).get("name") != name]
        self.complaints += [f"job {job_id} is lost" for job_id in lost]
        self.complaints += [f"job {job_id} is another" for job_id in swapped]
        trouble = rig.ask("ping")["trouble"]
        self.complaints += [trouble] if "cannot be read" in trouble else []  # torn, not damaged
        assert rig.queue is not None
        rig.queue.kill()
        gone(kill(self._users_of_the_disk()))

    def _submit(self) -> None:
        while not self._is_cut.is_set():
            name = f"{random.getrandbits(64):x}"
            is_array = random.random() < 0.5
            more = {"array": f"1-{JOBS}"} if is_array else {}
            jobs = 1 if is_array else JOBS
            request = self._rig.request([["true"]] * jobs, held=True, **more)
            for job in request["jobs"]:
                job["name"] = name
            try:
                first = self._rig.ask("submit", **request)["first"]
            except (GrnError, OSError):
                continue
            if self._is_cut.is_set():
                return
            for job_id in range(first, first + JOBS):
                if job_id in self.told:
                    self.complaints.append(f"id {job_id} was given twice")
                self.told[job_id] = name

    def _users_of_the_disk(self) -> list[int]:
        """Return what still runs there: the forker and idle shims, in their last moment."""
        assert self._rig.negotiator is not None
        spared = self._rig.negotiator.pid
        return [pid for pid in self._rig.story.left_behind() if pid != spared]


def _campaign(rig: Rig, seed: int, cuts: int, *, until_complaint: bool = False) -> Cuts:
    with cut_disk(rig.story.folder) as disk:
        campaign = Cuts(rig, disk, seed)
        for _ in range(cuts):
            campaign.cut()
            if until_complaint and campaign.complaints:
                break
        rig.close()
    return campaign


def _state(report: Cuts) -> str:
    return f"{len(report.told)} accepted, {len(report.complaints)} violations"


def test_ten_power_cuts_lose_no_accepted_job(rig: Rig, seed: int) -> None:
    campaign = _campaign(rig, seed, cuts=10)

    print(_state(campaign))
    assert not campaign.complaints
    assert len(campaign.told) >= 5 * JOBS  # each waits for a disk that may be slow


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_two_hundred_power_cuts_lose_no_accepted_job(rig: Rig, seed: int) -> None:
    campaign = _campaign(rig, seed, cuts=200)

    print(_state(campaign))
    assert not campaign.complaints
    assert len(campaign.told) >= 5000


def test_the_campaign_finds_out_a_journal_that_does_not_wait_for_the_disk(
    rigs: Rigs, seed: int
) -> None:
    # On a busy machine nobody may have been told of anything before a cut.
    campaign = _campaign(rigs("sync-normal"), seed, cuts=10, until_complaint=True)

    print(_state(campaign))
    assert any("lost" in one for one in campaign.complaints)
