"""The queue's line to the negotiator: keys, grants that cross a change of mind, restarts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grn import wire
from grn.protocol.lease_messages import GrantedGpus
from grn.queue.events import AskLease
from grn.queue.jobs.job import Settlement
from grn.queue.leases import Leases
from tests.cli.pictures import a_gpu, a_lease
from tests.harness import DEADLINE_S
from tests.queue.builders import a_spec

GRANT = {
    "ev": "granted",
    "visible": "0",
    "gpus": [{"index": 0, "uuid": "GPU-0"}],
    "reserved": 1,
    "probe": False,
    "nested": False,
}


class Negotiator(asyncio.Protocol):
    """Hears what the queue says, and answers only what a test has it say."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.transport: asyncio.Transport | None = None
        self._frames = wire.Frames(1 << 20)
        self._more = asyncio.Event()

    def __call__(self) -> Negotiator:
        return self  # one connection at a time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += [wire.decode(body) for body in self._frames.feed(data)]
        self._more.set()

    async def hears(self, op: str, place: int = 0) -> dict[str, Any]:
        """Return a message of one kind once it has come."""
        while len(found := [one for one in self.heard if one["op"] == op]) <= place:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), DEADLINE_S)
        return found[place]

    def say(self, message_id: int | None, **message: Any) -> None:
        assert self.transport is not None
        self.transport.write(wire.encode({"id": message_id, **message}))

    def hang_up(self) -> None:
        assert self.transport is not None
        self.transport.abort()
        self.heard.clear()


class Queue:
    """The other end: keeps what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()

    def has_work(self) -> bool:
        return True

    def connected(self) -> None:
        self.told.put_nowait(("connected",))

    def disconnected(self) -> None:
        self.told.put_nowait(("disconnected",))

    def granted(self, job: int, grant: GrantedGpus) -> None:
        self.told.put_nowait(("granted", job, grant.lease))

    def awaited(self, job: int, text: str) -> None:
        self.told.put_nowait(("awaited", job, text))

    def reasons(self, texts: dict[int, str]) -> None:
        self.told.put_nowait(("reasons", texts))

    def refused(self, job: int, text: str) -> None:
        self.told.put_nowait(("refused", job, text))

    async def hears(self, *expected: Any) -> None:
        assert await asyncio.wait_for(self.told.get(), DEADLINE_S) == expected


Story = Callable[[Leases, Queue, Negotiator], Awaitable[None]]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[[Story], None]:
    """Tell a story of a line that is kept to a negotiator that a test plays."""

    async def whole(story: Story, path: str) -> None:
        negotiator, queue = Negotiator(), Queue()
        server = await asyncio.get_running_loop().create_unix_server(negotiator, path)
        leases = Leases("0" * 16, queue)
        keeping = asyncio.create_task(leases.keep_connected())
        await queue.hears("connected")
        while negotiator.transport is None:  # it may hear of the line a turn later than we do
            await asyncio.sleep(0)
        await story(leases, queue, negotiator)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        leases.close()
        server.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    def run(story: Story, loop: Callable[[], Any] = asyncio.new_event_loop) -> None:
        with tempfile.TemporaryDirectory(prefix="grn-t", dir="/tmp") as folder:
            path = str(Path(folder) / "sock")
            monkeypatch.setenv("GRN_SOCKET", path)
            with closing(loop()) as running:
                running.run_until_complete(whole(story, path))

    return run


def test_a_lease_is_asked_for_awaited_and_granted(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        spec = a_spec(7, mem_bytes=5, gpus=2, priority=3, time_limit_s=60.0)
        asked_for = AskLease(spec, 1, 0)
        leases.ask(asked_for, {"bs": 8.0}, "0abc1234")
        asked = await negotiator.hears("lease")
        facts = {"type": "train.py", "gpus": 2, "mem": 5, "priority": 3, "args": {"bs": 8.0},
                 "time_limit": 60.0}  # fmt: skip
        assert (facts | {"code": "0abc1234"}).items() <= asked.items()
        negotiator.say(asked["id"], ev="waiting", text="no room")
        await queue.hears("awaited", 7, "no room")
        negotiator.say(asked["id"], **GRANT, lease="L")
        await queue.hears("granted", 7, "L")

    tell(story)


def test_the_request_of_a_victim_says_so(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        leases.ask(AskLease(a_spec(7), 1, 0, is_spared=True), {})
        asked = await negotiator.hears("lease")
        assert asked["spared"] is True

    tell(story)


def test_a_refusal_is_told_with_its_hint(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        leases.ask(AskLease(a_spec(7), 1, 0), {})
        asked = await negotiator.hears("lease")
        error = {"code": "NeverFits", "message": "Too much.", "hint": "Ask for less."}
        negotiator.say(asked["id"], error=error)
        await queue.hears("refused", 7, "Too much. Ask for less.")

    tell(story)


def test_a_grant_that_crosses_a_change_of_mind_is_given_back(tell: Callable[[Story], None]) -> None:
    """And the next request has another name: the old one may still be answered."""

    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        leases.ask(AskLease(a_spec(7), 1, 0), {})
        first = await negotiator.hears("lease")
        leases.drop(7)
        leases.ask(AskLease(a_spec(7, priority=5), 1, 0), {})
        negotiator.say(first["id"], **GRANT, lease="old")
        assert (await negotiator.hears("cancel"))["key"] == first["key"]
        second = await negotiator.hears("lease", 1)
        assert second["key"] != first["key"]
        assert (await negotiator.hears("done"))["lease"] == "old"
        negotiator.say(second["id"], **GRANT, lease="new")
        await queue.hears("granted", 7, "new")

    tell(story)


def test_every_attempt_has_a_name_of_its_own(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        keys = set()
        for place, attempt in enumerate((1, 2)):
            leases.ask(AskLease(a_spec(7), attempt, 0), {})
            asked = await negotiator.hears("lease", place)
            keys.add(asked["key"])
            negotiator.say(asked["id"], **GRANT, lease=f"L{attempt}")
            await queue.hears("granted", 7, f"L{attempt}")
        assert len(keys) == 2

    tell(story)


def test_what_was_asked_for_one_serves_another(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        leases.ask(AskLease(a_spec(7), 1, 0), {})
        asked = await negotiator.hears("lease")
        assert leases.pass_on(7, AskLease(a_spec(8), 1, 0), {})
        negotiator.say(asked["id"], **GRANT, lease="L")
        await queue.hears("granted", 8, "L")
        passed = leases.pass_on(8, AskLease(a_spec(9), 1, 0), {})
        assert not passed, "it was granted: there is nothing to pass on"

    tell(story)


def test_what_was_asked_is_asked_again_under_the_same_name(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        leases.ask(AskLease(a_spec(7), 1, 0), {})
        first = await negotiator.hears("lease")
        negotiator.hang_up()
        await queue.hears("disconnected")
        await queue.hears("connected")
        assert (await negotiator.hears("lease"))["key"] == first["key"]

    tell(story)


def test_an_end_that_was_not_heard_is_told_again(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        settled: list[Settlement] = []
        leases.done("L", {"outcome": "ok"}, settled.append)
        await negotiator.hears("done")
        negotiator.hang_up()
        await queue.hears("disconnected")
        assert settled == [Settlement()], "whoever waits for it is not kept waiting"
        await queue.hears("connected")
        again = await negotiator.hears("done")
        assert (again["lease"], again["outcome"]) == ("L", "ok")
        negotiator.say(again["id"], ok=True, ended="ok", alone=False, peak=5)
        leases.done("M", {"outcome": "ok"}, settled.append)
        told = await negotiator.hears("done", 1)
        negotiator.say(told["id"], ok=True, ended="oom", alone=False, peak=5)
        leases.ask(AskLease(a_spec(1), 1, 0), {})
        negotiator.say((await negotiator.hears("lease"))["id"], ev="waiting", text="x")
        await queue.hears("awaited", 1, "x")
        assert settled[1:] == [Settlement("oom", was_alone=False, peak_bytes=5)]

    tell(story)


class TimedLoop(asyncio.SelectorEventLoop):
    """An event loop that keeps the timers it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[asyncio.TimerHandle] = []

    def call_at(self, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        self.timers.append(super().call_at(*arguments, **options))
        return self.timers[-1]


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_settled_end_leaves_no_timer_that_wakes_an_idle_queue(
    tell: Callable[..., None], is_answered: bool
) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        settled = asyncio.Queue[Settlement]()
        leases.done("L", {"outcome": "ok"}, settled.put_nowait)
        told = await negotiator.hears("done")
        if is_answered:
            negotiator.say(told["id"], ok=True, ended="ok", alone=True, peak=5)
        else:
            negotiator.hang_up()
        await settled.get()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimedLoop)
        assert [
            one for one in loop.timers if not one.cancelled() and one.when() > loop.time()
        ] == []

    tell(story, TimedLoop)


def test_the_memory_of_all_gpus_is_known_while_there_is_a_negotiator(
    tell: Callable[[Story], None],
) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        asked = await negotiator.hears("status")
        assert leases.gpu_bytes == []
        gpus = [{"total_bytes": size} for size in (1, 3, 2)]
        negotiator.say(asked["id"], status={"gpus": gpus})
        leases.ask(AskLease(a_spec(1), 1, 0), {})
        negotiator.say((await negotiator.hears("lease"))["id"], ev="waiting", text="x")
        await queue.hears("awaited", 1, "x")
        assert leases.gpu_bytes == [3, 2, 1]
        negotiator.hang_up()
        await queue.hears("disconnected")
        assert leases.gpu_bytes == []

    tell(story)


def test_a_look_asks_once_for_all_who_look_and_not_while_the_answer_is_fresh(
    tell: Callable[[Story], None],
) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        seen = asyncio.Queue[str]()
        negotiator.say((await negotiator.hears("status"))["id"], status={"gpus": [], "leases": []})
        for name in ("first", "second"):
            leases.look(partial(seen.put_nowait, name))
        asked = await negotiator.hears("status", 1)
        leases_there = [a_lease("aaaa0001")]
        status = {"gpus": [a_gpu(0, "aaaa0001")], "leases": leases_there, "waiting": []}
        negotiator.say(asked["id"], status=status)
        assert [await seen.get(), await seen.get()] == ["first", "second"]
        assert [gpu.leases for gpu in leases.gpus] == [("aaaa0001",)]
        assert [lease.used_bytes for lease in leases.leases] == [a_lease()["used_bytes"]]
        leases.look(partial(seen.put_nowait, "third"))
        assert seen.get_nowait() == "third"
        negotiator.hang_up()
        await queue.hears("disconnected")
        assert (leases.gpus, leases.leases) == ([], [])
        leases.look(partial(seen.put_nowait, "nobody is there"))
        assert seen.get_nowait() == "nobody is there"

    tell(story)


@pytest.mark.parametrize("answer", ["silence", "the end", "another version"])
def test_whoever_looks_goes_on_without_an_answer(
    tell: Callable[[Story], None], answer: str
) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        seen = asyncio.Event()
        leases.look(seen.set)
        asked = await negotiator.hears("status", 1)
        if answer == "the end":
            negotiator.hang_up()
        elif answer == "another version":
            gpus = [{"total_bytes": 5, "index": "none"}]
            negotiator.say(asked["id"], status={"gpus": gpus, "leases": []})
        await asyncio.wait_for(seen.wait(), DEADLINE_S)
        assert leases.gpus == []

    tell(story)


def test_garbage_from_a_negotiator_ends_the_line_and_no_more(tell: Callable[[Story], None]) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        assert negotiator.transport is not None
        negotiator.transport.write(wire.HEADER.pack(3) + b"{{{")
        await queue.hears("disconnected")
        negotiator.heard.clear()
        await queue.hears("connected")

    tell(story)


def test_reasons_are_asked_for_once_and_heard_before_those_who_wait(
    tell: Callable[[Story], None],
) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        fresh = asyncio.Queue[str]()
        leases.refresh(lambda: fresh.put_nowait("nothing to ask"))
        assert fresh.get_nowait() == "nothing to ask"
        for job in (7, 8):
            leases.ask(AskLease(a_spec(job), 1, 0), {})
        seven, eight = [await negotiator.hears("lease", place) for place in (0, 1)]
        leases.refresh(lambda: fresh.put_nowait("first"))
        leases.refresh(lambda: fresh.put_nowait("second"))
        asked = await negotiator.hears("reasons")
        assert asked["keys"] == [seven["key"], eight["key"]]
        assert leases.pass_on(8, AskLease(a_spec(9), 1, 0), {})
        said = {seven["key"]: "no room", eight["key"]: "no GPU", "0" * 8: "?"}
        negotiator.say(asked["id"], reasons={key: {"why": text} for key, text in said.items()})
        await queue.hears("reasons", {7: "no room", 9: "no GPU"})
        assert [fresh.get_nowait(), fresh.get_nowait()] == ["first", "second"]
        assert len([one for one in negotiator.heard if one["op"] == "reasons"]) == 1

    tell(story)


@pytest.mark.parametrize("answer", ["an error", "silence", "the end"])
def test_whoever_waits_for_reasons_goes_on_without_an_answer(
    tell: Callable[[Story], None], answer: str
) -> None:
    async def story(leases: Leases, queue: Queue, negotiator: Negotiator) -> None:
        leases.ask(AskLease(a_spec(7), 1, 0), {})
        fresh = asyncio.Event()
        leases.refresh(fresh.set)
        asked = await negotiator.hears("reasons")
        if answer == "an error":  # of a negotiator that does not know the question
            negotiator.say(asked["id"], error={"code": "ProtocolError", "message": "", "hint": ""})
        elif answer == "the end":
            negotiator.hang_up()
        await asyncio.wait_for(fresh.wait(), DEADLINE_S)

    tell(story)
