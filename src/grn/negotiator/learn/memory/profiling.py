"""Samples of a run to a profile, and a profile to an estimate for the next run.

Arithmetic only; placement is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from grn.model.job import Argument, Estimate, Outcome, Profile, Run
from grn.model.units import GiB, MiB, show_size
from grn.negotiator.learn.arguments import mattering
from grn.negotiator.learn.memory.margin import (
    FIRST_MARGIN,
    LAST_RUNS,
    Margin,
    are_spread,
    spread_within,
)

RUNS_KEPT = 100
TRIMMED_HEADROOM = 0.08  # of a run that is flat where runs like it were,
ALIKE_HEADROOM = 0.05  # over the largest of those
GROWS_ON_S = 110.0  # a first run that still grows keeps its siblings waiting no longer
SLOW_S = 30.0  # to grow by a twentieth: one that is slower lets other first runs beside it
GROWN = 0.95  # of its peak: counts as nearly all
LATE = 0.3  # of its run: a job that has nearly all only then is a grower
SETTLED_HEADROOM = 0.05  # of a run that is as old as any run was when it had nearly its peak
QUIET_S = 15.0  # such a run has not risen for this long,
SLOWER = 1.5  # and is this many times as old: runs beside others take longer
_LOW = 0.8  # of the smallest peak so far: a run with less may have loaded only a part,
LOW_LONGER = 4.0  # and is watched this many times as long, as is one that no ended run is like
ENOUGH_BLANKS = 10  # this many samples without memory show that a job uses none
DRIFT_RUNS = 5  # runs of an older code that still count, and runs that show a changed peak
_APART = 1.1  # how many times larger all peaks on one side of a change are
_FULL = (Outcome.OK, Outcome.PROFILED)
CUT_SHORT = (
    Outcome.FAILED,
    Outcome.CANCELLED,
    Outcome.YIELDED,
)  # its peak may have been reached all the same


class RunWatch(Struct, frozen=True):
    """The samples of one running job: its peak and when that last rose."""

    began_at: float
    peak_bytes: int = 0
    rose_at: float | None = None  # None until the first sample with memory in it
    blanks: int = 0  # good samples before that, which showed nothing
    rose_to_bytes: int = 0  # its peak then: slow growth adds up to a rise, too
    is_settled: bool = False  # its reservation was adjusted since the last rise
    rises: tuple[tuple[float, int], ...] = ()  # the last ones: when, and to how much

    def seen(self, at: float, used_bytes: int) -> RunWatch:
        """Add a sample; a rise counts when it exceeds 1 % since the last rise."""
        if used_bytes <= 0:
            is_blank = self.rose_at is None
            return RunWatch(self.began_at, blanks=self.blanks + 1) if is_blank else self
        if self.rose_at is None or used_bytes > self.rose_to_bytes * 1.01:
            late = tuple(rise for rise in self.rises if rise[1] >= GROWN * used_bytes)
            rises = (*late, (at, used_bytes))
            return RunWatch(self.began_at, used_bytes, at, 0, used_bytes, rises=rises)
        if used_bytes > self.peak_bytes:
            return replace(self, peak_bytes=used_bytes)
        return self

    def grown_share(self, at: float) -> float | None:
        """Return the share of the run so far after which it had nearly its peak."""
        ran_s = at - self.began_at
        grown = [since for since, size in self.rises if size >= GROWN * self.peak_bytes]
        if ran_s <= 0 or not grown:
            return None
        return (grown[0] - self.began_at) / ran_s

    def is_slow(self, at: float) -> bool:
        """True when the memory has not risen by more than a twentieth for `SLOW_S`."""
        near = [since for since, size in self.rises if size >= GROWN * self.peak_bytes]
        return bool(near) and at - near[0] >= SLOW_S

    def is_flat(self, at: float, flat_s: float) -> bool:
        """True when the memory has not risen for `flat_s`."""
        if self.rose_at is None:
            return False
        return at - self.rose_at >= max(flat_s, 0.2 * (at - self.began_at))


def pad_bytes(capacity_bytes: int) -> int:
    """Return the fixed part of a margin: 256 MiB, less on small GPUs."""
    return min(256 * MiB, capacity_bytes // 96)


def growth_bytes(capacity_bytes: int) -> int:
    """Return the least step up after running out of memory: 1 GiB, less on small GPUs."""
    return min(GiB, capacity_bytes // 24)


def shrunk_bytes(watch: RunWatch, at: float, capacity_bytes: int) -> int:
    """Return the reservation of a first run, by its peak and how long that was flat."""
    quiet_s = at - watch.rose_at if watch.rose_at is not None else 0.0
    factor = 1.10 + 0.40 * math.exp(-quiet_s / 30)
    return min(capacity_bytes, int(watch.peak_bytes * factor) + pad_bytes(capacity_bytes))


def growing_bytes(peak_bytes: int, reserved_bytes: int, free_bytes: int) -> int:
    """Return the reservation of a first run that keeps growing: room to double, then more."""
    if reserved_bytes > 2.1 * peak_bytes:
        return 2 * peak_bytes
    if reserved_bytes >= 1.25 * peak_bytes:
        return reserved_bytes
    wish = max(reserved_bytes, int(1.6 * peak_bytes))
    return min(wish, reserved_bytes + max(0, free_bytes))


def trimmed_bytes(watch: RunWatch, most_bytes: int, capacity_bytes: int) -> int:
    """Return the reservation of a flat run, given the largest peak of runs like it."""
    need = max(watch.peak_bytes * (1 + TRIMMED_HEADROOM), most_bytes * (1 + ALIKE_HEADROOM))
    return min(capacity_bytes, int(need) + pad_bytes(capacity_bytes))


class Settling(Struct, frozen=True):
    """When runs of a type have nearly their peak: the latest age, and the smallest of the peaks."""

    grown_s: float
    least_bytes: int

    def has_settled(self, watch: RunWatch, at: float) -> bool:
        """True when a run will hardly rise any more, judged by the runs before it."""
        if watch.rose_at is None:
            return False
        is_low = watch.peak_bytes < _LOW * self.least_bytes
        longer = LOW_LONGER if is_low else 1.0
        age_s, quiet_s = at - watch.began_at, at - watch.rose_at
        return quiet_s >= longer * QUIET_S and age_s >= longer * (SLOWER * self.grown_s + QUIET_S)


def settling(profile: Profile) -> Settling | None:
    """Return when runs of a type have nearly their peak, None for growers and unknown ones."""
    if is_grower(profile):
        return None
    full = [run for run in profile.runs[-LAST_RUNS:] if counts_in_full(run) and run.peak_bytes]
    grown_s = [run.grown * run.duration_s for run in full if run.grown is not None]
    if not grown_s:
        return None
    return Settling(max(grown_s), min(run.peak_bytes for run in full))


def settled_bytes(watch: RunWatch, capacity_bytes: int) -> int:
    """Return the reservation of a run whose memory will hardly rise any more."""
    need = int(watch.peak_bytes * (1 + SETTLED_HEADROOM)) + pad_bytes(capacity_bytes)
    return min(capacity_bytes, need)


def counts_in_full(run: Run) -> bool:
    """True when the peak of a run is what the job needs, not only a lower bound."""
    return run.outcome in _FULL or run.is_full


def is_known(profile: Profile | None) -> bool:
    """True when at least one run counts in full."""
    return profile is not None and any(counts_in_full(run) for run in profile.runs)


def add_run(profile: Profile, run: Run) -> Profile:
    """Return the profile with one more run, the oldest dropped when there are many."""
    runs = (*profile.runs, run)[-RUNS_KEPT:]
    return Profile(profile.job_type, profile.model, profile.label, profile.owner, runs)


@dataclass(slots=True)
class Peaks:
    """The peaks of a profile's full runs and their logarithms, updated run by run."""

    sizes: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)

    @staticmethod
    def of(profile: Profile) -> Peaks:
        """Collect the peaks of a whole profile."""
        peaks = Peaks()
        for run in profile.runs:
            peaks.add(run)
        return peaks

    def add(self, run: Run) -> None:
        """Count one more run."""
        if counts_in_full(run):
            self.sizes.append(run.peak_bytes)
            self.logs.append(math.log(run.peak_bytes) if run.peak_bytes > 1 else 0.0)

    def drop_oldest(self, run: Run) -> None:
        """Remove the oldest run."""
        if counts_in_full(run):
            del self.sizes[0], self.logs[0]


def telling(profile: Profile, code: str) -> Profile:
    """Drop the runs that no longer count for a job of this code."""
    if len(profile.runs) <= DRIFT_RUNS:
        return profile
    places = counted(profile.runs, [counts_in_full(run) for run in profile.runs], code)
    if len(places) == len(profile.runs):
        return profile
    return replace(profile, runs=tuple(profile.runs[place] for place in places))


def left_out(profile: Profile, telling: Profile) -> list[str]:
    """Explain why some runs no longer count, for people."""
    code = profile.runs[-1].code if profile.runs else ""
    gone = [run for run in profile.runs if run not in telling.runs]
    older = [run for run in gone if code and run.code not in ("", code)]
    found = []
    if older:
        found.append(f"not counted: {show_runs(len(older))} of an older code")
    if len(gone) > len(older):
        rest = show_runs(len(gone) - len(older))
        found.append(f"not counted: {rest} from before its memory changed")
    return found


def estimate(
    profile: Profile,
    capacity_bytes: int,
    margin: Margin = FIRST_MARGIN,
    known: Peaks | None = None,
    going: Sequence[int] = (),
) -> Estimate | None:
    """Return what the next run needs, or None while no run counts in full.

    `going` are the peaks of runs that have not ended, and whose memory is flat.
    """
    full = known or Peaks.of(profile)
    if not full.sizes:
        return None
    has_failed = len(full.sizes) < len(profile.runs)
    peaks = [*full.sizes, *going]
    largest = max(peaks)
    headroom = margin.headroom([*full.logs, *map(math.log, going)])
    need = int(largest * (1 + headroom)) + pad_bytes(capacity_bytes)
    because = f"{show_size(largest)} at most in {show_runs(len(peaks))}"
    because += f" ({len(going)} still going)" if going else ""
    because += f", {headroom:.0%} headroom"
    floor = lower_bound_bytes(profile, capacity_bytes) if has_failed else 0
    if floor > need:
        need, because = floor, f"a failed run already needed {show_size(floor)}"
    return Estimate(min(need, capacity_bytes), len(peaks), largest, because)


def spread(profile: Profile) -> tuple[float | None, float, int]:
    """Return the spread and the span of the latest peaks among runs with the same arguments.

    Also how many of them were compared with others.
    """
    alike: dict[tuple[Argument, ...], list[float]] = {}
    full = [run for run in profile.runs[-LAST_RUNS:] if counts_in_full(run) and run.peak_bytes]
    for run in full:
        alike.setdefault(mattering(run.arguments), []).append(math.log(run.peak_bytes))
    several = [logs for logs in alike.values() if len(logs) > 1]
    span = max((max(logs) - min(logs) for logs in several), default=0.0)
    return spread_within(list(alike.values())), span, sum(map(len, several))


def lower_bound_bytes(profile: Profile, capacity_bytes: int) -> int:
    """Return what failed runs prove to be too little, plus a step up; 0 when there is none."""
    floor = largest = 0
    for run in reversed(profile.runs):
        if counts_in_full(run):
            largest = max(largest, run.peak_bytes)
            continue
        if run.outcome is Outcome.OUT_OF_MEMORY:
            short = max(run.peak_bytes, run.reserved_bytes)
            if short <= largest:
                continue  # a later run has shown what the type needs at most
            floor = max(floor, short + max(short // 10, growth_bytes(capacity_bytes)))
        else:
            floor = max(floor, run.peak_bytes + pad_bytes(capacity_bytes))
    return min(floor, capacity_bytes)


def most_of_alike(profile: Profile, given: Sequence[Argument]) -> int | None:
    """Return the largest peak of runs with the same arguments, 0 when there were none.

    None when it is unknown.
    """
    if any(run.outcome is Outcome.OUT_OF_MEMORY for run in profile.runs):
        return None
    alike = mattering(tuple(given))
    full = [run for run in profile.runs if counts_in_full(run) and run.peak_bytes]
    return max((run.peak_bytes for run in full if mattering(run.arguments) == alike), default=0)


def after_out_of_memory(believed_bytes: int, attempt: int, capacity_bytes: int) -> int:
    """Return the reservation after out of memory: half as much again, then a whole GPU."""
    if attempt >= 2:
        return capacity_bytes
    more = max(believed_bytes * 3 // 2, believed_bytes + growth_bytes(capacity_bytes))
    return min(capacity_bytes, more)


@dataclass(slots=True)
class RunEnd:
    """The facts about an ended run that learning uses."""

    outcome: Outcome
    at: float
    peak_bytes: int | None  # as reported by the framework or the system
    asked_bytes: int | None  # the allocation that failed
    reserved_bytes: int
    was_sharing: bool
    ran_out_alone: bool = False  # memory ran out though it had its GPUs to itself
    wall_offset_s: float = 0.0  # wall clock minus the clock of events
    arguments: tuple[Argument, ...] = ()
    code: str = ""


def finished_run(end: RunEnd, watch: RunWatch, usual_s: float | None, flat_s: float) -> Run | None:
    """Return the run to remember, or None when it shows nothing of the job's need."""
    peak, outcome = max(watch.peak_bytes, end.peak_bytes or 0), end.outcome
    if outcome is Outcome.OUT_OF_MEMORY:
        is_within = end.asked_bytes is not None and peak + end.asked_bytes <= end.reserved_bytes
        if is_within and not end.ran_out_alone:
            return None  # it stayed inside its reservation: a victim of others
        peak += end.asked_bytes or 0
        if not end.was_sharing:
            outcome = Outcome.FAILED  # it had the GPU to itself: the job's own fault
    uses_none = outcome is Outcome.OK and watch.blanks >= ENOUGH_BLANKS
    is_out = outcome in (Outcome.OUT_OF_MEMORY, Outcome.OUT_OF_RAM)
    is_telling = is_out or uses_none or end.ran_out_alone
    if peak <= 0 and not is_telling:
        return None
    ran_s = max(0.0, end.at - watch.began_at)
    is_long = watch.is_flat(end.at, flat_s) and ran_s >= (usual_s or 0.0) / 2
    is_full = is_long and end.outcome in CUT_SHORT
    return Run(
        outcome, peak, ran_s, end.at + end.wall_offset_s, end.reserved_bytes, end.arguments,
        is_full, code=end.code, ran_out_alone=end.ran_out_alone,
    )  # fmt: skip


def is_grower(profile: Profile | None) -> bool:
    """True when most runs of a type had nearly all of their peak only late."""
    runs = profile.runs if profile else ()
    shares = [run.grown for run in runs if run.grown is not None and counts_in_full(run)]
    return 2 * sum(share > LATE for share in shares) > len(shares)


def usual_duration_s(profile: Profile | None) -> float | None:
    """Return the median time of good runs, None when there is none."""
    times = (
        sorted(run.duration_s for run in profile.runs if run.outcome is Outcome.OK)
        if profile
        else []
    )
    return times[len(times) // 2] if times else None


def show_runs(count: int) -> str:
    """Spell a number of runs."""
    return "1 run" if count == 1 else f"{count} runs"


# --- drift: runs before a change of the job do not count ----------------------------------


def counted(runs: Sequence[Run], is_full: Sequence[bool], code: str) -> list[int]:
    """Return the places of the runs that count for a job of this code; runs are oldest first.

    Runs of an unknown code, or for a job whose code is unknown, count as the same code. Runs are
    compared only with runs whose mattering arguments are the same.
    """
    alike: dict[tuple[Argument, ...], list[int]] = {}
    for place, run in enumerate(runs):
        alike.setdefault(mattering(run.arguments), []).append(place)
    own = [not code or run.code in ("", code) for run in runs]
    found: list[int] = []
    for places in alike.values():
        full = [place for place in places if is_full[place]]
        since = full[-DRIFT_RUNS] if len(full) >= DRIFT_RUNS else -1
        own_full = [place for place in full if own[place]]
        begins = _shift([runs[place].peak_bytes for place in own_full])
        shifted = own_full[begins] if begins else 0
        for place in places:
            if place >= since or (own[place] and place >= shifted):
                found.append(place)
    return sorted(found)


def _shift(peaks: Sequence[int]) -> int:
    """Return where the latest stretch begins whose peaks are all clear of all peaks before it."""
    if len(peaks) < 2 * DRIFT_RUNS or not are_spread(peaks):
        return 0
    least, most = list(peaks), list(peaks)  # from each run to the last
    for at in range(len(peaks) - 2, -1, -1):
        least[at], most[at] = min(least[at], least[at + 1]), max(most[at], most[at + 1])
    begins, low, high = 0, min(peaks[:DRIFT_RUNS]), max(peaks[:DRIFT_RUNS])
    for at in range(DRIFT_RUNS, len(peaks) - DRIFT_RUNS + 1):
        if _APART * most[at] < low or least[at] > _APART * high:
            begins = at
        low, high = min(low, peaks[at]), max(high, peaks[at])
    return begins
