"""Random histories keep every promise of the engine; see `machine.py` for what is checked."""

import pytest
from hypothesis import HealthCheck, settings

from tests.negotiator.machine import Negotiation

RandomHistories = Negotiation.TestCase
RandomHistories.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
RandomHistories = pytest.mark.timeout(300)(RandomHistories)
