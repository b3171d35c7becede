"""Expected ends of running jobs and expected starts of waiting ones, as ranges.

The schedule is played forward with short and with long durations (`schedule/timeline.py`). Only the
first requests in turn get an answer and only so much work is done; the rest is unknown. No decision
depends on it. Later requests and fair share move starts as well, so the plays alone are too sure:
past starts show by how much, and a range is the shortest that would have held four of five.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import NormalDist, median
from typing import TypeVar

from grn.model.job import Policy, Request
from grn.negotiator.actions import SaveStart
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import Lease, LeaseState
from grn.negotiator.learn.load import GUESS
from grn.negotiator.queries.views import in_turn
from grn.negotiator.schedule.needs import longest_s
from grn.negotiator.schedule.placement import Need, allowed, pinned
from grn.negotiator.schedule.timeline import (
    MEASURED_S,
    BookedTime,
    GpuNeed,
    GpuState,
    PlannedRequest,
    PlannedRun,
    Timeline,
)
from grn.negotiator.schedule.turns.order import WaitingRequest

MAX_WAITING = 100  # the first requests in turn; the others are unknown
MAX_GPUS = 64  # on a larger machine all is unknown
MAX_LEASES = 1000  # with more of them too
MAX_WORK = 20_000  # looks at one GPU or one job per play: some 10 ms
MAX_TOLD = 10_000  # waiting requests whose first range is remembered
STARTS_KEPT = 200
MAX_OVERDUE = 1000  # requests that are looked at for being late, the oldest first
FRESH_S = 2.0  # a forecast serves all replies for this long
_QUANTILES = (0.2, 0.8)
_GUESS_SPREAD = 0.6  # of the logarithm of a duration that is guessed from other types
_HELD = 0.86  # of past starts, to hold four of five: the next ones differ from the past
_PRIOR_STARTS, _PRIOR_SPREAD = 20, 1.2  # starts that are assumed beside the first real ones
_SOON_S = 30.0  # added to both sides of a ratio: seconds do not matter
Made = TypeVar("Made")
_DRAINED_S = 2.0
_NORMAL = NormalDist()
_PRIOR = tuple(
    math.exp(_PRIOR_SPREAD * _NORMAL.inv_cdf((place + 0.5) / _PRIOR_STARTS))
    for place in range(_PRIOR_STARTS)
)
_MAX_PASSED = 0.98
_LATEST = 1 << 60  # the sequence of a request that is not made


@dataclass(frozen=True, slots=True)
class Range:
    """From the earliest to the latest, in seconds from the time of the forecast."""

    low_s: float
    high_s: float

    def seen_from(self, passed_s: float) -> tuple[float, float]:
        """Return the range as it is seen when so much time has passed."""
        return max(0.0, self.low_s - passed_s), max(0.0, self.high_s - passed_s)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The ranges that are known; all others are unknown."""

    at: float = 0.0
    ends: Mapping[str, Range] = field(default_factory=dict)  # by lease
    starts: Mapping[str, Range] = field(default_factory=dict)  # by the key of a request
    seen: frozenset[str] = frozenset()  # all leases, and the keys of all requests, considered

    def starts_in_s(self, key: str, at: float) -> tuple[float, float] | None:
        """Return the expected start of a request as seen from a time, None when unknown."""
        found = self.starts.get(key)
        return None if found is None else found.seen_from(at - self.at)

    def ends_in_s(self, lease_id: str, at: float) -> tuple[float, float] | None:
        """Return the expected end of a lease as seen from a time, None when unknown."""
        found = self.ends.get(lease_id)
        return None if found is None else found.seen_from(at - self.at)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is not made, and how long its job would run, where that is known."""

    request: Request
    lasts_s: float | None = None


def forecast(
    view: EngineView, at: float, asked: Asked | None = None
) -> Generator[None, None, Forecast]:
    """Return the forecast; yields where other work may be done, as all is copied first."""
    if len(view.books) > MAX_GPUS or len(view.leases) > MAX_LEASES:
        return Forecast(at)
    index = {uuid: place for place, uuid in enumerate(view.books)}
    booked = _booked(view, at)
    gpus = [
        GpuState(
            book.free_bytes, book.once_empty_bytes, book.load_cap,
            view.loads.power(book.gpu.model), book.is_usable and not book.is_closed,
            book.is_exclusive, tuple(booked.get(book.gpu.uuid, ())),
        )
        for book in view.books.values()
    ]  # fmt: skip
    runs = [_run(view, lease, index, at) for lease in view.leases.values() if lease.gpus]
    waiting = _waiting(view, at, index, asked)
    yield
    guess_s = _guess_s(runs, waiting)
    plays = []
    for quantile in _QUANTILES:
        play = Timeline(gpus, MAX_WORK)
        yield from play.play(
            [_lasting(run, quantile, guess_s) for run in runs],
            [_stretched(one, quantile, guess_s) for one in waiting],
        )
        plays.append(play)
    return Forecast(
        at,
        _ranges(
            [one.run.id for one in runs if one.is_timed and not one.is_overdue],
            [play.ends for play in plays],
        ),
        _ranges([one.candidate.id for one in waiting], [play.starts for play in plays]),
        frozenset([*view.leases, *(one.request.key for one in view.waitlist)])
        if len(view.waitlist) <= MAX_WAITING
        else frozenset([*view.leases, *(one.candidate.id for one in waiting)]),
    )


def at_once(steps: Generator[None, None, Made]) -> Made:
    """Return the result of a forecast without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            made: Made = done.value
            return made


def _ranges(ids: Sequence[str], plays: Sequence[Mapping[str, float]]) -> dict[str, Range]:
    ranges = {}
    for one in ids:
        times = [play[one] for play in plays if one in play]
        if len(times) == len(plays):
            ranges[one] = Range(min(times), max(times))
    return ranges


class Forecasts:
    """Forecasts for replies, the ranges that were told, and what came of them."""

    def __init__(self, view: EngineView, starts: Iterable[SaveStart] = ()) -> None:
        self._view = view
        self._latest: Forecast | None = None
        self._told: dict[str, tuple[float, Range, Range]] = {}  # key -> when, as played, as told
        self.starts = deque(starts, STARTS_KEPT)

    def current(self, at: float) -> Generator[None, None, Forecast]:
        """Return a forecast that is at most some seconds old, and note what it tells."""
        latest = self._latest
        if latest is None or not 0 <= at - latest.at < FRESH_S or self._is_outdated(latest):
            played = yield from forecast(self._view, at)
            latest = self._latest = self._stretched(played)
        return latest

    def of(self, asked: Asked, at: float) -> Generator[None, None, Range | None]:
        """Return when a request would start if it came now, None when unknown."""
        played = yield from forecast(self._view, at, asked)
        found = played.starts.get(asked.request.key)
        if found is None or found.high_s == 0:  # it would be granted at once
            return found
        return self.stretched(found, at)

    def granted(self, key: str, at: float) -> SaveStart | None:
        """Compare a start with the range that was told, where one was."""
        told = self._told.pop(key, None)
        if told is None:
            return None
        told_at, played, range_ = told
        start = SaveStart(
            played.low_s, played.high_s, range_.low_s, range_.high_s, max(0.0, at - told_at)
        )
        self.starts.append(start)
        return start

    def stretched(self, played: Range, at: float) -> Range:
        """Return the shortest range that would have held four of five starts, for two plays."""
        return _wider(played, self._stretch(at))

    def _stretched(self, played: Forecast) -> Forecast:
        stretch = self._stretch(played.at)
        starts = {key: _wider(each, stretch) for key, each in played.starts.items()}
        for key in self._told.keys() - starts.keys():
            if key not in self._view.waitlist:
                del self._told[key]  # it was withdrawn
        for key, each in starts.items():
            if key not in self._told and len(self._told) < MAX_TOLD:
                self._told[key] = (played.at, played.starts[key], each)
        return replace(played, starts=starts)

    def _stretch(self, at: float) -> tuple[float, float]:
        """Return the earliest and the latest start as multiples of the expected one.

        A request that waits for longer than its expected start counts as one that starts now.
        Otherwise late ones would be missing from the record while they wait.
        """
        found = [_ratio(one.waited_s, one.earliest_s, one.latest_s) for one in self.starts]
        told = islice(self._told.values(), MAX_OVERDUE)
        overdue = (_ratio(at - told_at, one.low_s, one.high_s) for told_at, one, _ in told)
        found += [ratio for ratio in overdue if ratio > 1.0]
        return _shortest(sorted([*found, *_PRIOR]), _HELD)

    def _is_outdated(self, latest: Forecast) -> bool:
        """True when a lease or request came that the forecast could have included."""
        if not self._view.leases.keys() <= latest.seen:
            return bool(latest.seen) or len(self._view.leases) <= MAX_LEASES
        first = islice(in_turn(self._view), MAX_WAITING)
        return any(one.request.key not in latest.seen for _, one in first)


def _ratio(waited_s: float, earliest_s: float, latest_s: float) -> float:
    return (waited_s + _SOON_S) / ((earliest_s + latest_s) / 2 + _SOON_S)


def _shortest(values: Sequence[float], share: float) -> tuple[float, float]:
    """Return the shortest interval that holds a share of sorted values."""
    last = math.ceil(share * len(values)) - 1
    pairs = zip(values, values[last:], strict=False)
    return min(pairs, key=lambda pair: pair[1] - pair[0])


def _wider(played: Range, stretch: tuple[float, float]) -> Range:
    expected_s = (played.low_s + played.high_s) / 2 + _SOON_S
    low_s, high_s = (max(0.0, factor * expected_s - _SOON_S) for factor in stretch)
    return Range(low_s, high_s)


def inside(starts: Iterable[SaveStart]) -> int:
    """Return how many starts were within the range that was told."""
    return sum(one.low_s <= one.waited_s <= one.high_s for one in starts)


def _booked(view: EngineView, at: float) -> dict[str, list[BookedTime]]:
    """Return the times for which GPUs are booked."""
    found: dict[str, list[BookedTime]] = {}
    now = view.booking_clock(at)
    for one in view.bookings.values():
        time = BookedTime(one.user, one.start_at - now, one.end_at - now)
        for uuid in one.gpus:
            found.setdefault(uuid, []).append(time)
    return found


@dataclass(frozen=True, slots=True)
class _RunningLease:
    run: PlannedRun
    usual_s: float | None  # alone
    done_s: float  # the same, of what it has done
    spread: float
    limit_s: float = math.inf  # how long its time limit lets it run on

    @property
    def is_timed(self) -> bool:
        return min(self.run.left_s, self.limit_s) < math.inf or self.usual_s is not None

    @property
    def passed(self) -> float:
        """Return the share of runs like it that have ended by now."""
        if self.usual_s is None or self.done_s <= 0:
            return 0.0
        return _NORMAL.cdf(math.log(self.done_s / self.usual_s) / self.spread)

    @property
    def is_overdue(self) -> bool:
        """True when it runs far longer than its type ever has: its end is unknown."""
        return self.passed > _MAX_PASSED


def _run(view: EngineView, lease: Lease, index: Mapping[str, int], at: float) -> _RunningLease:
    request, book = lease.request, view.books[lease.gpus[0]]
    model = book.gpu.model
    power = view.loads.power(model)
    load = view.loads.of(request.job_type, model, request.arguments)
    run = PlannedRun(
        lease.id, tuple(index[uuid] for uuid in lease.gpus), lease.reserved,
        GUESS if load is None else load,
        math.inf, request.is_exclusive, lease.is_probe, request.job_type,
        max(0.0, MEASURED_S - (at - lease.granted_at)),
    )  # fmt: skip
    if lease.state is LeaseState.DRAINING:
        return _RunningLease(replace(run, left_s=_DRAINED_S), None, 0.0, 0.0)
    done_s = max(0.0, at - lease.granted_at) * math.exp(-power * view.loads.crowd_of(lease.id))
    usual_s = view.memory.alone_s(request, model, power)
    spread = view.memory.spread(request.job_type, model, power)
    limit_s = max(0.0, _limit_s(request) - (at - lease.granted_at))
    return _RunningLease(run, usual_s, done_s, spread, limit_s)


def _guess_s(runs: Iterable[_RunningLease], waiting: Iterable[_PlannedWait]) -> float:
    """Return how long a type without timed runs may take: the median of the types here.

    One that runs for the first time counts as twice its time so far: the first to end are short.
    Infinite while none has ended.
    """
    known: dict[str, float] = {}
    going: dict[str, float] = {}
    for run in runs:
        name = run.run.job_type
        if run.usual_s is not None:
            known[name] = run.usual_s
        else:
            going[name] = max(2 * run.done_s, going.get(name, 0.0))
    for one in waiting:
        alone_s = max(each.alone_s for each in one.candidate.demands.values())
        if alone_s < math.inf:
            known[one.candidate.job_type] = alone_s
    return median([*known.values(), *going.values()]) if known else math.inf


def _lasting(one: _RunningLease, quantile: float, guess_s: float = math.inf) -> PlannedRun:
    """Return a running job with its remaining time, given that it has not ended yet."""
    left_s = _left_s(one, quantile)
    limited_s = _limited(left_s, one.limit_s, quantile)
    if left_s == math.inf > guess_s:
        guessed = replace(one, usual_s=guess_s, spread=_GUESS_SPREAD)
        limited_s = min(limited_s, _left_s(guessed, quantile))
    return replace(one.run, left_s=limited_s)


def _left_s(one: _RunningLease, quantile: float) -> float:
    if one.usual_s is None:
        return one.run.left_s
    if one.is_overdue:  # for those that wait behind it, assume a share of its time so far
        return one.done_s * quantile / 2
    z = _NORMAL.inv_cdf(one.passed + quantile * (1 - one.passed))
    total_s = one.usual_s * math.exp(z * one.spread)
    return max(0.0, total_s - one.done_s)


def _limited(time_s: float, limit_s: float, quantile: float) -> float:
    """Return a time bounded by a time limit; of an unknown time any part is as likely."""
    return min(time_s, limit_s) if time_s < math.inf else quantile * limit_s


def _limit_s(request: Request) -> float:
    return math.inf if request.time_limit_s is None else request.time_limit_s


@dataclass(frozen=True, slots=True)
class _PlannedWait:
    candidate: PlannedRequest
    spread: float
    limit_s: float = math.inf


def _waiting(
    view: EngineView, at: float, index: Mapping[str, int], asked: Asked | None
) -> list[_PlannedWait]:
    """Return the first requests in turn, and among them one that is not made."""
    on_gpus = (one for _, one in in_turn(view) if _waits_for_gpus(view, one))
    first = list(islice(on_gpus, MAX_WAITING))
    made: dict[int, _PlannedWait] = {}
    found = []
    for one in first:
        group = view.waitlist.group_of(one.request.key)
        number = group.number if group is not None else 0
        if number not in made:
            made[number] = _candidate(view, one.request, number, index)
        found.append(_told_apart(made[number], one, at, view.patience_s))
    if asked is not None:
        new = WaitingRequest(asked.request, _LATEST, at)
        turn = view.turn_if_asked(new, at)
        before = sum(view.turn(one) <= turn for one in first)
        if before < MAX_WAITING:
            alike = _candidate(view, asked.request, 0, index)
            if asked.lasts_s is not None:
                alike = _of_length(alike, asked.request, asked.lasts_s)
            found.insert(before, _told_apart(alike, new, at, view.patience_s))
    return found


def _waits_for_gpus(view: EngineView, waiting: WaitingRequest) -> bool:
    """True unless a request waits for memory or cores of the host, which is not forecast."""
    group = view.waitlist.group_of(waiting.request.key)
    refused = group.refused if group is not None else None
    return bool(waiting.request.gpus) and (refused is None or refused.host_reason is None)


def _told_apart(
    one: _PlannedWait, waiting: WaitingRequest, at: float, patience_s: float
) -> _PlannedWait:
    starves_in_s = waiting.since + patience_s - at
    candidate = replace(
        one.candidate, id=waiting.request.key, starves_in_s=starves_in_s, patience_s=patience_s
    )
    return replace(one, candidate=candidate)


def _candidate(
    view: EngineView, request: Request, group: int, index: Mapping[str, int]
) -> _PlannedWait:
    needs = view.needs(request)
    books = allowed(request, list(view.books.values()))
    books = pinned(request, books) or books
    is_probe = any(needs[book.gpu.model].is_probe for book in books) and not request.is_exclusive
    alone = {model: math.inf if is_probe else _alone_s(view, request, model) for model in needs}
    usual_s = max(alone.values())
    demands = {
        index[book.gpu.uuid]: _demand(needs[book.gpu.model], alone[book.gpu.model])
        for book in books
    }
    model = books[0].gpu.model
    spread = view.memory.spread(request.job_type, model, view.loads.power(model))
    return _PlannedWait(
        PlannedRequest(
            request.key, group, request.job_type, request.gpus, demands, 0.0,
            is_exclusive=request.is_exclusive, is_probe=is_probe,
            packs=request.policy is Policy.PACK, user=request.user,
            lasts_s=longest_s(request, usual_s),
            booked_s=longest_s(request, usual_s, view.booking_unknown_s),
            gives_way_s=request.at_least_s if request.yields else math.inf,
        ),
        spread,
        _limit_s(request),
    )  # fmt: skip


def _alone_s(view: EngineView, request: Request, model: str) -> float:
    found = view.memory.alone_s(request, model, view.loads.power(model))
    return math.inf if found is None else found


def _demand(need: Need, alone_s: float) -> GpuNeed:
    return GpuNeed(need.need_bytes, need.load, alone_s)


def _of_length(one: _PlannedWait, request: Request, usual_s: float) -> _PlannedWait:
    lasts_s = longest_s(request, usual_s)
    demands = {gpu: replace(each, alone_s=usual_s) for gpu, each in one.candidate.demands.items()}
    return _PlannedWait(
        replace(one.candidate, demands=demands, lasts_s=lasts_s, booked_s=lasts_s), 0.0
    )


def _stretched(one: _PlannedWait, quantile: float, guess_s: float = math.inf) -> PlannedRequest:
    z = _NORMAL.inv_cdf(quantile)
    factor, guessed_s = math.exp(z * one.spread), guess_s * math.exp(z * _GUESS_SPREAD)

    def lasts_s(alone_s: float) -> float:
        limited_s = _limited(alone_s * factor, one.limit_s, quantile)
        return limited_s if alone_s < math.inf else min(limited_s, guessed_s)

    demands = {
        gpu: replace(each, alone_s=lasts_s(each.alone_s))
        for gpu, each in one.candidate.demands.items()
    }
    return replace(one.candidate, demands=demands)
