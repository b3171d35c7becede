"""Homes and sites under test; nothing may be left of either."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness import Story, hang_up
from tests.queue_faults.conftest import seed
from tests.queue_faults.rig import Rig
from tests.sites.site_under_test import KINDS, Home, SiteUnderTest

__all__ = ["seed"]
Sites = Callable[..., SiteUnderTest]


def _use(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process ask the daemons of a home."""
    for name in ("GRN_RUNTIME_DIR", "GRN_STATE_DIR", "GRN_CONFIG"):
        monkeypatch.setenv(name, home.story.env[name])


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Make a home whose queue is not started yet."""
    made = Home(Rig(Story.begin()))
    _use(made, monkeypatch)
    yield made
    hang_up()
    made.close()


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Run a test on every kind of site."""
    return str(request.param)


@pytest.fixture
def sites(home: Home, kind: str) -> Iterator[Sites]:
    """Make a site of the kind under test, known to home and reachable."""
    made: list[SiteUnderTest] = []

    def make(*given: object, **more: object) -> SiteUnderTest:
        site = KINDS[kind](home.story, *given, **more)
        made.append(site)
        site.start()
        home.add(site)
        return site

    yield make
    for one in made:
        one.close()


@pytest.fixture
def site(home: Home, sites: Sites) -> SiteUnderTest:
    """Make a site with one node, and start the queue at home."""
    made = sites()
    home.rig.start()
    return made


@pytest.fixture(scope="module", params=sorted(KINDS))
def _standing(request: pytest.FixtureRequest) -> Iterator[Home]:
    """Make one home with one site for a whole module."""
    home = Home(Rig(Story.begin()))
    site = KINDS[str(request.param)](home.story)
    try:
        site.start()
        home.add(site)
        home.rig.start()
        yield home
    finally:
        hang_up()
        site.close()
        home.close()


@pytest.fixture
def lab(_standing: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Use the home and the site of the module; a test leaves both as they were."""
    _use(_standing, monkeypatch)
    return _standing
