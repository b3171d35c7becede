"""What grn.testing gives to tests of other people's programs."""

from __future__ import annotations

import os
import sys

import grn
from grn.client.daemons import who_answers
from grn.testing import local_grn
from tests.harness import wait_for


def test_a_block_has_a_negotiator_and_a_queue_of_its_own_and_leaves_nothing() -> None:
    before = dict(os.environ)

    with local_grn("virtual:1x16GiB") as here:
        with grn.lease(mem="10MiB") as lease:
            assert lease.visible_devices == "0"
        job = grn.submit([sys.executable, "-c", "pass"], mem="10MiB")
        assert job.result() == 0
        stays = grn.submit(["sleep", "600"], mem="10MiB")
        wait_for(lambda: stays.status()["state"] == "running")

    assert dict(os.environ) == before
    assert not os.path.exists(here.folder)
    assert who_answers() is None


def test_leases_survive_a_crash_of_the_negotiator() -> None:
    with local_grn("virtual:1x16GiB") as here, grn.lease(mem="10MiB") as lease:
        here.kill_negotiator()
        here.start_negotiator("virtual:1x16GiB")
        status = grn.client.negotiator.ask_once({"op": "status"})["status"]
        assert [one["id"] for one in status["leases"]] == [lease.id]
