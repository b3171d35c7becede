"""The negotiator's event loop: facts in, actions out; the only caller of the engine.

Turns samples, ends and messages into events, persists the engine's actions, then carries them out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from grn.gpus import trees
from grn.gpus.probe import GpuProbe, Inventory, Placement
from grn.gpus.virtual import overflowing
from grn.model.gpu import GpuHealth, GpuKind, Reading, no_process_list
from grn.model.job import Holder, Outcome
from grn.negotiator.engine import Engine
from grn.negotiator.events import (
    Action,
    DropLease,
    DropProfile,
    DropWaiting,
    Event,
    Grant,
    HolderGone,
    JobStarted,
    Lease,
    LeaseState,
    LookSoon,
    Refuse,
    Released,
    Sampled,
    SaveGpu,
    Stopping,
    TellWaiting,
    Withdrawn,
)
from grn.negotiator.history import History
from grn.negotiator.holders import Holders
from grn.negotiator.store import Store

log = logging.getLogger(__name__)
FAST_LOOK_S = 0.02
MAX_ENDS = 1000
REPORT_S = 0.5
COMMAND_S = 2.0

Answer = Callable[["Grant | Refuse | TellWaiting"], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a client says its lease ended."""

    outcome: Outcome
    gpu_peak_bytes: int | None = None
    resident_bytes: int | None = None
    asked_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseSettled:
    """How a lease ended in the negotiator's eyes; no outcome when it knows nothing of it."""

    outcome: Outcome | None
    was_alone: bool = True
    peak_bytes: int | None = None
    is_victim: bool = False  # it ran out of memory by no fault of its own
    because: str = ""  # whose fault it was
    has_larger: bool = False  # it was alone, and a GPU with more memory is managed here


class Loop:
    """Persists the engine's actions and carries them out."""

    def __init__(self, engine: Engine, store: Store, probe: GpuProbe, sample_s: float) -> None:
        self.engine = engine
        self.store = store
        self.history = History()
        self.holders = Holders(self._process_gone)
        self._probe = probe
        self._sample_s = sample_s
        self._answers: dict[str, Answer] = {}  # request key -> the client that waits for it
        self._absent: frozenset[str] = frozenset()  # enumerated in this boot, but not by us
        self._overflowed: set[str] = set()
        self._told_of_dropped: set[int] = set()  # users
        self._not_ours: dict[str, int] = {}  # those of them that we may not end, and their GPU
        self._bereaved: set[str] = set()  # leases whose holder is gone since the last look
        self._survivors: dict[str, tuple[Holder, ...]] = {}  # what their holders left behind
        self._lines: set[str] = set()  # leases whose holder asked itself, over a line still open
        self._ends: dict[str, LeaseSettled] = {}  # how the last leases ended, for late askers
        self._reported: set[str] = set()  # leases whose asker lives and will say how they ended
        self._releasing: set[asyncio.Task[None]] = set()
        self._look = asyncio.Event()
        self._rest_until = 0.0

    # --- what the server tells -----------------------------------------------------------

    def start(self, inventory: Inventory) -> None:
        """Wake the engine with what was saved; holders that are gone free their leases."""
        saved = self.store.load()
        gone = {row.key for row in saved.waiting if row.holder and not trees.is_alive(row.holder)}
        self.store.write([DropWaiting(key) for key in gone])
        self.store.write([SaveGpu(uuid) for uuid in sorted(inventory.enumerated - saved.gpus)])
        if inventory.enumerated:  # virtual GPUs are never absent
            self._absent = saved.gpus - inventory.enumerated
        if self._absent:
            log.warning("action=name-by-uuid reason=gpus-gone uuids=%s", ",".join(self._absent))
        waiting = tuple((row.key, row.sequence) for row in saved.waiting if row.key not in gone)
        now = self.now()
        offset_s = time.time() - now
        self.tell(
            JobStarted(
                now, inventory.gpus, inventory.readings, saved.leases, waiting, saved.profiles,
                offset_s, saved.uses, saved.numbers,
            )
        )  # fmt: skip
        for lease in list(self.engine.leases.values()):
            holder = lease.request.holder
            log.info("action=adopt lease=%s pid=%s", lease.id, holder.pid if holder else None)
            if lease.state is LeaseState.DRAINING:
                self._bereaved.add(lease.id)
            if lease.request.has_parent:
                self._reported.add(lease.id)
            if holder is None:
                self._conclude(lease.id)
            elif not self.holders.watch(holder):
                self._holder_gone(lease, holder)

    @property
    def indices_hold(self) -> bool:
        """True while every GPU that was enumerated in this boot answers where it was."""
        return not self._absent and self._probe.indices_hold

    @property
    def trouble(self) -> str | None:
        """Return a warning that needs attention, None when all is well."""
        for lease_id, index in self._not_ours.items():
            return (
                f"lease {lease_id} has more memory than virtual GPU {index}, and this negotiator "
                "may not end its processes"
            )
        if self.store.trouble:
            return self.store.trouble
        blind = [
            book.gpu for book in self.engine.books.values() if not book.reading.lists_processes
        ]
        return no_process_list(blind) if blind else None

    def now(self) -> float:
        """Return the time events carry: it never jumps."""
        return time.monotonic()

    def tell(self, event: Event) -> None:
        """Tell the engine one fact and do what it says: remember first, then act."""
        actions = self.engine.handle(event)
        self.store.write(actions)
        for action in actions:
            self._carry_out(action)

    def expect(self, key: str, answer: Answer) -> None:
        """Register the callback that receives the answers to a request."""
        self._answers[key] = answer

    def forget(self, key: str, answer: Answer) -> bool:
        """This one waits no more; False when another has asked with the same key since."""
        if self._answers.get(key) != answer:
            return False
        del self._answers[key]
        return True

    def line_open(self, lease_id: str) -> None:
        """The holder itself asked for a lease: its connection is open while it or a fork lives."""
        self._lines.add(lease_id)

    def line_lost(self, lease_id: str) -> None:
        """That connection is closed, also in all processes forked under the lease."""
        self._lines.discard(lease_id)
        if lease_id in self.engine.leases:
            self._look.set()

    def take_back(self, key: str) -> None:
        """Withdraw a request; a client that still waits for it is told."""
        self.tell(Withdrawn(self.now(), key))
        text = "this request was taken back."
        self._carry_out(Refuse(key, text, code="UsageError"))

    def release(self, lease_id: str, ending: Ending, then: Callable[[LeaseSettled], None]) -> None:
        """End a lease, at once where its peak is known, else after a last look at it."""
        lease = self.engine.leases[lease_id]
        if lease_id in self._overflowed and ending.outcome is Outcome.FAILED:
            ending = replace(ending, outcome=Outcome.OUT_OF_MEMORY)
        if self._needs_last_look(lease):
            later = self._release_later(lease_id, ending, then)
            task = asyncio.get_running_loop().create_task(later)
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)
            return
        peak = self._probe.peak_at_once(placement_of(lease))
        self._release_now(lease, ending, peak, then)

    async def finish(self) -> None:
        """Stop watching processes and see the ends through that wait for a last look."""
        self.holders.close()
        if self._releasing:
            await asyncio.wait(self._releasing)
        self.tell(Stopping(self.now()))

    def expect_report(self, lease_id: str) -> None:
        """The process that asked for a lease watches over the one that holds it."""
        self._reported.add(lease_id)

    def no_report(self, lease_id: str) -> None:
        """Nobody watches over the holder any more; if it is gone already, conclude now."""
        if lease_id in self._reported:
            self._reported.discard(lease_id)
            lease = self.engine.leases.get(lease_id)
            if lease and lease.request.holder and not trees.is_alive(lease.request.holder):
                self._conclude(lease_id)

    def end_of(self, lease_id: str) -> LeaseSettled | None:
        """Return how a lease of late ended when its holder could not say so itself."""
        return self._ends.get(lease_id)

    # --- looking -------------------------------------------------------------------------

    async def observe(self) -> None:
        """Look at the GPUs for ever: at the usual pace, faster when the engine asks."""
        while True:
            try:
                await asyncio.wait_for(self._look.wait(), self._sample_s)
                await asyncio.sleep(max(0.0, self._rest_until - self.now()))
            except asyncio.TimeoutError:
                pass
            try:
                await self.look()
            except Exception:
                # One look that fails must not end the looking: leases and clients are unharmed
                # by it, and the next look starts afresh.
                log.exception("action=look result=failed")
            self.store.keep_in_place()

    async def look(self) -> None:
        """Read all GPUs once and tell the engine."""
        self._look.clear()
        began = self.now()
        placements = [placement_of(lease) for lease in self.engine.leases.values()]
        seen = await self._probe.sample(placements)
        readings = tuple(reading for reading in seen if reading.uuid in self.engine.books)
        self._note_health(readings)
        self._end_overflowing(readings)
        self.tell(Sampled(self.now(), readings, self._survived()))
        self.history.sampled(self.engine, self.now())
        # What it did not show yet will not show in an instant; a new death is looked at at once,
        # but never so often that looking is all we do.
        is_to_repeat = self._look.is_set()
        self._rest_until = self.now() + (FAST_LOOK_S if is_to_repeat else self.now() - began)

    def _survived(self) -> frozenset[str]:
        """Return the leases whose holder is gone while processes that it started live on.

        One look at all processes for all holders that are gone since the last time. A process
        that was forked, not started anew, has no tag; it holds the connection of its parent.
        """
        gone, self._bereaved = self._bereaved & self.engine.leases.keys(), set()
        if gone:
            users = {lease_id: self.engine.leases[lease_id].request.user for lease_id in gone}
            self._survivors.update(trees.tagged(users))
        for lease_id, holders in list(self._survivors.items()):
            alive = tuple(holder for holder in holders if trees.is_alive(holder))
            if alive and lease_id in self.engine.leases:
                self._survivors[lease_id] = alive
            else:
                del self._survivors[lease_id]
        return frozenset(self._survivors) | frozenset(self._lines)

    # --- carrying out --------------------------------------------------------------------

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Grant):
            self._begin(action)
        elif isinstance(action, (Refuse, TellWaiting)):
            answer = self._answers.get(action.key)
            if isinstance(action, Refuse):
                self._answers.pop(action.key, None)
            if answer is not None:
                answer(action)
        elif isinstance(action, LookSoon):
            self._look.set()
        elif isinstance(action, DropLease):
            self._reported.discard(action.lease)
            self._overflowed.discard(action.lease)
            self._not_ours.pop(action.lease, None)
            self._lines.discard(action.lease)
            log.debug("action=end lease=%s", action.lease)
        elif isinstance(action, DropProfile):
            self._note_dropped_types()

    def _note_dropped_types(self) -> None:
        """Log once for each user that types are forgotten since there are too many."""
        for user in self.engine.memory.quota.dropped.keys() - self._told_of_dropped:
            self._told_of_dropped.add(user)
            log.warning("action=drop-types uid=%d reason=too-many", user)

    def _begin(self, grant: Grant) -> None:
        lease = grant.lease
        self._probe.begin(placement_of(lease))
        holder = lease.request.holder
        answer = self._answers.pop(lease.request.key, None)
        if answer is not None:
            answer(grant)
        if holder is not None and not self.holders.watch(holder):
            asyncio.get_running_loop().call_soon(self._process_gone, holder)
        log.info(
            "action=grant lease=%s type=%r gpus=%s reserved=%d first_run=%s",
            lease.id, lease.request.label, ",".join(str(gpu.index) for gpu in grant.gpus),
            lease.reserved_bytes, lease.is_probe,
        )  # fmt: skip

    def _process_gone(self, holder: Holder) -> None:
        for lease in list(self.engine.leases.values()):
            if lease.request.holder == holder and lease.state is LeaseState.HELD:
                self._holder_gone(lease, holder)

    def _holder_gone(self, lease: Lease, holder: Holder) -> None:
        """End a lease whose process is gone, or wait a moment for its parent's report."""
        later = asyncio.get_running_loop().call_later
        if lease.request.is_command:
            # Whoever asked for it is gone, but the command may be about to take it over.
            later(COMMAND_S, self._conclude_unless_held, lease.id, holder)
        elif lease.id in self._reported:
            # Its parent learns of this end in the same moment and knows the exit status.
            later(REPORT_S, self._conclude_unless_held, lease.id, holder)
        else:
            self._conclude(lease.id)

    def _conclude_unless_held(self, lease_id: str, gone: Holder) -> None:
        lease = self.engine.leases.get(lease_id)
        if lease is None or lease.request.holder != gone:
            return
        books = [self.engine.books[uuid] for uuid in lease.gpus]
        if lease_id in self._reported and any(lease_id in book.measured for book in books):
            # What the job left behind is being ended; who does that will tell how it went.
            later = asyncio.get_running_loop().call_later
            later(REPORT_S, self._conclude_unless_held, lease_id, gone)
            return
        self._conclude(lease_id)

    def _conclude(self, lease_id: str) -> None:
        """End a lease whose holder is gone without a word."""
        lease = self.engine.leases.get(lease_id)
        if lease is None or lease.state is LeaseState.DRAINING:
            return
        outcome = Outcome.OUT_OF_MEMORY if lease_id in self._overflowed else Outcome.KILLED
        log.info("action=holder-gone lease=%s outcome=%s", lease_id, outcome.lease_word)
        peak = self.engine.watch(lease_id).peak_bytes or None
        self._ends[lease_id] = self._settled(lease, Ending(outcome), peak)
        if len(self._ends) > MAX_ENDS:
            del self._ends[next(iter(self._ends))]
        self.history.ended(lease, self.now(), outcome, peak)
        self._bereaved.add(lease_id)
        self.tell(HolderGone(self.now(), lease_id, outcome))

    def _end_overflowing(self, readings: tuple[Reading, ...]) -> None:
        """Do what a driver would: refuse memory that is not there. Only virtual GPUs need it."""
        for reading in readings:
            book = self.engine.books[reading.uuid]
            for lease_id in overflowing(book.gpu, reading, book.reading, self._overflowed):
                log.warning("action=kill lease=%s reason=virtual-gpu-overflow", lease_id)
                self._overflowed.add(lease_id)
                pids = [use.pid for use in reading.uses if lease_id in use.leases]
                left = trees.end_processes(who for pid in pids if (who := trees.holder_of(pid)))
                if left:
                    log.error("action=kill lease=%s result=not-permitted", lease_id)
                    self._not_ours[lease_id] = book.gpu.index

    def _note_health(self, readings: tuple[Reading, ...]) -> None:
        for reading in readings:
            book = self.engine.books[reading.uuid]
            if reading.health is not book.reading.health:
                level = logging.INFO if reading.health is GpuHealth.OK else logging.WARNING
                log.log(level, "gpu=%d health=%s", book.gpu.index, reading.health.value)
            if reading.mode not in (None, book.mode):
                log.warning("gpu=%d mode=%s", book.gpu.index, reading.mode.value)

    def _needs_last_look(self, lease: Lease) -> bool:
        if self._kind_of(lease) is GpuKind.VIRTUAL:
            return False
        return self._probe.keeps_peaks or self.engine.watch(lease.id).rose_at is None

    async def _release_later(
        self, lease_id: str, ending: Ending, then: Callable[[LeaseSettled], None]
    ) -> None:
        """Look once more before the end: a job shorter than the pace of looking has no sample."""
        lease = self.engine.leases[lease_id]
        peak = None
        try:
            if self.engine.watch(lease_id).rose_at is None:
                await self.look()
            peak = await self._probe.peak_in_time(placement_of(lease))
        finally:
            if lease_id in self.engine.leases:
                self._release_now(lease, ending, peak, then)
            else:
                then(LeaseSettled(ending.outcome))

    def _release_now(
        self, lease: Lease, ending: Ending, exact: int | None, then: Callable[[LeaseSettled], None]
    ) -> None:
        is_virtual = self._kind_of(lease) is GpuKind.VIRTUAL
        reported = ending.resident_bytes if is_virtual else ending.gpu_peak_bytes
        peak = exact if reported is None else max(exact or 0, reported)
        holder = self.engine.leases[lease.id].request.holder
        seen = max(self.engine.watch(lease.id).peak_bytes, peak or 0) or None
        settled = self._settled(lease, ending, seen)
        self.tell(Released(self.now(), lease.id, ending.outcome, peak, ending.asked_bytes))
        then(settled)
        self.history.ended(lease, self.now(), _outcome_shown(lease, ending), seen)
        self.engine.memory.refresh()  # while the client is busy with our answer
        if holder is not None:
            self.holders.unwatch(holder)
        log.info("action=release lease=%s outcome=%s", lease.id, ending.outcome.lease_word)

    def _settled(self, lease: Lease, ending: Ending, peak: int | None) -> LeaseSettled:
        """Return how a lease ended; where memory ran out, whose fault it was."""
        is_alone = not self.engine.is_sharing(lease)
        if ending.outcome is Outcome.OUT_OF_MEMORY:
            verdict = self.engine.verdict(lease, peak, ending.asked_bytes)
            return LeaseSettled(
                ending.outcome,
                is_alone,
                peak,
                verdict.is_victim,
                verdict.text,
                verdict.has_larger,
            )
        return LeaseSettled(ending.outcome, is_alone, peak)

    def _kind_of(self, lease: Lease) -> GpuKind:
        return self.engine.books[lease.gpus[0]].gpu.kind


def _outcome_shown(lease: Lease, ending: Ending) -> Outcome:
    """Return how a lease ended; one that no command has run under was cancelled."""
    is_unused = lease.request.is_command and ending.resident_bytes is None
    if is_unused and ending.outcome is Outcome.FAILED:
        return Outcome.CANCELLED
    return ending.outcome


def placement_of(lease: Lease) -> Placement:
    """Return a lease as the hardware side knows it; one still to be taken over has no process."""
    holder = None if lease.request.is_command else lease.request.holder
    return Placement(lease.id, holder, lease.gpus, lease.request.user)
