"""Homes and sites under test; nothing may be left of either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness import Story, hang_up
from tests.queue_faults.conftest import seed
from tests.queue_faults.rig import Rig
from tests.sites.pilot_sites import Clusters, RaySite, SlurmSite
from tests.sites.site_under_test import Home, SiteUnderTest, SshSite

__all__ = ["seed"]
Sites = Callable[..., SiteUnderTest]
ENGINES = (pytest.mark.engines, pytest.mark.slow)
KINDS = ("ssh", pytest.param("slurm", marks=ENGINES), pytest.param("ray", marks=ENGINES))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the kinds of sites that a test is not meant for: `@pytest.mark.kinds("ssh")`."""
    others = [item for item in items if not _is_meant(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def _is_meant(item: pytest.Item) -> bool:
    kinds = item.get_closest_marker("kinds")
    chosen = getattr(item, "callspec", None)
    return kinds is None or chosen is None or set(kinds.args) & set(chosen.params.values()) != set()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """Run at most one cluster of each engine in this process."""
    made = Clusters()
    yield made
    made.close()


def _site(kind: str, story: Story, clusters: Clusters, **more: Any) -> SiteUnderTest:
    if kind == "ssh":
        return SshSite(story, **more)
    return (SlurmSite if kind == "slurm" else RaySite)(story, clusters, **more)


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


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Run a test on every kind of site."""
    return str(request.param)


@pytest.fixture
def sites(home: Home, kind: str, clusters: Clusters) -> Iterator[Sites]:
    """Make a site of the kind under test, known to home and reachable."""
    made: list[SiteUnderTest] = []

    def make(**more: Any) -> SiteUnderTest:
        site = _site(kind, home.story, clusters, **more)
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


@pytest.fixture(scope="module", params=KINDS)
def _standing(request: pytest.FixtureRequest, clusters: Clusters) -> Iterator[Home]:
    """Make one home with one site for a whole module."""
    home = Home(Rig(Story.begin()))
    site = _site(str(request.param), home.story, clusters)
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
def lab(_standing: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Use the home and the site of the module; jobs that a failed test leaves are ended."""
    _use(_standing, monkeypatch)
    yield _standing
    rig = _standing.rig
    if left := [row["id"] for row in rig.ask("list", which="alive")["jobs"]]:
        rig.ask("cancel", jobs=left)
        for job in left:
            rig.ended(job)
