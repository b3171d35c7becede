"""The negotiator's event loop, the only caller of `Engine.handle`.

Turns ends and messages into events, persists the engine's actions, then carries them out. Samples
come from `sampler.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from grn.gpus.probe import GpuProbe, Inventory
from grn.model.gpu import no_process_list
from grn.model.host import HostSize
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
from grn.negotiator.sampler import Sampler, Survivors, placement_of
from grn.negotiator.storage.store import Store
from grn.proc import terminate, tty
from grn.proc.identity import holder_of, is_alive
from grn.proc.watch import Holders

log = logging.getLogger(__name__)
CATCH_UP_S = 0.002

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
        self._host = host_size
        self.survivors = Survivors(self.view, self.holders)
        self.sampler = Sampler(self.view, probe, self.survivors, self, sample_s, host_size)
        self._absent: frozenset[str] = frozenset()  # GPUs enumerated in this boot, but not now
        self._told_of_dropped: set[int] = set()  # users
        self._not_ours: dict[str, int] = {}  # leases that we may not kill, and their GPU
        self._releasing: dict[str, asyncio.Task[None]] = {}  # leases that wait for a last sample
        self.after_event: Callable[[], None] = _nothing  # soon, when there is much garbage
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
            LookSoon: lambda _: self.sampler.look_soon(),
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
        now = self.now()
        self.sampler.wake()
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

    @property
    def is_behind(self) -> bool:
        """True while something could not be stored."""
        return bool(self.store.unwritten)

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

    def sampled(self, event: Sampled) -> None:
        """Give the engine a sample of all GPUs."""
        self.tell(event)
        self.history.sampled(self.view, self.now())

    def line_lost(self, lease_id: str) -> None:
        """Note that the connection of a holder is closed; its memory may be free."""
        self.survivors.line_lost(lease_id)
        self.sampler.look_soon()

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

    def release(self, event: Released) -> None:
        """End a lease: at once where its peak is known, else after a last sample of its GPUs."""
        if event.outcome is Outcome.KILLED:
            self.sampler.count_kernel_kills()
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
                await self.sampler.look()
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

    # --- carrying out --------------------------------------------------------------------

    def _answer(self, action: Refuse | TellWaiting) -> None:
        self.sampler.wake()
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

    def _forget_lease(self, action: DropLease) -> None:
        self._not_ours.pop(action.lease, None)
        self.survivors.line_lost(action.lease)
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
        if len(self.view.leases) == 1:
            self.sampler.skip_kernel_kills()
        if holder is not None and not self.holders.watch(holder):
            self._process_gone_soon(holder)
        self._log_soon(
            "action=grant lease=%s type=%r gpus=%s reserved=%d first_run=%s", lease.id,
            lease.request.label, ",".join(str(gpu.index) for gpu in grant.gpus),
            lease.reserved_bytes, lease.is_probe,
        )  # fmt: skip
        self.sampler.wake()

    def _process_gone_soon(self, holder: Holder) -> None:
        """Conclude after what the process has sent is read: the end of its lease may be in it."""
        asyncio.get_running_loop().call_soon(self._process_gone, holder)

    def _process_gone(self, holder: Holder) -> None:
        for lease in list(self.view.leases.values()):
            if lease.request.holder == holder and lease.state is LeaseState.HELD:
                self.sampler.count_kernel_kills()
                self.tell(HolderGone(self.now(), lease.id))
        if self.survivors.has(holder):
            self.sampler.look_soon()

    def _kill(self, action: KillProcesses) -> None:
        log.warning("action=kill lease=%s reason=virtual-gpu-overflow", action.lease)
        found = (who for pid in action.pids if (who := holder_of(pid)))
        if terminate.kill(found):
            log.error("action=kill lease=%s result=not-permitted", action.lease)
            self._not_ours[action.lease] = action.gpu


def _nothing() -> None:
    """Do nothing, until there is something to do."""


def _undelivered(_action: ClientAction) -> None:
    """Drop an action: there is no server yet."""
