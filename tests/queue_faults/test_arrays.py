"""A long array over kills of its queue: its members become jobs once, and each runs once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness import wait_for
from tests.queue_faults.ledger import Ledger
from tests.queue_faults.rig import Rig, pause

COUNT = 400
KILLS = 6
LONG = 6000


@pytest.mark.timeout(300)
def test_an_array_whose_queue_is_killed_again_and_again_runs_each_member_once(
    rig: Rig, seed: int
) -> None:
    chance = random.Random(seed)
    ledger = Ledger(rig.story.folder / "ledger")
    rig.start()
    request = rig.request([ledger.array("a", COUNT, 0, 0)], array=f"0-{COUNT - 1}")
    first = rig.ask("submit", **request)["first"]
    for number in range(COUNT):
        ledger.note(f"a.{number}", first + number)
    for _ in range(KILLS):
        pause(chance.uniform(0.02, 0.3))
        rig.restart()
        assert rig.ask("submit", **request) | {"id": 0, "trouble": ""} == {
            "id": 0, "first": first, "count": COUNT, "trouble": "",
        }  # fmt: skip
        if chance.random() < 0.5:
            rig.ask("show", job=first + chance.randrange(COUNT))
    wait_for(lambda: not rig.ask("list", which="alive", most=1)["jobs"], rig.tail)

    assert ledger.check(rig.rows()) == []
    assert rig.no_lease_left()


@pytest.mark.timeout(300)
def test_members_whose_cancel_was_answered_never_run_and_others_go_on(rig: Rig, seed: int) -> None:
    """The queue is killed during the cancel of a long array, and after it was answered."""
    chance = random.Random(seed)
    rig.start()
    request = rig.request([["true"]], array=f"0-{LONG - 1}", held=True)
    first = rig.ask("submit", **request)["first"]
    jobs = list(range(first, first + LONG))
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(rig.ask, "cancel", jobs=jobs)
        pause(chance.uniform(0.0, 0.3))
        rig.restart()
        is_answered = asked.exception() is None
    ended = {job for job, row in rig.rows().items() if row["state"] == "ended"}
    assert not is_answered or ended == set(jobs)
    assert rig.ask("cancel", jobs=jobs)["cancelled"] == sorted(set(jobs) - ended)
    rig.restart()
    rows = rig.rows()
    assert {row["reason"] for row in rows.values()} == {"cancelled"}
    assert sorted(rows) == jobs
    assert rig.ask("count")["counts"] == {"running": 0, "queued": 0, "held": 0, "ended": LONG}
