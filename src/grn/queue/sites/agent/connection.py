"""The connections of an agent: one of the queue to it, and its own to the node's negotiator.

Framing, back pressure, and what the queue has been sent; the negotiator's bytes are relayed unread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Protocol, cast

from grn.client import daemons
from grn.client.negotiator import call
from grn.errors import GrnError
from grn.proc.pidfd import credentials
from grn.queue.sites import stream
from grn.queue.sites.frame_writer import ARRIVED, FrameWriter
from grn.queue.sites.stream import Frame

log = logging.getLogger("grn.agent")
MAX_UNSENT = 8 << 20
RETRY_S = 1.0


class StreamListener(Protocol):
    """The agent, as a stream sees it."""

    def receive(self, source: AgentStream, frame: Frame) -> None: ...

    def stream_lost(self, source: AgentStream) -> None: ...


class AgentStream(asyncio.BufferedProtocol):
    """One connection of the queue."""

    def __init__(self, agent: StreamListener) -> None:
        self._agent = agent
        self._reader = stream.FrameReader()
        self._writer: FrameWriter | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.is_greeted = False
        self.heard_at = time.monotonic()
        self.has_asked_all = False  # the queue has named all attempts that it knows here
        self.has_heard_of_drain = False  # the queue starts nothing new here
        self.environments: dict[int, dict[str, str]] = {}  # by the queue's number of each

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).set_write_buffer_limits(MAX_UNSENT)
        self._writer = FrameWriter(cast(asyncio.Transport, transport))
        peer = transport.get_extra_info("socket")
        if credentials(peer)[1] != os.getuid():
            self._writer.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return ARRIVED

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = time.monotonic()
        try:
            for frame in self._reader.feed(ARRIVED[:nbytes]):
                self._agent.receive(self, frame)
        except (GrnError, OSError, LookupError, TypeError, ValueError) as error:
            text = error.message if isinstance(error, GrnError) else str(error)
            log.error("action=receive result=failed reason=%r", text)
            self.send({"ev": "refused", "text": text})
            self.close()

    def send(self, frame: Frame) -> None:
        """Send one frame; without a connection it is dropped."""
        if self._writer is not None:
            self._writer.send(frame)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    async def room(self) -> bool:
        """Wait until the queue reads on; False when the connection is lost."""
        await self._may_write.wait()
        return self._writer is not None and self._writer.is_open

    def close(self) -> None:
        """Close the connection once everything is sent."""
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        """Close the connection at once: the other end may not read any more."""
        if self._writer is not None:
            self._writer.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writer = None
        self._may_write.set()
        self._agent.stream_lost(self)


# --- to the negotiator of the node ---------------------------------------------------------


class NegotiatorLink(asyncio.BufferedProtocol):
    """A connection to the node's negotiator; its bytes are relayed unread."""

    def __init__(
        self, received: Callable[[bytes], None], changed: Callable[[bool, str], None]
    ) -> None:
        self._received = received
        self._changed = changed
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()

    async def keep_connected(self) -> None:
        """Connect, and connect again after a loss; start a negotiator if none answers."""
        loop = asyncio.get_running_loop()
        told: str | None = None
        while True:
            trouble = ""
            try:
                await loop.run_in_executor(None, daemons.ensure_negotiator, None)
                self._lost.clear()
                sock = await loop.run_in_executor(None, call)
                await loop.create_unix_connection(lambda: self, sock=sock)
            except GrnError as error:
                trouble = f"{error.message} {error.hint}".strip()
            except OSError as error:
                trouble = str(error)
            else:
                told = None
                self._changed(True, "")
                await self._lost.wait()
                self._changed(False, "its negotiator has ended")
            if trouble and trouble != told:
                told = trouble
                self._changed(False, trouble)
            await asyncio.sleep(RETRY_S if trouble else 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return ARRIVED

    def buffer_updated(self, nbytes: int) -> None:
        self._received(bytes(ARRIVED[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost.set()

    def write(self, data: bytes) -> None:
        """Pass bytes on; without a negotiator they are dropped, and asked again later."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
