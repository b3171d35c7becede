"""Sums over what ran in a period: hours, waste, failures, how busy each GPU was.

Pure: rows in, figures out. A span says who held which GPUs from when to when. Jobs are counted,
not leases: a span whose `is_job` is false adds its hours to a job that another span stands for.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from grn.model.outcome import OutcomeKind, kind_of

GpuName = int | str  # the index here, or node and index
UNFINISHED = (OutcomeKind.CANCELLED, OutcomeKind.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Span:
    """Who held which GPUs from when to when: a job, or a lease that stands for none."""

    label: str
    type: str
    user: str
    gpus: tuple[int, ...]
    began_at: float
    ended_at: float | None  # None: it still runs
    outcome: str
    reserved_bytes: int | None
    peak_bytes: int | None
    lease: str | None = None
    job: int | None = None
    is_job: bool = True
    where: str = ""  # the node; empty for this machine
    command: str = ""
    text: str = ""  # how it ended, in words

    @property
    def places(self) -> tuple[GpuName, ...]:
        """Return its GPUs, each with its node's name where that is not this machine."""
        return tuple(f"{self.where}:{gpu}" if self.where else gpu for gpu in self.gpus)

    def row(self) -> dict[str, object]:
        """Return it as the timeline of the live page gets it."""
        return {("from" if name == "began_at" else name): value
                for name, value in asdict(self).items()}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Period:
    """From when to when, in seconds since 1970."""

    since: float
    until: float

    @property
    def length_s(self) -> float:
        return max(1.0, self.until - self.since)

    def overlap_s(self, span: Span) -> float:
        """Return how long a span was inside."""
        end = self.until if span.ended_at is None else span.ended_at
        return max(0.0, min(end, self.until) - max(span.began_at, self.since))


@dataclass(frozen=True, slots=True)
class UserShare:
    """What one user, or one job type, had."""

    name: str
    jobs: int
    failed: int
    cancelled: int  # by its owner, or interrupted by something else
    gpu_hours: float
    memory_used: float | None  # the share of reserved memory that was needed


@dataclass(frozen=True, slots=True)
class IdleUse:
    """How long one user's lease, or process without one, held GPUs and did not use them."""

    user: str
    idle_s: float
    gpus: int = 1


def idle_hours(uses: Iterable[IdleUse]) -> list[tuple[str, float]]:
    """Add up idle GPU hours by user, the most first."""
    sums: dict[str, float] = defaultdict(float)
    for use in uses:
        sums[use.user] += use.idle_s * use.gpus / 3600
    return sorted(
        ((user, hours) for user, hours in sums.items() if hours > 0), key=lambda one: -one[1]
    )


def inside(spans: Iterable[Span], period: Period) -> list[Span]:
    """Return the spans that touch a period, oldest first."""
    found = [span for span in spans if period.overlap_s(span) > 0]
    return sorted(found, key=lambda span: span.began_at)


def gpu_hours(span: Span, period: Period) -> float:
    """Return the time of a span, once for each of its GPUs."""
    return period.overlap_s(span) / 3600 * len(span.gpus)


def memory_used(spans: Iterable[Span], period: Period) -> float | None:
    """Return the share of reserved memory that was needed, by time; None if no peak is known."""
    needed, reserved = 0.0, 0.0
    for span in spans:
        if span.peak_bytes is None or not span.reserved_bytes:
            continue
        hours = gpu_hours(span, period)
        needed += min(span.peak_bytes, span.reserved_bytes) * hours
        reserved += span.reserved_bytes * hours
    return needed / reserved if reserved else None


def shares(spans: Sequence[Span], period: Period, by: str) -> list[UserShare]:
    """Add up by user or by label, the most hours first."""
    groups: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        groups[str(getattr(span, by))].append(span)
    found = [
        UserShare(
            name,
            count(rows),
            count(rows, OutcomeKind.BAD),
            count(rows, *UNFINISHED),
            sum(gpu_hours(row, period) for row in rows),
            memory_used(rows, period),
        )
        for name, rows in groups.items()
    ]
    return sorted(found, key=lambda share: -share.gpu_hours)


def count(spans: Iterable[Span], *kinds: OutcomeKind) -> int:
    """Return how many jobs there are, or how many that ended in one of some ways."""
    jobs = (span for span in spans if span.is_job)
    return sum(not kinds or kind_of(span.outcome) in kinds for span in jobs)


def is_bad(span: Span) -> bool:
    """True for a job that ended otherwise than well, and not by its owner's will."""
    return span.is_job and kind_of(span.outcome) is OutcomeKind.BAD


def held_share(spans: Sequence[Span], gpu: GpuName, period: Period) -> float:
    """Return the share of a period in which at least one job was on a GPU."""
    edges = sorted(
        (max(span.began_at, period.since), min(span.ended_at or period.until, period.until))
        for span in spans
        if gpu in span.places
    )
    held_s, until = 0.0, period.since
    for begin, end in edges:
        held_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return min(1.0, held_s / period.length_s)


def slices(period: Period, count: int) -> list[Period]:
    """Cut a period into equal parts."""
    step_s = period.length_s / count
    edges = [period.since + step_s * number for number in range(count + 1)]
    return [Period(since, until) for since, until in itertools.pairwise(edges)]
