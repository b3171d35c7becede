"""The nodes of all sites: made from the settings, and remembered while they have attempts."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from grn.errors import BadSetting
from grn.protocol.negotiator_rows import BookingRow
from grn.queue.site import Attempt
from grn.queue.sites.fleet import Fleet, FleetSettings
from grn.queue.sites.router import Router
from tests.queue.sites.fakes import FakeLoop, FakeSite

DATA = Path(__file__).resolve().parents[2] / "data"
LAB = '[sites.lab]\nssh = ["gpu2", "me@gpu3"]\n'
ONE = Attempt(1, 1)


class Idle(FakeLoop):
    def has_work(self) -> bool:
        return False


class World:
    """A fleet whose nodes never come to connect: no story gives way to their tasks."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.memory = folder / "nodes.json"
        self.config = config
        self.loop = Idle()
        here = FakeSite()
        self.router = Router("cafe", self.loop, lambda _: here)  # type: ignore[arg-type,return-value]
        self.settings = FleetSettings("cafe", lambda _: str(folder), 1 << 20, str(self.memory))
        self.fleet = Fleet(self.settings, self.router)

    def load(self, text: str) -> None:
        self.config.write_text(text)
        self.fleet.load()

    def remembered(self) -> set[str]:
        return set(json.loads(self.memory.read_text())["nodes"])


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], World]:
    config = tmp_path / "config.toml"
    monkeypatch.setenv("GRN_CONFIG", str(config))
    return lambda: World(tmp_path, config)


def _in_a_loop(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def test_the_hosts_of_a_site_are_nodes_and_are_remembered(make: Callable[[], World]) -> None:
    async def story() -> None:
        world = make()
        world.load(LAB)
        assert world.router.names() == {"gpu2", "gpu3"}
        assert world.router.nodes["gpu3"].address.pipe[-2] == "me@gpu3"
        assert world.remembered() == {"gpu2", "gpu3"}
        assert world.memory.stat().st_mode & 0o777 == 0o600
        world.load("")
        assert world.router.nodes == {}
        assert world.remembered() == set()

    _in_a_loop(story)


def test_a_changed_site_moves_its_nodes(make: Callable[[], World]) -> None:
    async def story() -> None:
        world = make()
        world.load(LAB)
        node = world.router.nodes["gpu2"]
        world.load(LAB + 'options = ["-p", "2222"]\n')
        assert world.router.nodes["gpu2"] is node
        assert "2222" in node.address.pipe

    _in_a_loop(story)


@pytest.mark.parametrize(("skew_s", "begins"), [(0.0, 1000.0), (1.5, 1000.0), (-7200.0, 8200.0)])
def test_bookings_of_a_node_are_shown_by_the_clock_here(
    make: Callable[[], World], skew_s: float, begins: float
) -> None:
    async def story() -> None:
        world = make()
        world.load(LAB)
        node = world.router.nodes["gpu2"]
        node.clock_skew_s = skew_s
        node.leases.bookings = [BookingRow(1, 0, "ada", 1, (0,), 1000.0, 4600.0, "ahead")]
        (row, _) = world.fleet.rows()
        (booking,) = row["bookings"]
        assert (booking["from_at"], booking["until_at"]) == (begins, begins + 3600)

    _in_a_loop(story)


def test_a_bad_table_is_told_and_changes_nothing(make: Callable[[], World]) -> None:
    async def story() -> None:
        world = make()
        world.load(LAB)
        with pytest.raises(BadSetting):
            world.load("[sites.lab]\nssh = 7\n")
        assert world.router.names() == {"gpu2", "gpu3"}

    _in_a_loop(story)


def test_a_node_of_a_removed_site_is_reached_as_an_earlier_queue_did(
    make: Callable[[], World],
) -> None:
    async def story() -> None:
        make().load(LAB)
        world = make()  # the next queue: the site is gone, an attempt is not
        world.config.write_text("")
        world.router.find(ONE, True, "gpu2/life/L1")
        assert world.router.lost_nodes() == {"gpu2"}
        world.fleet.load()
        assert world.router.is_removed("gpu2")
        assert world.router.names() == set()
        assert world.remembered() == {"gpu2"}
        (row,) = world.fleet.rows()
        assert (row["node"], row["site"], row["jobs"]) == ("gpu2", "lab", 1)
        assert "its site was removed" in row["trouble"]
        world.fleet.load()
        assert world.remembered() == {"gpu2"}

    _in_a_loop(story)


def test_the_way_to_a_node_is_kept_where_other_sites_are_left(make: Callable[[], World]) -> None:
    """A queue reads its sites before it finds the attempts of the one before."""

    async def story() -> None:
        make().load(LAB)
        world = make()
        world.config.write_text('[sites.other]\nssh = ["gpu9"]\n')
        world.fleet.load(is_recovered=False)
        world.router.find(ONE, True, "gpu2/life/L1")
        world.fleet.load()
        assert world.router.is_removed("gpu2")
        assert world.remembered() == {"gpu2", "gpu9"}

    _in_a_loop(story)


def test_nodes_that_an_earlier_release_remembered_are_known(make: Callable[[], World]) -> None:
    async def story() -> None:
        shutil.copy(DATA / "nodes-1.json", make().memory)
        world = make()
        world.config.write_text("")
        world.router.find(ONE, True, "gpu2/life/L1")
        world.fleet.load()
        assert world.router.nodes["gpu2"].address.pipe[-2] == "gpu2"

    _in_a_loop(story)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "nodes": {"gpu2": {"site": 1}}}']
)
def test_a_damaged_memory_is_set_aside(make: Callable[[], World], text: str) -> None:
    async def story() -> None:
        make().memory.write_text(text)
        world = make()
        world.load(LAB)
        assert world.remembered() == {"gpu2", "gpu3"}

    _in_a_loop(story)
