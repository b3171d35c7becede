"""The lease conversation with a node's negotiator, as frames of the node's stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grn.protocol.lease_messages import GrantedGpus, IdleTold
from grn.queue.sites.stream import Frame, LeaseBytes

if TYPE_CHECKING:
    from grn.queue.sites.node import Node, NodeListener


class LeaseTransport(asyncio.Transport):
    """Carries the bytes of the lease conversation as frames of the stream."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        super().__init__()
        self._carry = send

    def write(self, data: Any) -> None:
        self._carry(LeaseBytes(bytes(data)))

    def close(self) -> None:
        """Leave the stream open: only the conversation over it ends."""


class NodeLeases:
    """Passes the events of one node's lease conversation on, with the node."""

    def __init__(self, node: Node, listener: NodeListener) -> None:
        self._node = node
        self._listener = listener

    def has_work(self) -> bool:
        return self._listener.has_work()

    def connected(self) -> None:
        self._listener.node_changed(self._node)

    def disconnected(self) -> None:
        self._listener.node_changed(self._node)

    def granted(self, job: int, grant: GrantedGpus) -> None:
        self._node.note_granted(grant.lease)
        self._listener.granted(self._node, job, grant)

    def awaited(self, job: int, text: str) -> None:
        self._listener.awaited(self._node, job, text)

    def reasons(self, texts: dict[int, str]) -> None:
        self._listener.reasons(self._node, texts)

    def refused(self, job: int, text: str) -> None:
        self._listener.refused(self._node, job, text)

    def yield_asked(self, lease: str, is_idle: bool) -> None:
        self._listener.yield_asked(self._node, lease, is_idle)

    def idle_told(self, told: IdleTold) -> None:
        self._listener.idle_told(self._node, told)
