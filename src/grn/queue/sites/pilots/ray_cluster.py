"""The role of a Ray cluster and of its pilots: what is asked of them, and how that may fail.

`ray.py` plays it by calls of Ray, and tests by fakes.
"""

from __future__ import annotations

import socket
from typing import Any, Protocol


class ClusterAway(Exception):
    """The cluster does not answer now; nothing is known of its pilots."""


class PilotCut(Exception):
    """A pilot does not answer now; nothing is known of it."""


class PilotRefused(Exception):
    """A pilot cannot do what it was asked for."""


class PilotDead(Exception):
    """The cluster says that a pilot has ended for good."""


class PilotHandle(Protocol):
    """Calls to one pilot; each may raise PilotCut or PilotDead."""

    async def watch(self, seen: str) -> dict[str, str]: ...

    async def drain(self) -> None: ...

    def relay(self, pipe: socket.socket) -> None:
        """Join a pipe to a new stream until either ends, then close it; runs in its own thread."""


class Cluster(Protocol):
    """A Ray cluster as the pilots of one queue see it; each call may raise ClusterAway."""

    mark: str  # in the names of its pilots

    async def names(self) -> list[str]:
        """Return the names of all pilots of the queue that have not ended."""

    async def start(self, name: str) -> PilotHandle: ...

    async def find(self, name: str) -> PilotHandle | None: ...

    async def kill(self, name: str) -> None: ...

    async def nodes(self) -> list[dict[str, Any]]: ...

    async def sweep(self, name: str, node: str) -> str | None:
        """End what is left of an ended pilot on the machine of its node; empty if it told none.

        Return what could not be ended, None when a machine has no node that lives.
        """
