"""Make a stream to a node by its command, and make it again whenever it is lost or falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import time
from typing import IO, TYPE_CHECKING, Protocol

from grn import sites
from grn.model.text import harmless
from grn.proc import nodelay, spawn, terminate

if TYPE_CHECKING:
    import subprocess

    from grn.queue.sites.leases.remote_lease import NodeAddress

GREET_S = 40.0
PING_S, SILENT_S = 10.0, 35.0
FIRST_RETRY_S, MAX_RETRY_S = 0.5, 30.0
STEADY_S = 5.0  # a stream that lasted so long was a good one
MAX_STDERR = 4096


class StreamOwner(Protocol):
    """The node that a stream leads to, which is also the protocol of its connections."""

    address: NodeAddress

    @property
    def is_needed(self) -> bool:
        """True while there is work for it."""

    @property
    def is_heard(self) -> bool:
        """True while the agent answers."""

    def protocol(self) -> asyncio.BaseProtocol: ...

    def ping(self) -> None: ...

    def abort(self) -> None:
        """End the present stream at once."""

    def away(self, trouble: str) -> None:
        """Note why there is no stream."""


class Reconnection:
    """The connection of one node."""

    def __init__(self, owner: StreamOwner) -> None:
        self._owner = owner
        self._gone = asyncio.Event()
        self._wanted = asyncio.Event()
        self._retried = asyncio.Event()
        self._heard_at = 0.0
        self._is_closed = False
        self._was_greeted = False
        self._pid = 0  # of the command that makes the stream
        self._relays: list[socket.socket] = []  # connections of that command
        self._hurrying: asyncio.Task[None] | None = None
        self.fault = ""  # why the present stream was ended here

    def want(self) -> None:
        """Connect soon: there is work."""
        self._wanted.set()

    def retry(self) -> None:
        """Try again soon, whatever failed before."""
        self._wanted.set()
        self._retried.set()

    def close(self) -> None:
        """Make no other stream."""
        self._is_closed = True
        self._wanted.set()

    def heard(self) -> None:
        """Note that something came through the stream."""
        self._heard_at = time.monotonic()
        nodelay.acknowledge(self._relays)
        if not self._was_greeted and self._owner.is_heard:
            self._was_greeted = True
            if self._pid:  # all relays of the stream are connected now
                self._hurrying = asyncio.get_running_loop().create_task(self._hurry(self._pid))

    async def _hurry(self, pid: int) -> None:
        """Let the relays of the stream delay nothing."""
        found = await asyncio.get_running_loop().run_in_executor(None, nodelay.below, pid)
        if pid == self._pid:
            self._relays = found
        else:  # the stream has ended
            _close(found)

    def lost(self) -> None:
        """Note that the stream has ended."""
        self._gone.set()

    async def keep_connected(self) -> None:
        """Keep a stream while the owner needs one."""
        pause_s = FIRST_RETRY_S
        while not self._is_closed:
            if not self._owner.is_needed:
                self._wanted.clear()
                await self._wanted.wait()
            began = time.monotonic()
            try:
                await self._stream_once()
            except OSError as error:  # no files or sockets left here
                self._owner.away(str(error))
            if self._was_greeted and time.monotonic() - began > STEADY_S:
                pause_s = FIRST_RETRY_S
            if not self._is_closed:
                await self._rest(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)

    async def _rest(self, pause_s: float) -> None:
        await asyncio.sleep(min(pause_s, 1.0))
        self._retried.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._retried.wait(), max(0.0, pause_s - 1.0))

    async def _stream_once(self) -> None:
        """Make a stream and wait for its end."""
        loop = asyncio.get_running_loop()
        self._gone.clear()
        self._was_greeted, self.fault = False, ""
        pipe = self._owner.address.pipe
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as complaints:
            try:
                with theirs:
                    process = spawn.child(
                        pipe, stdin=theirs.fileno(), stdout=theirs.fileno(),
                        stderr=complaints.fileno(), start_new_session=True,
                    )  # fmt: skip
            except OSError as error:
                ours.close()
                self._owner.away(f"{pipe[0]}: {error.strerror}")
                return
            try:
                self._pid = process.pid
                ours.setblocking(False)
                await loop.create_connection(self._owner.protocol, sock=ours)
                await self._until_gone()
            finally:
                self._pid = 0
                _close(self._relays)
                self._relays = []
                self._owner.abort()
                await loop.run_in_executor(None, terminate.end_child, process, 1.0)
            if not self._is_closed:
                self._owner.away(self.fault or _complaint(complaints, process))

    async def _until_gone(self) -> None:
        """Wait for the end of the stream; end one that is silent."""
        self._heard_at = time.monotonic()
        while not self._gone.is_set():
            limit_s = SILENT_S if self._owner.is_heard else GREET_S
            if time.monotonic() - self._heard_at > limit_s:
                self.fault = f"not heard of for {limit_s:.0f} s"
                return
            self._owner.ping()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), PING_S)


def _close(connections: list[socket.socket]) -> None:
    for one in connections:
        one.close()


def _complaint(file: IO[bytes], process: subprocess.Popen[bytes]) -> str:
    """Return why a pipe has ended, in its own words."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_STDERR))
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    said = [harmless(line) for line in lines if line]
    if fault := sites.missing_grn(process.returncode, said):
        return fault
    return said[-1] if said else f"the connection ended (status {process.returncode})"
