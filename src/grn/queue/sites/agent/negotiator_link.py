"""The agent's connection to the negotiator of its node; its bytes are relayed unread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from grn.client import daemons
from grn.client.negotiator import call
from grn.errors import GrnError

RETRY_S = 1.0


class NegotiatorLink(asyncio.Protocol):
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

    def data_received(self, data: bytes) -> None:
        self._received(data)

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
