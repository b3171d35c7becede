"""Those who come back after a restart stand where they stood, in whatever order they come."""

from __future__ import annotations

import random

import pytest

from grn.model.units import GiB
from grn.negotiator.events import Requested, Withdrawn
from grn.negotiator.schedule.turns.fair_share import class_of
from grn.negotiator.schedule.turns.order import WaitingRequest
from grn.negotiator.schedule.turns.reconnects import Returning
from grn.negotiator.schedule.turns.wait_queue import Waitlist
from tests.builders import a_request, an_engine
from tests.negotiator.test_order import a_waiting


@pytest.mark.parametrize("seed", range(12))
def test_who_comes_back_in_any_order_stands_as_before(seed: int) -> None:
    """Users and priorities apart, some give up meanwhile, and newcomers stand last."""
    chance = random.Random(seed)
    keys = [f"k{place}" for place in range(20)]
    engine = an_engine(waiting=keys)
    coming = [*keys, *(f"new{n}" for n in range(6))]
    chance.shuffle(coming)
    for key in coming[:-1]:  # while one is away nobody is given anything
        engine.handle(Requested(0.1, _request(key)))
        if chance.random() < 0.2:
            gone = chance.choice([one.request.key for one in engine.view.waitlist])
            engine.handle(Withdrawn(0.1, gone))
        _check(engine.view.waitlist)


def _request(key: str):
    number = int(key.strip("knew"))
    sizes = {"mem_bytes": (1 + number % 3) * GiB}  # not all in one group
    return a_request(key, user=1000 + number % 2, priority=number % 3 // 2, **sizes)


def _check(waitlist: Waitlist) -> None:
    """Check that of one user and class the older never has the later place."""
    lines: dict[object, list[WaitingRequest]] = {}
    for waiting in sorted(waitlist, key=lambda one: one.sequence):
        lines.setdefault((waiting.request.user, class_of(waiting)), []).append(waiting)
    for line in lines.values():
        places = [waiting.place_h for waiting in line]
        assert places == sorted(places)


class Counting(Waitlist):
    """Counts how often somebody was looked up, and lets nobody go through all."""

    looks = 0

    def find(self, key: str) -> WaitingRequest | None:
        self.looks += 1
        return super().find(key)

    def __iter__(self):
        raise AssertionError("all who wait were looked at")


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_very_many_come_back_without_a_look_at_all_who_wait(order: str) -> None:
    waitlist = Counting()
    returning = Returning(waitlist)
    all_of_them = [a_waiting(f"k{place}", place) for place in range(500)]
    returning.expect((one.request.key, one.sequence) for one in all_of_them)
    coming = all_of_them[:: -1 if order == "backward" else 1]
    if order == "shuffled":
        random.Random(1).shuffle(coming)
    for waiting in coming:
        assert returning.take(waiting.request.key) == waiting.sequence
        returning.place_before(waiting)
        waitlist.add(waiting, is_pinned=False)
        returning.came(waiting)

    assert waitlist.looks <= len(all_of_them)
    assert not returning


def test_who_has_given_up_or_changed_its_class_is_nobody_to_stand_before() -> None:
    waitlist = Waitlist()
    returning = Returning(waitlist)
    returning.expect([("first", 0), ("away", 9)])
    for key, sequence, more in (("gone", 1, {}), ("moved", 2, {}), ("stays", 3, {"place_h": 2.5})):
        joined = a_waiting(key, sequence)
        joined = WaitingRequest(joined.request, sequence, 0.0, **more)
        waitlist.add(joined, is_pinned=False)
        returning.came(joined)
    waitlist.pop("gone")
    waitlist.pop("moved")
    waitlist.add(a_waiting("moved", 2, priority=5), is_pinned=False)

    assert returning.place_before(a_waiting("first", 0)) == 2.5
    assert returning.place_before(a_waiting("last", 4)) is None
    assert returning.give_up() == ["first", "away"]
