"""Random histories keep every promise of the engine; see `machine.py` for what is checked."""

import math

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from grn.negotiator.actions import Action, Defer, Grant
from grn.negotiator.engine import Engine
from grn.negotiator.events import Event, Resumed
from grn.negotiator.schedule.room.ledger import Rules
from tests.negotiator.machine import Negotiation

pytestmark = pytest.mark.slow  # a campaign of pure code: the same on every Python version


class Forgetful(Engine):
    """An engine that forgets refusals, so that every event places every request.

    It remembers those by which the host is kept for requests that have waited for long.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._patience_s = rules.patience_s
        self._scheduler.granter._refusals.without_room = lambda *_: None
        self._scheduler.granter.max_work = math.inf

    def handle(self, event: Event) -> list[Action]:
        for group in list(self._waitlist.in_turn()):
            refused, waited_s = group.refused, event.at - group.head.since
            is_kept = refused is not None and refused.host_reason is not None
            if not (is_kept and waited_s >= self._patience_s):
                self._waitlist.refuse(group, None)
        return super().handle(event)


class Compared(Engine):
    """An engine whose grants are compared to those of a forgetful one."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._reference = Forgetful(rules)
        self._scheduler.granter.max_work = math.inf

    def handle(self, event: Event) -> list[Action]:
        expected = self._reference.handle(event)
        actions = super().handle(event)
        granted = [action for action in actions if isinstance(action, Grant)]
        assert granted == [action for action in expected if isinstance(action, Grant)]
        return actions


class Interrupted(Engine):
    """An engine that does one thing at a time, in every round and sample, and none at an end."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._scheduler.granter.max_work = self._running.max_work = 1
        self._scheduler.granter.max_gpus_at_once = 0
        self.max_after_sample = 1


class Patient(Engine):
    """An engine that applies a sample lease by lease, and acts like one that does it at once."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self._reference = Engine(rules)
        self._running.max_work, self._reference._running.max_work = 1, math.inf
        self.max_after_sample = 1

    def handle(self, event: Event) -> list[Action]:
        expected = self._reference.handle(event)
        actions = super().handle(event)
        while self._running.is_behind or self._after_sample:
            actions = [*actions, *super().handle(Resumed(event.at))]
            self.check()
        assert _without_pauses(actions) == _without_pauses(expected)
        return expected


def _without_pauses(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Defer)]


class InterruptedNegotiation(Negotiation):
    """The same histories with rounds and samples in pieces."""

    engine_type = Interrupted


class PatientNegotiation(Negotiation):
    """The same histories with samples in pieces, compared to those with whole samples."""

    engine_type = Patient


class ComparedNegotiation(Negotiation):
    """The same histories with grants compared to those of the reference."""

    engine_type = Compared


@pytest.mark.parametrize(
    "machine", [ComparedNegotiation, InterruptedNegotiation, PatientNegotiation]
)
@pytest.mark.parametrize("examples", [100, pytest.param(5000, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_random_histories_keep_every_promise(machine: type[Negotiation], examples: int) -> None:
    search = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=search)
