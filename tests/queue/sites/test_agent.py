"""An agent without a process: what it tells a queue, and when."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grn import __version__
from grn.queue.jobs.job import Exit
from grn.queue.local import attempt_files
from grn.queue.local.workers import LaunchSettings
from grn.queue.site import Attempt
from grn.queue.sites.agent.connection import AgentStream, NegotiatorLink
from grn.queue.sites.agent.node_environment import epoch
from grn.queue.sites.agent.orders import Agent
from grn.queue.sites.stream import Frame, FrameReader, LogPiece, Message, encode

ONE = Attempt(1, 1)
DEADLINE_S = 60.0


class NoNegotiator(NegotiatorLink):
    """The node's negotiator does not matter here."""

    async def keep_connected(self) -> None:
        return


class Queue(asyncio.Protocol):
    """The other end of a stream: the queue at home."""

    def __init__(self) -> None:
        self._reader = FrameReader()
        self._more = asyncio.Event()
        self.frames: list[Frame] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.say({"op": "hello", "version": __version__})

    def data_received(self, data: bytes) -> None:
        self.frames += self._reader.feed(data)
        self._more.set()

    def say(self, message: Message) -> None:
        self._transport.write(encode(message))

    async def hears(self, kind: str, times: int = 1) -> int:
        """Wait for a message and return the position of the first."""
        while self.heard().count(kind) < times:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), DEADLINE_S)
        return self.heard().index(kind)

    def heard(self) -> list[str]:
        """Return the kinds of all frames so far."""
        return [
            str(frame["ev"]) if isinstance(frame, dict) else type(frame).__name__
            for frame in self.frames
        ]

    def close(self) -> None:
        self._transport.abort()


def _agent(folder: Path) -> Agent:
    root, lock = str(folder / "agent"), str(folder / "lock")
    return Agent(LaunchSettings(root=root, queue_id="a" * 16, queue_lock=lock), NoNegotiator)


@asynccontextmanager
async def _connected(agent: Agent) -> AsyncIterator[Queue]:
    """Give an agent a new stream."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, queue = await loop.create_unix_connection(Queue, sock=ours)
    served: AgentStream = agent.new_stream()
    await loop.create_unix_connection(lambda: served, sock=theirs)
    await queue.hears("hello")
    yield queue
    queue.close()


def _end_on_disk(agent_root: Path, output: bytes) -> None:
    """Leave the files of an attempt that printed and ended."""
    folder = attempt_files.folder_of(str(agent_root / "agent"), ONE.job, ONE.number)
    os.makedirs(folder)
    Path(folder, "log").write_bytes(output)
    fd = attempt_files.begin(folder, "1 1")
    assert fd is not None
    attempt_files.write_exit(fd, folder, {"status": 0, "ran_s": 1.0}, is_synced=False)
    os.close(fd)


def test_an_end_before_the_queue_has_asked_is_told_behind_the_missing_output(
    tmp_path: Path,
) -> None:
    """After a cut the queue lacks the last output; an end told without it would lose it."""

    async def story() -> None:
        agent = _agent(tmp_path)
        _end_on_disk(tmp_path, b"begin\nover\n")
        async with _connected(agent) as queue:
            agent.attempt_ended(ONE, Exit(0))  # the new stream is there, and no question yet
            queue.say({"op": "ping"})
            await queue.hears("pong")
            queue.say({"op": "find", "job": 1, "attempt": 1, "epoch": epoch(), "have": {"log": 6}})
            queue.say({"op": "all-asked"})
            end = await queue.hears("ended")
            assert queue.frames[end - 1] == LogPiece(ONE, "log", 6, b"over\n")
            queue.say({"op": "ping"})
            await queue.hears("pong", 2)
            assert queue.heard().count("ended") == 1
        agent.close()

    asyncio.run(story())


def test_an_agent_does_not_wait_for_a_queue_that_does_not_know_an_attempt(tmp_path: Path) -> None:
    async def story() -> None:
        agent = _agent(tmp_path)
        agent.drain()
        _end_on_disk(tmp_path, b"")
        async with _connected(agent) as queue:
            agent.attempt_ended(ONE, Exit(0))
            queue.say({"op": "drain-heard"})
            queue.say({"op": "ping"})
            await queue.hears("pong")
            assert not agent.may_leave, "the queue may ask for it"
            queue.say({"op": "all-asked"})
            queue.say({"op": "ping"})
            await queue.hears("pong", 2)
            assert agent.may_leave
            agent.attempt_ended(Attempt(2, 1), Exit(0))
            assert agent.may_leave
        agent.close()

    asyncio.run(story())


def test_of_a_job_that_is_over_in_a_moment_only_the_end_is_told(tmp_path: Path) -> None:
    """Each message of a short job wakes every relay on its way."""

    async def story() -> None:
        agent = _agent(tmp_path)
        _end_on_disk(tmp_path, b"")
        async with _connected(agent) as queue:
            agent.attempt_started(ONE)
            queue.say({"op": "find", "job": 1, "attempt": 1, "epoch": epoch(), "have": {}})
            await queue.hears("ended")
            assert "started" not in queue.heard()
        agent.close()

    asyncio.run(story())
