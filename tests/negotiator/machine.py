"""Random histories of a negotiator, with a world of its own to compare the engine with.

`World` is what is true of processes and GPUs; `Negotiation` tells the engine about it, keeps what
the engine says is to be saved, and does its own sums. It shares no arithmetic with the ledger.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from grn.errors import UsageError
from grn.model.gpu import Gpu, GpuHealth, GpuKind, ProcessUse, Reading
from grn.model.host import HostReading, HostShare, HostSize
from grn.model.job import IdleRule, Outcome, Policy, Profile, Request
from grn.model.units import GiB
from grn.negotiator.actions import (
    Action,
    AskYield,
    Defer,
    DropBooking,
    DropLease,
    DropProfile,
    DropWaiting,
    Grant,
    Refuse,
    SaveBooking,
    SaveLease,
    SaveNumber,
    SaveRun,
    SaveWaiting,
    Settle,
    TellIdle,
)
from grn.negotiator.endings import COMMAND_S
from grn.negotiator.engine import Engine
from grn.negotiator.events import (
    Booking,
    BookingMade,
    BookingRemoved,
    Event,
    HolderChanged,
    HolderGone,
    JobStarted,
    KernelKilled,
    Lease,
    LeaseState,
    ProfileForgotten,
    Released,
    ReporterLost,
    Requested,
    Resumed,
    Sampled,
    TimerFired,
    WaitReason,
    Withdrawn,
)
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.margin import FIRST_MARGIN
from grn.negotiator.learn.memory.type_profiles import CHANCE
from grn.negotiator.schedule.room.ledger import Guard, Rules
from tests.builders import NO_GUARD, a_gpu, a_holder, a_request, a_virtual_gpu, some_gpus

IDLE_S, IDLE_AFTER_S, IDLE_WINDOW_S, LONGEST_STEP_S = 20.0, 10.0, 2.0, 20.0
QUICK = {"flat_s": 8.0, "patience_s": 30.0, "grace_s": 2.0, "yield_after_s": 5.0,
         "booking_lapse_s": 60.0, "idle_limit_s": IDLE_S, "idle_after_s": IDLE_AFTER_S}  # fmt: skip
WALL_S = 1_000_000.0  # the wall clock at first
RULES = [
    Rules(Guard(), **QUICK, idle_rule=IdleRule.END),
    Rules(NO_GUARD, **QUICK, idle_rule=IdleRule.YIELD),
]
MACHINES = [
    some_gpus(1),
    some_gpus(2),
    [a_gpu(0), a_gpu(1, 8 * GiB, model="Small"), a_gpu(2)],
    [a_gpu(0, 8 * GiB, model="Small"), a_gpu(1, 12 * GiB, model="Middle"), a_gpu(2)],
    [a_gpu(0, is_exclusive=True), a_gpu(1)],
    [a_virtual_gpu(0), a_virtual_gpu(1)],
]
HOSTS = [None, HostSize(16, 64 * GiB), HostSize(2, 8 * GiB)]
TYPES = ["one.py", "one.py", "two.py", "three.py"]
WHO = ["nobody", "nobody", "somebody", "another thread", "a parent"]
ARGUMENTS = st.sampled_from([
    (), (), (("batch", 8.0), ("seed", 1.0)), (("batch", 64.0), ("seed", 2.0)),
    (("batch", 64.0), ("length", 512.0)), (("batch", 8.0), ("length", 64.0)), (("net", "big"),),
])  # fmt: skip
CODES = st.sampled_from(["", "", "0000000a", "0000000b"])
GIBS = st.sampled_from([0, 0, 1, 3, 7, 12, 23])
STEPS_S = st.sampled_from([0.1, 1.0, 5.0, 20.0])
HEALTHS = st.sampled_from([GpuHealth.OK, GpuHealth.OK, GpuHealth.UNKNOWN, GpuHealth.LOST])


@dataclass
class Process:
    """A process, its memory on each GPU, and the leases its tree is known to hold."""

    pid: int
    memory: dict[str, int] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)
    is_alive: bool = True
    ram: int = 0
    cpus: float = 0.0
    load_pct: float | None = None  # its part of each GPU, where the driver tells


class World:
    """What is true of the machine."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self.processes: dict[int, Process] = {}
        self.strangers: Counter[str] = Counter()
        self.unexplained: Counter[str] = Counter()
        self.health = dict.fromkeys(self.gpus, GpuHealth.OK)
        self.hides: set[str] = set()  # GPUs that do not say what a process uses
        self.is_vague: set[str] = set()  # GPUs that do not say what is used at all
        self.load_pct: dict[str, float | None] = dict.fromkeys(self.gpus, 0.0)
        self.foreign_ram, self.foreign_cpus = 0, 0.0
        self.is_host_hidden = False

    def readings(self) -> tuple[Reading, ...]:
        return tuple(self._reading(gpu) for gpu in self.gpus.values())

    def host_reading(self) -> HostReading | None:
        """Return the use of the host; what a process of several leases uses counts in parts."""
        if self.is_host_hidden:
            return None
        alive = [one for one in self.processes.values() if one.is_alive]
        uses = tuple(
            HostShare(lease, one.ram // len(one.leases), one.cpus / len(one.leases))
            for one in alive
            for lease in sorted(one.leases)
        )
        ram, cpus = sum(one.ram for one in alive), sum(one.cpus for one in alive)
        return HostReading(ram + self.foreign_ram, cpus + self.foreign_cpus, uses)

    def _reading(self, gpu: Gpu) -> Reading:
        if self.health[gpu.uuid] is not GpuHealth.OK:
            return Reading(gpu.uuid, self.health[gpu.uuid])
        is_virtual = gpu.kind is GpuKind.VIRTUAL
        shown = [
            process
            for process in self.processes.values()
            if process.memory.get(gpu.uuid) and (process.leases or not is_virtual)
        ]
        uses = [
            ProcessUse(process.pid, process.memory[gpu.uuid], tuple(sorted(process.leases)))
            for process in shown
        ]
        if self.strangers[gpu.uuid] and not is_virtual:
            uses.append(ProcessUse(9000, self.strangers[gpu.uuid]))
        used: int | None = sum(use.used_bytes or 0 for use in uses)
        if not is_virtual:
            used += self.unexplained[gpu.uuid]
        if gpu.uuid in self.hides and not is_virtual:
            uses = [replace(use, used_bytes=None) for use in uses]
        loads = ((one.pid, one.load_pct) for one in shown if one.load_pct is not None)
        return Reading(gpu.uuid, used_bytes=None if gpu.uuid in self.is_vague else used,
                       load_pct=self.load_pct[gpu.uuid], uses=tuple(uses),
                       process_loads=tuple(loads))  # fmt: skip

    def of_lease(self, lease_id: str) -> Process | None:
        return next((p for p in self.processes.values() if lease_id in p.leases), None)

    def bury(self) -> None:
        """The driver frees the memory of the dead."""
        for pid in [p.pid for p in self.processes.values() if not p.is_alive]:
            del self.processes[pid]

    def heal(self, guard: Guard) -> None:
        """End all faults and all strangers but a desktop that stays within the guard."""
        self.bury()
        for process in self.processes.values():
            process.memory.clear()
        self.health = dict.fromkeys(self.gpus, GpuHealth.OK)
        self.hides.clear()
        self.is_vague.clear()
        self.foreign_ram, self.foreign_cpus, self.is_host_hidden = 0, 0.0, False
        for process in self.processes.values():
            process.ram, process.cpus = 0, 0.0
        for uuid, gpu in self.gpus.items():
            self.strangers[uuid] = self.unexplained[uuid] = guard.of(gpu.total_bytes) // 2


class Negotiation(RuleBasedStateMachine):
    """Drive an engine through a random history and check all it does."""

    engine_type = Engine

    @initialize(
        gpus=st.sampled_from(MACHINES), rules=st.sampled_from(RULES), host=st.sampled_from(HOSTS)
    )
    def begin(self, gpus: list[Gpu], rules: Rules, host: HostSize | None) -> None:
        self.rules = rules
        self.host = host
        self.world = World(gpus)
        self.now = 0.0
        self.number = 0
        self.told: dict[str, Reading] = {}  # the latest reading of each GPU the engine knows
        self.asked: dict[str, Request] = {}  # every key ever
        self.waiting: dict[str, int] = {}  # key -> when it asked, as a number
        self.away: dict[str, int] = {}  # those who waited before a restart and are not back
        self.ended: set[str] = set()  # keys that were granted or refused once
        self.dead: set[str] = set()  # leases whose holder died and that must drain
        self.settled: set[str] = set()  # leases that have ended
        self.saved_leases: dict[str, Lease] = {}
        self.saved_waiting: dict[str, int] = {}
        self.saved_profiles: dict[tuple[str, str], Profile] = {}
        self.saved_numbers: dict[str, float] = {}
        self.saved_bookings: dict[int, Booking] = {}
        self.wall_offset_s = WALL_S
        self.places: dict[str, tuple[str, ...]] = {}  # lease -> its GPUs, for all there ever were
        self.is_sound = True
        self._start()

    # --- telling and keeping -------------------------------------------------------------

    def _start(self) -> None:
        """Bring up an engine from what was saved."""
        self.engine = self.engine_type(self.rules)
        self.gives_way: set[str] = set()  # leases that this engine has asked
        self.loads: dict[str, list[tuple[float, float, float | None]]] = {}  # by lease
        self.sampled_at: float | None = None
        waiting = sorted(self.saved_waiting.items(), key=lambda row: row[1])
        self.tell(
            JobStarted(self.now, tuple(self.world.gpus.values()), self.world.readings(),
                    tuple(self.saved_leases.values()), tuple(waiting),
                    tuple(self.saved_profiles.values()), numbers=tuple(self.saved_numbers.items()),
                    host=self.host, wall_offset_s=self.wall_offset_s,
                    bookings=tuple(self.saved_bookings.values()))
        )  # fmt: skip

    def tell(self, event: Event) -> None:
        self.is_sound = False
        growing = set()
        if isinstance(event, JobStarted):
            self.has_looked = False
        elif isinstance(event, Sampled):  # the first look after a start can show no growth
            growing = self._growing(event) if self.has_looked else growing
            self.has_looked = True
        if isinstance(event, (JobStarted, Sampled)):
            self.told.update({reading.uuid: reading for reading in event.readings})
        actions = self.engine.handle(event)
        rest = actions
        while Defer(is_soon=True) in rest:
            rest = self.engine.handle(Resumed(event.at))
            actions = [*actions, *rest]
        before = dict(self.saved_leases)
        granted = [lease for action in actions if (lease := self._keep(action))]
        if isinstance(event, Sampled):
            self._see_the_dead_go()
            self._note_loads(event)
        kept = [lease for lease in before.values() if lease.id in self.saved_leases]
        for number, lease in enumerate(granted):
            self._check_grant(lease, [*kept, *granted[:number]])
            self._check_booked(lease)
            self._check_host(lease)
        for uuid in {uuid for lease in granted for uuid in lease.gpus}:
            assert uuid not in growing, "let a newcomer in beside one that grows"
            self._check_room(uuid, [lease.request for lease in granted])
        self.is_sound = True

    def _keep(self, action: Action) -> Lease | None:
        """Carry out one action; return the lease when it is a new grant."""
        if isinstance(action, SaveLease):
            self.saved_leases[action.lease.id] = action.lease
            self.places[action.lease.id] = action.lease.gpus
        elif isinstance(action, DropLease):
            assert self.saved_leases.pop(action.lease, None), "dropped what was not saved"
        elif isinstance(action, SaveWaiting):
            self.saved_waiting[action.key] = action.sequence
        elif isinstance(action, DropWaiting):
            assert self.saved_waiting.pop(action.key, None) is not None, "dropped twice"
            self.away.pop(action.key, None)
        elif isinstance(action, SaveRun):
            key = (action.job_type, action.model)
            empty = Profile(action.job_type, action.model, action.label, action.owner)
            profile = self.saved_profiles.get(key, empty)
            self.saved_profiles[key] = profiling.add_run(profile, action.run)
        elif isinstance(action, SaveNumber):
            self.saved_numbers[action.name] = action.value
        elif isinstance(action, SaveBooking):
            self.saved_bookings[action.booking.id] = action.booking
        elif isinstance(action, DropBooking):
            assert self.saved_bookings.pop(action.booking, None), "dropped what was not saved"
        elif isinstance(action, DropProfile):
            for key in [key for key in self.saved_profiles if key[0] == action.job_type]:
                del self.saved_profiles[key]
        elif isinstance(action, Refuse):
            assert action.key not in self.ended, "refused after it was answered"
            assert action.message
            self._answered(action.key)
        elif isinstance(action, Settle):
            assert action.lease.id not in self.settled, "ended twice"
            self.settled.add(action.lease.id)
        elif isinstance(action, AskYield):
            self._check_yield(action)
        elif isinstance(action, TellIdle):
            self._check_told(action)
        elif isinstance(action, Grant):
            return self._keep_grant(action)
        return None

    def _check_yield(self, action: AskYield) -> None:
        """Only a lease that yields is asked, after its time, for a request that does not."""
        lease = self.saved_leases[action.lease.id]
        assert lease.state is LeaseState.HELD
        is_idle = lease.idle_since is not None and lease.request.is_queued
        assert lease.request.yields or (is_idle and self.rules.idle_rule is IdleRule.YIELD)
        assert self.now - lease.granted_at >= lease.request.at_least_s
        if action.key:
            assert not self.asked[action.key].yields
            assert action.key in self.waiting, "asked for a request that does not wait"
        else:
            booked = [self._is_active(one) for one in self._booked_by_others(lease)]
            assert any(booked), "asked for no booking"
        assert lease.id not in self.gives_way, "asked twice"
        self.gives_way.add(lease.id)

    def _is_active(self, booking: Booking) -> bool:
        return booking.start_at <= self.now + self.wall_offset_s < booking.end_at

    def _booked_by_others(self, lease: Lease) -> list[Booking]:
        """Return the bookings of other users for GPUs of a lease."""
        return [
            one
            for one in self.saved_bookings.values()
            if one.user != lease.request.user and set(one.gpus) & set(lease.gpus)
        ]

    def _check_booked(self, lease: Lease) -> None:
        """No job is granted on GPUs that others have booked, unless it is to end before."""
        request, now = lease.request, self.now + self.wall_offset_s
        models = {self.world.gpus[uuid].model for uuid in lease.gpus}
        is_known = all((request.job_type, model) in self.saved_profiles for model in models)
        for one in self._booked_by_others(lease):
            assert not self._is_active(one), "granted on a booked GPU"
            if now < one.start_at < now + self.rules.booking_unknown_s:
                gives_way = request.yields and now + request.at_least_s <= one.start_at
                limit_s = request.time_limit_s
                is_limited = limit_s is not None and now + limit_s <= one.start_at
                assert gives_way or is_limited or is_known, (
                    "granted though it may run into a booking"
                )

    def _check_told(self, action: TellIdle) -> None:
        """Only the owner of an idle lease is told, and only a queue is asked to end its job."""
        lease = self.saved_leases[action.lease.id]
        assert lease == action.lease
        assert lease.idle_since is not None
        may_end = self.rules.idle_rule is IdleRule.END and lease.request.is_queued
        assert action.is_to_end is may_end

    def _note_loads(self, event: Sampled) -> None:
        """Note what each running job used at most since the last look, None when nothing tells."""
        before, self.sampled_at = self.sampled_at, event.at
        held = {one.id for one in self.saved_leases.values() if one.state is LeaseState.HELD}
        self.loads = {name: past for name, past in self.loads.items() if name in held}
        for name in held:
            if name not in self.loads or before is None:
                self.loads[name] = []
                continue
            most = [self._most(name, uuid) for uuid in self._gpus_of(name)]
            load = None if None in most else max((one or 0.0 for one in most), default=None)
            self.loads[name].append((event.at, event.at - before, load))

    def _most(self, lease_id: str, uuid: str) -> float | None:
        reading, is_virtual = self.told[uuid], self.world.gpus[uuid].kind is GpuKind.VIRTUAL
        if not _is_usable(reading):
            return None
        known = dict(reading.process_loads)
        pids = [use.pid for use in reading.uses if lease_id in use.leases]
        is_known = all(pid in known for pid in pids) and bool(pids or is_virtual)
        said = [sum(known[pid] for pid in pids)] if is_known else []
        is_alone = len(reading.uses) <= 1
        if not is_virtual and reading.load_pct is not None:
            said += [reading.load_pct] if is_alone or reading.load_pct < 5.0 else []
        return min(said, default=None)

    @invariant()
    def who_is_idle_has_used_nothing_and_who_has_used_nothing_is_idle(self) -> None:
        for lease in self.engine.view.leases.values():
            past = self.loads.get(lease.id, [])
            if lease.idle_since is not None:
                since = [one for one in past if one[0] > lease.idle_since]
                spent = sum(passed * (load or 0.0) for _, passed, load in since)
                passed = sum(one[1] for one in since)
                assert spent <= 5.0 * (passed + IDLE_WINDOW_S), "idle, and at work"
                assert not lease.is_probe
                assert self.now - lease.granted_at >= IDLE_AFTER_S
                assert self.now - lease.idle_since >= IDLE_S
            elif lease.state is LeaseState.HELD and not lease.is_probe and past:
                quiet_s = 0.0
                for _, passed, load in reversed(past):
                    if load is None or load > 4.0:
                        break
                    quiet_s += passed
                is_old = past[-1][0] - lease.granted_at >= IDLE_AFTER_S
                assert not is_old or quiet_s < IDLE_S + 3 * LONGEST_STEP_S, "idle, and not seen"

    def _outgrown(self, uuid: str) -> dict[str, int]:
        """Return what leases have on a GPU that have more there than they reserved."""
        found: Counter[str] = Counter()
        unclear = set()
        for use in self.told[uuid].uses:
            live = [one for one in use.leases if uuid in self._gpus_of(one)]
            unclear |= set(live) if len(live) > 1 else set()
            for lease_id in live:
                found[lease_id] += use.used_bytes or 0
        return {
            lease_id: size
            for lease_id, size in found.items()
            if lease_id not in unclear
            and self.saved_leases[lease_id].state is LeaseState.HELD
            and size > self.saved_leases[lease_id].reserved_on(uuid)
        }

    def _gpus_of(self, lease_id: str) -> tuple[str, ...]:
        lease = self.saved_leases.get(lease_id)
        return () if lease is None else lease.gpus

    def _growing(self, event: Sampled) -> set[str]:
        """Return GPUs on which somebody has risen that had more than it reserved before."""
        before = {uuid: self._outgrown(uuid) for uuid in self.told}
        told, now = dict(self.told), {reading.uuid: reading for reading in event.readings}
        self.told.update(now)
        after = {uuid: self._outgrown(uuid) for uuid in self.told if _is_usable(self.told[uuid])}
        self.told = told
        return {
            uuid
            for uuid, sizes in after.items()
            for lease_id, size in sizes.items()
            if len(self._gpus_of(lease_id)) == 1  # of several GPUs the fullest counts
            and _is_usable(told[uuid])
            and size > 1.02 * max(before[uuid].get(lease_id, size), self._peak(lease_id))
        }

    def _peak(self, lease_id: str) -> int:
        return self.engine.view.watch(lease_id).peak_bytes

    def _keep_grant(self, grant: Grant) -> Lease | None:
        lease = grant.lease
        assert self.saved_leases.get(lease.id) == lease, "told before it was saved"
        if grant.key in self.ended:
            assert self.world.of_lease(lease.id) is not None, "granted twice"
            return None
        self._check_order(grant.key)
        self._answered(grant.key)
        holder = None if lease.request.is_command else lease.request.holder
        pid = holder.pid if holder else self._new_number() + 5000
        process = self.world.processes.setdefault(pid, Process(pid))
        process.leases.add(lease.id)
        return lease

    def _answered(self, key: str) -> None:
        assert key in self.asked, "nobody asked"
        self.ended.add(key)
        self.waiting.pop(key, None)
        self.away.pop(key, None)

    def _see_the_dead_go(self) -> None:
        """A dead job is gone when all its GPUs answer and none shows it."""
        for lease_id in list(self.dead):
            readings = [self.told[uuid] for uuid in self.places[lease_id]]
            shown = any(lease_id in use.leases for reading in readings for use in reading.uses)
            if not shown and all(map(_is_usable, readings)):
                self.dead.remove(lease_id)

    # --- what must be so -----------------------------------------------------------------

    def _check_grant(self, lease: Lease, others: list[Lease]) -> None:
        request = lease.request
        assert len(set(lease.gpus)) == request.gpus
        assert all(size > 0 for size in lease.reserved)
        assert all(_is_usable(self.told[uuid]) for uuid in lease.gpus), "granted on a silent GPU"
        for uuid in lease.gpus:
            gpu = self.world.gpus[uuid]
            assert not request.slots or {uuid, str(gpu.index)} & set(request.slots)
            assert request.mem_bytes is None or request.mem_bytes <= gpu.total_bytes
        homes = [uuid for uuid in request.stay if uuid in self.world.gpus]
        if homes and not request.slots:
            assert set(lease.gpus) <= set(homes), "moved a process that stays"
        is_free = request.is_command or request.slots or request.stay
        if request.holder and not is_free:
            homes = {uuid for other in others if _holds(other, request) for uuid in other.gpus}
            pid = request.holder.pid
            used = {r.uuid for r in self.told.values() if any(use.pid == pid for use in r.uses)}
            assert not homes or set(lease.gpus) <= homes | used, "moved a process"

    def _check_host(self, lease: Lease) -> None:
        """Do the sums of the host: what is promised may not exceed it at a grant."""
        held = [one for one in self.saved_leases.values() if one.state is LeaseState.HELD]
        if self.host is None or len(held) < 2:
            return
        capacity = self.host.ram_bytes - self.rules.guard.of(self.host.ram_bytes)
        assert sum(one.ram_bytes for one in held) <= capacity, "promised host memory twice"
        stated = lease.request.cpus
        if stated is not None:
            assert stated <= self.host.cpus
        assert sum(one.cpus for one in held) <= 1.2 * self.host.cpus, "promised cores twice"

    def _check_room(self, uuid: str, requests: list[Request]) -> None:
        """Do the sums of one GPU anew: what is promised or used may not exceed it at a grant."""
        gpu, reading = self.world.gpus[uuid], self.told[uuid]
        here = {lease_id: lease.reserved_on(uuid) for lease_id, lease in self.saved_leases.items()
                if uuid in lease.gpus}  # fmt: skip
        own = {r.holder.pid for r in requests if r.holder and not r.is_command}
        measured: Counter[str] = Counter()
        strangers = known = 0
        for use in reading.uses:
            live = [lease_id for lease_id in use.leases if lease_id in here]
            size = use.used_bytes or 0
            if gpu.kind is GpuKind.VIRTUAL and not live:
                continue  # its memory went with its lease
            known += size
            strangers += size if not live and use.pid not in own else 0
            for lease_id in live:
                measured[lease_id] += size // len(live)
        promised = sum(max(size, measured[lease_id]) for lease_id, size in here.items())
        promised += sum(size // 10 for size in self._outgrown(uuid).values())
        unexplained = 0
        if gpu.kind is not GpuKind.VIRTUAL and all(u.used_bytes is not None for u in reading.uses):
            unexplained = (reading.used_bytes or 0) - known
        capacity = gpu.total_bytes - self.rules.guard.of(gpu.total_bytes)
        assert promised + strangers + unexplained <= capacity, "promised twice"
        if any(use.used_bytes is None for use in reading.uses) and not own:
            granted = sum(here[request.lease] for request in requests if request.lease in here)
            assert granted + (reading.used_bytes or 0) <= capacity, "promised what is hidden"

    def _check_order(self, key: str) -> None:
        """Of requests that are alike and can go anywhere, the older is granted first."""
        if key not in self.waiting or self.asked[key].holder is not None:
            return
        older = [other for other, place in self.waiting.items() if place < self.waiting[key]]
        alike = replace(self.asked[key], key="", lease="")
        for other in older:
            assert replace(self.asked[other], key="", lease="") != alike, "passed an older one"

    def _check_nobody_is_overlooked(self) -> None:
        """Room is left unused only for one whose patience has ended."""
        for key in self.waiting:
            wait = self.engine.view.why(key, self.now)
            assert wait.reason is not WaitReason.YIELDS_TO_OLDER, f"overlooked {key}"

    @invariant()
    def books_are_sound(self) -> None:
        self.engine.check()
        first_runs = Counter(
            lease.request.job_type
            for lease in self.engine.view.leases.values()
            if lease.is_probe
            and self.now - lease.granted_at < profiling.GROWS_ON_S  # later it may grow on
        )
        assert all(count == 1 for count in first_runs.values()), "two first runs of one type"
        for uuid, gpu in self.world.gpus.items():
            if gpu.is_exclusive:
                assert sum(uuid in lease.gpus for lease in self.engine.view.leases.values()) <= 1

    @invariant()
    def what_is_saved_is_what_is_so(self) -> None:
        assert self.saved_leases == self.engine.view.leases
        assert self.saved_bookings == self.engine.view.bookings
        profiles = {(p.job_type, p.model): p for p in self.engine.view.memory.profiles()}
        assert self.saved_profiles == profiles
        assert set(self.saved_waiting) == set(self.waiting) | set(self.away)
        chance = self.engine.view.memory.margin.chance
        assert 0.97 < chance / self.saved_numbers.get(CHANCE, FIRST_MARGIN.chance) < 1.03

    @invariant()
    def no_lease_is_lost_and_none_outlives_its_job(self) -> None:
        alive = {lease for p in self.world.processes.values() if p.is_alive for lease in p.leases}
        assert set(self.engine.view.leases) == alive | self.dead

    @invariant()
    def everybody_who_waits_knows_why(self) -> None:
        assert {waiting.request.key for waiting in self.engine.view.waitlist} == set(self.waiting)
        for key in self.waiting:
            wait = self.engine.view.why(key, self.now)
            assert wait is not None
            assert wait.text
        assert self.engine.view.why("nobody", self.now) is None

    @invariant()
    def the_order_of_all_is_that_of_their_turns(self) -> None:
        view = self.engine.view
        assert view.waitlist.ordered() == sorted(view.waitlist, key=view.turn)

    # --- what may happen -----------------------------------------------------------------

    def _new_number(self) -> int:
        self.number += 1
        return self.number

    @rule(
        job_type=st.sampled_from(TYPES),
        mem_gib=st.sampled_from([None, None, None, 4, 14]),
        who=st.sampled_from(WHO),
        arguments=ARGUMENTS,
        code=CODES,
        yields=st.sampled_from([False, False, True]),
        at_least_s=st.sampled_from([0.0, 0.0, 15.0]),
        time_limit_s=st.sampled_from([None, None, 30.0]),
        gpus=st.sampled_from([1, 1, 1, 1, 0]),
        cpus=st.sampled_from([None, None, None, 1.0, 3.0, 20.0]),
        ram_bytes=st.sampled_from([None, None, None, GiB, 6 * GiB, 30 * GiB]),
        data=st.data(),
    )
    def ask(self, mem_gib, who, data, **wish) -> None:
        mem_gib = mem_gib if wish["gpus"] else None
        self._ask(data, who, mem_gib, **wish)

    @rule(
        job_type=st.sampled_from(TYPES),
        gpus=st.sampled_from([1, 1, 1, 2, 2, 3]),
        mem_gib=st.sampled_from([None, None, 1, 8, 24, 25]),
        is_exclusive=st.sampled_from([False, False, False, True]),
        priority=st.sampled_from([0, 0, 0, 1]),
        yields=st.sampled_from([False, False, True]),
        is_urgent=st.sampled_from([False, False, True]),
        policy=st.sampled_from(Policy),
        attempt=st.sampled_from([0, 0, 0, 1, 2]),
        is_spared=st.sampled_from([False, False, True]),
        slots=st.sampled_from([(), (), (), (), ("0",), ("1", "GPU-0"), ("GPU-2",)]),
        stay=st.sampled_from([(), (), (), (), ("GPU-0",), ("GPU-1",)]),
        who=st.sampled_from(WHO),
        data=st.data(),
    )
    def ask_for_much(self, data, who, mem_gib, **wish) -> None:
        self._ask(data, who, mem_gib, **wish)

    def _ask(self, data, who, mem_gib, **wish) -> None:
        number = self._new_number()
        pid = None if who == "nobody" else number
        threads = [process.pid for process in self.world.processes.values() if process.is_alive]
        threads += [
            r.holder.pid for key, r in self.asked.items() if key in self.waiting and r.holder
        ]
        if who in ("another thread", "a parent") and threads:
            pid = data.draw(st.sampled_from(sorted(threads)), "pid")
        key = f"k{number}"
        mem_bytes = None if mem_gib is None else mem_gib * GiB
        is_command = who == "a parent"
        wish |= {"is_command": is_command, "is_queued": is_command}
        self.asked[key] = a_request(key, pid, mem_bytes=mem_bytes, **wish)
        self.waiting[key] = number
        self.tell(Requested(self.now, self.asked[key]))

    @precondition(lambda self: self.waiting or self.away or self.saved_leases)
    @rule(data=st.data())
    def ask_again(self, data) -> None:
        """A client lost its connection, or the negotiator was away."""
        held = {lease.request.key for lease in self.saved_leases.values()
                if lease.state is LeaseState.HELD}  # fmt: skip
        keys = sorted({*self.waiting, *self.away, *held})
        if keys:
            self._ask_again(data.draw(st.sampled_from(keys), "key"))

    def _ask_again(self, key: str) -> None:
        again = replace(self.asked[key], lease=f"{self.asked[key].lease}+")
        if key in self.away:
            self.waiting[key] = self.away.pop(key)
        if key in self.waiting:
            self.asked[key] = again
        self.tell(Requested(self.now, again))

    def give_up(self, data) -> None:
        if self.waiting:
            self._give_up(data.draw(st.sampled_from(sorted(self.waiting)), "key"))

    def _give_up(self, key: str) -> None:
        self.waiting.pop(key, None)
        self.tell(Withdrawn(self.now, key))

    @rule(step_s=STEPS_S)
    def look(self, step_s: float) -> None:
        self.now += step_s
        since = min((waiting.since for waiting in self.engine.view.waitlist), default=self.now)
        host = self.world.host_reading()
        self.tell(Sampled(self.now, self.world.readings(), host=host,
                          wall_offset_s=self.wall_offset_s))  # fmt: skip
        if self.now - since < self.rules.patience_s and not self.engine.view.claims:
            self._check_nobody_is_overlooked()

    @rule(gib=GIBS)
    def work(self, gib: int) -> None:
        """All jobs take so much and run on with it for a while."""
        for process in self.world.processes.values():
            self._grow(process, gib)
        for _ in range(3):
            self.look(5.0)

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), gib=GIBS)
    def grow(self, data, gib: int) -> None:
        pid = data.draw(st.sampled_from(sorted(self.world.processes)), "pid")
        self._grow(self.world.processes[pid], gib)

    def _grow(self, process: Process, gib: float) -> None:
        if not process.is_alive:
            return
        for uuid in {u for lease in process.leases for u in self.saved_leases[lease].gpus}:
            process.memory[uuid] = min(int(gib * GiB), self.world.gpus[uuid].total_bytes)

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), gib=st.sampled_from([0.2, 0.5, 1.0]))
    def swell(self, data, gib: float) -> None:
        """A job takes a little more at each look, whatever it has reserved."""
        pid = data.draw(st.sampled_from(sorted(self.world.processes)), "pid")
        process = self.world.processes[pid]
        for _ in range(6):
            has = max(process.memory.values(), default=0) + int(gib * GiB)
            self._grow(process, has / GiB)
            self.look(1.0)

    @rule(gib=GIBS, cpus=st.sampled_from([0.0, 0.5, 2.0, 9.0]), foreign_gib=GIBS,
          foreign_cpus=st.sampled_from([0.0, 0.0, 3.0]),
          is_hidden=st.sampled_from([False, False, False, True]), data=st.data())  # fmt: skip
    def use_the_host(self, gib, cpus, foreign_gib, foreign_cpus, is_hidden, data) -> None:
        """A job uses memory and cores of the host, and so do strangers."""
        world = self.world
        world.foreign_ram, world.foreign_cpus = foreign_gib * GiB, foreign_cpus
        world.is_host_hidden = is_hidden
        alive = sorted(pid for pid, one in world.processes.items() if one.is_alive)
        if alive:
            process = world.processes[data.draw(st.sampled_from(alive), "pid")]
            process.ram, process.cpus = gib * GiB, cpus
        self.look(5.0)

    @rule(
        user=st.sampled_from([1000, 1001, 1001]),
        count=st.sampled_from([1, 1, 2]),
        from_s=st.sampled_from([0.0, 0.0, 10.0, 40.0, 200.0, 3e5]),
        for_s=st.sampled_from([20.0, 100.0, 400.0]),
        able=st.sampled_from([(), (), ("GPU-0",), ("GPU-0", "GPU-1")]),
    )
    def book(self, user, count, from_s, for_s, able) -> None:
        """A user books GPUs: one who has no jobs here, or the one of all jobs."""
        start_at = self.now + self.wall_offset_s + from_s
        wish = Booking(0, user, f"user {user}", count, start_at, start_at + for_s, able)
        try:
            made = self.engine.view.admitted(wish, self.now)
        except UsageError:
            return
        self.tell(BookingMade(self.now, made))

    @precondition(lambda self: self.saved_bookings)
    @rule(data=st.data(), jump_s=st.sampled_from([0.0, 0.0, -100.0, 100.0]))
    def unbook(self, data, jump_s: float) -> None:
        """A booking is removed, or the wall clock is set."""
        if jump_s:
            self.wall_offset_s += jump_s
            self.look(0.0)
            return
        number = data.draw(st.sampled_from(sorted(self.saved_bookings)), "booking")
        self.tell(BookingRemoved(self.now, number))

    @rule(
        load_pct=st.sampled_from([0.0, 0.0, 3.0, 60.0, None]),
        own_pct=st.sampled_from([None, 0.0, 2.0, 50.0]),
        step_s=st.sampled_from([1.0, 5.0, 20.0]),
    )
    def rest(self, load_pct: float | None, own_pct: float | None, step_s: float) -> None:
        """All jobs use their GPUs much or little for a while."""
        self.world.load_pct = dict.fromkeys(self.world.gpus, load_pct)
        for process in self.world.processes.values():
            process.load_pct = own_pct
        for _ in range(6):
            self.look(step_s)

    def _held(self) -> list[str]:
        return sorted(
            lease.id for lease in self.saved_leases.values() if lease.state is LeaseState.HELD
        )

    @precondition(lambda self: self._held())
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        peak_gib=st.sampled_from([None, None, 1, 6, 20]),
        asked_gib=st.sampled_from([None, None, 2, 30]),
        keeps_memory=st.booleans(),
    )
    def end(self, data, outcome, peak_gib, asked_gib, keeps_memory: bool) -> None:
        lease_id = data.draw(st.sampled_from(self._held()), "lease")
        process = self.world.of_lease(lease_id)
        process.leases.remove(lease_id)
        if not process.leases and not keeps_memory:
            process.memory.clear()
        peak = None if peak_gib is None else peak_gib * GiB
        asked = None if asked_gib is None else asked_gib * GiB
        lease = self.saved_leases[lease_id]
        wished = max(self._peak(lease_id), peak or 0) + (asked or 0)
        is_inside = asked is not None and wished <= lease.reserved_bytes
        before = dict(self.saved_profiles)
        self.tell(Released(self.now, lease_id, outcome, peak, asked))
        if outcome is Outcome.OUT_OF_MEMORY and is_inside:
            runs = {key: p.runs for key, p in before.items()}
            for key, profile in self.saved_profiles.items():
                if profile.runs != runs.get(key):
                    assert profile.runs[-1].outcome is not outcome, "blamed one who kept its word"

    @rule(count=st.integers(1, 3))
    def kernel_kills(self, count: int) -> None:
        """The kernel ends processes for the host's memory; which, nobody tells."""
        self.tell(KernelKilled(self.now, count))

    @precondition(lambda self: self._held())
    @rule(data=st.data())
    def die(self, data) -> None:
        """A holder dies with all its leases; its memory stays until the driver lets go of it."""
        process = self.world.of_lease(data.draw(st.sampled_from(self._held()), "lease"))
        for key in sorted({*self.waiting, *self.away}):
            if self.asked[key].holder == a_holder(process.pid) and key not in self.ended:
                self._give_up(key)
        process.is_alive = False
        self.dead |= process.leases
        for lease_id in sorted(process.leases):
            self.tell(HolderGone(self.now, lease_id))
            self.tell(ReporterLost(self.now, lease_id))
        self.now += COMMAND_S
        self.tell(TimerFired(self.now))

    @rule()
    def bury(self) -> None:
        self.world.bury()

    @rule(what=st.sampled_from(["give_up", "hand_over", "forget", "restart"]), data=st.data())
    def seldom(self, what: str, data) -> None:
        getattr(self, what)(data)

    def hand_over(self, data) -> None:
        if not self._held():
            return
        lease_id = data.draw(st.sampled_from(self._held()), "lease")
        process = self.world.of_lease(lease_id)
        holder = a_holder(self._new_number() + 7000)
        process.leases.remove(lease_id)
        memory = {} if process.leases else dict(process.memory)
        if not process.leases:
            process.memory.clear()
        self.world.processes[holder.pid] = Process(holder.pid, memory, {lease_id})
        self.tell(HolderChanged(self.now, lease_id, holder))

    def forget(self, data) -> None:
        self.tell(ProfileForgotten(self.now, data.draw(st.sampled_from(TYPES))))

    @rule(index=st.integers(0, 2), health=HEALTHS, strangers_gib=GIBS, unexplained_gib=GIBS,
          hides=st.booleans(), is_vague=st.sampled_from([False] * 4 + [True]),
          load_pct=st.sampled_from([None, 0.0, 40.0, 100.0]))  # fmt: skip
    def world_changes(
        self, index, health, strangers_gib, unexplained_gib, hides, is_vague, load_pct
    ) -> None:
        world, uuid = self.world, sorted(self.world.gpus)[index % len(self.world.gpus)]
        world.health[uuid] = health
        world.load_pct[uuid] = load_pct
        world.strangers[uuid] = strangers_gib * GiB
        world.unexplained[uuid] = unexplained_gib * GiB
        for names, is_so in ((world.hides, hides), (world.is_vague, is_vague)):
            names.add(uuid) if is_so else names.discard(uuid)

    def restart(self, data) -> None:
        """The negotiator is killed and comes up from what it saved; some clients come back."""
        self.now += data.draw(STEPS_S)
        self.away |= self.waiting
        self.waiting.clear()
        self._start()
        for key in data.draw(st.permutations(sorted(self.away)), "who comes back"):
            if key in self.away and data.draw(st.booleans()):
                self.now += 0.1
                self._ask_again(key)

    # --- and in the end ------------------------------------------------------------------

    def teardown(self) -> None:
        """Once all faults have ended, everybody is granted or refused."""
        if not getattr(self, "is_sound", False):
            return  # a check has failed already
        for number in sorted(self.saved_bookings):
            self.tell(BookingRemoved(self.now, number))
        rounds = 5 + 2 * len(self.waiting)
        for _ in range(rounds):
            for lease_id in self._held():
                self.world.of_lease(lease_id).leases.remove(lease_id)
                self.tell(Released(self.now, lease_id, Outcome.OK, GiB))
            self.world.heal(self.rules.guard)
            self.now += 3.0
            host = self.world.host_reading()
            self.tell(Sampled(self.now, self.world.readings(), host=host))
            self.books_are_sound()
            if not self.waiting:
                return
        why = {key: self.engine.view.why(key, self.now) for key in self.waiting}
        raise AssertionError(f"they wait for ever: {why}")


def _holds(lease: Lease, request: Request) -> bool:
    is_own = lease.request.holder == request.holder and not lease.request.is_command
    return is_own and lease.state is LeaseState.HELD


def _is_usable(reading: Reading) -> bool:
    return reading.health is GpuHealth.OK and reading.used_bytes is not None
