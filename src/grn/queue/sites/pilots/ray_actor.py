"""The code of a pilot's Ray actor: it keeps an agent running on its node, and relays bytes to it.

Ray gets this code by value, since its Python need not have grn: only the standard library is
imported, and grn's own programs are run by name. Ray kills the children of a worker that dies, so
the agent is none of them; it watches the process of the actor itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

CHUNK = 64 << 10  # what Ray carries within a message
MAX_UNREAD = 4 * CHUNK
GATHER_S = 0.001  # each call costs a millisecond: wait for what comes next
POLL_S = 20.0
READY_S = 30.0
FIRST_CALL_S = 300.0
LINGER_S = 30.0
SHORT_LIFE_S, MAX_SHORT_LIVES, PAUSE_S = 3.0, 5, 0.5
STARTING, UP, LEFT, FAILED = "starting", "up", "left", "failed"
LEFT_MARK = "left"
VERSION_FILE = "version"


@dataclass(frozen=True)
class PilotOrder:
    """What a pilot is told when it is started."""

    name: str
    queue_id: str
    python: str  # the interpreter that has grn; empty: that of Ray
    idle_s: float
    env: Mapping[str, str]  # of the agent


class PilotActor:
    """One actor: its agent, and the streams of the queue to it."""

    def __init__(self, order: PilotOrder, node: str, gpus: str) -> None:
        self._order = order
        self._node = node
        self._gpus = gpus
        self._phase, self._text = STARTING, ""
        self._changed: asyncio.Event | None = None
        self._socket = ""
        self._streams: dict[int, StreamEnd] = {}
        self._opened = 0
        self._keeping: asyncio.Task[None] | None = None
        # Its adapter may have been killed at once; then no call would ever come.
        self._unused = threading.Timer(FIRST_CALL_S, os._exit, (0,))
        self._unused.daemon = True
        self._unused.start()

    # --- the agent -----------------------------------------------------------------------

    async def watch(self, seen: str = "") -> dict[str, str]:
        """Return the state of the pilot, at once or as soon as it is another than the one seen."""
        self._begin()
        if seen == self._phase and self._changed is not None:
            try:
                await asyncio.wait_for(self._changed.wait(), POLL_S)
            except asyncio.TimeoutError:
                pass
        return {
            "state": self._phase, "text": self._text, "node": self._node,
            "host": socket.gethostname(),
        }  # fmt: skip

    async def drain(self) -> None:
        """Let the agent take nothing new, and leave when it is empty."""
        self._begin()
        await self._run("drain")

    def _begin(self) -> None:
        if self._keeping is None:
            self._unused.cancel()
            self._changed = asyncio.Event()
            self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def _become(self, state: str, text: str = "") -> None:
        self._phase, self._text = state, text
        before, self._changed = self._changed, asyncio.Event()
        if before is not None:
            before.set()

    async def _keep(self) -> None:
        """Keep an agent running until it leaves on purpose, or cannot be run."""
        short_lives, text = 0, ""
        while short_lives < MAX_SHORT_LIVES:
            began = time.monotonic()
            status, said = await self._run("start", "--bound-to", str(os.getpid()))
            text = said or f"its agent ended with status {status}"
            if status == 0 and await self._until_agent_ends(json.loads(said)["socket"]):
                await self._finish(LEFT)
            if self._phase == UP:
                self._become(STARTING)
            is_short = time.monotonic() - began < SHORT_LIFE_S
            short_lives = short_lives + 1 if is_short else 0
            await asyncio.sleep(PAUSE_S * short_lives)
        await self._finish(FAILED, text)

    async def _until_agent_ends(self, path: str) -> bool:
        """Wait for the end of the agent; True when it left on purpose, else it was killed."""
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            return False
        self._socket = path
        self._become(UP)
        try:
            await reader.read()
        except OSError:
            pass
        writer.close()
        return os.path.exists(os.path.join(os.path.dirname(path), LEFT_MARK))

    async def _finish(self, state: str, text: str = "") -> None:
        """End what is left, let the adapter see how it ended, then end without it."""
        await self._run("end")
        self._become(state, text)
        await asyncio.sleep(LINGER_S)
        os._exit(0)

    async def _run(self, verb: str, *words: str) -> tuple[int, str]:
        """Run a command of `allocation.py` with grn's interpreter; return status and last line."""
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(self._order, verb, *words), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                env=_environment(self._order, self._gpus), cwd="/",
            )  # fmt: skip
        except OSError as error:
            return 127, f"{_python(self._order)}: {error.strerror}"
        said, _ = await process.communicate()
        return process.returncode or 0, _last_line(self._order, said)

    # --- streams of the queue ------------------------------------------------------------

    async def open(self, version: str) -> int:
        """Open a stream to the agent and return its number; it replaces the one before.

        `version` is that of the queue. An agent of another one is replaced if its node was updated.
        """
        self._begin()
        await self._until_up()
        if _text_of(os.path.join(os.path.dirname(self._socket), VERSION_FILE)) != version:
            await self._run("renew")
            await self._until_up()
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(StreamEnd, self._socket)
        for number in list(self._streams):
            await self.close(number)
        self._opened += 1
        self._streams[self._opened] = link
        return self._opened

    async def _until_up(self) -> None:
        deadline = time.monotonic() + READY_S
        while self._phase != UP:
            if self._phase in (LEFT, FAILED) or time.monotonic() > deadline:
                raise ConnectionError(self._text or f"its agent is {self._phase}")
            await self.watch(self._phase)

    async def exchange(self, stream: int, turn: int, data: bytes, wait_s: float) -> bytes | None:
        """Pass bytes on to the agent and return the next ones of it; None at its end.

        Returns none when it says nothing for a time, and as soon as the call of the next turn has
        come: so no answer overtakes the one before. Ray may start two calls in the wrong order.
        """
        if stream not in self._streams:
            return None
        link = self._streams[stream]
        if turn < link.turn:
            return b""
        link.turn = turn
        link.wake()
        if data:
            link.write(data)
            await link.room()
        await link.wait(wait_s)
        if data and not link.is_over:
            await asyncio.sleep(GATHER_S)
        return link.take() if turn == link.turn else b""

    async def close(self, stream: int) -> None:
        """End a stream."""
        if stream in self._streams:
            self._streams.pop(stream).close()


class StreamEnd(asyncio.Protocol):
    """One end of a stream: bytes are taken in pieces, and waited for by one caller at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.is_over = False
        self.turn = 0  # of the last call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_UNREAD and self._transport is not None:
            self._transport.pause_reading()
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._may_write.set()
        self.wake()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def write(self, data: bytes) -> None:
        """Send bytes; after the end they are dropped."""
        if self._transport is not None and not self.is_over:
            self._transport.write(data)

    async def room(self) -> None:
        """Wait until the other side has read most of what was written."""
        await self._may_write.wait()

    async def wait(self, limit_s: float | None = None) -> None:
        """Wait until there are bytes, the end has come, or somebody else calls `wake`."""
        if self._buffer or self.is_over:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(limit_s, self.wake) if limit_s is not None else None
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Let the caller that waits go on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def take(self) -> bytes | None:
        """Return a piece of the bytes that are here, none if there are none; None at the end."""
        if not self._buffer:
            return None if self.is_over else b""
        data = bytes(self._buffer[:CHUNK])
        del self._buffer[:CHUNK]
        if self._transport is not None and not self.is_over:
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


# --- tasks on a node without its pilot -------------------------------------------------------


def sweep(order: PilotOrder) -> str:
    """End what is left of a pilot on this node; return why it could not be ended."""
    status, said = _do(order, _command(order, "end"))
    return "" if status == 0 else said or f"status {status}"


def version(order: PilotOrder) -> str:
    """Return the version of grn on this node, or why there is none."""
    status, said = _do(order, [_python(order), "-c", "import grn; print(grn.__version__)"])
    return said or f"status {status}"


def _do(order: PilotOrder, command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=_environment(order, ""), cwd="/", check=False,
        )  # fmt: skip
    except OSError as error:
        return 127, f"{_python(order)}: {error.strerror}"
    return done.returncode, _last_line(order, done.stdout)


# --- commands of grn -------------------------------------------------------------------------


def _python(order: PilotOrder) -> str:
    return os.path.expanduser(order.python) or sys.executable


def _command(order: PilotOrder, verb: str, *words: str) -> list[str]:
    return [
        _python(order), "-m", "grn.queue.sites.agent.allocation", verb, "--queue", order.queue_id,
        "--allocation", order.name, "--idle-s", str(order.idle_s), *words,
    ]  # fmt: skip


def _environment(order: PilotOrder, gpus: str) -> dict[str, str]:
    """Return the variables of the agent: without those of a Ray worker, on its GPUs only."""
    kept = {name: value for name, value in os.environ.items() if not is_of_worker(name, value)}
    return {
        **kept,
        "PYTHONSAFEPATH": "1",  # before 3.11 the folder / is searched, which only root writes to
        "CUDA_VISIBLE_DEVICES": gpus,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **order.env,
    }


def is_of_worker(name: str, value: str) -> bool:
    """True for a variable that Ray sets for its workers, and that means nothing to others."""
    if name == "PYTHONBREAKPOINT":
        return value.startswith("ray.")
    return name.startswith("RAY_") or name in ("SPT_NOENV", "OMP_NUM_THREADS")


def _text_of(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _last_line(order: PilotOrder, said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if "No module named" in last and "grn" in last:
        where = f"{_python(order)} on {socket.gethostname()}"
        return f"{where} has no grn: install it there, or name another interpreter by --python"
    return last
