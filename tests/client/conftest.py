"""One negotiator for all tests of a file that call the client in their own process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import TWO_SMALL, Negotiator, Story, hang_up


@pytest.fixture(scope="module")
def shared() -> Iterator[Negotiator]:
    story = Story.begin()
    made = Negotiator(story, TWO_SMALL).start()
    yield made
    made.stop()
    story.end()


@pytest.fixture
def here(shared: Negotiator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Negotiator]:
    """Make this process a client; each test must give back what it takes."""
    for name in ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG"):
        monkeypatch.setenv(name, shared.story.env[name])
    yield shared
    hang_up()
    assert (shared.leases(), shared.waiting()) == ([], [])
