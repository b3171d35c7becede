"""The recent past in bounded memory: GPU samples, memory curves of leases, ended leases.

Lost with the process; the store keeps what must survive.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from grn.model.outcome import LEASE_OUTCOMES, Outcome
from grn.negotiator.engine_view import EngineView
from grn.negotiator.events import Lease, LeaseSettled, LeaseState
from grn.negotiator.queries import views

STEP_S = 1.0  # from one kept sample to the next
RECENT = 120  # samples of a GPU that are kept one by one
MINUTES = 1440  # a day, of each GPU
MAX_POINTS = 128  # of one curve: when it is full, every two points become one
MAX_CURVES = 4096
MAX_ENDS = 1000
ENDS_WITH_CURVES = 200

Point = tuple[int | None, float | None]  # memory in use, load


class Curve:
    """The memory of one lease since its grant; the interval of points grows with its age."""

    __slots__ = ("began_at", "step_s", "values")

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.step_s = STEP_S
        self.values: list[int | None] = []

    def add(self, at: float, used_bytes: int | None) -> None:
        """Add a sample; a point is the highest sample of its interval."""
        place = max(0, int((at - self.began_at) / self.step_s))
        while place >= MAX_POINTS:
            self._halve()
            place //= 2
        values = self.values
        if len(values) <= place:
            missed = place - len(values)
            # A sample that is a little late stands for the step it missed; longer gaps are unknown.
            values += [used_bytes if missed == 1 else None] * missed
            values.append(used_bytes)
        elif used_bytes is not None:
            values[place] = max(values[place] or 0, used_bytes)

    def _halve(self) -> None:
        values = [*self.values, *self.values[len(self.values) // 2 * 2 :]]  # an even number
        pairs = zip(values[::2], values[1::2], strict=False)
        self.values = [_higher(first, second) for first, second in pairs]
        self.step_s *= 2


class GpuPast:
    """One GPU: the last two minutes sample by sample, the last day minute by minute."""

    __slots__ = ("_minute", "_minute_until", "minutes", "recent")

    def __init__(self) -> None:
        self.recent: deque[Point] = deque(maxlen=RECENT)
        self.minutes: deque[Point] = deque(maxlen=MINUTES)
        self._minute: list[Point] = []
        self._minute_until: float | None = None

    def add(self, at: float, point: Point) -> None:
        """Add one sample."""
        self.recent.append(point)
        if self._minute_until is None:
            self._minute_until = at + 60
        elif at >= self._minute_until:
            self.minutes.append(_summed_up(self._minute))
            missing = int((at - self._minute_until) // 60)
            self.minutes.extend([(None, None)] * min(missing, MINUTES))
            self._minute_until += 60 * (missing + 1)
            self._minute = []
        self._minute.append(point)


class LeaseEnd(NamedTuple):
    """How one lease ended."""

    lease: Lease
    at: float
    outcome: Outcome
    peak_bytes: int | None
    number: int  # 1 for the first end since the negotiator started


class History:
    """Samples, curves and ends of the recent past."""

    def __init__(self) -> None:
        self.gpus: dict[str, GpuPast] = {}
        self.curves: dict[str, Curve] = {}
        self.ends: deque[LeaseEnd] = deque(maxlen=MAX_ENDS)
        self.sampled_at = float("-inf")
        self.ended_in_all = 0  # since the negotiator started
        self._counted: dict[Outcome, int] = dict.fromkeys(LEASE_OUTCOMES, 0)
        self._uncounted = 0  # of the latest ends; counting each at once would cost every release
        self._with_curves: deque[str] = deque()
        self._lost: dict[str, LeaseSettled] = {}  # of leases that ended without their reporters

    def sampled(self, view: EngineView, at: float) -> None:
        """Keep the latest readings, at an even pace."""
        if at - self.sampled_at < STEP_S * 0.9:
            return
        self.sampled_at = at
        for uuid, book in view.books.items():
            past = self.gpus.get(uuid) or self.gpus.setdefault(uuid, GpuPast())
            past.add(at, (book.reading.used_bytes, book.reading.load_pct))
        for lease in view.leases.values():
            if lease.state is not LeaseState.HELD:
                continue
            curve = self.curves.get(lease.id)
            if curve is None:
                if len(self.curves) >= MAX_CURVES:
                    continue
                curve = self.curves[lease.id] = Curve(lease.granted_at)
            curve.add(at, views.used_by(view, lease))

    def ended(self, lease: Lease, at: float, outcome: Outcome, peak_bytes: int | None) -> None:
        """Keep how a lease ended, and its curve for a while."""
        self.ended_in_all += 1
        self.ends.append(LeaseEnd(lease, at, outcome, peak_bytes, self.ended_in_all))
        self._uncounted += 1
        if self._uncounted == MAX_ENDS:
            self.outcomes()
        lease_id = lease.request.lease
        if lease_id in self.curves:
            self._with_curves.append(lease_id)
            if len(self._with_curves) > ENDS_WITH_CURVES:
                self.curves.pop(self._with_curves.popleft(), None)

    def lost(self, lease_id: str, settled: LeaseSettled) -> None:
        """Keep the end of a lease for a client that will report it, too late."""
        self._lost[lease_id] = settled
        if len(self._lost) > MAX_ENDS:
            del self._lost[next(iter(self._lost))]

    def end_of(self, lease_id: str) -> LeaseSettled | None:
        """Return how a lease ended before its reporter said so."""
        return self._lost.get(lease_id)

    def outcomes(self) -> dict[str, int]:
        """Return the number of ended leases by outcome since the negotiator started."""
        for end in islice(reversed(self.ends), self._uncounted):
            self._counted[end.outcome] += 1
        self._uncounted = 0
        return {outcome.lease_word: count for outcome, count in self._counted.items()}

    def ended_since(self, number: int) -> list[LeaseEnd]:
        """Return the ends after the one of that number, oldest first."""
        found: list[LeaseEnd] = []
        for end in reversed(self.ends):
            if end.number <= number:
                break
            found.append(end)
        return found[::-1]


def _higher(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return max(known, default=None)


def _summed_up(points: list[Point]) -> Point:
    """Return the highest memory and the mean load."""
    used = [size for size, _ in points if size is not None]
    loads = [load for _, load in points if load is not None]
    return max(used, default=None), sum(loads) / len(loads) if loads else None
