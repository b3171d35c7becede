"""Samples of a run to a profile, and a profile to an estimate for the next run.

All arithmetic of learning is here; who may run where is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from grn.model.job import Argument, Outcome
from grn.model.profile import Estimate, Profile, Run
from grn.model.sizes import GiB, MiB, show_size
from grn.negotiator import arguments

RUNS_KEPT = 100
PRIOR_WEIGHT = 2.0
PRIOR_SPREAD = 0.15
MISS_CHANCE = 0.02  # how often a need above the estimate is accepted before self-tuning
LEAST_HEADROOM = 0.05
LEAST_SPREAD = 0.03  # of runs with the same arguments
ENOUGH_BLANKS = 10  # so many samples without any memory show that a job uses none
_Z = NormalDist().inv_cdf(1 - MISS_CHANCE)
_FULL = (Outcome.OK, Outcome.PROFILED)


@dataclass(frozen=True, slots=True)
class Watch:
    """What has been seen of one running job: its peak and when that last rose."""

    began_at: float
    peak_bytes: int = 0
    rose_at: float | None = None  # None until the first sample with memory in it
    blanks: int = 0  # good samples before that, which showed nothing
    rose_to_bytes: int = 0  # its peak then: slow growth adds up to a rise, too

    def seen(self, at: float, used_bytes: int) -> Watch:
        """Add one sample; only a rise by more than 1 % since the last one counts as one."""
        if used_bytes <= 0:
            is_blank = self.rose_at is None
            return Watch(self.began_at, blanks=self.blanks + 1) if is_blank else self
        if self.rose_at is None or used_bytes > self.rose_to_bytes * 1.01:
            return Watch(self.began_at, used_bytes, at, 0, used_bytes)
        if used_bytes > self.peak_bytes:
            return Watch(self.began_at, used_bytes, self.rose_at, 0, self.rose_to_bytes)
        return self

    def is_flat(self, at: float, flat_s: float) -> bool:
        """True when the memory has not risen for long enough to believe it."""
        if self.rose_at is None:
            return False
        return at - self.rose_at >= max(flat_s, 0.2 * (at - self.began_at))


def pad_bytes(capacity_bytes: int) -> int:
    """Return the fixed part of a margin: 256 MiB, less on small GPUs."""
    return min(256 * MiB, capacity_bytes // 96)


def growth_bytes(capacity_bytes: int) -> int:
    """Return the least step up after running out of memory: 1 GiB, less on small GPUs."""
    return min(GiB, capacity_bytes // 24)


def shrunk_bytes(watch: Watch, at: float, capacity_bytes: int) -> int:
    """Return what a first run keeps reserved, given its peak and how long that was flat."""
    quiet_s = at - watch.rose_at if watch.rose_at is not None else 0.0
    factor = 1.10 + 0.40 * math.exp(-quiet_s / 30)
    return min(capacity_bytes, int(watch.peak_bytes * factor) + pad_bytes(capacity_bytes))


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
    """The peaks of a profile's full runs and their logarithms: one more run costs one of those."""

    sizes: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)

    @staticmethod
    def of(profile: Profile) -> Peaks:
        """Read them off a whole profile."""
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
        """Count a run no more, which is the oldest of all."""
        if counts_in_full(run):
            del self.sizes[0], self.logs[0]


def estimate(profile: Profile, capacity_bytes: int, known: Peaks | None = None) -> Estimate | None:
    """Return what the next run needs, or None while no run counts in full."""
    full = known or Peaks.of(profile)
    peaks = full.sizes
    if not peaks:
        return None
    largest = max(peaks)
    headroom = _headroom(full.logs)
    need = int(largest * (1 + headroom)) + pad_bytes(capacity_bytes)
    because = f"{show_size(largest)} at most in {_runs(len(peaks))}, {headroom:.0%} headroom"
    has_failed = len(peaks) < len(profile.runs)
    floor = lower_bound_bytes(profile, capacity_bytes) if has_failed else 0
    if floor > need:
        need, because = floor, f"a failed run already needed {show_size(floor)}"
    return Estimate(min(need, capacity_bytes), len(peaks), largest, because)


@dataclass(frozen=True, slots=True)
class ByArguments:
    """What the arguments of a type's runs tell of its next run."""

    line: arguments.Line | None
    groups: arguments.Groups | None
    seen: tuple[dict[str, float | str], ...]
    has_failed: bool
    same: dict[tuple[Argument, ...], Peaks]  # runs by all arguments that may matter

    @staticmethod
    def of(profile: Profile) -> ByArguments:
        """Work it out for a whole profile."""
        full = [run for run in profile.runs if counts_in_full(run) and run.peak_bytes]
        seen = tuple(map(dict, dict.fromkeys(run.arguments for run in full)))
        has_failed = len(full) < len(profile.runs)
        line, groups = arguments.line(full), arguments.groups(full)
        same: dict[tuple[Argument, ...], Peaks] = {}
        if groups is not None or arguments.is_open(full):
            for run in full:
                same.setdefault(arguments.mattering(run.arguments), Peaks()).add(run)
        return ByArguments(line, groups, seen, has_failed, same)

    def stays(self, run: Run, dropped: Run | None, peaks: Peaks) -> bool:
        """True when one more run, and one less, change nothing of all this.

        As long as peaks are alike, arguments tell nothing, and there is nothing to work out.
        """
        if self.line is not None or self.groups is not None or self.same:
            return False
        if not (counts_in_full(run) and run.peak_bytes and dict(run.arguments) in self.seen):
            return False
        if dropped is not None and not (
            counts_in_full(dropped) and dropped.arguments == run.arguments
        ):
            return False
        return not arguments.are_spread(peaks.sizes)

    def bound(self, given: Sequence[Argument], capacity_bytes: int) -> tuple[int, str] | None:
        """Return a need and why, None when the arguments tell nothing."""
        values, pad = dict(given), pad_bytes(capacity_bytes)
        line, groups, found = self.line, self.groups, []
        if groups is not None and values.get(groups.name) in groups.largest_bytes:
            value = values[groups.name]
            largest, count = groups.largest_bytes[value], groups.counts[value]
            shrink = min(1.0, 1 / (5 * MISS_CHANCE * count))
            spread = max(groups.spread, LEAST_SPREAD)
            headroom = max(LEAST_HEADROOM, math.exp(_Z * spread * shrink) - 1)
            text = f"{show_size(largest)} at most in {_runs(count)} with {groups.name}="
            text += f"{_spelled(value)}, {headroom:.0%} headroom"
            found.append((int(largest * (1 + headroom)) + pad, text))
        if line is not None and not isinstance(values.get(line.name, ""), str):
            number = float(values[line.name])
            text = f"{line.name}={number:g} on a line through {_runs(line.runs)}"
            found.append((line.bound_bytes(number) + pad, text))
        same = self.same.get(arguments.mattering(given))
        if same is not None:
            largest, headroom = max(same.sizes), _headroom(same.logs)
            text = f"{show_size(largest)} at most in {_runs(len(same.sizes))} like it"
            text += f", {headroom:.0%} headroom"
            found.append((int(largest * (1 + headroom)) + pad, text))
        return min(found, default=None)

    def sentences(self) -> list[str]:
        """Say what arguments tell, for people."""
        found = []
        if self.line is not None:
            base, each = show_size(int(self.line.base_bytes)), show_size(int(self.line.slope_bytes))
            found.append(
                f"memory lies on a line over {self.line.name}: {base} and {each} for each, seen "
                f"from {self.line.least:g} to {self.line.most:g} in {_runs(self.line.runs)}"
            )
        if self.groups is not None:
            largest = self.groups.largest_bytes.items()
            sizes = ", ".join(f"{_spelled(v)}: {show_size(size)}" for v, size in list(largest)[:8])
            found.append(f"memory depends on {self.groups.name} ({sizes})")
        if not found and self.same:
            found.append("runs differ, too few to tell why: those with the same arguments count")
        return found


def _spelled(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def lower_bound_bytes(profile: Profile, capacity_bytes: int) -> int:
    """Return what failed runs prove to be too little, plus a step up; 0 when there is none."""
    floor = 0
    for run in profile.runs:
        if counts_in_full(run):
            continue
        if run.outcome is Outcome.OUT_OF_MEMORY:
            short = max(run.peak_bytes, run.reserved_bytes)
            floor = max(floor, short + max(short // 10, growth_bytes(capacity_bytes)))
        else:
            floor = max(floor, run.peak_bytes + pad_bytes(capacity_bytes))
    return min(floor, capacity_bytes)


def guess_bytes(
    known: Sequence[int], floor_bytes: int, capacity_bytes: int, is_ranked: bool = False
) -> int:
    """Guess a type never seen: like 9 of 10 known types, else half a GPU."""
    if known:
        ranked = known if is_ranked else sorted(known)
        guess = ranked[min(len(ranked) - 1, math.ceil(0.9 * len(ranked)) - 1)]
    else:
        guess = capacity_bytes // 2
    return min(capacity_bytes, max(guess, floor_bytes))


def after_out_of_memory(believed_bytes: int, attempt: int, capacity_bytes: int) -> int:
    """Return the room for a job that ran out of memory: half as much again, then a whole GPU."""
    if attempt >= 2:
        return capacity_bytes
    more = max(believed_bytes * 3 // 2, believed_bytes + growth_bytes(capacity_bytes))
    return min(capacity_bytes, more)


@dataclass(slots=True)
class End:
    """How a run ended, as far as learning from it goes."""

    outcome: Outcome
    at: float
    peak_bytes: int | None  # what the framework or the system reported
    asked_bytes: int | None  # the allocation that failed
    reserved_bytes: int
    was_sharing: bool
    wall_offset_s: float = 0.0  # wall clock minus the clock of events
    arguments: tuple[Argument, ...] = ()


def finished_run(end: End, watch: Watch, usual_s: float | None, flat_s: float) -> Run | None:
    """Return what a run taught, or None when it taught nothing of the job's need."""
    peak, outcome = max(watch.peak_bytes, end.peak_bytes or 0), end.outcome
    if outcome is Outcome.OUT_OF_MEMORY:
        if end.asked_bytes is not None and peak + end.asked_bytes <= end.reserved_bytes:
            return None  # it stayed inside its reservation: a victim of others
        peak += end.asked_bytes or 0
        if not end.was_sharing:
            outcome = Outcome.FAILED  # it had the GPU to itself: the job's own fault
    uses_none = outcome is Outcome.OK and watch.blanks >= ENOUGH_BLANKS
    if peak <= 0 and outcome is not Outcome.OUT_OF_MEMORY and not uses_none:
        return None
    ran_s = max(0.0, end.at - watch.began_at)
    is_long = watch.is_flat(end.at, flat_s) and ran_s >= (usual_s or 0.0) / 2
    is_full = is_long and end.outcome is Outcome.FAILED
    return Run(
        outcome, peak, ran_s, end.at + end.wall_offset_s, end.reserved_bytes, end.arguments, is_full
    )  # fmt: skip


def usual_duration_s(profile: Profile | None) -> float | None:
    """Return the median time of good runs, None when there is none."""
    times = (
        sorted(run.duration_s for run in profile.runs if run.outcome is Outcome.OK)
        if profile
        else []
    )
    return times[len(times) // 2] if times else None


def _headroom(logs: Sequence[float]) -> float:
    """Return the margin over the largest peak: wide after one run, narrow after many like ones."""
    count = len(logs)
    mean = sum(logs) / count
    squares = PRIOR_WEIGHT * PRIOR_SPREAD**2 + math.dist(logs, [mean] * count) ** 2
    spread = math.sqrt(squares / (PRIOR_WEIGHT + count - 1))
    shrink = min(1.0, 1 / (5 * MISS_CHANCE * count))
    return max(LEAST_HEADROOM, math.exp(_Z * spread * shrink) - 1)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
