"""Waiting requests, from the first ask to the grant: their order, their users' shares, their turn.

Decides when requests are tried again and what follows a grant. Which GPUs a request gets is decided
in `schedule/grant.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from grn.model.job import Request
from grn.negotiator.actions import (
    Action,
    DropWaiting,
    Grant,
    Refuse,
    SaveLease,
    SaveWaiting,
    TellWaiting,
)
from grn.negotiator.events import (
    JobStarted,
    Lease,
    LeaseState,
    Requested,
    Wait,
    WaitReason,
    Withdrawn,
)
from grn.negotiator.learn.load import Loads
from grn.negotiator.learn.memory.type_needs import TypeNeeds
from grn.negotiator.schedule.admission import refusal
from grn.negotiator.schedule.grant import USUAL_S, Granter
from grn.negotiator.schedule.placement import pinned
from grn.negotiator.schedule.room.allocations import YIELDING_COST, Holdings
from grn.negotiator.schedule.room.ledger import Rules
from grn.negotiator.schedule.turns.fair_share import Shares, Usage, class_of
from grn.negotiator.schedule.turns.order import WaitingRequest
from grn.negotiator.schedule.turns.reconnects import Returning
from grn.negotiator.schedule.turns.wait_queue import Waitlist

_NEVER = float("-inf")
_MAX_MOVED = 64  # groups whose turns are changed at once, some 8 us each,
_MAX_MOVED_FIRST = 6  # and beside a round of offers
_RESTARTING = Wait(
    WaitReason.RESTARTING,
    "the negotiator has just restarted and waits for earlier requests to reconnect",
)


class RequestScheduler:
    """All waiting requests, and the usage of their users."""

    def __init__(
        self, rules: Rules, type_needs: TypeNeeds, loads: Loads, holdings: Holdings
    ) -> None:
        self._rules = rules
        self._memory = type_needs.profiles
        self._holdings = holdings
        self.usage = Usage(rules.share_half_life_s, rules.weights)
        self.shares = Shares(rules, self.usage)
        self.waitlist = Waitlist(self.shares.turn, self._judged, self.shares.turns)
        self.granter = Granter(
            rules, type_needs, loads, holdings, self.waitlist, self.shares, self.usage
        )
        self._returning = Returning(self.waitlist)
        self._sequence = 0
        self._saved: set[str] = set()  # keys saved as waiting
        self._grace_until = _NEVER
        self._is_to_preempt = False

    def open(self, event: JobStarted) -> None:
        """Load the usage of users and the positions of requests that waited before a restart."""
        self.shares.gpus = len(event.gpus)
        self.usage.load(event.uses, event.wall_offset_s)
        self.granter.bookings.open(event.bookings, event.wall_offset_s)
        self._returning.expect(event.waiting)
        self._sequence = max((place + 1 for _, place in event.waiting), default=0)
        self._saved = {key for key, _ in event.waiting}
        if event.waiting:
            self._grace_until = event.at + self._rules.grace_s

    def resume(self, lease: Lease, at: float) -> None:
        """Account a lease from before a restart to its user."""
        if lease.state is LeaseState.HELD:
            share = self._holdings.share_of(lease)
            self.usage.resumed(lease.id, lease.request.user, share, lease.granted_at, at)

    def check(self) -> None:
        """Raise AssertionError when the waiting requests contradict the books."""
        self.granter.preemption.check()
        self.granter.bookings.check()
        for lease in self._holdings.leases.values():
            is_held = lease.state is LeaseState.HELD
            assert not (is_held and lease.request.key in self.waitlist), "granted and waiting"
        assert self._saved >= {waiting.request.key for waiting in self.waitlist}

    # --- questions (they change nothing) -------------------------------------------------

    def why(self, key: str, at: float) -> Wait | None:
        """Return why a request waits, None when it does not wait."""
        group = self.waitlist.group_of(key)
        if group is None:
            return None
        if at < self._grace_until:
            return _RESTARTING
        if text := self.granter.preemption.text(key):
            return Wait(WaitReason.PREEMPTING, text)
        waiting = group.members[key]
        answer = self.granter.answers.to(waiting.request, at, waiting.sequence)
        if isinstance(answer, Wait):
            return answer
        return Wait(
            WaitReason.YIELDS_TO_OLDER, "free memory is reserved for a job that has waited longer"
        )

    # --- requests ------------------------------------------------------------------------

    def requested(self, event: Requested) -> Iterator[Action]:
        """Grant, refuse or queue a request."""
        request = event.request
        held = self._holdings.held_by_key(request.key)
        if held is not None:  # the client lost the answer and asks again
            yield self._granted(held)
            return
        refused = self._refusal(request)
        if refused is not None:
            yield from self.withdrawn(Withdrawn(event.at, request.key))
            yield refused
            return
        if not len(self.waitlist) and self._grace_until == _NEVER:
            lease = self.granter.at_once(request, event.at)
            if lease is not None:
                self._returning.take(request.key)
                yield from self._given(lease)
                return
        waiting = self._enqueue(request, event.at)
        if self._ends_grace(event.at):
            yield from self.schedule(event.at)
        elif event.at >= self._grace_until:
            for lease in self.granter.to_newcomer(waiting, event.at):
                yield from self._given(lease)
        if request.key in self.waitlist:
            self._saved.add(request.key)
            if request.is_urgent:
                self.granter.preemption.note(request)
                yield from self.preempt(event.at)
            yield SaveWaiting(request.key, waiting.sequence, request.holder)
            yield TellWaiting(request.key, self.why(request.key, event.at) or _RESTARTING)

    def _refusal(self, request: Request) -> Refuse | None:
        """Return the refusal of a request that can never be granted, else None."""
        host = self._holdings.host
        refused = host.refusal(request.key, request.cpus, request.ram_bytes)
        if refused is not None or not request.gpus:
            return refused
        return refusal(request, list(self._holdings.books.values()), self.granter.needs.never_fits)

    def _ends_grace(self, at: float) -> bool:
        """True once after a restart: when all waiting requests are back, or the grace is over."""
        if self._grace_until == _NEVER or (at < self._grace_until and self._returning):
            return False
        self._grace_until = _NEVER
        return True

    def _enqueue(self, request: Request, at: float) -> WaitingRequest:
        before = self.waitlist.pop(request.key)
        if before is not None:
            waiting = replace(before, request=request)
            if class_of(waiting) != class_of(before):  # it asks with another priority
                self.shares.gave_up(before)
                waiting = self.shares.join(waiting, at)
        else:
            old = self._returning.take(request.key)
            sequence = self._sequence if old is None else old
            self._sequence = max(self._sequence, sequence + 1)
            waiting = self._placed(request, sequence, at)
        self.waitlist.add(waiting, bool(pinned(request, list(self._holdings.books.values()))))
        return waiting

    def _placed(self, request: Request, sequence: int, at: float) -> WaitingRequest:
        """Give a new request its place in its user's line, and the user its place among users."""
        models = self.granter.needs.models(request)
        usual = [self._memory.usual_s(request.job_type, model) for model in models]
        usual_s = min((each for each in usual if each is not None), default=None)
        is_short = self.granter.needs.is_short(request)
        shares = [
            max(need.need_bytes / self._holdings.sizes()[model].capacity_bytes, need.load or 0.0)
            for model, need in self.granter.needs.of(request).items()
        ]
        share = min(1.0, max(shares, default=0.0)) * (YIELDING_COST if request.yields else 1.0)
        cost_h = request.gpus * share * (USUAL_S if usual_s is None else usual_s) / 3600
        were_several = self.shares.are_several()
        waiting = WaitingRequest(request, sequence, at, is_short, cost_h)
        waiting = self.shares.join(waiting, at, self._returning.place_before(waiting))
        self._returning.came(waiting)
        if self.shares.are_several() and not were_several:
            self._move_users(at)  # the first user had no position until now
        return waiting

    def _judged(self, waiting: WaitingRequest) -> WaitingRequest:
        """Move a request that turned out to be short, or not, to its class."""
        is_short = self.granter.needs.is_short(waiting.request)
        return waiting if is_short is waiting.is_short else self.shares.becomes(waiting, is_short)

    def withdrawn(self, event: Withdrawn) -> Iterator[Action]:
        """Remove a request whose client is gone."""
        self._returning.take(event.key)
        yield from self._unsave(event.key)
        waiting = self.waitlist.pop(event.key)
        if waiting is not None:
            self.shares.gave_up(waiting)
            yield from self.schedule(event.at)  # GPUs may have been reserved for it

    # --- rounds --------------------------------------------------------------------------

    def give_up_absent(self, at: float) -> Iterator[Action]:
        """Forget the requests from before a restart that have not come back in time."""
        if at >= self._grace_until:
            for key in self._returning.give_up():
                yield from self._unsave(key)

    def learned(self, job_types: Iterable[str]) -> None:
        """Note that the needs or durations of some types may have changed: turns change."""
        self.waitlist.learned(job_types, _MAX_MOVED_FIRST)

    @property
    def is_behind(self) -> bool:
        """True when some requests are still to be tried."""
        return self.granter.is_behind

    def go_on(self, at: float, has_news: bool) -> Iterator[Action]:
        """Continue what was left for later; begin a round where something new was learned."""
        self.waitlist.sort(_MAX_MOVED_FIRST if self.is_behind else _MAX_MOVED)
        if has_news or self.is_behind:
            yield from self.schedule(at, is_continued=not has_news)
        if self._is_to_preempt:
            yield from self.preempt(at)

    def schedule(self, at: float, is_continued: bool = False) -> Iterator[Action]:
        """Grant free GPUs to waiting requests, or continue a round that was cut short."""
        if at >= self._grace_until and len(self.waitlist):
            for lease in self.granter.to_all(at, is_continued):
                yield from self._given(lease)

    def schedule_after_end(self, at: float) -> Iterator[Action]:
        """Grant GPUs that a job has left; with very many GPUs soon after the answer to its end."""
        if at >= self._grace_until and len(self.waitlist) and not self.granter.put_off():
            yield from self.schedule(at)

    def preempt(self, at: float) -> Iterator[Action]:
        """Ask leases that yield to give way to requests without room."""
        self._is_to_preempt = self.is_behind  # room may still be offered to these requests
        if self._is_to_preempt:
            return
        preemption = self.granter.preemption
        if (self._holdings.yielding or preemption.claims) and at >= self._grace_until:
            yield from preemption.ask(at, self.granter.answers.to)

    def account_some(self, at: float, most: int) -> bool:
        """Account leases that may take another share of their GPUs; True when some are left."""
        reshared = self._holdings.reshared
        for lease_id in list(islice(reshared, most)):
            del reshared[lease_id]
            lease = self._holdings.leases[lease_id]
            if lease.state is LeaseState.HELD:
                self.usage.follow(lease_id, self._holdings.share_of(lease), at)
        return bool(reshared)

    def account(self, at: float) -> Iterator[Action]:
        """Account the current use of all jobs to their users."""
        self.usage.advance(at)
        if self.shares.are_several():
            self._move_users(at)
        else:
            self.waitlist.sort(_MAX_MOVED)
        yield from self.usage.to_save(at)

    def _move_users(self, at: float) -> None:
        """Reorder users whose use differs from what was expected."""
        self.waitlist.move(self.shares.update(at), _MAX_MOVED)

    def _given(self, lease: Lease) -> Iterator[Action]:
        """Persist and announce a grant."""
        yield from self._unsave(lease.request.key)
        yield SaveLease(lease)
        yield self._granted(lease)

    def _unsave(self, key: str) -> Iterator[Action]:
        if key in self._saved:
            self._saved.remove(key)
            yield DropWaiting(key)

    def _granted(self, lease: Lease) -> Grant:
        gpus = tuple(book.gpu for book in self._holdings.books_of(lease))
        return Grant(lease.request.key, lease, gpus)
