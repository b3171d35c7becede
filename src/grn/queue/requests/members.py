"""Which members of arrays must be jobs of their own before a request is handled.

The one place that knows: a handler finds a row and a job for each member that its request is about
(docs/decisions/0056-arrays-are-one-record.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from grn.daemon.connection import Pieces, Verbs
from grn.protocol import queue_requests
from grn.queue.server import QueuePeer

AT_ONCE = 500  # members that become jobs in one turn
Handler = Callable[[Any, Any], Pieces | None]


def with_members(verbs: Verbs) -> Verbs:
    """Return handlers that first unfold what their requests are about."""
    return {kind: _with_members(handle) for kind, handle in verbs.items()}


def _with_members(handle: Handler) -> Handler:
    def handle_later(peer: QueuePeer, message: Any, folded: list[int]) -> Pieces:
        """Unfold in parts, between which other requests and events are handled."""
        for start in range(0, len(folded), AT_ONCE):
            peer.loop.unfold(folded[start : start + AT_ONCE])
            yield
        yield from handle(peer, message) or ()

    def handle_with_members(peer: QueuePeer, message: Any) -> Pieces | None:
        folded = _named(peer, message) if peer.loop.engine.jobs.folded else []
        return handle_later(peer, message, folded) if folded else handle(peer, message)

    return handle_with_members


def _named(peer: QueuePeer, message: Any) -> list[int]:
    """Return the folded members that a request is about."""
    jobs = peer.loop.engine.jobs
    named: Iterable[int] = ()
    match message:
        case queue_requests.SubmitRequest():
            named = [job for job, _ in message.after]
        case queue_requests.ShowRequest() | queue_requests.EditRequest():
            named = [message.job]
        case (
            queue_requests.HoldRequest()
            | queue_requests.MoveRequest()
            | queue_requests.RetryRequest()
            | queue_requests.WatchJobsRequest()
        ):
            named = message.jobs
        case _:  # lists make rows of folded members; a cancel and a wait need none before the end
            pass
    return jobs.folded_among(named)
