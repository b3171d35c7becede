"""Random histories keep every promise of the engine; see `machine.py` for what is checked."""

from hypothesis import HealthCheck, settings

from tests.negotiator.machine import Negotiation

TestRandomHistories = Negotiation.TestCase
TestRandomHistories.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
