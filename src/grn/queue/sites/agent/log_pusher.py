"""Send the output of attempts to the queue while they write it: each byte of each file once.

The queue says how much it has, so a new stream continues where the last one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from grn.queue.site import Attempt
from grn.queue.sites.stream import LOG_NAME, MAX_PIECE, LogPiece

LOOK_S = 0.2


@dataclass(slots=True)
class _Followed:
    """How much of each file of one attempt was sent."""

    send: Callable[[LogPiece], None]
    room: Callable[[], Awaitable[bool]]
    sent: dict[str, int] = field(default_factory=dict)
    is_busy: bool = False


class LogPusher:
    """The attempts whose output is sent."""

    def __init__(self, folder_of: Callable[[Attempt], str]) -> None:
        self._folder_of = folder_of
        self._followed: dict[Attempt, _Followed] = {}
        self._looking: asyncio.Task[None] | None = None

    def follow(
        self,
        attempt: Attempt,
        have: dict[str, int],
        send: Callable[[LogPiece], None],
        room: Callable[[], Awaitable[bool]],
    ) -> None:
        """Send what an attempt prints from now on, and what the queue does not have yet."""
        self._followed[attempt] = _Followed(send, room, dict(have))
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def follows(self, attempt: Attempt) -> bool:
        """True while the output of an attempt is sent."""
        return attempt in self._followed

    def forget(self, attempt: Attempt) -> None:
        """Send no more of an attempt."""
        self._followed.pop(attempt, None)

    def stop(self) -> None:
        """Send no more of any attempt."""
        self._followed.clear()

    def finish_silent(self, attempt: Attempt) -> bool:
        """Send no more of an attempt that has printed nothing; False if it may have."""
        one = self._followed.get(attempt)
        if one is not None and (one.is_busy or _files(self._folder_of(attempt))):
            return False
        self.forget(attempt)
        return True

    async def finish(self, attempt: Attempt) -> None:
        """Send the rest of an attempt's output."""
        one = self._followed.get(attempt)
        if one is None:
            return
        while one.is_busy:
            await asyncio.sleep(LOOK_S / 10)
        await self._push(attempt, one)
        if self._followed.get(attempt) is one:  # else a new stream follows it
            self.forget(attempt)

    async def _look(self) -> None:
        try:
            while self._followed:
                for attempt, one in list(self._followed.items()):
                    if not one.is_busy:
                        await self._push(attempt, one)
                await asyncio.sleep(LOOK_S)
        finally:
            self._looking = None

    async def _push(self, attempt: Attempt, one: _Followed) -> None:
        one.is_busy = True
        try:
            for name in _files(self._folder_of(attempt)):
                while piece := self._next(attempt, name, one.sent.get(name, 0)):
                    one.send(piece)
                    one.sent[name] = piece.offset + len(piece.data)
                    if not await one.room():
                        return
        finally:
            one.is_busy = False

    def _next(self, attempt: Attempt, name: str, offset: int) -> LogPiece | None:
        with contextlib.suppress(OSError):  # a file of a long log that was dropped meanwhile
            with open(os.path.join(self._folder_of(attempt), name), "rb") as file:
                file.seek(offset)
                data = file.read(MAX_PIECE)
            return LogPiece(attempt, name, offset, data) if data else None
        return None


def _files(folder: str) -> list[str]:
    """Return the files of an attempt's output, oldest part first."""
    if not os.path.exists(folder):  # nearly always, and cheaper than an error
        return []
    try:
        names = [name for name in os.listdir(folder) if LOG_NAME.fullmatch(name)]
    except OSError:
        return []
    return sorted(names, key=lambda name: (len(name), name))
