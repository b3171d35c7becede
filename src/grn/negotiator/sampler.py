"""Samples of GPUs, host and processes that outlive their jobs: when they are taken, and what of.

Samples at the usual interval while jobs run or wait, at once when memory is expected to be free
soon, and seldom at rest. What a sample means is decided by the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import chain
from typing import Protocol

from grn.gpus.host_probe import HostProbe
from grn.gpus.probe import GpuProbe, Placement
from grn.model.gpu import GpuHealth, Reading
from grn.model.host import HostReading, HostSize
from grn.model.job import Holder
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import Event, KernelKilled, Lease, Sampled
from grn.proc import host, processes
from grn.proc.identity import is_alive, tagged
from grn.proc.watch import Holders

log = logging.getLogger(__name__)
FAST_LOOK_S = 0.02
REST_AFTER_S = 5.0  # without leases and waiting requests, where there are no strangers
REST_LONGER_S = 65.0  # so long after them the last sample persists the usage of users
_KILLS_S = 0.1  # a count is good for so long: it takes as long as a short lease
_HOST_EVERY = 4  # the host is read in one of this many samples


class Survivors:
    """Finds living processes of leases whose holder is gone."""

    def __init__(self, view: EngineView, holders: Holders) -> None:
        self._view = view
        self._holders = holders
        self._searched: set[str] = set()  # draining leases whose processes were searched for
        self._found: dict[str, tuple[Holder, ...]] = {}  # the processes of such leases
        self._lines: set[str] = set()  # leases whose holder's connection is open

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

    def has(self, holder: Holder) -> bool:
        """True for a process that was found."""
        return any(holder in found for found in self._found.values())

    def leases(self) -> frozenset[str]:
        """Return the leases whose holder is gone while processes that it started are alive.

        One scan of all processes serves all holders gone since the last one. A forked
        process has no tag in its environment; it holds the connection of its parent.
        """
        leases = self._view.leases
        new = self._view.draining - self._searched
        self._searched = set(self._view.draining)
        if new:
            found = tagged({one: leases[one].request.user for one in new})
            self._found.update(found)
            for holder in chain.from_iterable(found.values()):
                self._holders.watch(holder)
        for lease_id, holders in list(self._found.items()):
            alive = tuple(holder for holder in holders if is_alive(holder))
            if alive and lease_id in leases:
                self._found[lease_id] = alive
            else:
                del self._found[lease_id]
                for holder in alive:
                    self._holders.unwatch(holder)
        return frozenset(self._found) | frozenset(self._lines)


class SampleSink(Protocol):
    """Takes what is sampled."""

    @property
    def is_behind(self) -> bool:
        """True while something sampled could not be stored."""

    def tell(self, event: Event) -> None:
        """Take any other event."""

    def sampled(self, event: Sampled) -> None:
        """Take a sample of all GPUs."""


class Sampler:
    """Reads GPUs and host, and hands on what they show."""

    def __init__(
        self,
        view: EngineView,
        probe: GpuProbe,
        survivors: Survivors,
        sink: SampleSink,
        sample_s: float,
        host_size: HostSize | None = None,
    ) -> None:
        self._view = view
        self._probe = probe
        self._survivors = survivors
        self._sink = sink
        self._sample_s = sample_s
        self._host = host_size
        self._host_probe = HostProbe()
        self._host_read_at = float("-inf")
        self._is_reading_host = False
        self._kernel_kills = host.oom_kills()  # since the machine started
        self._kills_counted_at = time.monotonic()
        self._owners: dict[int, int | None] = {}  # the users of processes without a lease
        self._busy_at = 0.0
        self._is_at_rest = False
        self._due = asyncio.Event()  # set when the next sample is to be taken at once
        self._rest_until = 0.0
        self.is_followed: Callable[[], bool] = lambda: False  # by subscribers; set by the server
        self.after_look: Callable[[], None] = _nothing  # something to do while it is quiet

    async def observe(self) -> None:
        """Sample the GPUs for ever: at the usual interval, sooner when the engine asks.

        At rest a minute passes before the next sample, and after that only an event leads to one.
        """
        while True:
            try:
                await asyncio.wait_for(self._due.wait(), self._interval_s())
                await asyncio.sleep(max(0.0, self._rest_until - time.monotonic()))
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
        self._busy_at = time.monotonic()
        if self._is_at_rest:
            self._is_at_rest = False
            self._due.set()

    def look_soon(self) -> None:
        """Take the next sample at once."""
        self._due.set()

    def _interval_s(self) -> float | None:
        """Return the time to the next sample, None when only an event leads to one.

        It is long when samples have shown nothing new for a while and cannot show anything new.
        """
        now = time.monotonic()
        is_busy = self._view.leases or len(self._view.waitlist) or self.is_followed()
        if is_busy or self._probe.has_strangers or self._sink.is_behind:
            self._busy_at = now
        quiet_s = now - self._busy_at
        self._is_at_rest = quiet_s >= REST_AFTER_S
        if not self._is_at_rest:
            return self._sample_s
        return REST_LONGER_S - quiet_s if quiet_s < REST_LONGER_S else None

    async def look(self) -> None:
        """Read all GPUs once, and hand on what they show."""
        self._due.clear()
        began = time.monotonic()
        placements = [placement_of(lease) for lease in self._view.leases.values()]
        seen = await self._probe.sample(placements)
        readings = tuple(reading for reading in seen if reading.uuid in self._view.books)
        self._note_health(readings)
        of_host = await self._look_at_host(placements)
        now, owners = time.monotonic(), self._owners_in(readings)
        survived, offset_s = self._survivors.leases(), time.time() - now
        self._sink.sampled(Sampled(now, readings, survived, of_host, offset_s, owners))
        # Memory that is still in use will not be free in an instant. The end of a process is
        # sampled at once, but at a limited rate, or the loop does nothing else.
        now = time.monotonic()
        self._rest_until = now + (FAST_LOOK_S if self._due.is_set() else now - began)

    def refresh_host(self) -> None:
        """Read the host now if it is not sampled any more; without leases that is quick."""
        is_read = self._host is None or self._is_reading_host or not self._is_at_rest
        if not is_read and not self._view.leases:
            found = self._host_probe.read(())
            self._sink.tell(Sampled(time.monotonic(), (), self._survivors.leases(), found))

    def skip_kernel_kills(self) -> None:
        """Leave out kills of a rest: no job held a lease, and it may be long since a count."""
        if time.monotonic() - self._kills_counted_at >= _KILLS_S:
            self._kills_counted_at = time.monotonic()
            self._kernel_kills = host.oom_kills()

    def count_kernel_kills(self) -> None:
        """Tell how many more processes the kernel has ended for memory."""
        before, now = self._kernel_kills, host.oom_kills()
        self._kernel_kills, self._kills_counted_at = now, time.monotonic()
        if before is not None and now is not None and now > before:
            log.warning("action=note-kernel-kills count=%d", now - before)
            self._sink.tell(KernelKilled(time.monotonic(), now - before))

    async def _look_at_host(self, placements: list[Placement]) -> HostReading | None:
        """Read memory and cores of the host in a thread, less often than the GPUs."""
        now = time.monotonic()
        if now - self._host_read_at < _HOST_EVERY * self._sample_s:
            return None
        self._host_read_at = now
        self.count_kernel_kills()
        if self._host is None:
            return None
        self._is_reading_host = True
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, self._host_probe.read, placements)
        finally:
            self._is_reading_host = False

    def _owners_in(self, readings: tuple[Reading, ...]) -> tuple[tuple[int, int], ...]:
        """Return the users of the processes without a lease; each is looked up once."""
        if not self._probe.has_strangers:
            return ()
        pids = {use.pid for reading in readings for use in reading.uses if not use.leases}
        known = {pid: user for pid, user in self._owners.items() if pid in pids}
        known |= {pid: processes.user(pid) for pid in pids - known.keys()}
        self._owners = known
        return tuple((pid, user) for pid, user in known.items() if user is not None)

    def _note_health(self, readings: tuple[Reading, ...]) -> None:
        for reading in readings:
            book = self._view.books[reading.uuid]
            if reading.health is not book.reading.health:
                level = logging.INFO if reading.health is GpuHealth.OK else logging.WARNING
                log.log(level, "gpu=%d health=%s", book.gpu.index, reading.health.value)
            if reading.mode not in (None, book.mode):
                log.warning("gpu=%d mode=%s", book.gpu.index, reading.mode.value)


def placement_of(lease: Lease) -> Placement:
    """Return a lease as the GPU backends know it; one not yet bound has no process."""
    holder = None if lease.request.is_command else lease.request.holder
    return Placement(lease.id, holder, lease.gpus, lease.request.user)


def _nothing() -> None:
    """Do nothing, until there is something to do."""
