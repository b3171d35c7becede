"""Needs of a type without finished runs on a GPU model, by other evidence.

The evidence: runs that are still going, runs on other models, and the peaks of other types. Where a
model has its own finished runs, those decide.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from grn.model.job import Argument, Profile, Request
from grn.model.units import show_size
from grn.negotiator.learn.arguments import exceeds, mattering
from grn.negotiator.learn.memory.profiling import counts_in_full
from grn.negotiator.schedule.placement import Need, Size

Key = tuple[str, str]  # job type, GPU model
GANG_SHARE = 0.75  # of a GPU, for a first run on several
TAKES_ALL = 0.9  # of a GPU: a job that used this much uses whatever there is
_MORE = 1.1  # times the use of a first run that still grows
_WORTH = 1.05  # a smaller rise of a job's need does not renew estimates
_Going = tuple[str, int, tuple[Argument, ...]]  # lease, need, arguments


class ShownPeak(NamedTuple):
    """What a flat running job has shown."""

    code: str
    peak_bytes: int


class RunningNeeds:
    """What running jobs show of their need before they end."""

    def __init__(self, outdate: Callable[[Key], None]) -> None:
        self._outdate = outdate
        self._flat: dict[Key, _Going] = {}  # the measured need of a flat first run
        self._growing: dict[Key, tuple[str, int]] = {}  # a first run that is not flat: lease, peak
        self._peaks: dict[Key, int] = {}  # what a flat first run has used
        self._outgrown: dict[Key, dict[str, _Going]] = {}  # runs above their reservation
        self._shown: dict[Key, dict[str, ShownPeak]] = {}  # by lease: flat runs

    def __iter__(self) -> Iterator[Key]:
        """Yield the types, each on a model, of which a first run is flat."""
        return iter(self._flat)

    def __contains__(self, key: Key) -> bool:
        return key in self._flat

    def settled(self, request: Request, model: str, need_bytes: int, peak_bytes: int = 0) -> None:
        """Remember the measured need of a first run that still runs, and its use."""
        key = (request.job_type, model)
        self._peaks[key] = peak_bytes
        self._flat[key] = (request.lease, need_bytes, request.arguments)
        self._outdate(key)

    def grows_on(self, request: Request, model: str, peak_bytes: int) -> None:
        """Remember the peak of a first run that is not flat: its siblings need at least that."""
        self._growing[(request.job_type, model)] = (request.lease, peak_bytes)

    def outgrew(self, request: Request, model: str, need_bytes: int) -> None:
        """Remember that a running job needs more than its estimate."""
        key = (request.job_type, model)
        lives = self._outgrown.setdefault(key, {})
        before = lives[request.lease][1] if request.lease in lives else 0
        if need_bytes > before:
            lives[request.lease] = (request.lease, need_bytes, mattering(request.arguments))
            if need_bytes > before * _WORTH:
                self._outdate(key)

    def shows(self, request: Request, model: str, peak_bytes: int) -> None:
        """Remember the peak of a running job whose memory is flat."""
        shown = self._shown.setdefault((request.job_type, model), {})
        shown[request.lease] = ShownPeak(request.code, peak_bytes)

    def shown(self, key: Key) -> tuple[ShownPeak, ...]:
        """Return the peaks of the running jobs of a type whose memory is flat."""
        return tuple(self._shown.get(key, {}).values())

    def leases(self) -> set[str]:
        """Return the running jobs whose memory decides a need."""
        first = {one[0] for kept in (self._flat, self._growing) for one in kept.values()}
        return first.union(*self._outgrown.values(), *self._shown.values())

    def ended(self, request: Request, model: str) -> None:
        """Drop the provisional need of a run that has ended."""
        key = (request.job_type, model)
        shown = self._shown.get(key, {})
        if shown.pop(request.lease, None) is not None and not shown:
            del self._shown[key]
        has_changed = key in self._growing and self._growing[key][0] == request.lease
        if has_changed:
            del self._growing[key]
        lives = self._outgrown.get(key, {})
        if lives.pop(request.lease, None) is not None:
            has_changed = True
            if not lives:
                del self._outgrown[key]
        if key in self._flat and self._flat[key][0] == request.lease:
            del self._flat[key], self._peaks[key]
            has_changed = True
        if has_changed:
            self._outdate(key)

    def forget(self, key: Key) -> None:
        """Drop all of a type on a model."""
        for known in (self._flat, self._peaks, self._growing, self._outgrown, self._shown):
            known.pop(key, None)

    def flat_bytes(self, key: Key) -> int | None:
        """Return the need of a flat first run, None when there is none."""
        return self._flat[key][1] if key in self._flat else None

    def sibling_bytes(self, request: Request, model: str) -> int | None:
        """Return the need of a flat first run if it tells that of a request, else None."""
        found = self._flat.get((request.job_type, model))
        if found is None or exceeds(request.arguments, [dict(found[2])]) is not None:
            return None
        return found[1]

    def grown_bytes(self, key: Key) -> int:
        """Return the least need by a first run that still grows, 0 when there is none."""
        return int(self._growing.get(key, ("", 0))[1] * _MORE)

    def used_bytes(self, key: Key) -> int:
        """Return what a first run that is still going has used, 0 when there is none."""
        return max(self._peaks.get(key, 0), self._growing.get(key, ("", 0))[1])

    def raised(self, request: Request, model: str, capacity_bytes: int, need: Need) -> Need:
        """Raise a need to that of a running job that has outgrown its estimate."""
        if not self._outgrown:
            return need
        lives = self._outgrown.get((request.job_type, model), {}).values()
        alike = mattering(request.arguments)
        most = max((size for _, size, given in lives if given == alike), default=0)
        if most <= need.need_bytes:
            return need
        because = f"a run that is still going has grown to {show_size(most * 10 // 11)}"
        return replace(need, need_bytes=min(most, capacity_bytes), because=because)


# --- other types ----------------------------------------------------------------------------


class RankedPeaks:
    """The largest peaks of all known types on GPUs of one model and capacity, in order."""

    def __init__(
        self, known: Callable[[], Iterable[Key]], largest: Callable[[Key, int], int | None]
    ) -> None:
        """Take two functions: all types, and the largest peak of one, None when unknown."""
        self._known = known
        self._largest = largest
        self._peaks: dict[tuple[str, int], dict[str, int]] = {}  # by model and capacity
        self._ranked: dict[tuple[str, int], list[int]] = {}  # the same peaks in order
        self._stale: set[Key] = set()

    def outdate(self, key: Key) -> None:
        """Note that the largest peak of a type may have changed."""
        self._stale.add(key)

    def refresh(self) -> None:
        """Compute the peaks that have changed, before a request needs them."""
        stale, self._stale = self._stale, set()  # a set that was large once is slow to empty
        for key in stale:
            for (model, capacity_bytes), peaks in self._peaks.items():
                if model == key[1]:
                    ranked = self._ranked[(model, capacity_bytes)]
                    before = peaks.pop(key[0], None)
                    if before is not None:
                        del ranked[bisect_left(ranked, before)]
                    if (largest := self._largest(key, capacity_bytes)) is not None:
                        peaks[key[0]] = largest
                        insort(ranked, largest)

    def on(self, model: str, capacity_bytes: int) -> list[int]:
        """Return the peaks on GPUs of a model."""
        self.refresh()
        slot = (model, capacity_bytes)
        if slot not in self._peaks:
            self._peaks[slot] = {
                key[0]: largest
                for key in self._known()
                if key[1] == model and (largest := self._largest(key, capacity_bytes)) is not None
            }
            self._ranked[slot] = sorted(self._peaks[slot].values())
        return self._ranked[slot]


def guess_bytes(ranked: Sequence[int], floor_bytes: int, capacity_bytes: int) -> int:
    """Guess the need of a new type: the 9th decile of known types and one imagined half GPU.

    The imagined one counts while few are known: the first to end are short, and often small.
    """
    half = capacity_bytes // 2
    place, at = math.ceil(0.9 * (len(ranked) + 1)) - 1, bisect_left(ranked, half)
    guess = half if place == at else ranked[place if place < at else place - 1]
    return min(capacity_bytes, max(guess, floor_bytes))


# --- other models ---------------------------------------------------------------------------


class LowerBound(Struct, frozen=True):
    """A lower bound of a need, by a run that ran out of memory alone on a GPU of a model."""

    need_bytes: int
    model: str


def takes_all(largest_bytes: int, size: Size | None) -> bool:
    """True when a job used nearly all of a GPU: that shows nothing of its need on another."""
    return size is not None and largest_bytes >= TAKES_ALL * size.capacity_bytes


def ran_out_alone(
    request: Request, profiles: Collection[Profile], sizes: Mapping[str, Size]
) -> LowerBound | None:
    """Return the highest bound by runs with the same arguments and code, None when there is none.

    A later run that succeeded on the same model removes a bound, except for a job that is run again
    because it ran out of memory.
    """
    alike, found = mattering(request.arguments), None
    for profile in profiles:
        size = sizes.get(profile.model)
        if size is None:
            continue
        for run in reversed(profile.runs):
            is_other_code = bool(request.code and run.code and run.code != request.code)
            if is_other_code or mattering(run.arguments) != alike:
                continue
            if run.ran_out_alone:
                bound = LowerBound(max(run.peak_bytes, size.capacity_bytes + 1), profile.model)
                if found is None or bound.need_bytes > found.need_bytes:
                    found = bound
                break
            if counts_in_full(run) and not request.attempt:
                break
    return found


def fitted(
    request: Request,
    needs: dict[str, Need],
    bound: LowerBound | None,
    sizes: Mapping[str, Size],
    reach: Mapping[str, int],
) -> dict[str, Need]:
    """Return the needs without the models that are too small for a request.

    `reach` is how many GPUs of each model the request may use. If all of them are too small by the
    evidence of other models, the largest may try as a first run: needs differ between models. A job
    on several GPUs may try with a capped need if too few of them are large enough.
    """
    if bound is None and all(
        need.need_bytes <= sizes[model].capacity_bytes for model, need in needs.items()
    ):
        return needs
    least = bound.need_bytes if bound is not None else 0
    if request.gpus > 1 and request.gpus > sum(
        count
        for model, count in reach.items()
        if max(least, needs[model].need_bytes) <= sizes[model].capacity_bytes
    ):
        return needs if request.mem_bytes is not None else _cut(needs, sizes)
    fitted = dict(needs)
    small = {
        model
        for model in needs
        if bound is not None and sizes[model].capacity_bytes < bound.need_bytes
    }
    if bound is not None and not small.issuperset(reach):
        text = f"ran out of memory with all of a {bound.model}"
        for model in small:
            most = max(bound.need_bytes, needs[model].need_bytes)
            fitted[model] = Need(most, False, text)
    unfit = [
        model for model, need in fitted.items() if need.need_bytes > sizes[model].capacity_bytes
    ]
    guessed = [model for model in unfit if fitted[model].is_probe]
    for model in guessed:
        fitted[model] = replace(fitted[model], is_probe=False)
    reached = [model for model in guessed if model in reach]
    if reached and set(unfit).issuperset(reach):
        largest = max(reached, key=lambda model: sizes[model].capacity_bytes)
        text = f"{show_size(needs[largest].need_bytes)} {needs[largest].because}"
        fitted[largest] = Need(
            sizes[largest].capacity_bytes, True, f"{text}, and no GPU here has that much"
        )
    return fitted


def _cut(needs: Mapping[str, Need], sizes: Mapping[str, Size]) -> dict[str, Need]:
    """Cap each need to the memory of its GPU model."""
    return {
        model: replace(need, need_bytes=min(need.need_bytes, sizes[model].capacity_bytes))
        for model, need in needs.items()
    }
