"""The estimate for the next run of one job type on one GPU model, derived from its runs.

`Known` caches the results until a run changes them; `ByArguments` predicts memory by arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from grn.model.job import Argument, Estimate, Profile, Run
from grn.model.units import show_size
from grn.negotiator.learn import durations
from grn.negotiator.learn.arguments import (
    Beyond,
    FittedLine,
    Groups,
    exceeds,
    groups,
    is_open,
    less_beyond,
    line,
    mattering,
)  # fmt: skip
from grn.negotiator.learn.durations import Times
from grn.negotiator.learn.memory import profiling
from grn.negotiator.learn.memory.margin import FIRST_MARGIN, MIN_SPREAD, Margin, are_spread
from grn.negotiator.learn.memory.profiling import (
    Peaks,
    Settling,
    counts_in_full,
    pad_bytes,
    show_runs,
)  # fmt: skip

_FITTED_EVERY = 10  # runs close to their prediction: fitting a hundred runs is slow
_COUNTED_EVERY = 5  # runs of sizes seen before: fewer cannot show a drift
_STEADY = 20  # the usual duration is computed again after one run in this many
_TIMED_EVERY = 15  # durations are fitted again after one in this many of the runs that count
_MAX_CODES = 8  # versions of the code of one type


class Known:
    """All remembered runs, with results cached until a new run changes them."""

    __slots__ = (  # there are thousands of these, and the garbage collector visits each
        "_by_arguments", "_estimates", "_is_timed", "_other_codes", "_peaks", "_settling",
        "_telling", "_times", "_times_age", "_uncounted", "_unfitted", "_untimed", "_usual_s",
        "going", "profile", "unweighed",
    )  # fmt: skip

    def __init__(
        self, profile: Profile, telling: Profile | None = None, going: Sequence[int] = ()
    ) -> None:
        self.profile = profile
        self.going = going  # the peaks of flat runs that are still going
        self.unweighed = 0  # runs since their spread was computed
        self._telling = telling  # the runs that still count
        self._peaks: Peaks | None = None
        self._uncounted = 0  # runs since all were checked, all of sizes seen before
        self._by_arguments: ByArguments | None = None
        self._unfitted = 0  # runs since the last fit, all close to their prediction
        self._estimates: dict[int, Estimate | None] = {}
        self._usual_s: float | None = None
        self._is_timed = False  # the usual duration was computed
        self._untimed = 0  # runs since then
        self._times: Times | None = None
        self._times_age = 0  # runs since then
        self._other_codes: dict[str, Known] | None = None
        self._settling: Settling | bool | None = False  # False: not computed

    @property
    def telling(self) -> Profile:
        """Return the runs that count for a job of the newest code."""
        if self._telling is None:
            self._telling = profiling.telling(self.profile, self.code)
            self._uncounted = 0
        return self._telling

    @property
    def code(self) -> str:
        """Return the fingerprint of the newest code that ran."""
        return self.profile.runs[-1].code if self.profile.runs else ""

    @property
    def peaks(self) -> Peaks:
        """Return the peaks of the runs that count."""
        if self._peaks is None:
            self._peaks = Peaks.of(self.telling)
        return self._peaks

    @property
    def by_arguments(self) -> ByArguments:
        """Return the fits by arguments."""
        if self._by_arguments is None:
            self._by_arguments = ByArguments.of(self.telling)
        return self._by_arguments

    def of_code(self, code: str) -> Known:
        """Return the estimates for a job of this code, by fewer runs when it is not the newest."""
        if code in ("", self.code):
            return self
        others = self._other_codes
        if others is None or len(others) >= _MAX_CODES:
            others = self._other_codes = {}
        if code not in others:
            others[code] = Known(self.profile, profiling.telling(self.profile, code), self.going)
        return others[code]

    def estimate(self, capacity_bytes: int, margin: Margin) -> Estimate | None:
        """Return the estimate for the next run, None when no run counts in full."""
        if capacity_bytes not in self._estimates:
            told = self.telling
            found = profiling.estimate(told, capacity_bytes, margin, self.peaks, self.going)
            self._estimates[capacity_bytes] = found
        return self._estimates[capacity_bytes]

    def floor_bytes(self, capacity_bytes: int) -> int:
        """Return the lower bound by failed runs, plus a step."""
        return profiling.lower_bound_bytes(self.telling, capacity_bytes)

    def settling(self) -> Settling | None:
        """Return when runs have nearly their peak, None when that is unknown or late."""
        if isinstance(self._settling, bool):
            self._settling = profiling.settling(self.telling)
        return self._settling

    def usual_s(self) -> float | None:
        """Return how long runs usually take, None without a successful run."""
        if not self._is_timed:
            self._usual_s, self._is_timed = profiling.usual_duration_s(self.profile), True
            self._untimed = 0
        return self._usual_s

    def alone_s(self, given: tuple[Argument, ...], power: float) -> float | None:
        """Return how long a run with these arguments takes alone, None when unknown.

        `power` corrects the durations of runs beside others.
        """
        return self._timed(power).alone_s(given)

    def spread(self, power: float) -> float:
        """Return the standard deviation of the logarithm of durations alone."""
        return self._timed(power).spread

    def _timed(self, power: float) -> Times:
        if self._times is None:
            self._times, self._times_age = Times(self.profile.runs, power), 0
        return self._times

    def add(self, run: Run) -> None:
        """Add a run. While runs are alike most cached results stay valid."""
        before, after = self.profile, profiling.add_run(self.profile, run)
        peaks, drawn = self._peaks, self._by_arguments
        is_like_all = peaks is not None and self._is_like_all(run, peaks)
        is_expected = run.code == self.code and drawn is not None and drawn.covers(run)
        self.profile, self._telling, self._peaks, self._by_arguments = after, None, None, None
        self._untimed += 1
        self._times_age += 1
        if self._times_age > min(len(after.runs), durations.RUNS) // _TIMED_EVERY:
            self._times = None
        if self._untimed > len(after.runs) // _STEADY:  # a few of many hardly move the median
            self._is_timed = False
        self._settling = False
        self.outdate()
        if is_expected and self._unfitted < _FITTED_EVERY:
            self._by_arguments, self._unfitted = drawn, self._unfitted + 1
        else:
            self._unfitted = 0
        if peaks is None or not is_like_all:
            return
        dropped = before.runs[0] if len(after.runs) == len(before.runs) else None
        peaks.add(run)
        if dropped is not None:
            peaks.drop_oldest(dropped)
        self._telling, self._peaks = after, peaks
        if drawn is not None and drawn.stays(run, dropped, peaks):
            self._by_arguments = drawn

    def outdate(self) -> None:
        """Drop the cached estimates."""
        self._estimates.clear()
        self._other_codes = None

    def _is_like_all(self, run: Run, peaks: Peaks) -> bool:
        """True when all runs count, also with one more of the same code and size."""
        if len(self.telling.runs) < len(self.profile.runs) or run.code != self.code:
            return False
        sizes = peaks.sizes
        if not sizes or not counts_in_full(run):
            return not sizes or not are_spread(sizes)
        least, most = min(sizes), max(sizes)
        if least <= run.peak_bytes <= most and self._uncounted < _COUNTED_EVERY:
            self._uncounted += 1
            return True
        return not are_spread([least, most, run.peak_bytes])


# --- memory by arguments --------------------------------------------------------------------


class ByArguments(Struct, frozen=True):
    """Memory of a type's next run, predicted by its arguments."""

    line: FittedLine | None
    groups: Groups | None
    seen: tuple[dict[str, float | str], ...]
    has_failed: bool
    same: dict[tuple[Argument, ...], Peaks]  # runs by all arguments that may matter
    runs: tuple[Run, ...] = ()  # all that count in full

    @staticmethod
    def of(profile: Profile) -> ByArguments:
        """Fit a whole profile."""
        full = [run for run in profile.runs if counts_in_full(run) and run.peak_bytes]
        seen = tuple(map(dict, dict.fromkeys(run.arguments for run in full)))
        has_failed = len(full) < len(profile.runs)
        fitted, grouped = line(full), groups(full)
        same: dict[tuple[Argument, ...], Peaks] = {}
        if grouped is not None or is_open(full):
            for run in full:
                same.setdefault(mattering(run.arguments), Peaks()).add(run)
        return ByArguments(fitted, grouped, seen, has_failed, same, tuple(full))

    def stays(self, run: Run, dropped: Run | None, peaks: Peaks) -> bool:
        """True when one more run, and one fewer, change no fit.

        While peaks are alike, arguments explain nothing and there is nothing to fit.
        """
        if self.line is not None or self.groups is not None or self.same:
            return False
        if not (counts_in_full(run) and run.peak_bytes and dict(run.arguments) in self.seen):
            return False
        if dropped is not None and not (
            counts_in_full(dropped) and dropped.arguments == run.arguments
        ):
            return False
        return not are_spread(peaks.sizes)

    def covers(self, run: Run) -> bool:
        """True when a run is close to its prediction: it changes the fits little."""
        if not counts_in_full(run) or self.beyond(run.arguments) is not None:
            return False
        said = self.bound(run.arguments, 0, FIRST_MARGIN)
        return said is not None and 0.8 * said[0] <= run.peak_bytes <= said[0]

    def bound(
        self, given: tuple[Argument, ...], capacity_bytes: int, margin: Margin
    ) -> tuple[int, str] | None:
        """Return a need and the reason, None when the arguments explain nothing."""
        values = dict(given)
        found = [self._on_line(values), self._in_group(values, margin), self._alike(given, margin)]
        least = min((one for one in found if one is not None), default=None)
        return None if least is None else (least[0] + pad_bytes(capacity_bytes), least[1])

    def beyond(self, given: tuple[Argument, ...]) -> Beyond | None:
        """Return the argument that exceeds all runs, None when there is none."""
        found = exceeds(given, self.seen)
        if found is None and self.line is not None and len(self.line.names) > 1:
            values = self.line.values(dict(given))  # each was seen, but not together
            found = None if values is None else self.line.beyond(values)
        return found

    def times_beyond(self, beyond: Beyond) -> float:
        """Return how many times as much a run with such an argument may need, by other values."""
        return less_beyond(beyond, self.runs).times

    def _on_line(self, given: dict[str, float | str]) -> tuple[int, str] | None:
        values = None if self.line is None else self.line.values(given)
        if self.line is None or values is None:
            return None
        at = ", ".join(f"{name}={_spelled(given[name])}" for name in self.line.names)
        text = f"{at} on a line through {show_runs(self.line.runs)}"
        return self.line.bound_bytes(values), text

    def _in_group(self, given: dict[str, float | str], margin: Margin) -> tuple[int, str] | None:
        groups, line = self.groups, self.line
        if margin.are_arguments_vain:
            return None
        if groups is None or given.get(groups.name) not in groups.largest_bytes:
            return None
        if line is not None and len(line.names) > 1:
            return None  # one number is not enough where the line is over two
        value = given[groups.name]
        largest, count = groups.largest_bytes[value], groups.counts[value]
        headroom = margin.for_spread(max(groups.spread, MIN_SPREAD), count)
        text = f"{show_size(largest)} at most in {show_runs(count)} with {groups.name}="
        text += f"{_spelled(value)}, {headroom:.0%} headroom"
        return int(largest * (1 + headroom)), text

    def _alike(self, given: tuple[Argument, ...], margin: Margin) -> tuple[int, str] | None:
        same = self.same.get(mattering(given))
        if same is None or margin.are_arguments_vain:
            return None
        largest, headroom = max(same.sizes), margin.headroom(same.logs)
        text = f"{show_size(largest)} at most in {show_runs(len(same.sizes))} like it"
        return int(largest * (1 + headroom)), f"{text}, {headroom:.0%} headroom"

    def sentences(self) -> list[str]:
        """Describe the fits for people."""
        found = []
        if self.line is not None:
            found.append(_spelled_line(self.line))
        if self.groups is not None:
            largest = self.groups.largest_bytes.items()
            sizes = ", ".join(f"{_spelled(v)}: {show_size(size)}" for v, size in list(largest)[:8])
            found.append(f"memory depends on {self.groups.name} ({sizes})")
        if not found and self.same:
            found.append("runs differ, too few to tell why: those with the same arguments count")
        return found


def _spelled_line(line: FittedLine) -> str:
    parts = [
        f"{show_size(int(slope))} for each {' × '.join(term)} (seen from {least:g} to {most:g})"
        for term, slope, least, most in zip(
            line.terms, line.slopes_bytes, line.least, line.most, strict=True
        )
    ]
    fixed = show_size(max(0, int(line.base_bytes)))
    return f"memory lies on a line over {line.text}: {fixed} and {', '.join(parts)}"


def _spelled(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
