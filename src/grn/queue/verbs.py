"""All that a client may say, as one literal table: there is no other way to a function of ours."""

from __future__ import annotations

from grn.queue import accepting, listing, messages, steering
from grn.talk import Verbs

VERBS: Verbs = {
    messages.SubmitAsked: accepting.submit,
    messages.RetryAsked: accepting.retry,
    messages.ListAsked: listing.listing,
    messages.ShowAsked: listing.show,
    messages.NamesAsked: listing.names,
    messages.CountAsked: listing.count,
    messages.FollowAsked: listing.follow,
    messages.PingSaid: listing.ping,
    messages.WaitAsked: steering.wait,
    messages.CancelAsked: steering.cancel,
    messages.HoldAsked: steering.hold,
    messages.MoveAsked: steering.move,
    messages.DrainAsked: steering.drain,
    messages.CleanAsked: steering.clean,
    messages.StopAsked: steering.stop,
}
