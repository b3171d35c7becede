"""The state of the machine for all open pages: one state mirror, closed while no page is open."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from grn.cli.web import queries
from grn.cli.web.queries import Row, settle
from grn.client.negotiator import MALFORMED, expected_at
from grn.client.state_mirror import StateMirror
from grn.errors import GrnError
from grn.protocol.snapshot import NEGOTIATOR, Snapshot

LOOK_S = 0.5
KEEP_ALIVE_S = 15.0
EXPECTED_S = 5.0  # between two questions for expected starts and ends


class Watchers:
    """One state mirror for all browsers, closed while no browser is connected."""

    def __init__(self) -> None:
        self._watch = StateMirror()
        self._latest: Row = {}
        self._number = 0  # of the latest picture
        self._count = 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    @property
    def picture(self) -> Snapshot:
        """The latest snapshot; it is not updated while no browser is connected."""
        if self._task is None:
            self._watch.take()
        return self._watch.picture

    async def pictures(self) -> AsyncIterator[Row]:
        """Yield a picture of the machine whenever something has changed, or after a while."""
        self._count += 1
        seen = -1
        try:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._look())
            while True:
                async with self._changed:
                    while seen == self._number or not self._latest:
                        await self._changed.wait()
                    seen, latest = self._number, self._latest
                yield latest
        finally:
            self._count -= 1

    async def _look(self) -> None:
        began = asked = time.monotonic()
        try:
            while self._count:
                await self._watch.wait_async(KEEP_ALIVE_S)
                if not settle(self._watch.picture, began):
                    continue
                async with self._changed:
                    self._latest = queries.now(self._watch.picture)
                    self._number += 1
                    self._changed.notify_all()
                await asyncio.sleep(LOOK_S)
                if not self._watch.picture.trouble[NEGOTIATOR] and time.monotonic() >= asked:
                    asked = time.monotonic() + EXPECTED_S
                    await self._expect()
        finally:
            self._task, self._latest = None, {}
            self._watch.close()
            self._watch = StateMirror()

    async def _expect(self) -> None:
        """Ask for expected starts and ends, which the change feed does not tell."""
        # A negotiator that is away or slow must not delay the pictures; the page tells of it.
        with contextlib.suppress(GrnError, asyncio.TimeoutError, *MALFORMED):
            asked = asyncio.to_thread(expected_at, time.time())
            self._watch.expect(await asyncio.wait_for(asked, LOOK_S))
