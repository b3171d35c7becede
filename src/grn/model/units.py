"""Byte sizes: how people spell them and how grn prints them."""

from __future__ import annotations

import functools
import re

from grn.errors import BadSetting

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


def parse_size(text: str | int) -> int:
    """Read `6GiB`, `800M`, `1.5g` or a plain number of bytes."""
    return _parse(str(text))


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
