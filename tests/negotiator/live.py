"""Raw clients, clients of other users, and a server inside the test: what tests of the edges need.

Sends bytes as they are, so that a test can say what no honest client would.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grn import wire
from grn.gpus.virtual import VirtualProbe, parse_virtual
from grn.negotiator.engine import Engine
from grn.negotiator.handlers import VERBS
from grn.negotiator.loop import Loop
from grn.negotiator.schedule.room.ledger import Rules
from grn.negotiator.server import Server, ServerLimits
from grn.negotiator.storage.store import Store
from tests.harness import Story

ANSWER_S = 60.0
OWN_UID, OTHER_UID, THIRD_UID = 54320, 54321, 54322
needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can be several users: run the tests as root for this one"
)
_keys = itertools.count(int.from_bytes(os.urandom(5), "big"))


def frame(body: bytes | str | Mapping[str, Any]) -> bytes:
    """Put a length before anything, JSON or not."""
    if not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    raw = body if isinstance(body, bytes) else body.encode()
    return wire.HEADER.pack(len(raw)) + raw


def a_key() -> str:
    """Return a request key nobody has used."""
    return f"{next(_keys):024x}"


def a_wish(**changes: Any) -> dict[str, Any]:
    """Return a request for a lease."""
    plain = {"op": "lease", "id": 1, "key": a_key(), "type": "t.py", "label": "t.py"}
    return plain | {"mem": 1 << 20} | changes


class Client:
    """A connection that says what it is told and reads frames; times out instead of hanging."""

    def __init__(self, where: str | Path | socket.socket) -> None:
        if isinstance(where, socket.socket):
            self.sock = where
        else:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.connect(str(where))
        self.sock.settimeout(ANSWER_S)
        self._frames = wire.Frames(wire.MAX_REPLY_BYTES)
        self._ready: list[bytes] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def raw(self, data: bytes) -> Client:
        """Send bytes as they are; the other side may have closed already."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)
        return self

    def say(self, *messages: Mapping[str, Any]) -> Client:
        return self.raw(b"".join(frame(message) for message in messages))

    def hear(self) -> dict[str, Any] | None:
        """Return the next message, None when the other side has closed."""
        while not self._ready:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._ready = self._frames.feed(data)
        message = json.loads(self._ready.pop(0))
        assert isinstance(message, dict)
        return message

    def has_news(self) -> bool:
        """True when there is something to hear now: an answer, a part of one, or the end."""
        return bool(self._ready or select.select([self.sock], [], [], 0)[0])

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        """Say one message and return its answer, which carries the same id."""
        message = {"op": op, "id": next(_keys)} | more
        answer = self.say(message).hear()
        assert answer is not None, f"closed instead of an answer to {message}"
        assert answer["id"] == message["id"]
        return answer

    def lease(self, **changes: Any) -> dict[str, Any]:
        """Ask for a lease and return the grant, however long it waits."""
        answer = self.say(a_wish(**changes)).hear()
        while answer is not None and answer.get("ev") == "waiting":
            answer = self.hear()
        assert answer is not None
        return answer

    def is_served(self) -> bool:
        """True when a question gets its answer."""
        return "version" in self.ask("ping")


class Inside:
    """A server in a thread of the test, with its parts in reach."""

    def __init__(self, folder: Path, limits: ServerLimits, gpus: str) -> None:
        self.path = str(folder / "inside.sock")
        self.stops = 0
        self._folder = folder
        self._limits = limits
        self._gpus = gpus
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.server: Server
        self._events: asyncio.AbstractEventLoop
        self._over: asyncio.Event

    def __enter__(self) -> Inside:
        self._thread.start()
        assert self._ready.wait(ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._events.call_soon_threadsafe(self._over.set)
        self._thread.join(ANSWER_S)
        assert not self._thread.is_alive()

    def client(self) -> Client:
        return Client(self.path)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the server's thread and return what it returns."""
        done = threading.Event()
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(function())
            finally:
                done.set()

        self._events.call_soon_threadsafe(run)
        assert done.wait(ANSWER_S)
        return results[0]

    async def _serve(self) -> None:
        self._events = asyncio.get_running_loop()
        self._over = asyncio.Event()
        probe = VirtualProbe(parse_virtual(self._gpus))
        store = Store(str(self._folder / "state"), "this boot")
        self.engine = Engine(Rules())
        loop = Loop(self.engine, store, probe, sample_s=0.1)
        self.server = Server(loop, self._limits, VERBS, "9.9", self._stop)
        loop.start(await probe.start())
        listener = await self._events.create_unix_server(self.server.connection, self.path)
        looking = asyncio.create_task(loop.sampler.observe())
        self._ready.set()
        await self._over.wait()
        looking.cancel()
        listener.close()
        self.server.close()
        await loop.finish()
        store.close()

    def _stop(self) -> None:
        self.stops += 1


def inside(folder: Path, gpus: str = "2x64GiB", **limits: Any) -> Inside:
    """Serve in this process, with virtual GPUs large enough for anything; no job is measured."""
    return Inside(folder, ServerLimits(**limits), gpus)


# --- other users ---------------------------------------------------------------------------

_PUPPET = """
import os, socket, sys
parent = socket.socket(fileno=int(sys.argv[1]))
uid, path = int(sys.argv[2]), sys.argv[3]
if uid != os.getuid():
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
mine.connect(path)
socket.send_fds(parent, [b"x"], [mine.fileno()])
mine.close()
parent.recv(1)  # live as long as the test, which speaks through the connection
"""

_DROP = """
import os, sys
{imports}
uid = int(sys.argv[1])
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
sys.argv = ["x", *sys.argv[2:]]
{code}
"""


def reachable(path: str | Path) -> str:
    """Let other users pass through the folders of a test to a socket in them."""
    Path(path).chmod(0o666)
    for folder in Path(path).parents:
        if Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o011)
    return str(path)


@contextlib.contextmanager
def client_of(uid: int, path: str) -> Iterator[Client]:
    """Connect from another process, as any user: who connects counts, whoever speaks later."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _PUPPET, str(theirs.fileno()), str(uid), path],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        ours.settimeout(ANSWER_S)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        assert fds, "the other user could not connect"
        try:
            with Client(socket.socket(fileno=fds[0])) as client:
                yield client
        finally:
            ours.close()
            process.wait(ANSWER_S)


def as_user(uid: int, imports: str, code: str, *arguments: str) -> Sequence[str]:
    """Return a command that becomes another user after its imports, then runs the code.

    The interpreter itself may lie where only root can read, so nothing is started afterwards.
    """
    program = _DROP.format(imports=imports, code=code)
    return [sys.executable, "-c", program, str(uid), *arguments]


@dataclass(frozen=True)
class Begun:
    """A negotiator that was started with a command of the test's own, or what it said instead."""

    process: subprocess.Popen[str]
    first_line: str

    @property
    def is_ready(self) -> bool:
        return self.first_line == "ready"

    def end(self, signum: int = signal.SIGTERM) -> tuple[int, str]:
        """End it, if it has begun, and return its exit status and all it has said."""
        if self.is_ready and self.process.poll() is None:
            self.process.send_signal(signum)
        _, said = self.process.communicate(timeout=ANSWER_S)
        return self.process.returncode, said


def begin(story: Story, command: Sequence[str], **env: str | None) -> Begun:
    """Start a negotiator and return when it is ready or has given up."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as said:
        process = subprocess.Popen(
            [*command, "--ready-fd", str(writer)],
            env=story.environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[writer],
            text=True,
        )
        os.close(writer)
        return Begun(process, said.readline().strip())


def negotiator_of(uid: int | None, *arguments: str) -> Sequence[str]:
    """Return the command of a negotiator, run by another user if one is given."""
    if uid is None:
        return [sys.executable, "-m", "grn.negotiator", *arguments]
    # What is imported later: the interpreter may be in a folder that the user cannot read.
    warm_up = "import argparse, concurrent.futures.thread; argparse.ArgumentParser().format_help()"
    imports = f"{warm_up}\nfrom grn.negotiator.__main__ import main"
    return as_user(uid, imports, "sys.exit(main())", *arguments)
