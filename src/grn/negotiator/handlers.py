"""Handlers of client messages: one function per message, and their table.

Checks permissions; every decision about GPUs is the engine's.
"""

from __future__ import annotations

import os
import time
from typing import Any

from msgspec.structs import replace

from grn import paths
from grn.daemon.connection import Pieces, Verbs
from grn.errors import NotAllowed, UnknownJob, UsageError, from_code
from grn.model import MAX_CPUS
from grn.model.gpu_choice import selected
from grn.model.job import Argument, Outcome, Policy, Request, Run
from grn.model.text import harmless
from grn.model.units import show_expected
from grn.negotiator.actions import Grant, Refuse
from grn.negotiator.endings import told_late
from grn.negotiator.events import (
    Booking,
    BookingMade,
    BookingRemoved,
    HolderChanged,
    LeaseSettled,
    LeaseState,
    ProfileForgotten,
    Released,
    ReporterJoined,
    Requested,
    RunsImported,
    Withdrawn,
)
from grn.negotiator.learn.memory.quota import kept_arguments
from grn.negotiator.queries import change_feed, views
from grn.negotiator.queries.forecast import Asked
from grn.negotiator.schedule.admission import refusal
from grn.negotiator.server import Peer
from grn.proc.identity import ancestor_of, child_of
from grn.protocol import negotiator_requests

MAX_ASKED_AT_ONCE = 1024
MAX_PROFILES_TOLD, MAX_RUNS_TOLD = 500, 20
MAX_ARGUMENTS, MAX_TEXT, MAX_BYTES, MAX_LOAD = 32, 64, 1 << 50, 64.0
KEEPERS = "the user who started the negotiator, or root, and not in a container,"


def lease(peer: Peer, message: negotiator_requests.LeaseRequest) -> None:
    """Ask for GPUs; the answers come when the engine has them."""
    if message.within and _nested(peer, message.id, message.within):
        return
    server, loop = peer.server, peer.loop
    request = _request(peer, message)
    if len(peer.asked) >= MAX_ASKED_AT_ONCE:
        raise UsageError(f"{MAX_ASKED_AT_ONCE} requests wait on this connection already.")
    most = server.limits.waiting_per_user
    if server.waiting[peer.uid] >= most:
        raise UsageError(f"{most} requests of this user wait already.")
    if message.key in peer.asked:
        raise UsageError("a request with this key waits already.")
    if peer.owner_of(message.key) not in (None, peer.uid):
        raise NotAllowed("a request with this key belongs to another user.")
    peer.asked[message.key] = message.id
    server.waiting[peer.uid] += 1
    server.asking[message.key] = peer
    loop.tell(Requested(loop.now(), request))


def queue(peer: Peer, message: negotiator_requests.QueueRequest) -> None:
    """Note that the jobs of this client are those of a queue."""
    peer.is_queue = True
    peer.send(message.id, {"ok": True})


def hold(peer: Peer, message: negotiator_requests.BindRequest) -> None:
    """Bind a lease to the requesting process, or to a relative of it."""
    lease, loop = peer.own(message.lease, "hold"), peer.loop
    if lease.state is not LeaseState.HELD:
        raise UnknownJob(f"lease {lease.id} has ended: its process is gone.")
    holder = peer.holder
    if message.pid is not None and holder is not None:
        speaker = holder.pid
        holder = child_of(speaker, message.pid)
        holder = holder or ancestor_of(speaker, message.pid, peer.uid)
    if holder is None:
        raise UsageError("the kernel does not show this process; it cannot hold a lease.")
    before = lease.request.holder
    if holder != before and loop.holders.watch(holder):
        if before is not None:
            loop.holders.unwatch(before)
        # The parent that sent this message will know how it ended.
        is_reported = lease.id not in peer.granted or message.pid is not None
        loop.tell(HolderChanged(loop.now(), lease.id, holder, is_reported))
    peer.send(message.id, {"ok": True})


def done(peer: Peer, message: negotiator_requests.DoneRequest) -> None:
    """End a lease, and answer with its outcome unless the client wants no answer."""
    loop, answer_to = peer.loop, None if message.quiet else message.id
    said = Outcome(message.outcome)
    if not loop.survivors.has_line(message.lease):
        peer.granted.discard(message.lease)
    if peer.server.reporters.get(message.lease) is peer:
        del peer.server.reporters[message.lease]
    ended = loop.history.end_of(message.lease)
    if ended is not None or message.lease not in loop.view.leases:
        settled = LeaseSettled(None) if ended is None else told_late(ended, said)
        peer.tell_end(answer_to, message.lease, settled)
        return
    lease = peer.own(message.lease, "done")
    peer.granted.discard(lease.id)
    if lease.state is not LeaseState.HELD:  # it ended before this negotiator started
        peer.tell_end(answer_to, lease.id, told_late(LeaseSettled(lease.outcome), said))
        return
    context = peer.server.limits.context_bytes
    gpu_peak = message.peak + context if message.peak is not None else None
    peer.server.ending.setdefault(lease.id, []).append((peer, answer_to))
    is_limit = message.outcome in ("out-of-ram", "capped")
    loop.release(
        Released(
            loop.now(), lease.id, said, None, message.asked, gpu_peak, message.resident, is_limit,
            not message.quiet,
        )
    )  # fmt: skip


def watch(peer: Peer, message: negotiator_requests.WatchRequest) -> None:
    """Register the client as the reporter of a lease that another process holds."""
    lease = peer.own(message.lease, "watch")
    peer.granted.add(lease.id)
    peer.server.reporters[lease.id] = peer
    peer.loop.tell(ReporterJoined(peer.loop.now(), lease.id))
    peer.send(message.id, {"ok": True})
    if lease.id in peer.loop.view.asked_to_yield:
        peer.ask_yield(lease)
    if (told := peer.loop.view.idle_ending.get(lease.id)) is not None:
        peer.tell_idle(told)


def cancel(peer: Peer, message: negotiator_requests.WithdrawRequest) -> None:
    """Withdraw a request, granted or not."""
    if peer.owner_of(message.key) not in (None, peer.uid):
        if not peer.is_root:
            raise NotAllowed("this request belongs to another user.")
        peer.note("cancel", message.key)
    lease = peer.held_by_key(message.key)
    if lease is not None:
        peer.loop.release(Released(peer.loop.now(), lease.id, Outcome.FAILED))
    elif message.key in peer.loop.view.waitlist:
        peer.loop.tell(Withdrawn(peer.loop.now(), message.key))
        peer.server.deliver(Refuse(message.key, "this request was taken back.", code="UsageError"))
    peer.send(message.id, {"ok": True})


def status(peer: Peer, message: negotiator_requests.StatusRequest) -> Pieces:
    """Show GPUs, leases and waiting requests."""
    page, more = yield from peer.server.pages.status(peer.loop.now(), message.after)
    _send_page(peer, message.id, {"status": {"schema": 1, **peer.server.facts(), **page}}, more)


def follow(peer: Peer, message: negotiator_requests.FollowRequest) -> None:
    """Send a snapshot, then changes."""
    if peer.follows:
        raise UsageError("this connection follows already.")
    peer.server.subscribers.add(peer, peer.uid, message.id)
    peer.follows = True


def samples(peer: Peer, message: negotiator_requests.SamplesRequest) -> None:
    """Show how GPUs were used, or the memory of one lease from its grant on."""
    view, history = peer.loop.view, peer.loop.history
    offset_s = time.time() - peer.loop.now()
    if message.lease is not None:
        found = history.curves.get(message.lease)
        if found is None:
            text = f"no samples of lease {message.lease} are kept."
            raise UnknownJob(text, "Short ones have none, and old ones are forgotten.")
        peer.send(message.id, {"curve": change_feed.curve(message.lease, found, offset_s)})
        return
    show = change_feed.minute_samples if message.span == "day" else change_feed.recent_samples
    peer.send(message.id, {"samples": show(view, history, offset_s)})


def why(peer: Peer, message: negotiator_requests.WhyRequest) -> Pieces:
    """Explain why a job waits, or where it runs."""
    found, more = yield from peer.server.pages.why(message.name, peer.loop.now(), message.after)
    if not found and message.after is None:
        raise UnknownJob(f"nothing runs or waits under '{message.name}'.", "See `grn ps`.")
    _send_page(peer, message.id, {"why": found}, more)


def when(peer: Peer, message: negotiator_requests.WhenRequest) -> Pieces:
    """Return the expected start of a request that is not made, null when unknown."""
    view, at = peer.loop.view, peer.loop.now()
    known = views.profiles_of(view, message.type) if message.type is not None else []
    if message.type is not None and not known:
        raise UnknownJob(f"no job type '{message.type}' is known.", "See `grn profiles`.")
    request = Request(
        key="", lease="", job_type=known[0].job_type if known else "", label="", user=peer.uid,
        gpus=message.gpus, mem_bytes=message.mem, is_exclusive=message.exclusive,
        priority=message.priority, policy=peer.server.limits.policy or Policy.SPREAD,
        is_command=True,
    )  # fmt: skip
    refused = refusal(request, list(view.books.values()), lambda _: None)
    if refused is not None:
        raise from_code(refused.code, refused.message, refused.hint)
    found = yield from peer.loop.forecasts.of(Asked(request, message.lasts_s), at)
    peer.send(message.id, {"starts_in_s": None if found is None else found.seen_from(0.0)})


def book(peer: Peer, message: negotiator_requests.BookRequest) -> None:
    """Book GPUs, and answer with the booking."""
    view, loop = peer.loop.view, peer.loop
    able: tuple[str, ...] = ()
    if message.on or message.without:
        gpus = [book.gpu for book in view.books.values()]
        found = selected(gpus, message.gpus, message.on, message.without)
        able = tuple(gpu.uuid for gpu in found)
    at, name = loop.now(), paths.user_name(peer.uid)
    wish = Booking(0, peer.uid, name, message.gpus, message.from_at, message.until_at, able)
    made, *moved = view.admitted(wish, at)
    loop.tell(BookingMade(at, (made, *moved)))
    peer.send(message.id, {"booking": views.booking(view, view.bookings[made.id], at)})


def bookings(peer: Peer, message: negotiator_requests.BookingsRequest) -> None:
    """Show all bookings."""
    peer.send(message.id, {"bookings": views.bookings(peer.loop.view, peer.loop.now())})


def unbook(peer: Peer, message: negotiator_requests.UnbookRequest) -> None:
    """Remove a booking."""
    booking = peer.loop.view.bookings.get(message.booking)
    if booking is None:
        raise UnknownJob(f"there is no booking {message.booking}.", "See `grn book ls`.")
    if booking.user != peer.uid:
        if not peer.is_root:
            raise NotAllowed(f"booking {booking.id} belongs to {harmless(booking.user_name)}.")
        peer.note("unbook", str(booking.id))
    peer.loop.tell(BookingRemoved(peer.loop.now(), booking.id))
    peer.send(message.id, {"ok": True})


def reasons(peer: Peer, message: negotiator_requests.ReasonsRequest) -> Pieces:
    """Return why requests of this user wait; requests that do not wait are left out."""
    at = peer.loop.now()
    told = yield from peer.loop.forecasts.current(at)
    found = views.reasons(peer.loop.view, peer.uid, message.keys, at)
    for key, row in found.items():
        expected = told.starts_in_s(key, at)
        if expected is not None:
            found[key] = {**row, "why": f"{row['why']}; {show_expected('starts', expected)}"}
    peer.send(message.id, {"reasons": found})


def profiles(peer: Peer, message: negotiator_requests.ProfilesRequest) -> Pieces:
    """Show what was learned."""
    peer.loop.catch_up()
    page, more = yield from peer.server.pages.profiles(message.type, message.after)
    _send_page(peer, message.id, {"profiles": page}, more)


def runs(peer: Peer, message: negotiator_requests.RunsRequest) -> None:
    """Return what was measured of the user's own job types."""
    peer.loop.catch_up()
    wanted = set(message.types)
    own = [
        profile
        for profile in peer.loop.view.memory.profiles()
        if profile.owner == peer.uid and (not wanted or profile.job_type in wanted)
    ]
    own.sort(key=lambda profile: profile.runs[-1].ended_at if profile.runs else 0.0)
    told = [
        {
            "type": profile.job_type, "label": profile.label, "model": profile.model,
            "runs": [replace(run, note="", beside=()) for run in profile.runs[-MAX_RUNS_TOLD:]],
        }
        for profile in own[-MAX_PROFILES_TOLD:]
    ]  # fmt: skip
    peer.send(message.id, {"runs": told})


def learn(peer: Peer, message: negotiator_requests.LearnRequest) -> None:
    """Learn from runs on another machine, unless another user's jobs have taught the type."""
    if peer.loop.view.memory.owners(message.type) - {peer.uid}:
        raise NotAllowed("this type is learned from another user's jobs.")
    new = tuple(_checked(run) for run in message.runs)
    imported = RunsImported(
        peer.loop.now(), peer.uid, message.type, message.label, message.model, new
    )
    peer.loop.tell(imported)
    peer.send(message.id, {"learned": len(new)})


def _checked(run: Run) -> Run:
    """Return a run of another machine without what only holds there; refuse impossible values."""
    arguments = run.arguments[:MAX_ARGUMENTS]
    sizes = (run.peak_bytes, run.reserved_bytes)
    is_right = all(0 <= size <= MAX_BYTES for size in sizes) and 0 <= run.duration_s < 1e9
    is_right &= run.load is None or 0 <= run.load <= MAX_LOAD
    is_right &= run.grown is None or 0 <= run.grown <= 1
    is_right &= run.ram_bytes is None or 0 <= run.ram_bytes <= MAX_BYTES
    is_right &= all(one is None or 0 <= one <= MAX_CPUS for one in (run.cpus, run.peak_cpus))
    texts = [run.code, *(name for name, _ in arguments)]
    texts += [value for _, value in arguments if isinstance(value, str)]
    if not is_right or any(len(text) > MAX_TEXT for text in texts):
        raise UsageError("a run of another machine is not as it should be.")
    return replace(run, arguments=arguments, note="", beside=(), crowd=None)


def audit(peer: Peer, message: negotiator_requests.AuditRequest) -> None:
    """Show the audit log."""
    if not peer.is_keeper:
        raise NotAllowed(f"only {KEEPERS} may read this.")
    peer.send(message.id, {"audit": peer.server.audit.last(message.most)})


def ping(peer: Peer, message: negotiator_requests.PingRequest) -> None:
    """Answer with version, process and user of the negotiator."""
    said = {"version": peer.server.version, "pid": os.getpid(), "uid": os.getuid()}
    peer.send(message.id, {**said, "indices": peer.indices_hold()})


def forget(peer: Peer, message: negotiator_requests.ForgetRequest) -> None:
    """Forget what was learned of a job type."""
    known = views.profiles_of(peer.loop.view, message.type)
    if not known:
        raise UnknownJob(f"no job type '{message.type}' is known.", "See `grn profiles`.")
    if not all(peer.is_keeper or peer.uid == profile.owner for profile in known):
        raise NotAllowed("this profile was learned from another user's jobs.")
    for job_type in {profile.job_type for profile in known}:
        peer.loop.tell(ProfileForgotten(peer.loop.now(), job_type))
    peer.note("forget", message.type)
    peer.send(message.id, {"forgotten": len(known)})


def stop(peer: Peer, message: negotiator_requests.StopRequest) -> None:
    """Stop the negotiator; all leases stay."""
    if not peer.is_keeper:
        raise NotAllowed(f"only {KEEPERS} can stop it.")
    peer.note("stop", "")
    peer.send(message.id, {"ok": True, "leases": len(peer.loop.view.leases)})
    peer.server.stop()


VERBS: Verbs = {
    negotiator_requests.LeaseRequest: lease,
    negotiator_requests.QueueRequest: queue,
    negotiator_requests.BindRequest: hold,
    negotiator_requests.DoneRequest: done,
    negotiator_requests.WatchRequest: watch,
    negotiator_requests.WithdrawRequest: cancel,
    negotiator_requests.StatusRequest: status,
    negotiator_requests.FollowRequest: follow,
    negotiator_requests.SamplesRequest: samples,
    negotiator_requests.WhyRequest: why,
    negotiator_requests.WhenRequest: when,
    negotiator_requests.BookRequest: book,
    negotiator_requests.BookingsRequest: bookings,
    negotiator_requests.UnbookRequest: unbook,
    negotiator_requests.ReasonsRequest: reasons,
    negotiator_requests.ProfilesRequest: profiles,
    negotiator_requests.RunsRequest: runs,
    negotiator_requests.LearnRequest: learn,
    negotiator_requests.AuditRequest: audit,
    negotiator_requests.PingRequest: ping,
    negotiator_requests.ForgetRequest: forget,
    negotiator_requests.StopRequest: stop,
}


def _send_page(peer: Peer, message_id: int, page: dict[str, Any], more: str | None) -> None:
    """Send one page, and how to ask for the next one if there is any."""
    peer.send(message_id, page if more is None else {**page, "more": more})


def _request(peer: Peer, message: negotiator_requests.LeaseRequest) -> Request:
    arguments: tuple[Argument, ...] = ()
    known = peer.loop.view.books
    slots = tuple(dict.fromkeys(message.slots))
    if (message.on or message.without) and message.gpus:
        gpus = [book.gpu for book in known.values() if not slots or {*book.names} & {*slots}]
        found = selected(gpus, message.gpus, message.on, message.without)
        slots = tuple(gpu.uuid for gpu in found)
    if message.args:
        arguments = kept_arguments(
            (name, value) for name, value in message.args.items() if value is not None
        )
    return Request(
        key=message.key,
        lease=os.urandom(4).hex(),
        job_type=message.type,
        label=harmless(message.label),
        user=peer.uid,
        gpus=message.gpus,
        mem_bytes=message.mem,
        is_exclusive=message.exclusive,
        priority=message.priority,
        policy=peer.server.limits.policy or Policy(message.policy),
        holder=peer.holder,
        arguments=arguments,
        slots=slots,
        stay=tuple(uuid for uuid in dict.fromkeys(message.stay) if uuid in known),
        is_command=message.command,
        attempt=message.attempt,
        code=message.code or "",
        is_spared=message.spared,
        yields=message.yields,
        at_least_s=message.at_least,
        is_urgent=message.urgent and not message.yields,
        cpus=message.cpus,
        ram_bytes=message.ram,
        idle_limit_s=message.idle_limit,
        time_limit_s=message.time_limit,
        is_queued=peer.is_queue and message.command,
    )


def _nested(peer: Peer, message_id: int, lease_id: str) -> bool:
    """Answer a call inside a running job: it uses the lease that job holds."""
    view = peer.loop.view
    lease = view.leases.get(lease_id)
    if lease is None or lease.request.user != peer.uid or lease.state is not LeaseState.HELD:
        return False
    gpus = tuple(view.books[uuid].gpu for uuid in lease.gpus)
    answer = views.granted(Grant(lease.request.key, lease, gpus), peer.indices_hold())
    peer.send(message_id, answer | {"nested": True, "probe": False})
    return True
