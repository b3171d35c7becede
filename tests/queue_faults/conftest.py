"""Rigs for the fault campaigns, and the seed that makes a failure repeatable."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.harness import Story, hang_up
from tests.queue_faults.rig import Rig

Rigs = Callable[..., Rig]

# Read before the tests clear all that is GRN_ and the user's.
_SEED = os.environ.get("GRN_SEED")


@pytest.fixture
def rigs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rigs]:
    """Make a queue under test: `rigs()`, or `rigs("commit-late")` for one with a fault of ours."""
    made: list[Rig] = []

    def make(mutant: str = "") -> Rig:
        rig = Rig(Story.begin(), mutant)
        for name in ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG"):
            monkeypatch.setenv(name, rig.story.env[name])
        made.append(rig)
        return rig

    yield make
    hang_up()
    for rig in made:
        rig.close()
        rig.story.end()


@pytest.fixture
def rig(rigs: Rigs) -> Rig:
    """Make the queue under test as it is."""
    return rigs()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of a random test, given by GRN_SEED to repeat one; printed when it fails."""
    chosen = int(_SEED) if _SEED else random.SystemRandom().getrandbits(32)
    name = request.node.nodeid
    print(f"repeat with: GRN_SEED={chosen} {sys.executable} -m pytest '{name}'")
    return chosen
