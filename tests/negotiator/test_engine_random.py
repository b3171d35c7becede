"""Random histories keep every promise of the engine; see `machine.py` for what is checked."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.negotiator.machine import Negotiation


@pytest.mark.parametrize("examples", [100, pytest.param(5000, marks=pytest.mark.soak)])
@pytest.mark.timeout(3600)
def test_random_histories_keep_every_promise(examples: int) -> None:
    search = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Negotiation, settings=search)
