"""All that a client may say, as one literal table: there is no other way to a function of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grn.daemon.connection import Verbs
from grn.protocol import queue_requests
from grn.queue import job_handlers, query_handlers, submit_handlers
from grn.queue.server import QueuePeer


def _fresh(verb: Callable[[QueuePeer, Any], None]) -> Callable[[QueuePeer, Any], None]:
    """Let a verb that shows why jobs wait answer with the reasons of this moment."""
    return lambda peer, message: peer.when_fresh(message.id, lambda: verb(peer, message))


VERBS: Verbs = {
    queue_requests.SubmitRequest: submit_handlers.submit,
    queue_requests.RetryRequest: submit_handlers.retry,
    queue_requests.ListRequest: _fresh(query_handlers.listing),
    queue_requests.ShowRequest: _fresh(query_handlers.show),
    queue_requests.NamesRequest: query_handlers.names,
    queue_requests.CountRequest: query_handlers.count,
    queue_requests.FollowQueueRequest: _fresh(query_handlers.follow),
    queue_requests.PingQueueRequest: query_handlers.ping,
    queue_requests.WaitRequest: job_handlers.wait,
    queue_requests.CancelRequest: job_handlers.cancel,
    queue_requests.HoldRequest: job_handlers.hold,
    queue_requests.MoveRequest: job_handlers.move,
    queue_requests.DrainRequest: job_handlers.drain,
    queue_requests.CleanRequest: job_handlers.clean,
    queue_requests.StopQueueRequest: job_handlers.stop,
}
