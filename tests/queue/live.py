"""Real shims without a queue: a forker, and orders that a test makes up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grn import wire
from grn.queue.local import attempt_files as folders
from grn.queue.local.channel import MAX_SAID, GoOrder, StartOrder, StopOrder
from tests.harness import DEADLINE_S, SOURCES, is_running, wait_for

# It ignores signals, as in a queue that a script has started in the background or with `nohup`.
FORKER = """
import signal, sys
for signum in (signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2):
    signal.signal(signum, signal.SIG_IGN)
sys.path[:] = sys.argv[1:]
from grn.queue.local import forker
forker.main()
"""
PLAIN = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}


class Channel:
    """A shim at the other end of a line, as the queue would have it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.said = b""  # of the last order
        sock.settimeout(DEADLINE_S)

    def send(self, *orders: StartOrder | GoOrder | StopOrder) -> None:
        """Send orders in one piece."""
        self.sock.sendall(b"".join(wire.encode(order.to_json()) for order in orders))

    def is_done(self) -> bool:
        """Wait until the shim has done an order; False when it is gone instead."""
        self.said = self.sock.recv(MAX_SAID)
        return self.said.endswith(b"\n")

    def close(self) -> None:
        self.sock.close()


class Run:
    """One attempt that a shim was given."""

    def __init__(self, channel: Channel, order: StartOrder) -> None:
        self.channel = channel
        self.order = order
        self.folder = Path(order.folder)

    def stop(self, *, now: bool = False) -> None:
        self.channel.send(StopOrder(str(self.folder), now))

    def ended(self) -> dict[str, Any]:
        """Wait for the end and return the exit record."""
        assert self.channel.is_done(), self.trouble
        record = folders.read_exit(str(self.folder))
        assert record is not None, self.trouble
        assert folders.exit_in(self.channel.said) == record
        return record

    def says(self, text: str) -> None:
        """Wait until the command has printed something."""
        wait_for(lambda: text in self.log, lambda: f"{text!r} in {self.log!r}")

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    @property
    def err(self) -> str:
        path = self.folder / "err"
        return path.read_text() if path.exists() else ""

    @property
    def shim_pid(self) -> int:
        """Return the pid of the shim, once it has begun."""
        return int(wait_for(lambda: folders.read_claim(str(self.folder))).split()[0])

    @property
    def trouble(self) -> str:
        path = Path(folders.trouble_of(str(self.folder)))
        return path.read_text() if path.exists() else "no trouble was written"


class Shims:
    """A forker, and shims of it with folders under one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._forker = subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", FORKER, str(SOURCES), *sys.path], stdin=theirs
            )
        self._channels: list[Channel] = []
        self._runs: list[Run] = []
        self._count = 0

    def channel(self) -> Channel:
        """Return a line to a new shim."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._ours, [b"F"], [theirs.fileno()])
        self._channels.append(Channel(ours))
        return self._channels[-1]

    def order(self, *argv: str, **changes: Any) -> StartOrder:
        """Return an order without a lease; `env` is the environment of the command."""
        self._count += 1
        number = self._count
        (self.root / f"cwd{number}").mkdir()
        usual: dict[str, Any] = {
            "folder": str(self.root / f"{number}.1"),
            "argv": argv,
            "cwd": str(self.root / f"cwd{number}"),
            "environment_id": 1,
            "new_environment": changes.pop("env", PLAIN),
            "extra": {},
            "umask": 0o022,
            "lease": "",
            "visible": "0",
            "grace_s": 5.0,
            "log_bytes": 1 << 20,
            "queue_lock": str(self.root / "no-queue"),
            "begun": str(self.root / "begun"),
        }
        return StartOrder(**usual | changes)

    def start(self, *argv: str, channel: Channel | None = None, **changes: Any) -> Run:
        """Give a command to a new shim, or to one that has nothing to do."""
        order = self.order(*argv, **changes)
        channel = channel or self.channel()
        channel.send(order)
        self._runs.append(Run(channel, order))
        return self._runs[-1]

    def sh(self, line: str, *, channel: Channel | None = None, **changes: Any) -> Run:
        return self.start("/bin/sh", "-c", line, channel=channel, **changes)

    def ran(self, line: str, **changes: Any) -> tuple[Run, dict[str, Any]]:
        """Run a line of shell to its end."""
        run = self.sh(line, **changes)
        return run, run.ended()

    def python(self, text: str, **changes: Any) -> Run:
        return self.start(sys.executable, "-S", "-E", "-c", text, **changes)

    def close(self) -> None:
        """End everything; commands that a test has left running too."""
        for run in self._runs:
            claim = folders.read_claim(str(run.folder))
            if claim and folders.is_locked(str(run.folder)):
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(claim.split()[0]), signal.SIGUSR1)
        for channel in self._channels:
            channel.close()
        self._ours.close()
        assert self._forker.wait(DEADLINE_S) == 0
        for run in self._runs:
            wait_for(lambda run=run: not folders.is_locked(str(run.folder)), "a shim to leave")


def gone(pid: int) -> None:
    """Wait until a process has ended."""
    wait_for(lambda: not is_running(pid), f"process {pid} to end")


def pids_in(run: Run, count: int) -> Sequence[int]:
    """Return the numbers that a command has printed, once there are so many."""
    wait_for(lambda: len(run.log.split()) >= count, lambda: f"{count} pids in {run.log!r}")
    return [int(word) for word in run.log.split()[:count]]
