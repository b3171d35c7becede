"""One site and one lease conversation out of many: who is asked, who is kept, who is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from grn.protocol.lease_messages import GrantedGpus
from grn.queue.events import AskLease
from grn.queue.jobs.job import AttemptFate, Settlement
from grn.queue.journal.rows import Command
from grn.queue.site import Attempt, Found
from grn.queue.sites.leases.choice import PilotSite
from grn.queue.sites.router import Router
from tests.queue.builders import a_spec
from tests.queue.sites.fakes import FakeLoop, FakeNode, FakeSite

COMMAND = Command(("true",), "/", {}, 0o022)
FIRST = Attempt(1, 1)


class World:
    """A router between a fake loop and fake nodes."""

    def __init__(self, *nodes: FakeNode) -> None:
        self.loop = FakeLoop()
        self.here = FakeSite()
        self.router = Router("cafe", self.loop, lambda _: self.here)  # type: ignore[arg-type]
        self.nodes = {node.name: node for node in nodes}
        self.set(*nodes)

    def set(
        self,
        *nodes: FakeNode,
        leaving: tuple[FakeNode, ...] = (),
        pilots: tuple[PilotSite, ...] = (),
    ) -> None:
        self.router.set_nodes(nodes, leaving, pilots)  # type: ignore[arg-type]

    def ask(self, job: int = 1, **spec: Any) -> None:
        self.router.leases.ask(AskLease(a_spec(job, **spec), 1, 0), {})

    def asked(self, job: int = 1) -> set[str]:
        return {name for name, node in self.nodes.items() if job in node.leases.asked}

    def grant(self, name: str, job: int = 1, lease: str = "L1") -> None:
        node = self.nodes[name]
        node.leases.asked.pop(job, None)
        self.router.granted(node, job, GrantedGpus(lease, "0", gpus=(0,)))  # type: ignore[arg-type]

    def refuse(self, name: str, job: int = 1, text: str = "too large") -> None:
        node = self.nodes[name]
        node.leases.asked.pop(job, None)
        self.router.refused(node, job, text)  # type: ignore[arg-type]

    def changes(self, name: str, *, is_up: bool, is_heard: bool | None = None) -> None:
        node = self.nodes[name]
        node.is_up = is_up
        node.is_heard = is_up if is_heard is None else is_heard
        node.trouble = "" if is_up else "it is cut off"
        self.router.node_changed(node)  # type: ignore[arg-type]

    def starts(self, name: str, attempt: Attempt = FIRST) -> str:
        lease = f"{name}/epoch-{name}/L{attempt.job}"
        self.router.start(attempt, COMMAND, lease, "0")
        return lease


def _in_a_loop(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def test_the_first_grant_wins_and_the_others_are_withdrawn() -> None:
    async def story() -> None:
        world = World(*(FakeNode(name) for name in "abcdef"))
        world.ask()
        asked = world.asked()
        assert len(asked) == 4
        winner = max(asked)
        world.grant(winner)
        assert world.loop.granted_to == {1: f"{winner}/epoch-{winner}/L1"}
        assert world.asked() == set()

    _in_a_loop(story)


def test_among_busy_nodes_those_are_asked_where_a_job_is_expected_to_start_first() -> None:
    async def story() -> None:
        names = "abcde"
        world = World(*map(FakeNode, names))
        world.router.leases.usual_s = {"long": 900.0, "short": 5.0}.get
        for job, name in enumerate(names, start=1):
            world.ask(job, at=name, job_type="long" if name == "b" else "short")
            world.grant(name, job, f"L{job}")
            world.starts(name, Attempt(job, 1))
        world.ask(9, job_type="short")
        assert world.asked(9) == {"a", "c", "d", "e"}
        world.router.leases.drop(9)
        world.router.leases.done("b/epoch-b/L2", {"outcome": "ok"}, lambda _: None)
        world.router.written(Attempt(2, 1))
        world.ask(10, job_type="short")
        assert "b" in world.asked(10)

    _in_a_loop(story)


def test_a_job_that_all_refuse_is_refused_in_the_words_of_all() -> None:
    async def story() -> None:
        world = World(FakeNode("a"), FakeNode("b"))
        world.ask(at="lab")
        world.refuse("a", text="only 1 GPU")
        assert world.loop.refusals == {}
        assert world.asked() == {"b"}
        world.refuse("b", text="only 2 GPUs")
        assert world.loop.refusals == {1: "a: only 1 GPU; b: only 2 GPUs"}

    _in_a_loop(story)


def test_a_node_that_is_away_may_still_take_what_all_others_refuse() -> None:
    async def story() -> None:
        world = World(FakeNode("a"), FakeNode("b", is_up=False))
        world.ask(at="lab")
        world.refuse("a", text="only 1 GPU")
        assert world.loop.refusals == {}
        assert world.loop.why[1] == "a: refused: only 1 GPU; b: cannot be used: no route to it"
        world.changes("b", is_up=True)
        assert world.asked() == {"b"}

    _in_a_loop(story)


def test_a_job_that_no_pilot_could_ever_hold_is_refused_at_once() -> None:
    async def story() -> None:
        world = World()
        world.set(pilots=(PilotSite("uni", 2, 3600.0, "its first pilot is being placed"),))
        world.ask(1, at="uni", gpus=4)
        world.ask(2, at="uni", gpus=2)
        world.ask(3, gpus=4)
        text = "uni: its pilots have 2 of the 4 GPUs it needs"
        assert world.loop.refusals == {1: text}
        assert world.router.leases.demand("uni") == {"jobs": 1, "gpus": 2}
        assert text in world.loop.why[3], "this machine may take it"
        world.set(pilots=(PilotSite("uni", 1, 3600.0, ""),))
        assert world.loop.refusals[2] == "uni: its pilots have 1 of the 2 GPUs it needs"

    _in_a_loop(story)


def test_a_job_that_takes_longer_than_pilots_waits_with_the_reason() -> None:
    async def story() -> None:
        world = World()
        world.router.leases.usual_s = lambda _type: 7200.0
        world.set(pilots=(PilotSite("uni", 2, 3600.0, ""),))
        world.ask(at="uni")
        assert world.loop.refusals == {}
        assert world.loop.why[1] == "uni: such jobs take 2h00m, and its pilots end after 1h00m"

    _in_a_loop(story)


def test_a_node_that_ends_before_a_job_could_is_not_asked_for_it() -> None:
    async def story() -> None:
        node = FakeNode("uni-1", "uni")
        world = World(node)
        world.router.leases.usual_s = lambda job_type: 100.0 if job_type == "slow" else None
        world.ask(1, at="uni", job_type="slow")
        world.ask(2, at="uni", job_type="new")
        assert set(node.leases.asked) == {1, 2}
        node.left_s = 60.0
        world.router.leases.withdraw_late()
        assert set(node.leases.asked) == {2}

    _in_a_loop(story)


def test_requests_move_away_from_a_node_that_is_cut_off_and_come_back() -> None:
    async def story() -> None:
        world = World(FakeNode("a"))
        world.ask(at="lab")
        world.router.awaited(world.nodes["a"], 1, "all GPUs are busy")  # type: ignore[arg-type]
        assert world.loop.why[1] == "a: all GPUs are busy"
        world.changes("a", is_up=False)
        assert world.asked() == set()
        assert world.loop.why[1] == "a: cannot be used: it is cut off"
        world.changes("a", is_up=True)
        assert world.asked() == {"a"}

    _in_a_loop(story)


def test_a_job_for_a_place_that_does_not_exist_waits_and_does_not_run_here() -> None:
    async def story() -> None:
        world = World()
        world.ask(at="lab")
        assert world.loop.why[1] == "no site or node is named lab: see `grn sites`"
        node = FakeNode("a")
        world.nodes["a"] = node
        world.set(node)
        assert world.asked() == {"a"}
        world.set()
        assert world.loop.why[1] == "no site or node is named lab: see `grn sites`"
        assert node.is_closed

    _in_a_loop(story)


def test_open_requests_pass_on_to_the_next_job_of_a_kind() -> None:
    async def story() -> None:
        world = World(FakeNode("a"), FakeNode("b"))
        world.ask(1)
        world.nodes["b"].leases.asked.pop(1)  # a grant of it is on its way
        heir = AskLease(a_spec(2), 1, 0)
        assert world.router.leases.pass_on(1, heir, {})
        assert world.asked(2) == {"a"}
        assert not world.router.leases.pass_on(1, heir, {})
        world.grant("a", 2, "L2")
        assert world.loop.granted_to == {2: "a/epoch-a/L2"}

    _in_a_loop(story)


def test_a_withdrawn_job_is_asked_for_nowhere() -> None:
    async def story() -> None:
        world = World(FakeNode("a"), FakeNode("b"))
        world.ask()
        assert world.router.leases.key_of(1) == "key-1"
        world.router.leases.drop(1)
        assert world.asked() == set()
        assert world.router.leases.key_of(1) is None

    _in_a_loop(story)


def test_orders_go_to_the_node_of_the_attempt_and_all_others_stay_here() -> None:
    async def story() -> None:
        world = World(FakeNode("a"), FakeNode("b"))
        lease = world.starts("b")
        world.router.start(Attempt(2, 1), COMMAND, "L9", "0")
        world.router.stop(FIRST, False)
        world.router.stop(Attempt(2, 1), True)
        world.router.leases.done(lease, {"outcome": "ok"}, lambda _: None)
        world.router.written(FIRST)
        world.router.written(FIRST)  # it is not known any more: it counts as one of here
        assert world.nodes["b"].orders == [("stop", FIRST, False), ("written", FIRST)]
        assert world.nodes["b"].leases.returned == ["L1"]
        assert world.nodes["a"].orders == []
        assert [order[0] for order in world.here.orders] == ["start", "stop", "written"]

    _in_a_loop(story)


def test_attempts_of_before_are_expected_of_nodes_that_come_later() -> None:
    async def story() -> None:
        world = World()
        found = world.router.find(FIRST, True, "a/epoch-a/L1")
        assert found == Found(AttemptFate.ALIVE)
        assert world.router.lost_nodes() == {"a"}
        assert "a is not known any more" in world.router.doubt(FIRST)
        node = FakeNode("a")
        world.set(node)
        assert list(node.expected) == [FIRST]
        assert node.expected[FIRST].epoch == "epoch-a"
        assert world.router.lost_nodes() == set()
        assert world.router.doubt(FIRST) == ""

    _in_a_loop(story)


def test_a_node_of_a_removed_site_runs_what_it_has_and_nothing_new() -> None:
    async def story() -> None:
        node = FakeNode("a")
        world = World(node)
        world.starts("a")
        world.ask(2, at="lab")
        assert world.asked(2) == {"a"}
        world.set()
        assert world.asked(2) == set()
        assert world.router.is_removed("a")
        assert world.router.names() == set()
        assert not node.is_closed
        world.router.written(FIRST)
        await asyncio.sleep(0)
        assert node.is_closed
        assert world.router.nodes == {}

    _in_a_loop(story)


def test_a_pilot_that_its_engine_does_not_list_is_not_given_up() -> None:
    """Its site is still there, so the engine will tell what became of it."""

    async def story() -> None:
        world, pilots = World(), (PilotSite("uni", 2, None, ""),)
        world.router.find(FIRST, True, "p/epoch-p/L1")
        world.set(leaving=(FakeNode("p", site="uni", is_up=False),), pilots=pilots)
        assert not world.router.is_removed("p")
        assert world.router.doubt(FIRST) == "p not heard of since the queue began"
        world.router.stop(FIRST, True)
        assert world.loop.found == []
        world.set()
        assert world.router.is_removed("p")
        assert "gives it up" in world.router.doubt(FIRST)

    _in_a_loop(story)


def test_a_pilot_that_answers_stays_until_its_engine_lists_it_or_it_is_lost() -> None:
    """Leases that an earlier queue did not use are returned over its stream."""

    async def story() -> None:
        world, pilots = World(), (PilotSite("uni", 2, None, ""),)
        world.router.find(FIRST, True, "p/epoch-p/L1")
        pilot = FakeNode("p", site="uni")
        world.set(leaving=(pilot,), pilots=pilots)
        world.router.written(FIRST)
        await asyncio.sleep(0)
        assert not pilot.is_closed
        pilot.is_up = pilot.is_heard = False
        world.router.node_changed(pilot)  # type: ignore[arg-type]
        assert pilot.is_closed
        assert world.router.nodes == {}

    _in_a_loop(story)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_attempt_out_of_reach_of_a_removed_site_is_given_up_when_told_at_once(
    is_known: bool,
) -> None:
    async def story() -> None:
        world = World()
        world.router.find(FIRST, True, "a/epoch-a/L1")
        if is_known:
            world.set(leaving=(FakeNode("a", is_up=False),))
        world.router.stop(FIRST, False)
        assert world.loop.found == []
        world.router.stop(FIRST, True)
        ((attempt, fate, text),) = world.loop.found
        assert (attempt, fate) == (FIRST, AttemptFate.INTERRUPTED)
        assert "whose site was removed" in text

    _in_a_loop(story)


def test_an_attempt_of_a_site_that_is_cut_off_is_never_given_up() -> None:
    async def story() -> None:
        world = World(FakeNode("a"))
        world.starts("a")
        world.changes("a", is_up=False)
        world.router.stop(FIRST, True)
        assert world.loop.found == []
        assert "not heard of since the queue began" in world.router.doubt(FIRST)
        world.router.nodes["a"].is_unusable = True  # type: ignore[misc]
        assert world.router.doubt(FIRST) == "a cannot be used: it is cut off"

    _in_a_loop(story)


def test_a_node_that_is_gone_for_sure_interrupts_what_it_had() -> None:
    async def story() -> None:
        world = World(FakeNode("a"), FakeNode("b"))
        world.starts("a")
        world.starts("b", Attempt(2, 1))
        world.ask(3, at="a")
        world.router.node_gone("a", "its job was cancelled")
        assert world.loop.found == [(FIRST, AttemptFate.INTERRUPTED, "its job was cancelled")]
        assert world.nodes["a"].is_closed
        assert world.loop.why[3] == "no site or node is named a: see `grn sites`"

    _in_a_loop(story)


def test_the_end_of_a_lease_of_an_unknown_node_is_settled_at_once() -> None:
    async def story() -> None:
        world = World()
        settled: list[Settlement] = []
        world.router.leases.done("a/epoch/L1", {"outcome": "ok"}, settled.append)
        assert settled == [Settlement()]

    _in_a_loop(story)


def test_two_names_of_one_machine_are_noticed() -> None:
    async def story() -> None:
        world = World(FakeNode("a"), FakeNode("b"))
        first, second = world.nodes.values()
        assert world.router.other_node_of(second, "agent-a") == "a"  # type: ignore[arg-type]
        assert world.router.other_node_of(first, "agent-a") == ""  # type: ignore[arg-type]

    _in_a_loop(story)
