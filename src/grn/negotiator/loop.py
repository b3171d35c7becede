"""The negotiator's event loop, the only caller of `Engine.handle`.

Turns samples, ends and messages into events, persists the engine's actions, then carries them out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import chain
from typing import Any

from msgspec.structs import replace

from grn.gpus.host_probe import HostProbe
from grn.gpus.probe import GpuProbe, Inventory, Placement
from grn.model.gpu import GpuHealth, Reading, no_process_list
from grn.model.host import HostReading, HostSize
from grn.model.job import Holder, Outcome
from grn.model.units import show_size, show_time
from grn.negotiator.actions import (
    AskYield,
    Defer,
    DropBooking,
    DropLease,
    DropProfile,
    DropWaiting,
    Grant,
    KillProcesses,
    LookSoon,
    Refuse,
    SaveGpu,
    SetTimer,
    Settle,
    TellIdle,
    TellIdleStranger,
    TellWaiting,
)
from grn.negotiator.engine import Engine
from grn.negotiator.events import (
    Event,
    HolderGone,
    JobStarted,
    KernelKilled,
    Lease,
    LeaseState,
    Released,
    Resumed,
    Sampled,
    Stopping,
    TimerFired,
)
from grn.negotiator.queries.forecast import Forecasts
from grn.negotiator.queries.history import History
from grn.negotiator.storage.store import Store
from grn.proc import host, processes, terminate, tty
from grn.proc.identity import holder_of, is_alive, tagged
from grn.proc.watch import Holders

log = logging.getLogger(__name__)
FAST_LOOK_S = 0.02
CATCH_UP_S = 0.002
REST_AFTER_S = 5.0  # without leases and waiting requests, where there are no strangers
REST_LONGER_S = 65.0  # so long after them the last sample persists the usage of users
_HOST_EVERY = 4  # the host is read in one of this many samples

ClientAction = Grant | Refuse | TellWaiting | Settle | AskYield | TellIdle


class Loop:
    """Persists the engine's actions and carries them out."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        probe: GpuProbe,
        sample_s: float,
        host_size: HostSize | None = None,
    ) -> None:
        self._engine = engine
        self.view = engine.view
        self.store = store
        self.history = History()
        self.forecasts = Forecasts(self.view)
        self.holders = Holders(self._process_gone_soon)
        self.deliver: Callable[[ClientAction], None] = _undelivered  # to clients; set by the server
        self._probe = probe
        self._sample_s = sample_s
        self._host = host_size
        self._host_probe = HostProbe()
        self._host_read_at = float("-inf")
        self._is_reading_host = False
        self._kernel_kills = host.oom_kills()  # since the machine started
        self._absent: frozenset[str] = frozenset()  # GPUs enumerated in this boot, but not now
        self._told_of_dropped: set[int] = set()  # users
        self._not_ours: dict[str, int] = {}  # leases that we may not kill, and their GPU
        self._searched: set[str] = set()  # draining leases whose processes were searched for
        self._survivors: dict[str, tuple[Holder, ...]] = {}  # processes that dead holders left
        self._lines: set[str] = set()  # leases whose holder's connection is open
        self._releasing: dict[str, asyncio.Task[None]] = {}  # leases that wait for a last sample
        self.is_followed: Callable[[], bool] = lambda: False  # by subscribers; set by the server
        self.after_event: Callable[[], None] = _nothing  # soon, when there is much garbage
        self.after_look: Callable[[], None] = _nothing  # something to do while it is quiet
        self._owners: dict[int, int | None] = {}  # the users of processes without a lease
        self._busy_at = 0.0
        self._is_at_rest = False
        self._look = asyncio.Event()
        self._rest_until = 0.0
        self._is_to_catch_up = self._is_to_resume = False
        self._is_finished = False
        self._unlogged: list[Any] = []
        self._performers: dict[type, Callable[[Any], None]] = {
            Grant: self._begin,
            Refuse: self._answer,
            TellWaiting: self._answer,
            AskYield: self._ask_yield,
            TellIdle: self._tell_idle,
            TellIdleStranger: self._tell_idle_stranger,
            Settle: self._settle,
            Defer: self._defer,
            LookSoon: self._look_soon,
            DropLease: self._forget_lease,
            SetTimer: self._set_timer,
            KillProcesses: self._kill,
            DropProfile: self._note_dropped_types,
            DropBooking: self._log_end_of_booking,
        }

    # --- facts from the server -----------------------------------------------------------

    def start(self, inventory: Inventory) -> None:
        """Start the engine from the store; release leases whose holders are gone."""
        saved = self.store.load()
        self.forecasts.starts.extend(saved.starts)
        gone = {row.key for row in saved.waiting if row.holder and not is_alive(row.holder)}
        self.store.write([DropWaiting(key) for key in gone])
        self.store.write([SaveGpu(uuid) for uuid in sorted(inventory.enumerated - saved.gpus)])
        if inventory.enumerated:  # virtual GPUs are never absent
            self._absent = saved.gpus - inventory.enumerated
        if self._absent:
            log.warning("action=name-by-uuid reason=gpus-gone uuids=%s", ",".join(self._absent))
        waiting = tuple((row.key, row.sequence) for row in saved.waiting if row.key not in gone)
        now = self._busy_at = self.now()
        offset_s = time.time() - now
        self.tell(
            JobStarted(
                now, inventory.gpus, inventory.readings, saved.leases, waiting, saved.profiles,
                offset_s, saved.uses, saved.numbers, self._host, saved.bookings,
            )
        )  # fmt: skip
        for lease in list(self.view.leases.values()):
            holder = lease.request.holder
            log.info("action=adopt lease=%s pid=%s", lease.id, holder.pid if holder else None)
            if holder is None or not self.holders.watch(holder):
                self.tell(HolderGone(self.now(), lease.id))

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
        blind = [book.gpu for book in self.view.books.values() if not book.reading.lists_processes]
        return no_process_list(blind) if blind else None

    def now(self) -> float:
        """Return the time for events, by a monotonic clock."""
        return time.monotonic()

    def tell(self, event: Event) -> None:
        """Give the engine one event and carry out its actions: persist first, then act.

        An end whose reporter does not wait, and that grants nothing, is persisted a moment later.
        """
        actions = self._engine.handle(event)
        grants = [action for action in actions if isinstance(action, Grant)]
        if grants:
            starts = [self.forecasts.granted(one.key, event.at) for one in grants]
            self.store.write(actions)
            self.store.keep(start for start in starts if start is not None)
            self._catch_up_soon()
        elif isinstance(event, Released) and not event.is_awaited:
            self.store.keep(actions)
            self._catch_up_soon()
        else:
            self.store.write(actions)
        for action in actions:
            carry_out = self._performers.get(type(action))
            if carry_out is not None:  # others are persisted, and nothing more
                carry_out(action)
        self.after_event()

    def _log_soon(self, *line: object) -> None:
        """Log a line with others, and after work that somebody waits for."""
        self._unlogged.append(line)
        self._catch_up_soon()

    def _catch_up_soon(self) -> None:
        """Do later, for all events of a moment, what no client waits for: it costs half as much."""
        if not self._is_to_catch_up:
            self._is_to_catch_up = True
            asyncio.get_running_loop().call_later(CATCH_UP_S, self.catch_up)

    def catch_up(self) -> None:
        """Do what was postponed: learn from runs, persist, log."""
        self._is_to_catch_up = False
        if self._is_to_resume:
            self._is_to_resume = False
            self.tell(Resumed(self.now()))
        if self.store.unwritten:
            self.store.write(())
        lines, self._unlogged = self._unlogged, []
        for line in lines:
            log.info(*line)

    def line_open(self, lease_id: str) -> None:
        """Note that a holder requested its lease itself: its connection stays open while it or a
        fork lives."""
        self._lines.add(lease_id)

    def has_line(self, lease_id: str) -> bool:
        """True while that connection proves that a process of the lease may live."""
        return lease_id in self._lines

    def line_lost(self, lease_id: str) -> None:
        """Note that this connection is closed, also in all processes forked under the lease."""
        self._lines.discard(lease_id)
        self._look.set()

    def release(self, event: Released) -> None:
        """End a lease: at once where its peak is known, else after a last sample of its GPUs."""
        if event.outcome is Outcome.KILLED:
            self._count_kernel_kills()
        lease = self.view.leases[event.lease]
        if lease.id in self._releasing:
            return
        if self.view.needs_last_look(lease.id, self._probe.keeps_peaks):
            task = asyncio.get_running_loop().create_task(self._release_later(lease, event))
            self._releasing[lease.id] = task
            return
        peak = self._probe.peak_at_once(placement_of(lease))
        self.tell(event if peak is None else replace(event, peak_bytes=peak))

    async def _release_later(self, lease: Lease, event: Released) -> None:
        """Sample once more before the end: a job shorter than the interval has no sample."""
        peak = None
        try:
            if lease.id in self.view.leases and self.view.is_unseen(lease.id):
                await self.look()
            peak = await self._probe.peak_in_time(placement_of(lease))
        finally:
            del self._releasing[lease.id]
            self.tell(replace(event, at=self.now(), peak_bytes=peak))

    async def finish(self) -> None:
        """Stop watching processes and complete the releases that wait for a last sample."""
        self.holders.close()
        if self._releasing:
            await asyncio.wait(self._releasing.values())
        self.catch_up()
        self._is_finished = True
        self.tell(Stopping(self.now()))

    # --- sampling -------------------------------------------------------------------------

    async def observe(self) -> None:
        """Sample the GPUs for ever: at the usual interval, sooner when the engine asks.

        At rest a minute passes before the next sample, and after that only an event leads to one.
        """
        while True:
            try:
                await asyncio.wait_for(self._look.wait(), self._interval_s())
                await asyncio.sleep(max(0.0, self._rest_until - self.now()))
            except asyncio.TimeoutError:
                pass
            try:
                await self.look()
            except Exception:
                # One failed sample must not end sampling: it harms neither leases nor clients.
                log.exception("action=look result=failed")
            self.after_look()

    def wake(self) -> None:
        """Sample at the usual interval again: a job runs or waits, or a subscriber joins."""
        self._busy_at = self.now()
        if self._is_at_rest:
            self._is_at_rest = False
            self._look.set()

    def _interval_s(self) -> float | None:
        """Return the time to the next sample, None when only an event leads to one.

        It is long when samples have shown nothing new for a while and cannot show anything new.
        """
        is_busy = self.view.leases or len(self.view.waitlist) or self.is_followed()
        if is_busy or self._probe.has_strangers or self.store.unwritten:
            self._busy_at = self.now()
        quiet_s = self.now() - self._busy_at
        self._is_at_rest = quiet_s >= REST_AFTER_S
        if not self._is_at_rest:
            return self._sample_s
        return REST_LONGER_S - quiet_s if quiet_s < REST_LONGER_S else None

    async def look(self) -> None:
        """Read all GPUs once and tell the engine."""
        self._look.clear()
        began = self.now()
        placements = [placement_of(lease) for lease in self.view.leases.values()]
        seen = await self._probe.sample(placements)
        readings = tuple(reading for reading in seen if reading.uuid in self.view.books)
        self._note_health(readings)
        of_host = await self._look_at_host(placements)
        now, owners = self.now(), self._owners_in(readings)
        survived, offset_s = self._survived(), time.time() - now
        self.tell(Sampled(now, readings, survived, of_host, offset_s, owners))
        self.history.sampled(self.view, self.now())
        # Memory that is still in use will not be free in an instant. The end of a process is
        # sampled at once, but at a limited rate, or the loop does nothing else.
        is_to_repeat = self._look.is_set()
        self._rest_until = self.now() + (FAST_LOOK_S if is_to_repeat else self.now() - began)

    def refresh_host(self) -> None:
        """Read the host now if it is not sampled any more; without leases that is quick."""
        is_read = self._host is None or self._is_reading_host or not self._is_at_rest
        if not is_read and not self.view.leases:
            host = self._host_probe.read(())
            self.tell(Sampled(self.now(), (), self._survived(), host))

    def _owners_in(self, readings: tuple[Reading, ...]) -> tuple[tuple[int, int], ...]:
        """Return the users of the processes without a lease; each is looked up once."""
        if not self._probe.has_strangers:
            return ()
        pids = {use.pid for reading in readings for use in reading.uses if not use.leases}
        known = {pid: user for pid, user in self._owners.items() if pid in pids}
        known |= {pid: processes.user(pid) for pid in pids - known.keys()}
        self._owners = known
        return tuple((pid, user) for pid, user in known.items() if user is not None)

    async def _look_at_host(self, placements: list[Placement]) -> HostReading | None:
        """Read memory and cores of the host in a thread, less often than the GPUs."""
        now = self.now()
        if now - self._host_read_at < _HOST_EVERY * self._sample_s:
            return None
        self._host_read_at = now
        self._count_kernel_kills()
        if self._host is None:
            return None
        self._is_reading_host = True
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, self._host_probe.read, placements)
        finally:
            self._is_reading_host = False

    def _count_kernel_kills(self) -> None:
        """Tell the engine how many more processes the kernel has ended for memory."""
        before, now = self._kernel_kills, host.oom_kills()
        self._kernel_kills = now
        if before is not None and now is not None and now > before:
            log.warning("action=note-kernel-kills count=%d", now - before)
            self.tell(KernelKilled(self.now(), now - before))

    def _survived(self) -> frozenset[str]:
        """Return the leases whose holder is gone while processes that it started are alive.

        One scan of all processes serves all holders gone since the last one. A forked
        process has no tag in its environment; it holds the connection of its parent.
        """
        leases = self.view.leases
        new = self.view.draining - self._searched
        self._searched = set(self.view.draining)
        if new:
            found = tagged({one: leases[one].request.user for one in new})
            self._survivors.update(found)
            for holder in chain.from_iterable(found.values()):
                self.holders.watch(holder)
        for lease_id, holders in list(self._survivors.items()):
            alive = tuple(holder for holder in holders if is_alive(holder))
            if alive and lease_id in leases:
                self._survivors[lease_id] = alive
            else:
                del self._survivors[lease_id]
                for holder in alive:
                    self.holders.unwatch(holder)
        return frozenset(self._survivors) | frozenset(self._lines)

    # --- carrying out --------------------------------------------------------------------

    def _answer(self, action: Refuse | TellWaiting) -> None:
        self.wake()
        self.deliver(action)

    def _ask_yield(self, action: AskYield) -> None:
        log.info("action=ask-yield lease=%s", action.lease.id)
        self.deliver(action)

    def _tell_idle_stranger(self, action: TellIdleStranger) -> None:
        text = f"process {action.pid} has used less than 5% of GPU {action.gpu}"
        self._say_on_terminal(action.pid, action.user, f"{text} for {show_time(action.idle_s)}")

    def _defer(self, action: Defer) -> None:
        if action.is_soon:
            asyncio.get_running_loop().call_soon(self._resume)
        else:
            self._is_to_resume = True
            self._catch_up_soon()

    def _look_soon(self, _action: LookSoon) -> None:
        self._look.set()

    def _forget_lease(self, action: DropLease) -> None:
        self._not_ours.pop(action.lease, None)
        self._lines.discard(action.lease)
        log.debug("action=end lease=%s", action.lease)

    def _set_timer(self, action: SetTimer) -> None:
        later = asyncio.get_running_loop().call_later
        later(max(0.0, action.at - self.now()), self._fire, action.at)

    def _log_end_of_booking(self, action: DropBooking) -> None:
        log.info("action=end-booking booking=%d reason=%s", action.booking, action.because)

    def _resume(self) -> None:
        if not self._is_finished:
            self.tell(Resumed(self.now()))

    def _fire(self, at: float) -> None:
        self.tell(TimerFired(max(at, self.now())))  # timers may fire a little early

    def _settle(self, action: Settle) -> None:
        lease, settled = action.lease, action.settled
        self.deliver(action)
        self.history.ended(lease, action.at, action.shown, settled.peak_bytes)
        if action.is_lost:
            self.history.lost(lease.id, settled)
        elif lease.request.holder is not None:
            self.holders.unwatch(lease.request.holder)
        what = "holder-gone" if action.is_lost else "release"
        outcome = settled.outcome.lease_word if settled.outcome else ""
        self._log_soon("action=%s lease=%s outcome=%s", what, lease.id, outcome)

    def _tell_idle(self, action: TellIdle) -> None:
        lease = action.lease
        log.info("action=tell-idle lease=%s end=%s", lease.id, action.is_to_end)
        self.deliver(action)
        holder = lease.request.holder
        if holder is not None and is_alive(holder):
            gpus = ", ".join(map(str, action.gpus))
            text = f"{lease.request.label} (lease {lease.id}) has used less than 5% of GPU {gpus}"
            text += f" for {show_time(action.idle_s)} and holds {show_size(action.held_bytes)}"
            self._say_on_terminal(holder.pid, lease.request.user, text)

    def _say_on_terminal(self, pid: int, user: int, text: str) -> None:
        """Write to the terminal of a process; most have none, or none that may be written to."""
        try:
            tty.write_line(pid, user, f"grn: {text}")
        except OSError as error:
            log.debug("action=write-terminal pid=%d result=failed reason=%s", pid, error)

    def _note_dropped_types(self, _action: DropProfile) -> None:
        """Log once per user that types above the quota are evicted."""
        for user in self.view.types_dropped.keys() - self._told_of_dropped:
            self._told_of_dropped.add(user)
            log.warning("action=drop-types uid=%d reason=too-many", user)

    def _begin(self, grant: Grant) -> None:
        lease = grant.lease
        self._probe.begin(placement_of(lease))
        holder = lease.request.holder
        self.deliver(grant)
        if holder is not None and not self.holders.watch(holder):
            self._process_gone_soon(holder)
        self._log_soon(
            "action=grant lease=%s type=%r gpus=%s reserved=%d first_run=%s", lease.id,
            lease.request.label, ",".join(str(gpu.index) for gpu in grant.gpus),
            lease.reserved_bytes, lease.is_probe,
        )  # fmt: skip
        self.wake()

    def _process_gone_soon(self, holder: Holder) -> None:
        """Conclude after what the process has sent is read: the end of its lease may be in it."""
        asyncio.get_running_loop().call_soon(self._process_gone, holder)

    def _process_gone(self, holder: Holder) -> None:
        for lease in list(self.view.leases.values()):
            if lease.request.holder == holder and lease.state is LeaseState.HELD:
                self._count_kernel_kills()
                self.tell(HolderGone(self.now(), lease.id))
        if any(holder in survivors for survivors in self._survivors.values()):
            self._look.set()

    def _kill(self, action: KillProcesses) -> None:
        log.warning("action=kill lease=%s reason=virtual-gpu-overflow", action.lease)
        found = (who for pid in action.pids if (who := holder_of(pid)))
        if terminate.kill(found):
            log.error("action=kill lease=%s result=not-permitted", action.lease)
            self._not_ours[action.lease] = action.gpu

    def _note_health(self, readings: tuple[Reading, ...]) -> None:
        for reading in readings:
            book = self.view.books[reading.uuid]
            if reading.health is not book.reading.health:
                level = logging.INFO if reading.health is GpuHealth.OK else logging.WARNING
                log.log(level, "gpu=%d health=%s", book.gpu.index, reading.health.value)
            if reading.mode not in (None, book.mode):
                log.warning("gpu=%d mode=%s", book.gpu.index, reading.mode.value)


def _nothing() -> None:
    """Do nothing, until there is something to do."""


def _undelivered(_action: ClientAction) -> None:
    """Drop an action: there is no server yet."""


def placement_of(lease: Lease) -> Placement:
    """Return a lease as the GPU backends know it; one not yet bound has no process."""
    holder = None if lease.request.is_command else lease.request.holder
    return Placement(lease.id, holder, lease.gpus, lease.request.user)
