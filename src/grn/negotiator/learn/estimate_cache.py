"""Cached estimates of one job type on one GPU model, derived from its runs."""

from __future__ import annotations

from grn.model.job import Argument, Estimate, Profile, Run
from grn.negotiator.learn import durations, profiling
from grn.negotiator.learn.arguments import ByArguments
from grn.negotiator.learn.durations import Times
from grn.negotiator.learn.margin import Margin, are_spread

_FITTED_EVERY = 10  # runs close to their prediction: fitting a hundred runs is slow
_COUNTED_EVERY = 5  # runs of sizes seen before: fewer cannot show a drift
_STEADY = 20  # the usual duration is computed again after one run in this many
_TIMED_EVERY = 15  # durations are fitted again after one in this many of the runs that count
_MAX_CODES = 8  # versions of the code of one type


class Known:
    """All remembered runs, with results cached until a new run changes them."""

    __slots__ = (  # there are thousands of these, and the garbage collector visits each
        "_by_arguments", "_estimates", "_is_timed", "_other_codes", "_peaks", "_telling",
        "_times", "_times_age", "_uncounted", "_unfitted", "_untimed", "_usual_s", "profile",
        "unweighed",
    )  # fmt: skip

    def __init__(self, profile: Profile, telling: Profile | None = None) -> None:
        self.profile = profile
        self.unweighed = 0  # runs since their spread was computed
        self._telling = telling  # the runs that still count
        self._peaks: profiling.Peaks | None = None
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
    def peaks(self) -> profiling.Peaks:
        """Return the peaks of the runs that count."""
        if self._peaks is None:
            self._peaks = profiling.Peaks.of(self.telling)
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
            others[code] = Known(self.profile, profiling.telling(self.profile, code))
        return others[code]

    def estimate(self, capacity_bytes: int, margin: Margin) -> Estimate | None:
        """Return the estimate for the next run, None when no run counts in full."""
        if capacity_bytes not in self._estimates:
            found = profiling.estimate(self.telling, capacity_bytes, margin, self.peaks)
            self._estimates[capacity_bytes] = found
        return self._estimates[capacity_bytes]

    def floor_bytes(self, capacity_bytes: int) -> int:
        """Return the lower bound by failed runs, plus a step."""
        return profiling.lower_bound_bytes(self.telling, capacity_bytes)

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
        if self._times is None:
            self._times, self._times_age = Times(self.profile.runs, power), 0
        return self._times.alone_s(given)

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

    def _is_like_all(self, run: Run, peaks: profiling.Peaks) -> bool:
        """True when all runs count, also with one more of the same code and size."""
        if len(self.telling.runs) < len(self.profile.runs) or run.code != self.code:
            return False
        sizes = peaks.sizes
        if not sizes or not profiling.counts_in_full(run):
            return not sizes or not are_spread(sizes)
        least, most = min(sizes), max(sizes)
        if least <= run.peak_bytes <= most and self._uncounted < _COUNTED_EVERY:
            self._uncounted += 1
            return True
        return not are_spread([least, most, run.peak_bytes])
