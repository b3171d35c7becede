"""One process waits with very many requests: no event takes long, and the order stays.

Counts placements, which take nearly all of the time of an event, instead of measuring time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from grn.model.job import Outcome, Request
from grn.model.units import GiB, MiB
from grn.negotiator.actions import Action, Defer, Grant
from grn.negotiator.engine import Engine
from grn.negotiator.events import (
    Event,
    JobStarted,
    Released,
    Requested,
    Resumed,
    Sampled,
    Withdrawn,
)
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.learn.memory.type_profiles import TypeProfiles
from grn.negotiator.schedule.grant import MAX_WORK
from grn.negotiator.schedule.placement import Need, Size
from grn.negotiator.schedule.room.room_index import MANY
from tests.builders import a_reading, a_request, a_virtual_gpu

WAITING, TYPES = 10_000, 2_000
FEW = 8  # placements: of the new request, of its reason, of a request that GPUs are reserved for


class CountingNeeds(TypeNeeds):
    """Count how often the needs of a request are asked for, as each placement does first."""

    def __init__(self) -> None:
        super().__init__(TypeProfiles())
        self.count = 0

    def of(
        self, request: Request, sizes: Mapping[str, Size], reach: Mapping[str, int] | None = None
    ) -> dict[str, Need]:
        self.count += 1
        return super().of(request, sizes, reach)


class Flood:
    """Four GPUs, a process that has a little of each, and its requests for much more."""

    def __init__(self, waiting: int, types: int, **wish: Any) -> None:
        self.needs = CountingNeeds()
        self.engine = Engine(needs=self.needs)
        self.gpus = tuple(a_virtual_gpu(index, 8 * GiB) for index in range(4))
        self.at = 0.0
        self.placements = 0  # of the latest event
        self.handle(JobStarted(0.0, self.gpus, self.readings(), (), (), ()))
        self.ask("mine", pid=7, gpus=4, mem_bytes=GiB)
        for index in range(4):
            self.ask(f"other{index}", pid=20 + index, mem_bytes=6 * GiB, slots=(str(index),))
        for number in range(waiting):
            self.ask(f"{number:05}", pid=7, job_type=f"type {number % types}", **wish)

    def readings(self):
        return tuple(a_reading(gpu) for gpu in self.gpus)

    def handle(self, event: Event) -> list[str]:
        """Tell the engine one event and return the keys it granted."""
        self.at, before = event.at, self.needs.count
        self.actions: list[Action] = self.engine.handle(event)
        self.placements = self.needs.count - before
        return [action.key for action in self.actions if isinstance(action, Grant)]

    def ask(self, key: str, **changes: Any) -> list[str]:
        return self.handle(Requested(self.at, a_request(key, user=1000, **changes)))

    def end(self, key: str) -> list[str]:
        return self.handle(Released(self.at + 0.01, f"lease-{key}", Outcome.OK))

    def go_on(self) -> list[str]:
        return self.handle(Resumed(self.at))

    def look(self) -> list[str]:
        return self.handle(Sampled(self.at + 1.0, self.readings()))


@pytest.mark.parametrize(
    ("waiting", "wish"),
    [
        (WAITING, {"is_exclusive": True}),
        (TYPES, {"mem_bytes": 5 * GiB}),
        (TYPES, {"mem_bytes": 5 * GiB, "gpus": 2}),
    ],
    ids=["alone", "memory", "gang"],
)
def test_events_place_few_of_very_many_pinned_requests(waiting: int, wish: dict[str, Any]) -> None:
    flood = Flood(waiting, TYPES, **wish)
    placements = {}
    for number in range(3):
        assert flood.handle(
            Requested(flood.at, a_request(f"a{number}", user=1001, pid=8 + number, mem_bytes=MiB))
        )
        placements["request"] = flood.placements
        flood.end(f"a{number}")
        placements["release"] = flood.placements
        flood.handle(Withdrawn(flood.at, f"{number + 40:05}"))
        placements["withdrawal"] = flood.placements
        flood.look()
        placements["sample"] = flood.placements
    assert max(placements.values()) <= FEW, placements


def test_room_on_the_gpu_of_a_process_goes_to_its_first_request_that_fits() -> None:
    flood = Flood(200, 200, mem_bytes=5 * GiB)

    assert flood.end("other2") == ["00000"]
    assert flood.placements <= FEW
    assert flood.end("00000") == ["00001"]


def test_a_long_round_goes_on_after_the_answers_and_keeps_the_order() -> None:
    flood = Flood(250, 250, mem_bytes=32 * MiB)
    waited = [
        f"{number:05}" for number in range(250) if f"{number:05}" in flood.engine.view.waitlist
    ]

    granted = flood.end("other0")
    assert 0 < len(granted) < len(waited)
    assert Defer(is_soon=True) in flood.actions
    assert flood.ask("late", pid=9, mem_bytes=MiB) == []  # not before older requests
    while Defer(is_soon=True) in flood.actions:
        granted += flood.go_on()
        assert flood.placements <= MAX_WORK
    assert len(granted) > MAX_WORK
    assert granted == [*waited[: len(granted) - 1], "late"]  # the others find no room


def test_a_round_that_was_cut_short_begins_again_when_more_room_comes() -> None:
    flood = Flood(250, 250, mem_bytes=32 * MiB)
    flood.end("other0")
    assert Defer(is_soon=True) in flood.actions
    assert flood.ask("large", pid=9, mem_bytes=6 * GiB, priority=5) == []

    assert flood.end("other1")[0] == "large"  # before the others take that room


def of_very_many_gpus() -> Engine:
    """Return 65 GPUs that are all taken, with three requests that wait for one of them."""
    engine = Engine()
    gpus = tuple(a_virtual_gpu(index, 8 * GiB) for index in range(MANY + 1))
    readings = tuple(a_reading(gpu) for gpu in gpus)
    engine.handle(JobStarted(0.0, gpus, readings, (), (), ()))
    for number in range(MANY + 1 + 3):
        asked = a_request(f"{number:03}", pid=100 + number, mem_bytes=7 * GiB)
        engine.handle(Requested(1.0, asked))
    return engine


def granted(actions: list[Action]) -> list[str]:
    return [action.key for action in actions if isinstance(action, Grant)]


def test_with_very_many_gpus_an_end_is_answered_before_its_gpu_is_offered() -> None:
    engine = of_very_many_gpus()
    actions = engine.handle(Released(2.0, "lease-000", Outcome.OK))
    assert granted(actions) == []
    assert Defer(is_soon=True) in actions
    assert granted(engine.handle(Resumed(2.0))) == ["065"]
    engine.check()


def test_between_such_an_end_and_its_round_no_newcomer_is_preferred() -> None:
    engine = of_very_many_gpus()
    engine.handle(Released(2.0, "lease-000", Outcome.OK))
    newcomer = a_request("new", pid=7, mem_bytes=GiB)
    assert granted(engine.handle(Requested(2.0, newcomer))) == []
    actions = engine.handle(Resumed(2.0))
    assert granted(actions)[0] == "065"
    while Defer(is_soon=True) in actions:
        actions = engine.handle(Resumed(2.0))
    engine.check()


def test_when_nobody_waits_any_more_such_a_round_is_not_asked_for() -> None:
    engine = of_very_many_gpus()
    engine.handle(Withdrawn(2.0, "066"))
    engine.handle(Withdrawn(2.0, "067"))
    engine.handle(Released(2.0, "lease-000", Outcome.OK))
    actions = engine.handle(Withdrawn(2.0, "065"))
    assert Defer(is_soon=True) not in actions
    assert granted(engine.handle(Requested(3.0, a_request("new", pid=7, mem_bytes=GiB)))) == ["new"]
