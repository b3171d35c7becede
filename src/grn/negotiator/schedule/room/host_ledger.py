"""The ledger of the host: its memory and its cores, beside the books of the GPUs.

`free = size - guard - leases - strangers`, where a lease takes the larger of what it reserved and
what it uses. Sums are kept, so that a decision costs the same with any number of leases. Where the
size of the host is not known, nothing is limited.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from grn.model.host import HostReading, HostSize
from grn.model.units import show_size
from grn.negotiator.actions import Refuse
from grn.negotiator.events import Lease, LeaseState, Wait, WaitReason

CPU_GUARD = 0.05  # of all cores
CPU_CAP = 1.2  # learned needs of cores may add up to this many times the cores
_STRANGERS_CPUS = 0.5  # of all cores: strangers do not keep jobs from the other half
_SMOOTH_S = 30.0  # cores are averaged over about this long
_GUESSED = 0.5  # a guessed need is tried again with this part of it: guesses change
_TINY = 1e-6  # for the rounding errors of summed cores


class HostNeed(Struct, frozen=True):
    """What a request needs of the host, and the reasons."""

    ram_bytes: int = 0
    cpus: float = 0.0
    because: str = ""  # of the memory
    cpus_because: str = ""
    is_ram_stated: bool = False
    are_cpus_stated: bool = False
    is_guess: bool = False  # no run has shown it, and it was not stated


NOTHING = HostNeed()


class HostRoom(Struct, frozen=True):
    """The memory and the cores that are free; infinite where all may start."""

    ram_bytes: float = math.inf
    cpus: float = math.inf


class _Use(Struct, frozen=True):
    """The measured use of one lease."""

    ram_bytes: int | None = None
    cpus: float = 0.0  # averaged


class HostLedger:
    """What leases and strangers have of the host."""

    def __init__(self) -> None:
        self.size: HostSize | None = None
        self.guard_bytes = 0
        self.used_bytes: int | None = None  # by all processes
        self.strangers_cpus = 0.0  # averaged
        self.kept: tuple[int, HostNeed] | None = None  # sequence of a starving request, its need
        self._read_at = -math.inf
        self._leases: dict[str, Lease] = {}
        self._uses: dict[str, _Use] = {}
        self._ram_sum = 0
        self._cpus_sum = 0.0
        self._measured_sum = 0

    def open(self, size: HostSize, guard_bytes: int) -> None:
        """Limit jobs to a host of this size."""
        self.size, self.guard_bytes = size, min(guard_bytes, size.ram_bytes // 2)

    @property
    def capacity_bytes(self) -> int:
        """Return the memory that may be reserved at most."""
        return self.size.ram_bytes - self.guard_bytes if self.size else 0

    @property
    def cpu_cap(self) -> float:
        """Return what learned needs of cores may add up to."""
        return self.size.cpus * (1 - CPU_GUARD) * CPU_CAP if self.size else math.inf

    @property
    def strangers_bytes(self) -> int:
        """Return the memory of processes without a lease."""
        return max(0, (self.used_bytes or 0) - self._measured_sum)

    @property
    def booked_bytes(self) -> int:
        """Return the memory that leases have reserved or use."""
        return self._ram_sum

    @property
    def booked_cpus(self) -> float:
        """Return the cores that leases have reserved or use."""
        return self._cpus_sum

    def ram_of(self, lease_id: str) -> int | None:
        """Return the measured memory of a lease, None when it is not known."""
        use = self._uses.get(lease_id)
        return use.ram_bytes if use else None

    def cpus_of(self, lease_id: str) -> float | None:
        """Return the cores that a lease uses, averaged; None when it is not known."""
        use = self._uses.get(lease_id)
        return use.cpus if use else None

    # --- changes ---------------------------------------------------------------------------

    def put(self, lease: Lease) -> None:
        """Add or replace a lease."""
        self._count(lease.id, -1)
        self._leases[lease.id] = lease
        self._count(lease.id, 1)

    def take(self, lease_id: str) -> None:
        """Remove a lease, and its memory with it."""
        self._count(lease_id, -1)
        self._leases.pop(lease_id, None)
        use = self._uses.pop(lease_id, None)
        if use is not None and use.ram_bytes:
            self._measured_sum -= use.ram_bytes
            if self.used_bytes is not None:
                self.used_bytes = max(0, self.used_bytes - use.ram_bytes)

    def read(self, reading: HostReading, at: float) -> None:
        """Apply a reading of the machine and of its leases."""
        share = min(1.0, max(0.0, at - self._read_at) / _SMOOTH_S)
        is_first = self._read_at == -math.inf
        self._read_at = at
        if reading.used_bytes is not None:
            self.used_bytes = reading.used_bytes
        uses: dict[str, _Use] = {}
        jobs_cpus = 0.0
        for one in reading.uses:
            if one.lease in self._leases:
                before = self._uses.get(one.lease)
                cpus = before.cpus if before else one.cpus or 0.0
                if one.cpus is not None and before:
                    cpus += share * (one.cpus - before.cpus)
                jobs_cpus += one.cpus or 0.0
                uses[one.lease] = _Use(one.ram_bytes, cpus)
        if reading.busy_cpus is not None:
            others = max(0.0, reading.busy_cpus - jobs_cpus)
            self.strangers_cpus += (1.0 if is_first else share) * (others - self.strangers_cpus)
        self._uses = uses
        self._measured_sum = sum(use.ram_bytes or 0 for use in uses.values())
        charges = [self._charge(lease) for lease in self._leases.values()]
        self._ram_sum = sum(ram for ram, _ in charges)
        self._cpus_sum = math.fsum(cpus for _, cpus in charges)

    def _count(self, lease_id: str, sign: int) -> None:
        lease = self._leases.get(lease_id)
        if lease is not None:
            ram, cpus = self._charge(lease)
            self._ram_sum += sign * ram
            self._cpus_sum += sign * cpus

    def _charge(self, lease: Lease) -> tuple[int, float]:
        """Return what a lease takes: its reservation, or its use where that is more."""
        use = self._uses.get(lease.id)
        is_held = lease.state is LeaseState.HELD
        ram, cpus = (lease.ram_bytes, lease.cpus) if is_held else (0, 0.0)
        if use is not None:
            used = use.ram_bytes or 0
            ram = used + used // 10 if used > ram and is_held else max(ram, used)
            cpus = max(cpus, use.cpus)
        return ram, cpus

    # --- questions ---------------------------------------------------------------------------

    def room(self) -> HostRoom:
        """Return what is free for the request that may use the most."""
        if self.size is None or not self._leases:
            return HostRoom()
        if self._cpus_sum <= _TINY:
            return HostRoom(self.free_bytes())
        taken = self._cpus_sum + self._strangers_taken()
        return HostRoom(self.free_bytes(), max(self.cpu_cap, self.size.cpus) - taken)

    def free_bytes(self) -> int:
        """Return the memory that may still be reserved; it can be negative."""
        return self.capacity_bytes - self._ram_sum - self.strangers_bytes

    def free_cpus(self, are_stated: bool = False) -> float:
        """Return the cores that may still be reserved, for a stated or a learned need."""
        cap = self.size.cpus if are_stated and self.size else self.cpu_cap
        return cap - self._cpus_sum - self._strangers_taken()

    def _strangers_taken(self) -> float:
        most = self.size.cpus * _STRANGERS_CPUS if self.size else 0.0
        return min(self.strangers_cpus, most)

    def wait(self, need: HostNeed, sequence: int | None = None) -> Wait | None:
        """Return why a request with this need has to wait, None when the host has room.

        On a host without jobs a learned need is granted: more room than this cannot come from jobs
        that end.
        """
        if self.size is None:
            return None
        kept = self._kept_from(sequence)
        if not self._leases and kept is NOTHING:
            is_short = need.is_ram_stated and need.ram_bytes > self._available_bytes()
            return self._no_ram(need, self._available_bytes(), kept) if is_short else None
        free = self.free_bytes() - kept.ram_bytes
        if need.ram_bytes > free and (need.ram_bytes or free < 0):
            return self._no_ram(need, free, kept)
        free_cpus = self.free_cpus(need.are_cpus_stated) - kept.cpus
        if need.cpus > free_cpus + _TINY and self._cpus_sum + kept.cpus > _TINY:
            return self._cpus_busy(need, free_cpus, kept)
        return None

    def could(self, reason: WaitReason, lacks: float) -> bool:
        """True when a request that was refused for this reason may get another answer."""
        room = self.room()
        return lacks <= (room.ram_bytes if reason is WaitReason.NO_RAM else room.cpus + _TINY)

    def refusal(self, key: str, cpus: float | None, ram_bytes: int | None) -> Refuse | None:
        """Return the refusal of a stated need that this host can never meet, else None."""
        size = self.size
        if size is not None and ram_bytes is not None and ram_bytes > size.ram_bytes:
            text = f"you asked for {show_size(ram_bytes)} of host memory; this machine has"
            return Refuse(key, f"{text} {show_size(size.ram_bytes)}.", "Ask for less with --ram.")
        if size is not None and cpus is not None and cpus > size.cpus:
            text = f"you asked for {cpus:g} cores; this machine has {size.cpus:g}."
            return Refuse(key, text, "Ask for fewer with --cpus.")
        return None

    def _available_bytes(self) -> int:
        return (self.size.ram_bytes if self.size else 0) - (self.used_bytes or 0)

    def _kept_from(self, sequence: int | None) -> HostNeed:
        """Return what is kept from a request for an older one that starves."""
        if self.kept is None or sequence == self.kept[0]:
            return NOTHING
        return self.kept[1]

    def _no_ram(self, need: HostNeed, free: int, kept: HostNeed) -> Wait:
        parts = [f"jobs have {show_size(self._ram_sum)}"] if self._ram_sum else []
        if self.strangers_bytes:
            parts.append(f"processes without a lease use {show_size(self.strangers_bytes)}")
        if kept.ram_bytes:
            parts.append(
                f"{show_size(kept.ram_bytes)} is reserved for a job that has waited longer"
            )
        why = f" ({need.because})" if need.because else ""
        text = f"needs {show_size(need.ram_bytes)} of host memory{why}; "
        text += f"{show_size(max(0, free))} is free" + (": " if parts else "")
        lacks = need.ram_bytes * (_GUESSED if need.is_guess else 1.0)
        return Wait(WaitReason.NO_RAM, text + ", ".join(parts), lacks)

    def _cpus_busy(self, need: HostNeed, free: float, kept: HostNeed) -> Wait:
        cpus = self.size.cpus if self.size else 0.0
        why = f" ({need.cpus_because})" if need.cpus_because else ""
        text = (
            f"needs {_cores(need.cpus)}{why}; {max(0.0, round(free, 2)):g} of {cpus:g} are free: "
        )
        text += f"jobs have {self._cpus_sum:.3g}"
        if self.strangers_cpus >= 0.1:
            text += f", processes without a lease use {self.strangers_cpus:.2g}"
        if kept.cpus:
            text += f", {kept.cpus:.3g} are reserved for a job that has waited longer"
        lacks = need.cpus * (_GUESSED if need.is_guess else 1.0)
        return Wait(WaitReason.CPUS_BUSY, text, lacks)

    def check(self, leases: Mapping[str, Lease]) -> None:
        """Raise AssertionError when this contradicts the leases, or has promised too much."""
        assert self._leases.keys() == leases.keys()
        assert all(self._leases[one] is leases[one] for one in leases)
        charges = [self._charge(lease) for lease in leases.values()]
        assert self._ram_sum == sum(ram for ram, _ in charges), "host memory does not add up"
        cpus = math.fsum(each for _, each in charges)
        assert abs(self._cpus_sum - cpus) < _TINY * (1 + len(charges)), "cores do not add up"
        held = [lease for lease in leases.values() if lease.state is LeaseState.HELD]
        if self.size is not None and len(held) > 1:
            promised = sum(lease.ram_bytes for lease in held)
            assert promised <= self.capacity_bytes, "the host has promised more than it has"
            cores = sum(lease.cpus for lease in held)
            assert cores <= max(self.cpu_cap, self.size.cpus) + 2 * _TINY, "more cores than are"


def _cores(cpus: float) -> str:
    return "1 core" if cpus == 1 else f"{cpus:.3g} cores"
