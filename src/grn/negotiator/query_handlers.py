"""What a client may say to look on, and to steer the negotiator itself."""

from __future__ import annotations

import os
import time
from typing import Any

from grn.errors import NotAllowed, UnknownJob, UsageError
from grn.negotiator import change_feed, views
from grn.negotiator.events import ProfileForgotten
from grn.negotiator.server import Peer
from grn.protocol import negotiator_requests

KEEPERS = "the user who started the negotiator, or root, and not in a container,"


def status(peer: Peer, message: negotiator_requests.StatusRequest) -> None:
    """Show GPUs, leases and who waits."""
    page, more = peer.server.pages.status(peer.loop.now(), message.after)
    _send_page(peer, message.id, {"status": {"schema": 1, **peer.server.facts(), **page}}, more)


def follow(peer: Peer, message: negotiator_requests.FollowRequest) -> None:
    """Tell all there is, and from then on what changes."""
    if peer.follows:
        raise UsageError("this connection follows already.")
    peer.server.followers.add(peer, message.id)
    peer.follows = True


def samples(peer: Peer, message: negotiator_requests.SamplesRequest) -> None:
    """Show how GPUs were used, or the memory of one lease from its grant on."""
    engine, history = peer.loop.engine, peer.loop.history
    offset_s = time.time() - peer.loop.now()
    if message.lease is not None:
        found = history.curves.get(message.lease)
        if found is None:
            text = f"no samples of lease {message.lease} are kept."
            raise UnknownJob(text, "Short ones have none, and old ones are forgotten.")
        peer.send(message.id, {"curve": change_feed.curve(message.lease, found, offset_s)})
        return
    show = change_feed.minute_samples if message.span == "day" else change_feed.recent_samples
    peer.send(message.id, {"samples": show(engine, history, offset_s)})


def why(peer: Peer, message: negotiator_requests.WhyRequest) -> None:
    """Explain why a job waits, or where it runs."""
    found, more = peer.server.pages.why(message.name, peer.loop.now(), message.after)
    if not found and message.after is None:
        raise UnknownJob(f"nothing runs or waits under '{message.name}'.", "See `grn ps`.")
    _send_page(peer, message.id, {"why": found}, more)


def reasons(peer: Peer, message: negotiator_requests.ReasonsRequest) -> None:
    """Say why requests of this user wait; those that do not wait are left out."""
    found = views.reasons(peer.loop.engine, peer.uid, message.keys, peer.loop.now())
    peer.send(message.id, {"reasons": found})


def profiles(peer: Peer, message: negotiator_requests.ProfilesRequest) -> None:
    """Show what was learned."""
    page, more = peer.server.pages.profiles(message.type, message.after)
    _send_page(peer, message.id, {"profiles": page}, more)


def audit(peer: Peer, message: negotiator_requests.AuditRequest) -> None:
    """Show who changed what belongs to others, or tried to."""
    if not peer.is_keeper:
        raise NotAllowed(f"only {KEEPERS} may read this.")
    peer.send(message.id, {"audit": peer.server.audit.last(message.most)})


def ping(peer: Peer, message: negotiator_requests.PingRequest) -> None:
    """Say who we are."""
    said = {"version": peer.server.version, "pid": os.getpid(), "uid": os.getuid()}
    peer.send(message.id, {**said, "indices": peer.indices_hold()})


def forget(peer: Peer, message: negotiator_requests.ForgetRequest) -> None:
    """Forget what was learned of a job type."""
    known = [
        profile
        for profile in peer.loop.engine.memory.profiles()
        if message.type in (profile.job_type, profile.label)
    ]
    if not known:
        raise UnknownJob(f"no job type '{message.type}' is known.", "See `grn profiles`.")
    if not all(peer.is_keeper or peer.uid == profile.owner for profile in known):
        raise NotAllowed("this profile was learned from another user's jobs.")
    for job_type in {profile.job_type for profile in known}:
        peer.loop.tell(ProfileForgotten(peer.loop.now(), job_type))
    peer.note("forget", message.type)
    peer.send(message.id, {"forgotten": len(known)})


def stop(peer: Peer, message: negotiator_requests.StopRequest) -> None:
    """Leave; all leases go on."""
    if not peer.is_keeper:
        raise NotAllowed(f"only {KEEPERS} can stop it.")
    peer.note("stop", "")
    peer.send(message.id, {"ok": True, "leases": len(peer.loop.engine.leases)})
    peer.server.stop()


def _send_page(peer: Peer, message_id: int, page: dict[str, Any], more: str | None) -> None:
    """Send one page, and how to ask for the next one if there is any."""
    peer.send(message_id, page if more is None else {**page, "more": more})
