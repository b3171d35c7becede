"""When a job may start: a first moment, and daily hours.

Times are seconds of the wall clock; the present is an argument. Hours are those of the machine's
time zone, or of `zone`. The two changes of clocks in a year make a window longer or shorter, and
never lose it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from grn.errors import UsageError
from grn.model.units import parse_time

_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)|24:00")
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T]+(\S+))?")
_MOMENT_HINT = "Write it like 22:00, now+2h, 'tomorrow 9:00' or '2030-01-31 9:00'."
_HOURS_HINT = "Write it like 20:00-08:00."
_DAYS = {"today": 0, "tomorrow": 1}
MAX_HOURS = 11  # characters of `20:00-08:00`


@dataclass(frozen=True, slots=True)
class Hours:
    """Daily hours, in minutes after midnight; they may reach into the next day."""

    start: int
    end: int

    def is_open(self, at: float, zone: tzinfo | None = None) -> bool:
        """True within the hours."""
        local = datetime.fromtimestamp(at, zone)
        minute = local.hour * 60 + local.minute
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def next_change(self, at: float, zone: tzinfo | None = None) -> float:
        """Return when the hours begin or end next."""
        return min(_next(self.start, at, zone), _next(self.end, at, zone))


@dataclass(frozen=True, slots=True)
class StartWindow:
    """The times at which a job may start."""

    begin_at: float = 0.0
    hours: Hours | None = None

    def is_open(self, at: float, zone: tzinfo | None = None) -> bool:
        """True when the job may start now."""
        return at >= self.begin_at and (self.hours is None or self.hours.is_open(at, zone))

    def next_open(self, at: float, zone: tzinfo | None = None) -> float:
        """Return the first moment from `at` on at which the job may start."""
        at = max(at, self.begin_at)
        while self.hours is not None and not self.hours.is_open(at, zone):
            at = self.hours.next_change(at, zone)  # an hour that a clock skips opens the next day
        return at

    def next_change(self, at: float, zone: tzinfo | None = None) -> float | None:
        """Return when to look again; None when the window stays open for good."""
        if at < self.begin_at:
            return self.begin_at
        return None if self.hours is None else self.hours.next_change(at, zone)


def parse_hours(text: str) -> Hours:
    """Read `20:00-08:00`."""
    start, dash, end = text.partition("-")
    if not dash or not _CLOCK.fullmatch(start) or not _CLOCK.fullmatch(end):
        raise UsageError(f"'{text}' is not a range of hours.", _HOURS_HINT)
    minutes = _minutes(start), _minutes(end)
    if minutes[0] % 1440 == minutes[1]:
        raise UsageError(f"the window {text} never opens.", _HOURS_HINT)
    return Hours(minutes[0] % 1440, minutes[1])


def parse_moment(text: str, now: float, zone: tzinfo | None = None) -> float:
    """Read `22:00` (the next), `now+2h`, `tomorrow 9:00` or `2030-01-31 9:00`."""
    words = text.lower().replace("now +", "now+").split()
    try:
        if len(words) == 1 and words[0] == "now":
            return now
        if len(words) == 1 and words[0].startswith("now+"):
            return now + parse_time(words[0].removeprefix("now+"), needs_unit=True)
        if len(words) == 1 and _CLOCK.fullmatch(words[0]):
            return _next(_minutes(words[0]) % 1440, now, zone)
        local = datetime.fromtimestamp(now, zone)
        if len(words) in (1, 2) and words[0] in _DAYS:
            day = local + timedelta(days=_DAYS[words[0]])
            return _at(day, _minutes(words[1] if len(words) == 2 else "0:00"))
        if date := _DATE.fullmatch(" ".join(words).upper()):
            day = local.replace(int(date[1]), int(date[2]), int(date[3]))
            return _at(day, _minutes(date[4] or "0:00"))
    except (ValueError, OverflowError, UsageError):
        pass
    raise UsageError(f"'{text}' is not a time.", _MOMENT_HINT)


def show_moment(at: float, now: float, zone: tzinfo | None = None) -> str:
    """Spell a time of today as `22:00`, others with their day."""
    there, here = datetime.fromtimestamp(at, zone), datetime.fromtimestamp(now, zone)
    clock = f"{there:%H:%M}"
    days = (there.date() - here.date()).days
    if not days:
        return clock
    return f"{clock} tomorrow" if days == 1 else f"{clock} on {there:%a} {there:%Y-%m-%d}"


def show_span(start: float, end: float, now: float, zone: tzinfo | None = None) -> str:
    """Spell a time as `from 09:00 to 13:00 tomorrow`, with both days where they differ."""
    first, last = show_moment(start, now, zone), show_moment(end, now, zone)
    is_one_day = first[5:] == last[5:]
    return f"from {first[:5] if is_one_day else first} to {last}"


def _minutes(clock: str) -> int:
    """Return the minutes after midnight; raise ValueError for no time of day."""
    if not _CLOCK.fullmatch(clock):
        raise ValueError(clock)
    hours, _, minutes = clock.partition(":")
    return int(hours) * 60 + int(minutes)


def _at(day: datetime, minute: int) -> float:
    """Return a time of day of that day; one that the clock skips is as much later."""
    day += timedelta(days=minute // 1440)
    hour, minute = divmod(minute % 1440, 60)
    return day.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0).timestamp()


def _next(minute: int, at: float, zone: tzinfo | None) -> float:
    """Return the next time after `at` at which clocks show a time of day."""
    day = datetime.fromtimestamp(at, zone)
    found = _at(day, minute)
    return found if found > at else _at(day + timedelta(days=1), minute)
