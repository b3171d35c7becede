"""What each end of a stream sends and receives by: frames of one turn leave together."""

from __future__ import annotations

import asyncio

from grn.queue.sites import stream
from grn.queue.sites.stream import Frame

MAX_TOGETHER = 1 << 16
# What a connection has just received. asyncio's own buffer is mapped and unmapped for each piece.
ARRIVED = bytearray(1 << 16)


class FrameWriter:
    """Frames to one transport; each would otherwise cost a system call here and on every relay."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._unsent = bytearray()

    @property
    def is_open(self) -> bool:
        """True while frames can be sent."""
        return not self._transport.is_closing()

    def send(self, frame: Frame) -> None:
        """Send one frame soon; a closed connection drops it."""
        if not self.is_open:
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += stream.encode(frame)
        if len(self._unsent) >= MAX_TOGETHER:
            self._flush()

    def _flush(self) -> None:
        if self._unsent and self.is_open:
            self._transport.write(bytes(self._unsent))
        self._unsent.clear()

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once: the other end may not read any more."""
        self._transport.abort()
