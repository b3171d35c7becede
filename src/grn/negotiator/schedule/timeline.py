"""Play the schedule forward: when running jobs end and waiting ones start, for given durations.

A rough copy of the engine's rules on plain values: order, room, load, first runs, reservations,
backfill, bookings. It knows neither interference nor links between GPUs, nor requests that come
later. A job of unknown duration never ends. The user of a booking is not expected to use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from grn.negotiator.learn.load import GUESS

PASSED = 4  # after this many times the patience reserved GPUs are not backfilled any more
MEASURED_S = 90.0  # after this long a first run is measured; its siblings wait no longer
_MEASURED = 1 / 3  # and then reserves this part of what it took
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class BookedTime:
    """A time, in seconds from now, during which a GPU is kept for a user."""

    user: int
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU as the timeline begins."""

    free_bytes: int
    empty_bytes: int  # free once no lease is left here
    load_cap: float
    power: float  # how fast time grows with load
    is_usable: bool = True
    is_exclusive: bool = False  # the driver lets one process in
    booked: tuple[BookedTime, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A job on its GPUs."""

    id: str
    gpus: tuple[int, ...]
    reserved: tuple[int, ...]
    load: float
    left_s: float  # alone on its GPUs; infinite when unknown
    is_exclusive: bool = False
    is_probe: bool = False
    job_type: str = ""
    measured_s: float = MEASURED_S  # when a first run is, from now or from its start


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """What a request needs on one GPU."""

    need_bytes: int
    load: float | None
    alone_s: float  # infinite when unknown

    @property
    def usual_load(self) -> float:
        return GUESS if self.load is None else self.load


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A waiting request; requests of one group get the same answer.

    All but those of group 0, which are not made yet, were refused just now.
    """

    id: str
    group: int
    job_type: str
    gpus: int
    demands: Mapping[int, GpuNeed]  # by GPU; only GPUs that it may use
    starves_in_s: float  # from then on GPUs are reserved for it
    patience_s: float = math.inf
    is_exclusive: bool = False
    is_probe: bool = False
    packs: bool = False  # prefers full GPUs
    user: int = 0
    lasts_s: float = math.inf  # how long it may take, for backfill,
    booked_s: float = math.inf  # and for bookings, which assume a time where it is unknown
    gives_way_s: float = math.inf  # after so long it can be asked to end


@dataclass(slots=True)
class Timeline:
    """The state of one play; `starts` and `ends` are its results, in seconds from now."""

    gpus: Sequence[GpuState]
    max_work: int
    free: list[int] = field(init=False)
    load: list[float] = field(init=False)
    here: list[dict[str, PlannedRun]] = field(init=False)  # by GPU
    running: dict[str, PlannedRun] = field(default_factory=dict)
    left_s: dict[str, float] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    now_s: float = 0.0
    work: int = 0
    measured_at: dict[str, float] = field(default_factory=dict)  # first runs: when each will be
    new_types: set[str] = field(default_factory=set)  # that were measured since the last round
    kept_for: str | None = None  # the last request that GPUs were reserved for, and these GPUs
    kept: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [gpu.free_bytes for gpu in self.gpus]
        self.load = [0.0] * len(self.gpus)
        self.here = [{} for _ in self.gpus]

    def play(
        self, running: Sequence[PlannedRun], waiting: Sequence[PlannedRequest]
    ) -> Iterator[None]:
        """Play until all have started and ended, or the work is spent; pause after each event."""
        for run in running:
            self._enter(run)
        rest = self._round(waiting, {one.group for one in waiting if one.group})
        while self.work < self.max_work:
            speeds = {one: self._slowed(run) for one, run in self.running.items()}
            self.work += len(speeds)
            ends_in = {one: self.left_s[one] * slow for one, slow in speeds.items()}
            first = min(ends_in, key=ends_in.__getitem__, default=None)
            ends_s = math.inf if first is None else ends_in[first]
            passed_s = min(ends_s, self._next_change_s() - self.now_s if rest else math.inf)
            if passed_s == math.inf:
                return
            self.now_s += passed_s
            for one, slow in speeds.items():
                self.left_s[one] -= passed_s / slow
            if ends_s == passed_s and first is not None:
                self._leave(first)
            rest = self._rounds(self._measured(rest))
            yield

    def _next_change_s(self) -> float:
        """Return when a booking ends next, or a first run is measured."""
        booked = chain.from_iterable(gpu.booked for gpu in self.gpus)
        opened = (one.until_s for one in booked if one.until_s > self.now_s)
        return min(chain(opened, self.measured_at.values()), default=math.inf)

    def _enter(self, run: PlannedRun) -> None:
        self.running[run.id] = run
        self.left_s[run.id] = run.left_s
        for gpu in run.gpus:
            self.load[gpu] += run.load
            self.here[gpu][run.id] = run
        if run.is_probe:
            self.measured_at[run.id] = self.now_s + run.measured_s

    def _leave(self, run_id: str) -> None:
        run = self.running.pop(run_id)
        del self.left_s[run_id]
        self.ends[run_id] = self.now_s
        if run.is_probe:
            del self.measured_at[run_id]
            self.new_types.add(run.job_type)
        for gpu, size in zip(run.gpus, run.reserved, strict=True):
            self.free[gpu] += size
            self.load[gpu] -= run.load
            del self.here[gpu][run_id]
            if not self.here[gpu]:
                self.free[gpu], self.load[gpu] = self.gpus[gpu].empty_bytes, 0.0

    def _slowed(self, run: PlannedRun) -> float:
        slowed = (max(1.0, self.load[gpu]) ** self.gpus[gpu].power for gpu in run.gpus)
        return float(max(slowed))

    def _measured(self, waiting: list[PlannedRequest]) -> list[PlannedRequest]:
        """Shrink the first runs that are measured by now; their siblings are no first runs then."""
        for one in [one for one, when_s in self.measured_at.items() if when_s <= self.now_s]:
            self._shrink(one)
        if not self.new_types:
            return waiting
        types, self.new_types = self.new_types, set()
        return [
            replace(one, is_probe=False) if one.is_probe and one.job_type in types else one
            for one in waiting
        ]

    def _shrink(self, run_id: str) -> None:
        del self.measured_at[run_id]
        before = self.running[run_id]
        left = tuple(int(size * _MEASURED) for size in before.reserved)
        run = self.running[run_id] = replace(before, reserved=left, is_probe=False)
        for gpu, size, more in zip(run.gpus, left, before.reserved, strict=True):
            self.free[gpu] += more - size
            self.here[gpu][run_id] = run
        self.new_types.add(run.job_type)

    def _rounds(self, waiting: list[PlannedRequest]) -> list[PlannedRequest]:
        """Start all that fit: a reserved GPU that was taken may leave others to the next round."""
        while True:
            rest = self._round(waiting, set())
            if len(rest) == len(waiting) or self.work >= self.max_work:
                return rest
            waiting = rest

    def _round(self, waiting: Sequence[PlannedRequest], refused: set[int]) -> list[PlannedRequest]:
        """Start all that fit, in turn, but for refused groups; return the others."""
        kept, ready_s = self._reserved(waiting)
        rest: list[PlannedRequest] = []
        types = {run.job_type for run in self.running.values() if run.is_probe}
        for one in waiting:
            if one.group in refused or (one.is_probe and one.job_type in types):
                rest.append(one)
                continue
            closed = set() if kept is None or kept[0] == one.id else kept[1]
            if closed and self.now_s + one.lasts_s <= ready_s:
                closed = set()
            chosen = self._place(one, closed)
            if not chosen:
                refused.add(one.group)
                rest.append(one)
                continue
            self._start(one, chosen)
            if one.is_probe:
                types.add(one.job_type)
        return rest

    def _place(self, one: PlannedRequest, closed: set[int]) -> list[int]:
        self.work += len(one.demands)
        fits = [gpu for gpu in one.demands if gpu not in closed and self._fits(one, gpu)]
        if len(fits) < one.gpus:
            return []
        sign = 1 if one.packs else -1

        def rank(gpu: int) -> tuple[float, bool, int]:
            slowed = max(1.0, self.load[gpu] + (one.demands[gpu].load or 0.0))
            return (round(slowed, 1), self.load[gpu] > 0, sign * self.free[gpu])

        return sorted(fits, key=rank)[: one.gpus]

    def _fits(self, one: PlannedRequest, gpu: int) -> bool:
        demand, state = one.demands[gpu], self.gpus[gpu]
        if not state.is_usable or (state.booked and self._is_booked(one, gpu)):
            return False
        here = self.here[gpu].values()
        if not here:
            return demand.need_bytes <= state.empty_bytes
        if one.is_exclusive or state.is_exclusive or demand.need_bytes > self.free[gpu]:
            return False
        if any(run.is_exclusive or (one.is_probe and run.is_probe) for run in here):
            return False
        is_tried = demand.load is None and one.is_probe
        return is_tried or self.load[gpu] + demand.usual_load <= state.load_cap + _TINY

    def _is_booked(self, one: PlannedRequest, gpu: int) -> bool:
        """True when a request would run into another user's booking of a GPU."""
        lasts_s = min(one.gives_way_s, one.booked_s)
        return any(
            booked.user != one.user
            and self.now_s < booked.until_s
            and (booked.from_s <= self.now_s or booked.from_s < self.now_s + lasts_s)
            for booked in self.gpus[gpu].booked
        )

    def _start(self, one: PlannedRequest, gpus: list[int]) -> None:
        self.starts[one.id] = self.now_s
        takes_all = one.is_probe or one.is_exclusive
        reserved = tuple(
            self.free[gpu] if takes_all else min(one.demands[gpu].need_bytes, self.free[gpu])
            for gpu in gpus
        )
        for gpu, size in zip(gpus, reserved, strict=True):
            self.free[gpu] -= size
        alone_s = max(one.demands[gpu].alone_s for gpu in gpus)
        load = max(one.demands[gpu].usual_load for gpu in gpus)
        self._enter(
            PlannedRun(
                one.id, tuple(gpus), reserved, load, alone_s,
                one.is_exclusive, one.is_probe, one.job_type,
            )
        )  # fmt: skip

    def _reserved(
        self, waiting: Sequence[PlannedRequest]
    ) -> tuple[tuple[str, set[int]] | None, float]:
        """Return the first starving request with the GPUs reserved for it, and when it has room."""
        for one in waiting:
            if one.starves_in_s > self.now_s or one.is_probe:
                continue
            able = [
                gpu
                for gpu, demand in one.demands.items()
                if self.gpus[gpu].is_usable and demand.need_bytes <= self.gpus[gpu].empty_bytes
            ]
            if len(able) < one.gpus:
                continue
            self.work += len(able)
            ready_s = {gpu: self._ready_s(one, gpu) for gpu in able}
            if self.kept_for != one.id:  # else they stay reserved
                soonest = sorted(able, key=lambda gpu: (ready_s[gpu], -self.free[gpu], gpu))
                self.kept_for, self.kept = one.id, soonest[: one.gpus]
            is_passed = self.now_s > one.starves_in_s + (PASSED - 1) * one.patience_s
            latest_s = -math.inf if is_passed else max(ready_s[gpu] for gpu in self.kept)
            return (one.id, set(self.kept)), latest_s
        return None, -math.inf

    def _ready_s(self, one: PlannedRequest, gpu: int) -> float:
        """Return when a GPU has room for a request by the memory of its jobs."""
        free, need = self.free[gpu], one.demands[gpu].need_bytes
        if free >= need:
            return self.now_s
        here = self.here[gpu].values()
        ends = sorted((self.left_s[run.id], run.reserved[run.gpus.index(gpu)]) for run in here)
        for left_s, size in ends:
            free += size
            if free >= need:
                return self.now_s + left_s
        return math.inf
