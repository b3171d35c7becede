"""Two users and one GPU: what each has had is remembered, also by the next negotiator."""

from __future__ import annotations

import os

from tests.conftest import Negotiators
from tests.harness import Story, wait_for
from tests.negotiator.live import OTHER_UID, THIRD_UID, a_wish, client_of, needs_root, reachable

ADA, BOB = OTHER_UID, THIRD_UID


@needs_root
def test_who_had_the_gpu_before_a_restart_goes_after_who_had_nothing(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x512MiB")
    path = reachable(str(story.folder / "run" / f"{os.getuid()}.sock"))

    def had(user: int) -> float:
        rows = {row["user"]: row for row in here.status()["shares"]}
        return float(rows[user]["had_gpu_h"]) if user in rows else 0.0

    with client_of(ADA, path) as ada:
        granted = ada.lease(exclusive=True)
        wait_for(lambda: had(ADA) > 2e-4)
        ada.ask("done", lease=granted["lease"], outcome="ok")
    before = had(ADA)
    here.stop()
    here.start()
    assert 0.9 * before < had(ADA) <= before

    with (
        client_of(0, path) as root,
        client_of(ADA, path) as ada,
        client_of(BOB, path) as bob,
    ):
        granted = root.lease(exclusive=True)
        for client in (ada, bob):  # she asks first
            told = client.say(a_wish(exclusive=True)).hear()
            assert told is not None
            assert told["ev"] == "waiting"
        assert [row["user"] for row in here.waiting()] == [BOB, ADA]
        assert [row["users_before"] for row in here.waiting()] == [0, 1]
        root.ask("done", lease=granted["lease"], outcome="ok")
        told = bob.hear()
        assert told is not None
        assert told["ev"] == "granted"
        assert not ada.has_news()
