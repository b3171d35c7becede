"""One connection of the queue to an agent: framing, back pressure, and what it has been sent."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Protocol, cast

from grn.errors import GrnError
from grn.proc.pidfd import credentials
from grn.queue.sites import stream
from grn.queue.sites.frame_writer import FrameWriter
from grn.queue.sites.stream import Frame

log = logging.getLogger("grn.agent")
MAX_UNSENT = 8 << 20


class StreamListener(Protocol):
    """The agent, as a stream sees it."""

    def receive(self, source: AgentStream, frame: Frame) -> None: ...

    def stream_lost(self, source: AgentStream) -> None: ...


class AgentStream(asyncio.Protocol):
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

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        try:
            for frame in self._reader.feed(data):
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
