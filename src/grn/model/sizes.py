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
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_LARGEST_BYTES = 1 << 50


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
    if not 1 <= size <= _LARGEST_BYTES:
        raise BadSetting(f"the size '{text}' is out of range.", "Give more than 0 and under 1 PiB.")
    return int(size)


def show_size(size_bytes: int | None) -> str:
    """Spell a size for people; unknown is `?`."""
    if size_bytes is None:
        return "?"
    if abs(size_bytes) < MiB:
        return f"{size_bytes / KiB:.0f} KiB" if size_bytes else "0"
    for unit, name in ((TiB, "TiB"), (GiB, "GiB")):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes / MiB:.0f} MiB"
