"""Sizes and durations: how people spell them and how grn prints them."""

from __future__ import annotations

import functools
import re

from grn.errors import BadSetting, UsageError
from grn.model import MAX_CPUS

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
TiB = 1 << 40

_UNITS = {
    "": 1, "b": 1,
    "k": KiB, "kib": KiB, "kb": 1000,
    "m": MiB, "mib": MiB, "mb": 1000**2,
    "g": GiB, "gib": GiB, "gb": 1000**3,
    "t": TiB, "tib": TiB, "tb": 1000**4,
}  # fmt: skip
_SHOWN_UNITS = {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_MAX_BYTES = 1 << 50
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MAX_S = 1e9


def parse_size(text: str | int) -> int:
    """Read `6GiB`, `800M`, `1.5g` or a plain number of bytes."""
    return _parse(str(text))


def parse_memory(text: str | int) -> int:
    """Read a size of GPU memory; a number of bytes that no job could use is a forgotten unit."""
    size_bytes = parse_size(text)
    if size_bytes < MiB and re.fullmatch(r"[\s\d.]*", str(text)):
        plain = str(text).strip()
        raise BadSetting(f"'{plain}' would be {plain} bytes.", f"Did you mean {plain}GiB?")
    return size_bytes


@functools.lru_cache(maxsize=256)  # a job states the same at every call
def _parse(text: str) -> int:
    found = _SIZE.fullmatch(text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise BadSetting(f"'{text}' is not a size.", "Write it like 6GiB, 800MiB or 1.5g.")
    size = float(found[1]) * unit  # infinite for a very long number
    if not 1 <= size <= _MAX_BYTES:
        raise BadSetting(f"the size '{text}' is out of range.", "Give more than 0 and under 1 PiB.")
    return int(size)


def show_size(size_bytes: int | None) -> str:
    """Spell a size for people; unknown is `?`."""
    return " ".join(_spelled(size_bytes)) if size_bytes else _nothing(size_bytes)


def short_size(size_bytes: int | None) -> str:
    """Spell a size in five characters at most, for columns."""
    if not size_bytes or size_bytes < 0:
        return _nothing(size_bytes)
    number, unit = _spelled(size_bytes)
    return (number if len(number) <= 4 else number.partition(".")[0]) + unit[0]


def _nothing(size_bytes: int | None) -> str:
    return "?" if size_bytes is None else "0"


def _spelled(size_bytes: int) -> tuple[str, str]:
    """Choose the unit by the rounded number: what would be 1024 of one is 1 of the next."""
    for name, unit in _SHOWN_UNITS.items():
        if abs(size_bytes) < unit * KiB or unit == TiB:  # else it is one of the next for sure
            number = f"{size_bytes / unit:.{unit >= GiB:d}f}"
            if abs(float(number)) < KiB or unit == TiB:
                return number, name
    raise AssertionError("the last unit takes all")


def show_cores(cores: float) -> str:
    """Return a number of cores for people: 0.25, 9.2, 290."""
    return f"{cores:.2g}" if cores < 10 else f"{cores:.0f}"


def parse_cpus(text: str | float) -> float:
    """Read a number of cores, as 8 or 0.5; raise UsageError for others."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= MAX_CPUS:
        raise UsageError(
            f"'{text}' is not a number of cores.", f"Give more than 0 and at most {MAX_CPUS}."
        )
    return found


def parse_time(text: str | float, *, needs_unit: bool = False) -> float:
    """Read `90s`, `30m`, `12h`, `2d`, `4w` or a plain number of seconds."""
    text = str(text)
    unit = _SECONDS.get(text[-1:])
    try:
        found = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= _MAX_S or (needs_unit and not unit):
        raise UsageError(f"invalid time '{text}'.", "Write it like 90s, 30m, 12h, 2d or 4w.")
    return found


def show_time(duration_s: float | None) -> str:
    """Spell a duration in its two largest units; `?` if unknown, or negative by a wrong clock."""
    if duration_s is None or duration_s < -1.0:
        return "?"
    duration_s = max(0.0, duration_s)
    if duration_s < 59.5:
        return f"{duration_s:.1f}s" if duration_s < 9.95 else f"{duration_s:.0f}s"
    minutes, rest = divmod(int(duration_s + 0.5), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"


def show_expected(verb: str, range_s: tuple[float, float]) -> str:
    """Spell an expected start or end: `starts in about 3m (1m to 8m)`."""
    low_s, high_s = range_s
    if high_s < 1:
        return f"{verb} soon"  # not now: an overdue estimate stays at zero
    low, high = show_coarse(low_s), show_coarse(high_s)
    if low == high:
        return f"{verb} in about {high}"
    low = f"{low} to" if low_s >= 1 else "up to"
    return f"{verb} in about {show_coarse(middle_s(range_s))} ({low} {high})"


def show_coarse(duration_s: float) -> str:
    """Spell an estimated duration: `9s`, `3m`, `1h05m`."""
    if duration_s < 59.5:
        return f"{duration_s:.0f}s"
    minutes = round(duration_s / 60)
    return f"{minutes}m" if minutes < 60 else show_time(minutes * 60)


def middle_s(range_s: tuple[float, float]) -> float:
    """Return the time to name for a range of expected times."""
    return sum(range_s) / 2


def show_limit(limit_s: float) -> str:
    """Spell a limit as people write it: `3h`, not `3h00m`."""
    text = show_time(limit_s)
    for zero in (".0s", "00s", "00m", "00h"):
        if text.endswith(zero) and text != zero:
            return text.removesuffix(zero) + ("s" if zero == ".0s" else "")
    return text


def decimal_time(duration_s: float, longest_s: float) -> str:
    """Spell a duration in the unit that suits the longest of a column, for comparison."""
    unit, seconds = ("h", 3600) if longest_s >= 7200 else ("min", 60)
    if longest_s < 120:
        unit, seconds = "s", 1
    return f"{duration_s / seconds:.2f} {unit}"
