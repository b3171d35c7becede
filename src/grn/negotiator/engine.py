"""All state of the negotiator; `handle(event) -> actions` is the only door.

Decides who gets which GPU and when. It never touches the machine: time comes in with the events.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from grn.model.gpu import GpuHealth, Reading
from grn.model.job import Outcome, Request
from grn.negotiator import learn
from grn.negotiator.events import (
    Action,
    DropLease,
    DropProfile,
    DropWaiting,
    Event,
    Grant,
    HolderChanged,
    HolderGone,
    Lease,
    LeaseState,
    LookSoon,
    ProfileForgotten,
    Released,
    Requested,
    Sampled,
    SaveLease,
    SaveRun,
    SaveWaiting,
    Started,
    TellWaiting,
    Wait,
    WaitReason,
    Withdrawn,
)
from grn.negotiator.ledger import Book, Guard, check_books
from grn.negotiator.load import Loads
from grn.negotiator.memory import Memory
from grn.negotiator.order import Group, Refused, Shares, Turn, Waiting, Waitlist, turn
from grn.negotiator.place import Need, Place, Room, Size, allowed, pinned, place, to_keep
from grn.negotiator.refuse import refusal
from grn.negotiator.shelf import MANY, Shelf


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers an administrator may change."""

    guard: Guard = field(default_factory=Guard)
    flat_s: float = 60.0  # a first run this long without a rise is believed
    patience_s: float = 600.0  # after this long the oldest request is kept GPUs free
    grace_s: float = 2.0  # after a restart, how long places are kept for those who waited
    load_cap: float = 1.8  # jobs share a GPU until their loads add up to this
    short_s: float = 900.0  # types that usually take no longer go before others


class Engine:
    """The negotiator's mind."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.memory = Memory()
        self.loads = Loads()
        self.books: dict[str, Book] = {}
        self._shelf = Shelf(self.books)
        self.leases: dict[str, Lease] = {}
        self.waitlist = Waitlist()
        self._shares = Shares()
        self._watches: dict[str, learn.Watch] = {}
        self._by_key: dict[str, str] = {}  # key of a request -> its lease
        self._draining: set[str] = set()
        self._first_runs: dict[str, str] = {}  # job type -> lease of its unmeasured first run
        self._sequence = 0
        self._saved: set[str] = set()  # keys that are written down as waiting
        self._returning: dict[str, int] = {}  # key -> old place of a request before a restart
        self._grace_until = _NEVER
        self._wall_offset_s = 0.0
        self._residue_until = _NEVER
        self._kept: dict[str, int] = {}  # GPU -> for whom it was last kept free
        self._kept_type = ""
        self._kept_until = _NEVER  # when those GPUs will be ready for the one they are kept for
        self._sizes_known: dict[str, Size] = {}
        self._least_guess = (-1, 0)  # the version of our memory, and the guess it leads to

    # --- the door ------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Take in one fact and return what is to be done."""
        if isinstance(event, Requested):
            return list(self._requested(event))
        if isinstance(event, Sampled):
            return list(self._sampled(event))
        if isinstance(event, Released):
            return list(self._released(event))
        if isinstance(event, HolderGone):
            return list(self._holder_gone(event))
        if isinstance(event, Withdrawn):
            return list(self._withdrawn(event))
        if isinstance(event, HolderChanged):
            return list(self._holder_changed(event))
        if isinstance(event, Started):
            return list(self._started(event))
        return list(self._profile_forgotten(event))

    # --- questions (they change nothing) -------------------------------------------------

    def wants_look(self, at: float) -> bool:
        """True while somebody waits for memory that a new reading may show to be free."""
        if not len(self.waitlist):
            return False
        if at < self._residue_until:
            return True
        return bool(self._draining)

    def why(self, key: str, at: float) -> Wait | None:
        """Return why a request waits, None when it does not wait."""
        group = self.waitlist.group_of(key)
        if group is None:
            return None
        if at < self._grace_until:
            return _RESTARTING
        answer = self._try(group.members[key].request, closed=())
        if isinstance(answer, Wait):
            return answer
        return Wait(
            WaitReason.YIELDS_TO_OLDER, "the room that is left is kept for an older request"
        )

    def watch(self, lease_id: str) -> learn.Watch:
        """Return what has been seen of a running job."""
        return self._watches[lease_id]

    def needs(self, request: Request) -> dict[str, Need]:
        """Return what a request is believed to need on each GPU model."""
        needs = self.memory.needs(request, self._sizes())
        for model, need in needs.items():
            load = self.loads.of(request.job_type, model)
            if load is not None:
                needs[model] = replace(need, load=load)
        return needs

    def check(self) -> None:
        """Raise AssertionError when the books contradict each other."""
        check_books(self.books, self.leases)
        for lease_id, lease in self.leases.items():
            assert lease_id in self._watches
            is_held = lease.state is LeaseState.HELD
            assert not (is_held and lease.request.key in self.waitlist), "granted and waiting"
        for job_type, lease_id in self._first_runs.items():
            assert self.leases[lease_id].request.job_type == job_type
        assert self._saved >= {waiting.request.key for waiting in self.waitlist}

    # --- one method per event ------------------------------------------------------------

    def _started(self, event: Started) -> Iterator[Action]:
        readings = {reading.uuid: reading for reading in event.readings}
        self._wall_offset_s = event.wall_offset_s
        for gpu in event.gpus:
            unread = Reading(gpu.uuid, GpuHealth.UNKNOWN)
            guard = self.rules.guard.of(gpu.total_bytes)
            self.books[gpu.uuid] = Book(gpu, guard, readings.get(gpu.uuid, unread))
            self.books[gpu.uuid].load_cap = self.rules.load_cap
            self._shelf.watch(self.books[gpu.uuid])
        self.memory.load(event.profiles)
        self.loads.load(event.profiles)
        self.memory.woken.clear()  # nobody waits yet
        for lease in event.leases:
            if all(uuid in self.books for uuid in lease.gpus):
                self._put(lease, event.at)
            else:
                yield DropLease(lease.id)  # it is on a GPU that is not managed any more
        for book in self.books.values():
            book.read(book.reading)  # again, now that it is known whose memory it shows
        self._returning = dict(event.waiting)
        self._sequence = max((place + 1 for _, place in event.waiting), default=0)
        self._saved = set(self._returning)
        if self.books:
            self._guess()  # drawn from all profiles: not while somebody waits for an answer
        if event.waiting:
            self._grace_until = event.at + self.rules.grace_s

    def _requested(self, event: Requested) -> Iterator[Action]:
        request = event.request
        held = self._held_by_key(request.key)
        if held is not None:  # the client lost the answer and asks again
            yield self._granted(held)
            return
        refused = refusal(request, list(self.books.values()))
        if refused is not None:
            yield from self._withdrawn(Withdrawn(event.at, request.key))
            yield refused
            return
        if not len(self.waitlist) and self._grace_until == _NEVER:
            granted = self._at_once(request, event.at)
            if granted:
                yield from granted
                return
        waiting = self._enqueue(request, event.at)
        if self._ends_grace(event.at):
            yield from self._schedule(event.at)
        elif event.at >= self._grace_until:
            yield from self._newcomer(waiting, event.at)
        if request.key in self.waitlist:
            self._saved.add(request.key)
            yield SaveWaiting(request.key, waiting.sequence, request.holder)
            yield TellWaiting(request.key, self.why(request.key, event.at) or _RESTARTING)

    def _ends_grace(self, at: float) -> bool:
        """True once after a restart: when all who waited are back, or have had their time."""
        if self._grace_until == _NEVER or (at < self._grace_until and self._returning):
            return False
        self._grace_until = _NEVER
        return True

    def _enqueue(self, request: Request, at: float) -> Waiting:
        before = self.waitlist.pop(request.key)
        if before is not None:
            sequence, since = before.sequence, before.since
        else:
            since = at
            sequence = self._returning.pop(request.key, self._sequence)
            self._sequence = max(self._sequence, sequence + 1)
        if before is not None:
            is_short, tag = before.is_short, before.tag
        else:
            usual_s = self._usual_s(request)
            is_short = usual_s is not None and usual_s <= self.rules.short_s
            tag = self._tag(request, sequence, usual_s)
        waiting = Waiting(request, sequence, since, is_short, tag)
        self.waitlist.add(waiting, bool(pinned(request, list(self.books.values()))))
        return waiting

    def _usual_s(self, request: Request) -> float | None:
        usual = [self.memory.usual_s(request.job_type, model) for model in self._sizes()]
        return min((each for each in usual if each is not None), default=None)

    def _tag(self, request: Request, sequence: int, usual_s: float | None) -> float:
        """Return where a request stands among those of all users."""
        later = [w.tag for w in self._later_of_user(request.user, sequence)]
        if later:  # it comes back to an old place, before others of its user
            return min(later)
        cost_s = _USUAL_S if usual_s is None else usual_s
        share = max(
            max(need.need_bytes / self._sizes()[model].capacity_bytes, need.load or 0.0)
            for model, need in self.needs(request).items()
        )
        return self._shares.tag(request.user, request.gpus * min(1.0, share) * cost_s / 3600)

    def _later_of_user(self, user: int, sequence: int) -> Iterator[Waiting]:
        if sequence + 1 < self._sequence:  # else it is the newest of all
            yield from (
                w for w in self.waitlist if w.sequence > sequence and w.request.user == user
            )

    def _at_once(self, request: Request, at: float) -> list[Action]:
        """Grant what fits to the only one who asks, without a place in the line."""
        answer = self._try(request, closed=())
        if isinstance(answer, Wait):
            return []
        self._returning.pop(request.key, None)
        return self._grant(request, answer, at)

    def _newcomer(self, waiting: Waiting, at: float) -> Iterator[Action]:
        """Offer to a newcomer alone: for all others nothing has changed."""
        group = self.waitlist.group_of(waiting.request.key)
        if group is not None and group.head is waiting:
            granted = self._offer(group, at, self._closed(at))
            yield from granted
            if granted:
                self._pin(waiting.request)

    def _withdrawn(self, event: Withdrawn) -> Iterator[Action]:
        self._returning.pop(event.key, None)
        yield from self._unsave(event.key)
        if self.waitlist.pop(event.key) is not None:
            yield from self._schedule(event.at)  # it may have kept GPUs closed to others

    def _holder_changed(self, event: HolderChanged) -> Iterator[Action]:
        lease = self.leases.get(event.lease)
        if lease is not None:
            request = replace(lease.request, holder=event.holder, is_command=False, has_parent=True)
            changed = replace(lease, request=request)
            self._replace(changed)
            self._pin(request)
            yield SaveLease(changed)

    def _released(self, event: Released) -> Iterator[Action]:
        lease = self.leases.get(event.lease)
        if lease is None or lease.state is LeaseState.DRAINING:
            return
        yield from self._learn(lease, event)
        yield from self._drop(lease)
        if not all(self.books[uuid].is_virtual for uuid in lease.gpus):
            # The process lives on and may keep its memory a moment longer than its lease.
            self._residue_until = event.at + _RESIDUE_S
        yield from self._schedule(event.at)
        if self.wants_look(event.at):
            yield LookSoon()

    def _holder_gone(self, event: HolderGone) -> Iterator[Action]:
        lease = self.leases.get(event.lease)
        if lease is None or lease.state is LeaseState.DRAINING:
            return
        yield from self._learn(lease, event)
        draining = replace(lease, state=LeaseState.DRAINING, is_probe=False, outcome=event.outcome)
        self._replace(draining)
        yield SaveLease(draining)
        yield from self._schedule(event.at)
        yield LookSoon()

    def _sampled(self, event: Sampled) -> Iterator[Action]:
        for reading in event.readings:
            book = self.books.get(reading.uuid)
            if book is not None:
                book.read(reading)
                for use in reading.uses:
                    self.waitlist.pin(use.pid)
        for lease in list(self.leases.values()):
            if lease.state is LeaseState.DRAINING:
                yield from self._drain(lease)
            else:
                yield from self._look_at(lease, event.at)
        for book in self.books.values():
            if book.leases:
                self.loads.look(book, event.at)
                self._weigh(book)
        if event.at >= self._grace_until:
            for key in self._returning:
                yield from self._unsave(key)
            self._returning.clear()
        yield from self._schedule(event.at)
        if self.wants_look(event.at):
            yield LookSoon()

    def _profile_forgotten(self, event: ProfileForgotten) -> Iterator[Action]:
        self.loads.forget(event.job_type)
        if self.memory.forget(event.job_type):
            yield DropProfile(event.job_type)
            yield from self._schedule(event.at)

    # --- granting ------------------------------------------------------------------------

    def _schedule(self, at: float) -> Iterator[Action]:
        """Offer GPUs to those who wait, in turn, until nobody's wish fits any more."""
        if at < self._grace_until or not len(self.waitlist):
            return
        closed = self._closed(at)
        rooms = self._rooms(closed)
        guess = self._guess()
        others = []
        for group in self._worth_asking(rooms[1], guess, closed):
            if self._is_still_no(group, rooms[self._may_pass(group, at)], closed, guess):
                self.waitlist.settle(group)
            else:
                others.append(group)
        placed: list[Request] = []
        last, place_after = _BEFORE_ALL, 0
        # Who is refused is not asked again in this round: grants only take room.
        while (found := self._next(last, others, place_after, rooms[1])) is not None:
            group, is_other = found
            place_after += is_other
            last = turn(group.head)
            if self._is_still_no(group, rooms[self._may_pass(group, at)], closed, guess):
                continue
            head = group.head
            granted = self._offer(group, at, closed)
            if granted:
                yield from granted
                placed.append(head.request)
                rooms = self._rooms(closed)
            if group.members and group.head is not head:  # the next of its like, in its own turn
                insort(others, group, place_after, key=lambda group: turn(group.head))
        for request in placed:
            self._pin(request)

    def _next(
        self, last: Turn, others: list[Group], place: int, room: Room
    ) -> tuple[Group, bool] | None:
        """Return whose turn it is after the last one, and whether it is from the others."""
        most = room.free[-1][0] if room.free else -math.inf
        fitting = self.waitlist.next_fitting(last, most)
        while place < len(others) and not others[place].members:
            place += 1
        other = others[place] if place < len(others) else None
        if other is None:
            return (fitting, False) if fitting else None
        if fitting is None or turn(other.head) <= turn(fitting.head):
            return other, True
        return fitting, False

    def _worth_asking(self, room: Room, guess: int, closed: dict[str, int]) -> list[Group]:
        for job_type in self.memory.woken:
            self.waitlist.wake(job_type)
        self.memory.woken.clear()
        if closed:  # what is kept free is for one who is asked each time
            self.waitlist.wake(self._kept_type)
        most = room.free[-1][0] if room.free else -math.inf
        return self.waitlist.worth_asking(most, guess, room.empty > 0)

    def _pin(self, request: Request) -> None:
        """Keep what else a process waits for from holding up its like: it cannot move any more."""
        if request.holder is not None and not request.is_command:
            self.waitlist.pin(request.holder.pid)

    def _offer(self, group: Group, at: float, closed: dict[str, int]) -> list[Action]:
        """Try the head of a group; the answer no is remembered for the group."""
        head = group.head
        shut = [uuid for uuid, sequence in closed.items() if sequence != head.sequence]
        if shut and self._may_pass(group, at):
            shut = []
        answer = self._try(head.request, shut)
        if isinstance(answer, Wait):
            if pinned(head.request, list(self.books.values())):
                self.waitlist.refuse(group, None)
                if len(group.members) > 1:
                    self.waitlist.set_apart(head)  # its like can go where it cannot
            else:
                self.waitlist.refuse(group, self._refused(head.request, answer))
            return []
        self.waitlist.pop(head.request.key)
        self._shares.given(head)
        return self._grant(head.request, answer, at)

    def _grant(self, request: Request, where: Place, at: float) -> list[Action]:
        lease = Lease(request, where.gpus, where.reserved, where.is_probe, at)
        self._put(lease, at)
        return [*self._unsave(request.key), SaveLease(lease), self._granted(lease)]

    def _refused(self, request: Request, wait: Wait) -> Refused | None:
        """Return what must change before a request that may go anywhere gets another answer."""
        job_type, needs = request.job_type, self.needs(request)
        version = self.memory.version_of(job_type)
        if wait.reason is WaitReason.FIRST_RUN_ELSEWHERE:
            is_unknown = all(need.is_probe for need in needs.values())
            sibling = self._first_runs.get(job_type)
            return Refused(job_type, version, sibling) if is_unknown else None
        is_guess = self.memory.is_guess(job_type)
        enough = [need.need_bytes for need in needs.values() if not (is_guess and need.is_probe)]
        least, is_guess = min(enough, default=math.inf), len(enough) < len(needs)
        busy = all(need.load is not None for need in needs.values())
        gpus, is_alone = request.gpus, request.is_exclusive
        return Refused(job_type, version, None, gpus, is_alone, least, is_guess, busy)

    def _is_still_no(self, group: Group, room: Room, closed: dict[str, int], guess: int) -> bool:
        """True when nothing has changed that could turn the last no to this group into a yes."""
        refused = group.refused  # asked of all who wait, at every event: no call that can be spared
        if refused is None or refused.version != self.memory.changed.get(refused.job_type, 0):
            return False
        if refused.sibling is not None:
            return self._first_runs.get(refused.job_type) == refused.sibling
        if closed and group.head.sequence in closed.values():
            return False
        if refused.is_alone:
            return room.empty < refused.gpus
        least = refused.need_bytes
        if refused.is_guess and guess < least:
            least = guess
        return not room.has(refused.gpus, least, refused.is_load_known)

    def _rooms(self, closed: Collection[str]) -> tuple[Room, Room]:
        """Return the room on GPUs that are not closed, and on all of them."""
        room = self._shelf.room(closed)
        return room, self._shelf.room() if closed else room

    def _may_pass(self, group: Group, at: float) -> bool:
        """True when a job usually ends before the GPUs that are kept free can be used anyway."""
        left_s = self._kept_until - at
        if left_s <= 0:
            return False
        job_type = group.head.request.job_type
        usual = [self.memory.usual_s(job_type, model) for model in self._sizes()]
        return all(each is not None and _LATE * each <= left_s for each in usual)

    def _guess(self) -> int:
        """Return what a type nobody knows needs at least."""
        if self._least_guess[0] != self.memory.version:
            least = self.memory.least_guess(self._sizes())
            self._least_guess = (self.memory.version, least)
        return self._least_guess[1]

    def _try(self, request: Request, closed: Collection[str]) -> Place | Wait:
        needs, books = self.needs(request), allowed(request, list(self.books.values()))
        answer = self._place(request, needs, books, closed)
        is_first = (
            answer.is_probe
            if isinstance(answer, Place)
            else answer.reason is WaitReason.NO_ROOM_FOR_FIRST_RUN
        )
        running = self._first_runs.get(request.job_type) if is_first else None
        if running is None:
            return answer
        homes = pinned(request, books) or books
        known = [book for book in homes if not needs[book.gpu.model].is_probe]
        if len(known) >= request.gpus:  # it is measured on another model than these
            answer = place(request, needs, known, closed)
            if isinstance(answer, Place):
                return answer
        return self._wait_for_sibling(running)

    def _place(
        self,
        request: Request,
        needs: dict[str, Need],
        books: list[Book],
        closed: Collection[str],
    ) -> Place | Wait:
        """Place a request; of very many GPUs only the roomiest are looked at if they will do."""
        is_bound = request.holder is not None and not request.is_command
        if len(books) > MANY and not (request.slots or request.stay or is_bound or closed):
            least = min(need.need_bytes for need in needs.values())
            few, are_all = self._shelf.likely(least, request.gpus)
            answer = place(request, needs, few, closed) if len(few) >= request.gpus else None
            is_sure = are_all and not request.is_exclusive
            if answer is not None and (is_sure or isinstance(answer, Place)):
                return answer
        return place(request, needs, books, closed)

    def _wait_for_sibling(self, lease_id: str) -> Wait:
        lease = self.leases[lease_id]
        names = ", ".join(str(self.books[uuid].gpu.index) for uuid in lease.gpus)
        text = f"the first run of {lease.request.label} is being measured on GPU {names}"
        return Wait(WaitReason.FIRST_RUN_ELSEWHERE, f"{text} (lease {lease_id})")

    def _closed(self, at: float) -> dict[str, int]:
        """Keep GPUs free for the first in turn of those who have waited long enough."""
        self._kept_until = _NEVER
        if at - self.waitlist.oldest_since() < self.rules.patience_s:
            return {}
        for group in self.waitlist.in_turn():
            head = group.head
            if at - head.since < self.rules.patience_s:
                continue
            needs = self.needs(head.request)
            is_first = any(need.is_probe for need in needs.values())
            if is_first and head.request.job_type in self._first_runs:
                continue  # it does not wait for room
            books = allowed(head.request, list(self.books.values()))
            kept = to_keep(head.request, needs, books, partial(self._ready_s, at, head.sequence))
            if kept:
                if at - head.since < _PASSED * self.rules.patience_s:
                    waits = [self._drained_s(book, needs[book.gpu.model], at) for book in kept]
                    self._kept_until = at + max(waits)
                self._kept = {book.gpu.uuid: head.sequence for book in kept}
                self._kept_type = head.request.job_type
                return self._kept
        return {}

    def _ready_s(self, at: float, sequence: int, book: Book, need: Need) -> float:
        """Return how long a GPU takes to have room; one that is kept already stays so."""
        if self._kept.get(book.gpu.uuid) == sequence:
            return -1.0
        return self._drained_s(book, need, at)

    def _drained_s(self, book: Book, need: Need, at: float) -> float:
        """Return when enough jobs of a GPU will have ended; infinity when nobody knows."""
        free, ends = book.free_bytes, []
        for lease in book.leases.values():
            usual_s = self.memory.usual_s(lease.request.job_type, book.gpu.model)
            passed_s = at - lease.granted_at
            late = usual_s is None or passed_s > usual_s
            left_s = math.inf if usual_s is None else passed_s / 4 if late else usual_s - passed_s
            ends.append((left_s, lease.reserved_on(book.gpu.uuid)))
        waits_s = 0.0
        for left_s, size in sorted(ends):
            if free >= need.need_bytes:
                break
            free, waits_s = free + size, left_s
        return waits_s

    # --- leases --------------------------------------------------------------------------

    def _put(self, lease: Lease, at: float) -> None:
        self._watches[lease.id] = learn.Watch(min(lease.granted_at, at))
        if lease.is_probe:
            self._first_runs.setdefault(lease.request.job_type, lease.id)
        self._replace(lease)

    def _replace(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        if lease.state is LeaseState.HELD:
            self._by_key[lease.request.key] = lease.id
        else:
            self._draining.add(lease.id)
        for uuid in lease.gpus:
            self.books[uuid].put(lease)
            self._weigh(self.books[uuid])
        job_type = lease.request.job_type
        if not lease.is_probe and self._first_runs.get(job_type) == lease.id:
            del self._first_runs[job_type]
            self.waitlist.wake(job_type)

    def _weigh(self, book: Book) -> None:
        model = book.gpu.model
        book.load = sum(
            self.loads.of(lease.request.job_type, model) or 0.0
            for lease in book.leases.values()
            if lease.state is LeaseState.HELD
        )
        book.note_change()

    def _drop(self, lease: Lease) -> Iterator[Action]:
        del self.leases[lease.id]
        del self._watches[lease.id]
        self._draining.discard(lease.id)
        if self._by_key.get(lease.request.key) == lease.id:
            del self._by_key[lease.request.key]
        if self._first_runs.get(lease.request.job_type) == lease.id:
            del self._first_runs[lease.request.job_type]
            self.waitlist.wake(lease.request.job_type)
        for uuid in lease.gpus:
            self.books[uuid].take(lease.id)
            self._weigh(self.books[uuid])
        yield DropLease(lease.id)

    def _drain(self, lease: Lease) -> Iterator[Action]:
        """Let a dead job's lease go when the driver shows its memory gone."""
        books = [self.books[uuid] for uuid in lease.gpus]
        if not all(book.is_usable for book in books):
            return
        if any(lease.id in book.measured for book in books):
            freed = replace(lease, reserved=(0,) * len(lease.gpus))
            if freed != lease:
                self._replace(freed)
                yield SaveLease(freed)
        else:
            yield from self._drop(lease)

    def _look_at(self, lease: Lease, at: float) -> Iterator[Action]:
        """Follow the memory of a running job; a first run that is flat gives room back."""
        books = [self.books[uuid] for uuid in lease.gpus]
        if not all(book.is_usable for book in books):
            return  # silence shows nothing, least of all that its memory is flat
        measured = [book.measured.get(lease.id, 0) for book in books]
        used = max((size for size in measured if size is not None), default=0)
        is_hidden = any(book.unexplained_bytes > book.guard_bytes for book in books)
        if not used and (None in measured or is_hidden):
            return  # a driver that does not say what a process uses does not say that it uses none
        watch = self._watches[lease.id].seen(at, used)
        self._watches[lease.id] = watch
        if lease.is_probe and not lease.request.is_exclusive:
            if not watch.is_flat(at, self.rules.flat_s):
                return
            model = books[0].gpu.model
            keep = learn.shrunk_bytes(watch, at, self._sizes()[model].capacity_bytes)
            shrunk = tuple(min(before, keep) for before in lease.reserved)
            settled = replace(lease, reserved=shrunk, is_probe=False)
            self._replace(settled)
            self.memory.shown_while_running(lease.request, model, keep)
            yield SaveLease(settled)

    def _learn(self, lease: Lease, event: Released | HolderGone) -> Iterator[Action]:
        """Turn the end of a run into a remembered one, when it taught something."""
        request, model = lease.request, self.books[lease.gpus[0]].gpu.model
        self.memory.run_over(request, model)
        end = learn.End(
            outcome=event.outcome,
            at=event.at,
            peak_bytes=event.peak_bytes,
            asked_bytes=event.asked_bytes if isinstance(event, Released) else None,
            reserved_bytes=lease.reserved_bytes,
            was_sharing=self.is_sharing(lease),
            wall_offset_s=self._wall_offset_s,
            arguments=request.arguments,
        )
        usual_s = None
        if event.outcome is Outcome.FAILED:  # only a failure is held against the usual time
            usual_s = learn.usual_duration_s(self.memory.profile(request.job_type, model))
        load = self.loads.ended(lease.id, (request.job_type, model), event.outcome is Outcome.OK)
        run = learn.finished_run(end, self._watches[lease.id], usual_s, self.rules.flat_s)
        if run is not None:
            run = replace(run, load=load)
            self.memory.add(request, model, run)
            yield SaveRun(request.job_type, model, request.label, request.user, run)

    def _unsave(self, key: str) -> Iterator[Action]:
        if key in self._saved:
            self._saved.remove(key)
            yield DropWaiting(key)

    # --- small questions -----------------------------------------------------------------

    def _granted(self, lease: Lease) -> Grant:
        gpus = tuple(self.books[uuid].gpu for uuid in lease.gpus)
        return Grant(lease.request.key, lease, gpus)

    def _held_by_key(self, key: str) -> Lease | None:
        lease = self.leases.get(self._by_key.get(key, ""))
        return lease if lease is not None and lease.state is LeaseState.HELD else None

    def is_sharing(self, lease: Lease) -> bool:
        for uuid in lease.gpus:
            book = self.books[uuid]
            if len(book.leases) > 1 or book.strangers_bytes > book.guard_bytes:
                return True
        return False

    def _sizes(self) -> dict[str, Size]:
        if not self._sizes_known:
            for book in self.books.values():
                known = self._sizes_known.get(book.gpu.model)
                if known is None or known.total_bytes < book.gpu.total_bytes:
                    size = Size(book.gpu.total_bytes, book.capacity_bytes)
                    self._sizes_known[book.gpu.model] = size
        return self._sizes_known


_NEVER = float("-inf")
_BEFORE_ALL: Turn = (-1, 0, 0, 0.0, 0)
_USUAL_S = 600.0  # of a type whose runs nobody has timed
_RESIDUE_S = 5.0
_LATE = 1.2  # a job may take so many times its usual time
_PASSED = 4  # so many times its patience is one passed by jobs that end in time
_RESTARTING = Wait(
    WaitReason.RESTARTING, "the negotiator has just restarted and waits for those who were first"
)
