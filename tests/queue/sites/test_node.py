"""One node as the queue sees it, without a process: what it sends, and what it believes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from grn import __version__, wire
from grn.queue.jobs.job import AttemptFate, EndReason, Exit
from grn.queue.journal.rows import Command
from grn.queue.site import Attempt
from grn.queue.sites import stream
from grn.queue.sites.leases.remote_lease import NodeAddress, RemoteLease, node_of, remote
from grn.queue.sites.node import Node
from grn.queue.sites.node_attempts import MAX_KNOWN
from grn.queue.sites.stream import FrameReader, LeaseBytes, LogPiece, Message, encode
from tests.queue.sites.fakes import FakeLoop

ONE = Attempt(1, 1)
LEASE = RemoteLease("gpu2", "life-1", "L1")
COMMAND = Command(("true",), "/work", {"A": "b"}, 0o022, environment_id=3)


class Listener(FakeLoop):
    """The router, as a node sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def node_changed(self, _node: Node) -> None:
        self.changes += 1

    def other_node_of(self, _node: Node, agent: str) -> str:
        return "gpu1" if agent == "of-gpu1" else ""

    def granted(self, _node: Any, job: int, grant: Any) -> None:  # type: ignore[override]
        self.granted_to[job] = grant.lease

    def awaited(self, _node: Any, job: int, text: str) -> None:  # type: ignore[override]
        self.why[job] = text

    def reasons(self, _node: Any, texts: dict[int, str]) -> None:  # type: ignore[override]
        self.why.update(texts)

    def refused(self, _node: Any, job: int, text: str) -> None:  # type: ignore[override]
        self.refusals[job] = text


class Wire(asyncio.Transport):
    """The other end of a stream: keeps what the node is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = FrameReader()
        self.messages: list[Message] = []
        self.leases: list[Message] = []
        self._frames = wire.Frames(1 << 20)
        self.is_aborted = False

    def write(self, data: Any) -> None:
        for frame in self.reader.feed(bytes(data)):
            if isinstance(frame, LeaseBytes):
                self.leases += map(wire.decode, self._frames.feed(frame.data))
            elif isinstance(frame, dict):
                self.messages.append(frame)

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    async def said(self, op: str) -> list[Message]:
        await asyncio.sleep(0)  # frames of one turn are sent at its end
        return [one for one in (*self.messages, *self.leases) if one["op"] == op]


class World:
    """A node whose streams a test makes by hand."""

    def __init__(self, folder: Path) -> None:
        self.listener = Listener()
        address = NodeAddress("gpu2", "lab", ("true",))
        folder_of = lambda attempt: str(folder / f"{attempt.job}.{attempt.number}")  # noqa: E731
        self.node = Node(address, "cafe", folder_of, 1 << 20, self.listener)
        self.wire = Wire()

    def connect(self, epoch: str = "life-1", agent: str = "77-1", **more: Any) -> Wire:
        if self.node.is_heard:
            self.node.connection_lost(None)
        self.wire = Wire()
        self.node.connection_made(self.wire)
        self.arrive(stream.GREETING)
        hello = {"ev": "hello", "version": __version__, "epoch": epoch, "agent": agent, **more}
        self.say(hello)
        return self.wire

    def say(self, *frames: stream.Frame) -> None:
        for frame in frames:
            self.arrive(encode(frame))

    def arrive(self, data: bytes) -> None:
        """Let bytes come from the node, in pieces of what a connection takes at once."""
        buffer = self.node.get_buffer(-1)
        for begin in range(0, len(data), len(buffer)):
            piece = data[begin : begin + len(buffer)]
            buffer[: len(piece)] = piece
            self.node.buffer_updated(len(piece))

    def negotiator(self, *messages: Message) -> None:
        for message in messages:
            self.say(LeaseBytes(wire.encode(message)))

    def hold(self, lease: str = "L1") -> None:
        """Let the agent be granted a lease."""
        self.node.note_granted(lease)


def _in_a_loop(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_name_of_a_lease_carries_node_and_life() -> None:
    assert remote(str(LEASE)) == LEASE
    assert remote("264fa1b2") is None


@pytest.mark.parametrize(
    ("lease", "node"),
    [(None, ""), ("", ""), ("264fa1b2", ""), ("gpu2/71b7-bf/264fa1b2", "gpu2"), ("a/b", "")],
)
def test_a_lease_names_its_node(lease: str | None, node: str) -> None:
    assert node_of(lease) == node


def test_an_agent_of_another_version_is_not_used_and_both_are_named(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect(version="0.0.1")
        assert not world.node.is_heard
        assert world.wire.is_aborted
        world.node.connection_lost(None)
        assert world.node.state == "unusable"
        assert f"grn 0.0.1 is there and {__version__} here" in world.node.trouble
        world.node.away("No route to host")
        assert world.node.state == "cut"
        world.connect()
        assert world.node.state == "connecting"

    _in_a_loop(story)


def test_a_node_whose_negotiator_is_being_started_is_not_yet_one_that_has_none(
    folder: Path,
) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        assert world.node.state == "connecting"
        world.say({"ev": "negotiator", "up": False, "text": "no NVIDIA driver here"})
        assert world.node.state == "no negotiator"

    _in_a_loop(story)


def test_one_machine_under_two_names_is_used_once(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect(agent="of-gpu1")
        assert not world.node.is_heard
        assert world.wire.is_aborted

    _in_a_loop(story)


def test_environments_are_not_kept_for_ever(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.hold()
        for number in range(2 * MAX_KNOWN + 1):
            command = replace(COMMAND, environment_id=number)
            world.node.start(Attempt(number, 1), command, LEASE, "0")
        world.node.start(Attempt(999, 1), replace(COMMAND, environment_id=0), LEASE, "0")
        starts = await world.wire.said("start")
        first = [place for place, one in enumerate(starts) if one.get("is_first")]
        assert first == [0, MAX_KNOWN, 2 * MAX_KNOWN]
        assert "variables" in starts[-1]

    _in_a_loop(story)


@pytest.mark.parametrize("epoch", ["", "a/b", None, 7])
def test_an_agent_that_does_not_name_its_life_is_not_used(folder: Path, epoch: Any) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect(epoch=epoch)
        assert not world.node.is_heard

    _in_a_loop(story)


@pytest.mark.parametrize(
    "frame",
    [
        {"ev": "ended"},
        {"ev": "ended", "job": 1, "attempt": 1, "exit": []},
        {"ev": "found", "job": 1, "attempt": 1, "fate": "eaten"},
        {"ev": "refused", "text": "no"},
    ],
)
def test_nonsense_ends_the_stream_and_no_attempt(folder: Path, frame: Message) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.hold()
        world.node.start(ONE, COMMAND, LEASE, "0")
        world.say(frame)
        assert world.wire.is_aborted
        assert world.listener.ended == world.listener.found == []
        assert world.node.attempts == 1

    _in_a_loop(story)


def _mutated(chance: random.Random, value: Any) -> Any:
    """Return nonsense in the place of some values of a message."""
    if chance.random() < 0.15:
        nonsense = [None, True, -1, 1 << 70, 1.5, "", "\x1b[2J", "../../x", [], {}, [{}], {"a": []}]
        return chance.choice(nonsense)
    if isinstance(value, dict):
        return {key: _mutated(chance, one) for key, one in value.items() if chance.random() < 0.95}
    return [_mutated(chance, one) for one in value] if isinstance(value, list) else value


MESSAGES: list[Message] = [
    {"ev": "hello", "version": __version__, "epoch": "life-1", "agent": "77-1", "at": 1.0,
     "stream": 2, "draining": False},
    {"ev": "started", "job": 1, "attempt": 1},
    {"ev": "ended", "job": 1, "attempt": 1, "exit": stream.exit_to_json(Exit(0, ran_s=1.0)),
     "files": {"rows": [["out/a", 3, 1, False]], "note": ""}, "folder": "/there"},
    {"ev": "found", "job": 1, "attempt": 1, "fate": "interrupted", "files": {"rows": []}},
    {"ev": "negotiator", "up": True, "text": "none"},
    {"ev": "need", "digest": "0" * 64, "offset": 0},
    {"ev": "unsent", "job": 1, "attempt": 1, "text": "full"},
    {"ev": "got", "job": 1, "attempt": 1, "file": 0, "digest": "0" * 64, "text": ""},
    {"ev": "draining"}, {"ev": "pong"},
]  # fmt: skip
ANSWERS: list[Message] = [
    {"id": 1, "status": {"gpus": [{"total_bytes": 1}], "leases": [{"id": "L9", "pid": 77}]}},
    {"id": 2, "ev": "granted", "lease": "L2", "visible": "0", "indices": "0", "gpus": [],
     "reserved": 1, "probe": False, "nested": False},
    {"ev": "yield", "lease": "L1"},
    {"id": 2, "reasons": {"k": {"why": "w"}}},
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_whatever_a_node_sends_only_its_own_stream_ends(folder: Path, seed: int) -> None:
    """Frames of a node are as untrusted as those of any client."""

    async def story() -> None:
        chance, ended = random.Random(seed), 0
        world = World(folder)
        loop = asyncio.get_running_loop()
        trouble: list[object] = []
        loop.set_exception_handler(lambda _, context: trouble.append(context))
        for _ in range(400):
            if not world.node.is_heard or world.wire.is_aborted:
                world.connect()
                world.hold()
                world.node.start(ONE, COMMAND, LEASE, "0")
            kind = chance.randrange(4)
            if kind == 0:
                answer = _mutated(chance, chance.choice(ANSWERS))
                world.say(LeaseBytes(wire.encode(answer if isinstance(answer, dict) else {})))
            elif kind == 1:
                world.arrive(chance.randbytes(chance.randrange(1, 40)))
            else:
                message = _mutated(chance, chance.choice(MESSAGES))
                world.say(message if isinstance(message, dict) else {})
            await asyncio.sleep(0)
            ended += world.wire.is_aborted
        assert not trouble
        assert ended  # some of it was noticed

    _in_a_loop(story)


def test_an_attempt_is_started_and_an_environment_is_sent_once_for_each_stream(
    folder: Path,
) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.hold()
        world.node.start(ONE, COMMAND, LEASE, "0")
        world.node.start(Attempt(2, 1), COMMAND, LEASE, "0")
        first, second = await world.wire.said("start")
        assert first["variables"] == {"A": "b"}
        assert "variables" not in second
        assert (first["job"], first["lease"], first["cwd"]) == (1, "L1", "/work")
        world.connect()
        world.node.start(Attempt(3, 1), COMMAND, LEASE, "0")
        assert "variables" in (await world.wire.said("start"))[0]

    _in_a_loop(story)


def test_a_start_under_a_lease_of_an_earlier_agent_never_began(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect(agent="77-1")
        world.hold()
        world.connect(agent="78-2")  # its leases ended with the agent
        world.node.start(ONE, COMMAND, LEASE, "0")
        assert await world.wire.said("start") == []
        await asyncio.sleep(0)
        ((attempt, fate, _),) = world.listener.found
        assert (attempt, fate) == (ONE, AttemptFate.NOT_BEGUN)

    _in_a_loop(story)


def test_a_new_stream_asks_what_became_of_each_attempt_and_how_much_is_here(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.hold()
        world.node.start(ONE, COMMAND, LEASE, "0")
        world.say(LogPiece(ONE, "log", 0, b"12345"), LogPiece(ONE, "err", 0, b"1"))
        world.node.connection_lost(None)
        assert world.node.attempts == 1
        assert world.listener.found == []
        world.connect()
        (asked,) = await world.wire.said("find")
        assert asked["epoch"] == "life-1"
        assert asked["have"] == {"log": 5, "err": 1}

    _in_a_loop(story)


@pytest.mark.parametrize("fate", list(AttemptFate))
def test_what_a_node_has_found_is_passed_on(folder: Path, fate: AttemptFate) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.node.expect(ONE, LEASE)
        world.say({"ev": "found", "job": 1, "attempt": 1, "fate": fate.value})
        world.say({"ev": "found", "job": 9, "attempt": 1, "fate": fate.value})
        ((attempt, told, text),) = world.listener.found
        assert (attempt, told) == (ONE, fate)
        assert "gpu2" in text

    _in_a_loop(story)


def test_an_end_is_acknowledged_when_it_is_written_and_again_when_it_is_told_again(
    folder: Path,
) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.node.expect(ONE, LEASE)
        ended: Message = {"ev": "ended", "job": 1, "attempt": 1}
        ended["exit"] = stream.exit_to_json(Exit(3, ended_at=5.0))
        world.say(LogPiece(ONE, "log", 0, b"out"), ended)
        assert world.listener.ended == [(ONE, Exit(3, ended_at=5.0))]
        assert await world.wire.said("written") == []
        world.node.written(ONE)
        assert await world.wire.said("written") == [
            {"op": "written", "job": 1, "attempt": 1, "keep": False}
        ]
        world.say(ended)
        assert len(world.listener.ended) == 1
        assert len(await world.wire.said("written")) == 2

    _in_a_loop(story)


def test_output_with_a_gap_stays_on_the_node(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.node.expect(ONE, LEASE)
        world.say(LogPiece(ONE, "log", 0, b"ab"), LogPiece(ONE, "log", 5, b"f"))
        exit = stream.exit_to_json(Exit(0))
        world.say({"ev": "ended", "job": 1, "attempt": 1, "exit": exit})
        world.node.written(ONE)
        assert (folder / "1.1" / "log").read_bytes() == b"ab"
        assert (await world.wire.said("written"))[0]["keep"] is True

    _in_a_loop(story)


def test_output_of_an_attempt_that_is_not_expected_is_not_written(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.say(LogPiece(Attempt(9, 9), "log", 0, b"ab"))
        assert list(folder.iterdir()) == []

    _in_a_loop(story)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/work: No such file or directory", "the folder /work cannot be used on gpu2 (No such"),
        ("train: No such file or directory", "on gpu2: train: No such file or directory"),
    ],
)
def test_what_cannot_be_run_is_told_with_the_node(folder: Path, text: str, said: str) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect()
        world.hold()
        world.node.start(ONE, COMMAND, LEASE, "0")
        exit = stream.exit_to_json(Exit(127, because=EndReason.NOT_RUNNABLE, text=text))
        world.say({"ev": "ended", "job": 1, "attempt": 1, "exit": exit})
        ((_, told),) = world.listener.ended
        assert told is not None
        assert told.text.startswith(said)

    _in_a_loop(story)


def test_times_of_a_wrong_clock_are_put_right(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect(at=1e6)  # years behind
        world.node.expect(ONE, LEASE)
        exit = stream.exit_to_json(Exit(0, ended_at=1e6 + 50))
        world.say({"ev": "ended", "job": 1, "attempt": 1, "exit": exit})
        ((_, told),) = world.listener.ended
        assert told is not None
        skew = world.node.clock_skew_s
        assert told == structs.replace(Exit(0), ended_at=1e6 + 50 - skew)
        assert skew < -1e8

    _in_a_loop(story)


def test_leases_of_the_agent_that_no_attempt_uses_are_returned(folder: Path) -> None:
    async def story() -> None:
        world = World(folder)
        world.connect(agent="77-1")
        world.node.expect(ONE, LEASE)
        world.say({"ev": "negotiator", "up": True, "text": ""})
        world.hold("L2")
        rows = [{"id": lease, "pid": 77} for lease in ("L1", "L2", "L3", "L4")]
        rows += [{"id": "L5", "pid": 99}]  # another process holds it
        (asked,) = await world.wire.said("status")
        status = {"gpus": [{"total_bytes": 5}, {"total_bytes": 9}], "leases": rows[:3]}
        world.negotiator({"id": asked["id"], "status": status, "more": "1.3"})
        asked = (await world.wire.said("status"))[1]
        assert asked["after"] == "1.3"
        world.negotiator({"id": asked["id"], "status": {"leases": rows[3:], "waiting": []}})
        returned = [one["lease"] for one in await world.wire.said("done")]
        assert returned == ["L3", "L4"]
        assert world.node.leases.gpu_bytes == [9, 5]

    _in_a_loop(story)
