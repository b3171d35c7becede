"""Who holds a GPU without using it, and since when.

Takes loads at points in time and answers who has become idle and who is so no more. A load is
averaged over short windows, so that one noisy sample does not count as work; one that is not known
is not idle. What follows is decided in `idle_leases.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

IDLE_LOAD = 0.05  # of a GPU; below it is idle
WINDOW_S = 60.0  # at most
_WINDOWS = 10  # in a limit, at least
_LOOKS = 20  # in a window: more often nothing is gained
_MIN_KNOWN = 0.5  # of a window, before its load counts
_LONGEST_S = 120.0  # between two samples that belong together

Name = str | tuple[str, int]  # a lease, or a process on a GPU


class Sample(NamedTuple):
    """The load of one lease or process on its busiest GPU, None when unknown."""

    name: Name
    load: float | None
    limit_s: float  # idle after so long
    is_exempt: bool = False  # not idle yet, however long it has used nothing


class Changed(NamedTuple):
    """One that has become idle, or is so no more: then `since` is None."""

    name: Name
    since: float | None


@dataclass(slots=True)
class _Watch:
    """The present window of one, and since when its windows are quiet."""

    window_at: float
    load_s: float = 0.0  # load times time,
    known_s: float = 0.0  # over the time in which it was known
    quiet_since: float | None = None
    is_idle: bool = False

    def add(self, at: float, passed_s: float, load: float | None, window_s: float) -> None:
        """Add a load; close the window when it is over, or when it can only be a busy one."""
        if load is not None:
            self.load_s += load * passed_s
            self.known_s += passed_s
        if at - self.window_at >= window_s:
            is_known = self.known_s >= _MIN_KNOWN * (at - self.window_at)
            self.begin(at, is_quiet=is_known and self.load_s < IDLE_LOAD * self.known_s)
        elif self.load_s >= IDLE_LOAD * window_s:
            self.begin(at, is_quiet=False)

    def begin(self, at: float, *, is_quiet: bool) -> None:
        """Begin a window after one that was quiet or not."""
        if not is_quiet:
            self.quiet_since = None
        elif self.quiet_since is None:
            self.quiet_since = self.window_at
        self.window_at, self.load_s, self.known_s = at, 0.0, 0.0


class Idleness:
    """The loads of all that are watched, summed up."""

    def __init__(self) -> None:
        self._watches: dict[Name, _Watch] = {}
        self._seen_at: float | None = None
        self._step_s = 0.0

    def is_due(self, at: float) -> bool:
        """True when another look can show something new."""
        return self._seen_at is None or at - self._seen_at >= self._step_s

    def restore(self, name: Name, since: float, at: float) -> None:
        """Take over that one was idle before a restart."""
        self._watches[name] = _Watch(at, quiet_since=since, is_idle=True)

    def since(self, name: Name) -> float | None:
        """Return since when one is idle, None when it is not."""
        watch = self._watches.get(name)
        return watch.quiet_since if watch is not None and watch.is_idle else None

    def has(self, name: Name) -> bool:
        """True when one was there at the last look."""
        return name in self._watches

    def seen(self, at: float, samples: Iterable[Sample]) -> list[Changed]:
        """Apply the loads of all that are there; others are forgotten without a word."""
        is_first = self._seen_at is None
        passed_s = 0.0 if self._seen_at is None else at - self._seen_at
        before, self._watches = self._watches, {}
        self._seen_at, shortest_s = at, WINDOW_S
        found: list[Changed] = []
        watches, is_gap = self._watches, passed_s > _LONGEST_S
        for name, load, limit_s, is_exempt in samples:
            window_s = limit_s / _WINDOWS
            if window_s > WINDOW_S:
                window_s = WINDOW_S
            elif window_s < shortest_s:
                shortest_s = window_s
            watch = before.get(name)
            if watch is None:  # what was before is not its own
                watches[name] = _Watch(at)
                continue
            watches[name] = watch
            if is_gap:
                watch.begin(at, is_quiet=False)
            elif is_first:
                watch.window_at = at
            else:
                watch.add(at, passed_s, load, window_s)
            since = watch.quiet_since
            if since is None and not watch.is_idle:
                continue  # as most
            is_idle = since is not None and (
                watch.is_idle or (at - since >= limit_s and not is_exempt)
            )
            if is_idle is not watch.is_idle:
                watch.is_idle = is_idle
                found.append(Changed(name, since if is_idle else None))
        self._step_s = shortest_s / _LOOKS
        return found

    def check(self) -> None:
        """Raise AssertionError when one is idle without a quiet time."""
        for watch in self._watches.values():
            assert watch.quiet_since is not None or not watch.is_idle, "idle since never"
            assert watch.known_s >= 0
