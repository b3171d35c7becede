"""The code of a pilot's Ray actor: it keeps an agent running on its node, and relays bytes to it.

Ray gets this code by value, since its Python need not have grn: only the standard library is
imported, and grn's own programs are run by name. Ray kills the children of a worker that dies, so
the agent is none of them; it watches the process of the actor itself.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

CHUNK = 64 << 10  # what Ray carries within a message
WINDOW = 256 << 10  # bytes on their way to one side; more would fill its memory
MAX_CALLS = 16  # at the same time: of a `watch`, a stream, and streams that are about to end
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


class PilotStream:
    """One connection to the agent. Calls of Ray overtake each other, so pieces are numbered."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._changed = threading.Condition()
        self._pieces: dict[int, bytes] = {}  # whose turn has not come
        self._passed = 0  # pieces that the agent has
        self._is_passing = False
        self._taken = 0  # bytes that the queue has
        self._is_closed = False

    def write(self, number: int, data: bytes) -> None:
        """Pass a piece on after those before it; only one thread at a time waits for the agent."""
        with self._changed:
            self._pieces[number] = data
            if self._is_passing:
                return
            piece = self._next()
        while piece is not None:
            with suppress(OSError):  # after the end pieces are dropped
                self._agent.sendall(piece)
            with self._changed:
                self._passed += 1
                self._changed.notify_all()
                piece = self._next()

    def _next(self) -> bytes | None:
        piece = self._pieces.pop(self._passed, None)
        self._is_passing = piece is not None
        return piece

    def until_passed(self, count: int) -> None:
        """Wait until the agent has this number of pieces, or the stream ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._passed >= count)

    def read(self) -> Iterator[bytes]:
        """Yield the bytes of the agent until its end, no more than the queue has room for."""
        given = 0
        with suppress(OSError):
            while data := self._agent.recv(CHUNK):
                yield data
                given += len(data)
                self._until_taken(given - WINDOW)

    def _until_taken(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._taken >= size)

    def took(self, size: int) -> None:
        """Note how many bytes the queue has taken since the beginning."""
        with self._changed:
            self._taken = max(self._taken, size)
            self._changed.notify_all()

    def close(self) -> None:
        """End it; the last call that uses the connection closes it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with suppress(OSError):
            self._agent.shutdown(socket.SHUT_RDWR)


class PilotActor:
    """One actor: its agent, and the streams of the queue to it.

    Ray runs each call in a thread. In an actor with coroutines a call costs nearly twice as much.
    """

    def __init__(self, order: PilotOrder, node: str, gpus: str) -> None:
        self._order = order
        self._node = node
        self._gpus = gpus
        self._phase, self._text = STARTING, ""
        self._changed = threading.Condition()
        self._socket = ""
        self._streams: dict[int, PilotStream] = {}
        self._opened = 0
        self._keeping: threading.Thread | None = None
        # Its adapter may have been killed at once; then no call would ever come.
        self._unused = threading.Timer(FIRST_CALL_S, os._exit, (0,))
        self._unused.daemon = True
        self._unused.start()

    # --- the agent -----------------------------------------------------------------------

    def watch(self, seen: str = "") -> dict[str, str]:
        """Return the state of the pilot, at once or as soon as it is another than the one seen."""
        self._begin()
        with self._changed:
            self._changed.wait_for(lambda: self._phase != seen, POLL_S)
            return {
                "state": self._phase, "text": self._text, "node": self._node,
                "host": socket.gethostname(),
            }  # fmt: skip

    def drain(self) -> None:
        """Let the agent take nothing new, and leave when it is empty."""
        self._begin()
        self._run("drain")

    def _begin(self) -> None:
        with self._changed:
            if self._keeping is None:
                self._unused.cancel()
                self._keeping = threading.Thread(target=self._keep, daemon=True)
                self._keeping.start()

    def _become(self, state: str, text: str = "") -> None:
        with self._changed:
            self._phase, self._text = state, text
            self._changed.notify_all()

    def _keep(self) -> None:
        """Keep an agent running until it leaves on purpose, or cannot be run."""
        short_lives, text = 0, ""
        while short_lives < MAX_SHORT_LIVES:
            began = time.monotonic()
            status, said = self._run("start", "--bound-to", str(os.getpid()))
            text = said or f"its agent ended with status {status}"
            if status == 0 and self._until_agent_ends(json.loads(said)["socket"]):
                self._finish(LEFT)
            if self._phase == UP:
                self._become(STARTING)
            is_short = time.monotonic() - began < SHORT_LIFE_S
            short_lives = short_lives + 1 if is_short else 0
            time.sleep(PAUSE_S * short_lives)
        self._finish(FAILED, text)

    def _until_agent_ends(self, path: str) -> bool:
        """Wait for the end of the agent; True when it left on purpose, else it was killed."""
        with socket.socket(socket.AF_UNIX) as agent:
            try:
                agent.connect(path)
            except OSError:
                return False
            self._socket = path
            self._become(UP)
            with suppress(OSError):
                while agent.recv(CHUNK):
                    pass
        return os.path.exists(os.path.join(os.path.dirname(path), LEFT_MARK))

    def _finish(self, state: str, text: str = "") -> None:
        """End what is left, let the adapter see how it ended, then end without it."""
        self._run("end")
        self._become(state, text)
        time.sleep(LINGER_S)
        os._exit(0)

    def _run(self, verb: str, *words: str) -> tuple[int, str]:
        """Run a command of `allocation.py` with grn's interpreter; return status and last line."""
        return _do(self._order, _command(self._order, verb, *words), self._gpus)

    # --- streams of the queue ------------------------------------------------------------

    def open(self, version: str) -> int:
        """Open a stream to the agent and return its number; it replaces the one before.

        `version` is that of the queue. An agent of another one is replaced if its node was updated.
        """
        self._begin()
        self._until_up()
        if _text_of(os.path.join(os.path.dirname(self._socket), VERSION_FILE)) != version:
            self._run("renew")
            self._until_up()
        agent = socket.socket(socket.AF_UNIX)
        agent.connect(self._socket)
        with self._changed:
            before, self._opened = list(self._streams), self._opened + 1
            self._streams[self._opened] = PilotStream(agent)
        for number in before:
            self.close(number)
        return self._opened

    def _until_up(self) -> None:
        with self._changed:
            states = (UP, LEFT, FAILED)
            self._changed.wait_for(lambda: self._phase in states, READY_S)
            if self._phase != UP:
                raise ConnectionError(self._text or f"its agent is {self._phase}")

    def read(self, stream: int) -> Iterator[bytes]:
        """Yield the bytes of the agent until its end; Ray passes each on as soon as it is there."""
        if (agent := self._streams.get(stream)) is not None:
            yield from agent.read()
        self.close(stream)

    def took(self, stream: int, size: int) -> None:
        """Note how many bytes the queue has taken."""
        if (agent := self._streams.get(stream)) is not None:
            agent.took(size)

    def write(self, stream: int, number: int, data: bytes) -> None:
        """Pass a piece on to the agent; after the end it is dropped."""
        if (agent := self._streams.get(stream)) is not None:
            agent.write(number, data)

    def passed(self, stream: int, count: int) -> None:
        """Wait until the agent has this number of pieces, or the stream ends."""
        if (agent := self._streams.get(stream)) is not None:
            agent.until_passed(count)

    def close(self, stream: int) -> None:
        """End a stream."""
        if (agent := self._streams.pop(stream, None)) is not None:
            agent.close()


# --- tasks on a node without its pilot -------------------------------------------------------


def sweep(order: PilotOrder, worker: int = 0) -> str:
    """End what is left of a pilot on this node; return why it could not be ended.

    `worker` is the process that Ray gave a pilot which has never answered.
    """
    words = ["--worker", str(worker)] if worker else []
    status, said = _do(order, _command(order, "end", *words), "")
    return "" if status == 0 else said or f"status {status}"


def version(order: PilotOrder) -> str:
    """Return the version of grn on this node, or why there is none."""
    status, said = _do(order, [_python(order), "-c", "import grn; print(grn.__version__)"], "")
    return said or f"status {status}"


def _do(order: PilotOrder, command: list[str], gpus: str) -> tuple[int, str]:
    """Run a command on GPUs of this node; return its status and its last line."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=_environment(order, gpus), cwd="/", check=False,
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
