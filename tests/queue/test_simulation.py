"""Random histories: facts with crashes, kills and power cuts between them, keep every promise.

I1–I3, I6, I7, I10, I14 and liveness of the trust notes; see `simulation.py` and `world.py` for the
checks. GRN_SEED repeats a run.
"""

from __future__ import annotations

import os
import random

import pytest
from msgspec.structs import replace

from grn.queue.engine import QueueEngine
from grn.queue.events import (
    Action,
    AskLease,
    Event,
    NegotiatorFound,
    SaveEnd,
    SaveState,
)
from grn.queue.jobs import finish
from grn.queue.jobs.job import AttemptFate
from tests.queue.simulation import Simulation

pytestmark = pytest.mark.slow  # a campaign of pure code: the same on every Python version

SEED = os.environ.get("GRN_SEED")  # read before the tests clear what is GRN_ of the user's
PARTS = 10
EVENTS = 15_000  # in each world


@pytest.mark.parametrize("part", range(PARTS))
def test_150_000_random_events_keep_every_promise(part: int) -> None:
    histories(part, 1)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(900)
def test_3_million_random_events_keep_every_promise(part: int) -> None:
    histories(part, 20)


def histories(part: int, worlds: int) -> None:
    """Let worlds of random events pass; each checks every promise after each event."""
    first = int(SEED) + part * worlds if SEED else random.SystemRandom().getrandbits(32)
    told = 0
    for seed in range(first, first + worlds):
        print(f"repeat with: GRN_SEED={seed} python -m pytest tests/queue/test_simulation.py")
        world = Simulation(seed)
        world.run(EVENTS)
        told += world.events
        assert world.crashes > 10, "too peaceful a world proves nothing"
    assert told >= worlds * EVENTS


# --- the checks can fail -------------------------------------------------------------------


def finds_out(first_seed: int = 0, **mutant: object) -> str:
    """Return the complaint that ends a search with a broken part."""
    for seed in range(first_seed, first_seed + 50):
        try:
            Simulation(seed, **mutant).run(10_000)
        except (AssertionError, KeyError) as complaint:
            return repr(complaint)
    raise AssertionError("nobody has noticed")


def test_a_loop_that_acts_before_it_writes_is_found_out() -> None:
    assert "before it was written" in finds_out(acts_first=True)


def test_a_recovery_that_begins_a_claimed_attempt_again_is_found_out() -> None:
    def found(
        *, has_claim: bool, is_locked: bool, has_exit: bool, is_same_boot: bool
    ) -> AttemptFate:
        seen = finish.found(
            has_claim=has_claim, is_locked=is_locked, has_exit=has_exit, is_same_boot=is_same_boot
        )
        return AttemptFate.NOT_BEGUN if seen in (AttemptFate.LOST, AttemptFate.ALIVE) else seen

    assert "interrupted by nothing" in finds_out(found=found)


def test_a_recovery_that_takes_the_living_for_lost_is_found_out() -> None:
    def found(**facts: bool) -> AttemptFate:
        seen = finish.found(**facts)
        return AttemptFate.LOST if seen is AttemptFate.ALIVE else seen

    finds_out(found=found)


class Altered(QueueEngine):
    """An engine whose answers pass through one more hand."""

    def handle(self, event: Event) -> list[Action]:
        return [
            altered
            for action in super().handle(event)
            if (altered := self.alter(event, action)) is not None
        ]

    def alter(self, event: Event, action: Action) -> Action | None:
        raise NotImplementedError


class CountsTwice(Altered):
    """Takes two tries for one failure."""

    def alter(self, event: Event, action: Action) -> Action | None:
        if isinstance(action, SaveState) and action.job in self.jobs:
            job = self._table.jobs[action.job]
            used = job.spec.retries - action.tries_left
            if used == 1 and action.tries_left > 0:
                job.tries_left -= 1
                return replace(action, tries_left=job.tries_left)
        return action


class ForgetsAnEnd(Altered):
    """Does not write down how every tenth job ended."""

    def alter(self, event: Event, action: Action) -> Action | None:
        return None if isinstance(action, SaveEnd) and action.job % 10 == 0 else action


class ForgetsToAsk(Altered):
    """Does not ask a negotiator that comes back for every third job."""

    def alter(self, event: Event, action: Action) -> Action | None:
        is_forgotten = isinstance(action, AskLease) and action.spec.id % 3 == 0
        return None if is_forgotten and isinstance(event, NegotiatorFound) else action


@pytest.mark.parametrize(
    ("mutant", "complaint"),
    [
        (CountsTwice, "it was tried"),
        (ForgetsAnEnd, "before it was written"),
        (ForgetsToAsk, "nobody was asked"),
    ],
)
def test_an_engine_with_a_fault_is_found_out(mutant: type[QueueEngine], complaint: str) -> None:
    assert complaint in finds_out(engine_type=mutant)


def test_a_request_that_is_passed_on_though_it_was_granted_is_found_out() -> None:
    """The one it was passed on to is never asked for: it would wait for ever."""
    assert "nobody was asked" in finds_out(20, passes_blindly=True)
