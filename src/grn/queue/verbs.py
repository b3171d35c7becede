"""All that a client may say, as one literal table: there is no other way to a function of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grn.queue import accepting, listing, messages, steering
from grn.queue.server import Peer
from grn.talk import Verbs


def _fresh(verb: Callable[[Peer, Any], None]) -> Callable[[Peer, Any], None]:
    """Let a verb that shows why jobs wait answer with the reasons of this moment."""
    return lambda peer, message: peer.when_fresh(message.id, lambda: verb(peer, message))


VERBS: Verbs = {
    messages.SubmitAsked: accepting.submit,
    messages.RetryAsked: accepting.retry,
    messages.ListAsked: _fresh(listing.listing),
    messages.ShowAsked: _fresh(listing.show),
    messages.NamesAsked: listing.names,
    messages.CountAsked: listing.count,
    messages.FollowAsked: _fresh(listing.follow),
    messages.PingSaid: listing.ping,
    messages.WaitAsked: steering.wait,
    messages.CancelAsked: steering.cancel,
    messages.HoldAsked: steering.hold,
    messages.MoveAsked: steering.move,
    messages.DrainAsked: steering.drain,
    messages.CleanAsked: steering.clean,
    messages.StopAsked: steering.stop,
}
