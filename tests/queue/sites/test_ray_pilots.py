"""The keeper of Ray pilots without Ray: when an end is reported, what an adapter leaves behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grn.queue.sites.pilots import ray_rules
from grn.queue.sites.pilots.ray_actor import UP
from grn.queue.sites.pilots.ray_cluster import PilotDead
from grn.queue.sites.pilots.ray_pilots import UNSEEN_S, PilotKeeper
from grn.sites import SiteConfig

SITE = SiteConfig("cloud", "ray", address="auto")
MARK = "cafe"
OLD = ray_rules.pilot_name(SITE.name, MARK, "012345")


def _node(name: str, host: str, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "NodeManagerHostname": host}


class FakeHandle:
    """A pilot that Ray has not placed, until it dies."""

    def __init__(self) -> None:
        self.death = asyncio.Event()

    async def watch(self, seen: str) -> dict[str, str]:
        await self.death.wait()
        raise PilotDead("lost its node")

    async def drain(self) -> None: ...

    def relay(self, pipe: socket.socket) -> None: ...


class UpHandle(FakeHandle):
    """A pilot that runs; its streams send back what comes."""

    async def watch(self, seen: str) -> dict[str, str]:
        if seen == UP:
            await self.death.wait()
        return {"state": UP, "text": "", "node": "a", "host": "one"}

    def relay(self, pipe: socket.socket) -> None:
        with pipe:
            while data := pipe.recv(100):
                pipe.sendall(data)


class FakeCluster:
    """A cluster that answers sweeps as told, and a clock that each of them moves."""

    mark = MARK

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.swept: list[str] = []
        self.pilots: dict[str, FakeHandle] = {}
        self.now = 0.0

    async def names(self) -> list[str]:
        return list(self.pilots)

    async def start(self, name: str) -> FakeHandle:
        self.pilots[name] = FakeHandle()
        return self.pilots[name]

    async def find(self, name: str) -> FakeHandle | None:
        return self.pilots.get(name)

    async def kill(self, name: str) -> None:
        self.pilots.pop(name).death.set()

    async def nodes(self) -> list[dict[str, Any]]:
        return []

    async def sweep(self, name: str, node: str) -> str | None:
        self.now += UNSEEN_S / 2
        self.swept.append(name)
        return self.answers.pop(0) if self.answers else ""


class Adapter:
    """A keeper, and the lines it said."""

    def __init__(self, cluster: FakeCluster, folder: Path = Path("/")) -> None:
        self.lines: list[dict[str, Any]] = []
        say = self.lines.append
        self.keeper = PilotKeeper(cluster, SITE, str(folder), say, lambda: cluster.now)

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Let the keeper work until something is true."""
        running = asyncio.create_task(self.keeper.run())
        deadline = asyncio.get_running_loop().time() + 60
        while not is_true():
            assert asyncio.get_running_loop().time() < deadline, self.lines
            assert not running.done()
            await asyncio.sleep(0.01)
        running.cancel()

    def nodes(self) -> dict[str, list[str]]:
        found = [line["nodes"] for line in self.lines if "nodes" in line]
        return found[-1] if found else {}

    def gone(self) -> dict[str, str]:
        found = [line["gone"] for line in self.lines if "gone" in line]
        return found[-1] if found else {}


def _sweeps_until_told(*answers: str | None) -> list[str | None]:
    """Return the answers that were left when the end of a pilot was reported."""

    async def story() -> list[str | None]:
        cluster = FakeCluster(*answers)
        adapter = Adapter(cluster)
        adapter.keeper.hear({"known": [OLD]})
        await adapter.until(lambda: OLD in adapter.gone())
        return cluster.answers

    return asyncio.run(story())


def test_an_end_is_told_when_nothing_of_the_pilot_is_left() -> None:
    assert _sweeps_until_told("", "later") == ["later"]
    assert _sweeps_until_told("1 process", "", "later") == ["later"]


def test_an_end_on_a_machine_that_nobody_can_look_at_is_told_after_a_time() -> None:
    """A daemon of Ray may have died alone; the agent there needs some seconds to end its jobs."""
    assert _sweeps_until_told(None, None, "later") == ["later"]


def test_a_machine_that_is_seen_again_with_processes_delays_the_end() -> None:
    assert _sweeps_until_told(None, "1 process", "", "later") == ["later"]


def test_pilots_that_wait_for_gpus_are_withdrawn_with_their_adapter() -> None:
    async def story() -> None:
        cluster = FakeCluster()
        adapter = Adapter(cluster)
        adapter.keeper.hear({"known": [], "want": {"jobs": 1, "gpus": 1}})
        cluster.now = 10.0
        await adapter.until(lambda: len(cluster.pilots) == 1)
        (name,) = cluster.pilots
        await adapter.keeper.close()

        assert not cluster.pilots
        assert name in cluster.swept

    asyncio.run(story())


def test_a_pilot_that_may_have_attempts_stays_without_its_adapter() -> None:
    async def story() -> None:
        cluster = FakeCluster()
        await cluster.start(OLD)
        adapter = Adapter(cluster)
        adapter.keeper.hear({"known": [OLD]})
        await adapter.until(lambda: bool(adapter.lines))
        cluster.now = 100.0
        await adapter.keeper.close()

        assert list(cluster.pilots) == [OLD]

    asyncio.run(story())


def test_streams_of_a_pilot_end_with_its_adapter(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = FakeCluster()
        cluster.pilots[OLD] = UpHandle()
        adapter = Adapter(cluster, tmp_path)
        await adapter.until(lambda: OLD in adapter.nodes())
        reader, writer = await asyncio.open_unix_connection(adapter.nodes()[OLD][-1])
        writer.write(b"hello")
        said = await reader.readexactly(5)
        await adapter.keeper.close()

        assert (said, await reader.read()) == (b"hello", b"")
        assert not list(tmp_path.iterdir())

    asyncio.run(story())


def test_every_living_node_of_a_machine_can_end_a_pilot_there() -> None:
    nodes = [
        _node("a", "one", alive=False), _node("b", "one"), _node("c", "two"),
        _node("d", "three", alive=False),
    ]  # fmt: skip

    assert ray_rules.sweepers(nodes, "a") == (["b"], True)
    assert ray_rules.sweepers(nodes, "c") == (["c"], True)
    assert ray_rules.sweepers(nodes, "d") == ([], False)
    assert ray_rules.sweepers(nodes, "") == (["b", "c"], False)
    assert ray_rules.sweepers(nodes[:3], "") == (["b", "c"], True)
