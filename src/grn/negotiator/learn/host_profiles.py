"""What jobs need of the host: its memory and its cores, learned from runs like GPU memory.

Memory is estimated as GPU memory is, from the peaks of all runs of a type on any GPU; cores are the
median of what runs used on average. A type without runs gets the median of other types, at most a
share of the host, which the caller knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from grn.model.host import HostShare
from grn.model.job import Argument, Outcome, Profile, Request, Run
from grn.model.units import show_size
from grn.negotiator.events import Lease
from grn.negotiator.learn.arguments import mattering
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.estimate import Known
from grn.negotiator.learn.memory.margin import FIRST_MARGIN, Margin
from grn.negotiator.learn.memory.profiling import RunWatch, show_runs
from grn.negotiator.schedule.room.host_ledger import HostNeed

MIN_CPUS = 0.05  # of any job: it is started, watched and ended
_PEAK_S = 5.0  # cores are averaged over at least this long before they count as a peak
_WORTH = 1.05  # a smaller rise of a running job's need does not renew estimates
_MAX_DRAWN = 1000  # estimates kept of one type
_AFTER_OUT_OF_RAM = 1.35  # times what was too little, and a tenth of it more
_GUESS_STEP = 1.25  # the guess changes in such steps, so that it changes rarely
_Alike = tuple[str, tuple[Argument, ...]]  # job type, arguments that matter


@dataclass(slots=True)
class HostWatch:
    """The samples of one running job: its memory, and its cores on average and at most."""

    ram: RunWatch
    read_at: float
    cpu_s: float = 0.0
    measured_s: float = 0.0
    peak_cpus: float | None = None
    _burst_s: float = 0.0
    _burst_cpu_s: float = 0.0

    def seen(self, at: float, use: HostShare) -> None:
        """Add a sample."""
        if use.ram_bytes is not None:
            self.ram = self.ram.seen(at, use.ram_bytes)
        passed_s, self.read_at = at - self.read_at, at
        if use.cpus is None or passed_s <= 0:
            return
        self.cpu_s += use.cpus * passed_s
        self.measured_s += passed_s
        self._burst_s += passed_s
        self._burst_cpu_s += use.cpus * passed_s
        if self._burst_s >= _PEAK_S:
            self.peak_cpus = max(self.peak_cpus or 0.0, self._burst_cpu_s / self._burst_s)
            self._burst_s = self._burst_cpu_s = 0.0

    @property
    def cpus(self) -> float | None:
        """Return the cores that the job uses on average, None while that is not known."""
        return self.cpu_s / self.measured_s if self.measured_s > 0 else None


class HostProfiles:
    """The runs of all types as the host saw them, running jobs, and needs drawn from both."""

    def __init__(self, woken: set[str]) -> None:
        self._woken = woken  # types whose needs have changed
        self._types: dict[str, Known] = {}
        self._cpus: dict[str, list[tuple[tuple[Argument, ...], float, float]]] = {}
        self._drawn: dict[str, dict[tuple[object, ...], HostNeed | None]] = {}
        self._going: dict[_Alike, int] = {}  # what running jobs show that they need
        self._going_cpus: dict[_Alike, float] = {}
        self._flat: dict[str, int] = {}  # the memory of running types without runs that are flat
        self._guess: tuple[int | None, float | None] | None = None
        self.watches: dict[str, HostWatch] = {}
        self._changed: dict[str, int] = {}  # job type -> how often its need has changed

    # --- what is learned ---------------------------------------------------------------------

    def load(self, profiles: Iterable[Profile]) -> None:
        """Load saved runs."""
        for profile in profiles:
            for run in profile.runs:
                self.add(profile.job_type, run)

    def add(self, job_type: str, run: Run) -> None:
        """Remember a finished run."""
        if run.ram_bytes is None and run.cpus is None:
            return
        if run.ram_bytes:
            known = self._types.get(job_type)
            if known is None:
                known = self._types[job_type] = Known(Profile(job_type, "host", job_type, 0))
            known.add(_as_ram(run))
        if run.cpus is not None and profiling.counts_in_full(run):
            used = self._cpus.setdefault(job_type, [])
            used.append((mattering(run.arguments), run.cpus, run.peak_cpus or run.cpus))
            del used[: -profiling.RUNS_KEPT]
        self._guess = None
        self._outdate(job_type)

    def forget(self, job_type: str) -> None:
        """Drop all runs of a type."""
        version = self._changed.get(job_type, 0)
        self.drop(job_type)
        self._changed[job_type] = version
        self._outdate(job_type)

    def drop(self, job_type: str) -> None:
        """Drop all of a type that neither runs nor waits."""
        self._types.pop(job_type, None)
        self._cpus.pop(job_type, None)
        self._drawn.pop(job_type, None)
        self._changed.pop(job_type, None)
        self._guess = None

    # --- running jobs --------------------------------------------------------------------------

    def began(self, lease: Lease, at: float) -> None:
        """Watch a job from its grant on."""
        self.watches[lease.id] = HostWatch(RunWatch(min(lease.granted_at, at)), at)

    def seen(self, leases: Iterable[Lease], uses: Iterable[HostShare], at: float) -> None:
        """Apply one reading, and note what running jobs show of the need of their siblings."""
        for use in uses:
            watch = self.watches.get(use.lease)
            if watch is not None:
                watch.seen(at, use)
        going: dict[_Alike, int] = {}
        flat: dict[str, int] = {}
        cpus: dict[_Alike, float] = {}
        for lease in leases:
            watch = self.watches[lease.id]
            alike = (lease.request.job_type, mattering(lease.request.arguments))
            peak, is_new = watch.ram.peak_bytes, lease.request.job_type not in self._types
            is_old = at - watch.ram.began_at >= profiling.GROWS_ON_S
            if is_new and (watch.ram.is_settled or is_old):
                flat[alike[0]] = max(flat.get(alike[0], 0), peak)
            if peak and (is_new or peak > lease.ram_bytes):
                shown = profiling.shrunk_bytes(watch.ram, at, 1 << 60) if is_new else peak
                going[alike] = max(going.get(alike, 0), max(shown, peak + peak // 10))
            if watch.cpus is not None and lease.request.job_type not in self._cpus:
                cpus[alike] = max(cpus.get(alike, 0.0), watch.cpus)
        for alike in going.keys() | self._going.keys():
            now, before = going.get(alike, 0), self._going.get(alike, 0)
            if now > before * _WORTH or before > now * _WORTH:
                self._outdate(alike[0])
        if flat != self._flat:
            self._flat, self._guess = flat, None
        self._going, self._going_cpus = going, cpus

    def ended(self, lease_id: str) -> HostWatch | None:
        """Stop watching a job, and return its samples."""
        return self.watches.pop(lease_id, None)

    # --- needs -----------------------------------------------------------------------------------

    def need(self, request: Request, capacity_bytes: int, margin: Margin) -> HostNeed:
        """Return the need of a request; `is_guess` where no run has shown all of it."""
        drawn = self._drawn.setdefault(request.job_type, {})
        what = (
            mattering(request.arguments), request.code, request.cpus, request.ram_bytes,
            capacity_bytes,
        )  # fmt: skip
        found = drawn.get(what)
        if found is None:
            if len(drawn) >= _MAX_DRAWN:
                drawn.clear()
            found = drawn[what] = self._need(request, capacity_bytes, margin)
        return found

    def _need(self, request: Request, capacity_bytes: int, margin: Margin) -> HostNeed:
        ram, because = self._ram(request, capacity_bytes, margin)
        cpus, cpus_because = self._cores(request)
        stated = request.ram_bytes
        if stated is not None and stated >= (ram or 0):
            ram, because = min(stated, capacity_bytes), "as stated"
        if request.cpus is not None:
            cpus, cpus_because = request.cpus, "as stated"
        return HostNeed(
            -1 if ram is None else min(ram, capacity_bytes),
            -1.0 if cpus is None else max(MIN_CPUS, cpus),
            because,
            cpus_because,
            stated is not None,
            request.cpus is not None,
            ram is None or cpus is None,
        )

    def _ram(self, request: Request, capacity_bytes: int, margin: Margin) -> tuple[int | None, str]:
        """Return the memory that runs show a request to need, None when there are none."""
        going = self._going.get((request.job_type, mattering(request.arguments)), 0)
        seen = self._types.get(request.job_type)
        known = seen.of_code(request.code) if seen else None
        if known is None:
            shown = f"a run that is still going uses {show_size(going * 10 // 11)}"
            return (going, shown) if going else (None, "")
        estimate = known.estimate(capacity_bytes, margin)
        need = known.floor_bytes(capacity_bytes)
        because = f"a failed run already needed {show_size(need)}"
        if estimate is not None:
            need, because = estimate.need_bytes, estimate.because
            told = known.by_arguments
            said = told.bound(request.arguments, capacity_bytes, margin)
            beyond = told.beyond(request.arguments)
            if beyond is not None:
                need = int(min(float(capacity_bytes), need * told.times_beyond(beyond)))
                because = f"guessed: no run had such a {beyond.name}"
            elif said is not None:
                floor = known.floor_bytes(capacity_bytes) if told.has_failed else 0
                need, because = max(said[0], floor), said[1]
        if going > need:
            need = going
            because = f"a run that is still going has grown to {show_size(going * 10 // 11)}"
        return need, because

    def _cores(self, request: Request) -> tuple[float | None, str]:
        """Return the cores that runs like a request use, None when there are none."""
        runs = self._cpus.get(request.job_type)
        alike = mattering(request.arguments)
        if not runs:
            going = self._going_cpus.get((request.job_type, alike))
            return (going, "as a run that is still going") if going is not None else (None, "")
        same = [usual for given, usual, _ in runs if given == alike] or [one[1] for one in runs]
        return median(same), f"usual in {show_runs(len(same))}"

    def knows(self, job_type: str) -> bool:
        """True when a finished run has shown the memory of a type."""
        return job_type in self._types

    def most_of_alike(self, request: Request) -> int | None:
        """Return the largest memory of runs like this one, 0 if there are none, None if unknown."""
        known = self._types.get(request.job_type)
        if known is None:
            return None
        return profiling.most_of_alike(known.of_code(request.code).telling, request.arguments)

    def usual(self, job_type: str) -> tuple[float, float] | None:
        """Return the cores that runs of a type use usually and at most, None without runs."""
        runs = self._cpus.get(job_type)
        if not runs:
            return None
        return median(one[1] for one in runs), max(one[2] for one in runs)

    def estimate(self, job_type: str, capacity_bytes: int) -> tuple[int, str] | None:
        """Return the memory of a type's next run and the reason, None without runs."""
        known = self._types.get(job_type)
        found = known.estimate(capacity_bytes, FIRST_MARGIN) if known else None
        return (found.need_bytes, found.because) if found else None

    def version_of(self, job_type: str) -> int:
        """Return a number that rises whenever the need of a type may have changed."""
        return self._changed.get(job_type, 0)

    def guess(self) -> tuple[int | None, float | None]:
        """Return the median memory and cores of known types, None while there are none.

        While no run has ended, running ones count, as far as they have shown their memory.
        """
        if self._guess is None:
            sizes = [max(known.peaks.sizes) for known in self._types.values() if known.peaks.sizes]
            sizes = sizes or list(self._flat.values())
            cores = [median(one[1] for one in runs) for runs in self._cpus.values()]
            ram = int(_stepped(median(sizes))) if sizes else None
            self._guess = (ram, _stepped(median(cores)) if cores else None)
        return self._guess

    def _outdate(self, job_type: str) -> None:
        self._changed[job_type] = self._changed.get(job_type, 0) + 1
        self._drawn.pop(job_type, None)
        self._woken.add(job_type)


def _stepped(amount: float) -> float:
    """Round an amount up to the next step."""
    if amount <= 0:
        return 0.0
    return float(_GUESS_STEP ** math.ceil(math.log(amount, _GUESS_STEP)))


def _as_ram(run: Run) -> Run:
    """Return a run as the estimator of GPU memory reads it, with host memory in its place."""
    outcome, peak = run.outcome, run.ram_bytes or 0
    if outcome is Outcome.OUT_OF_RAM:
        outcome, peak = Outcome.OUT_OF_MEMORY, int(peak * _AFTER_OUT_OF_RAM)
    elif outcome is Outcome.OUT_OF_MEMORY:
        outcome = Outcome.FAILED  # of GPU memory: its host memory is a lower bound
    return replace(run, outcome=outcome, peak_bytes=peak, reserved_bytes=0)
