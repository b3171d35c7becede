"""Values of parameters: reading, spelling, and the names of points."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypeGuard

from grn.errors import UsageError

LONGEST = 100  # well under the 255 bytes of a file name, and short enough to read
MARK_DIGITS = 8

_NUMBER = re.compile(r"[+-]?(?=[\d.]{1,99}(e|$))(\d+\.?\d*|\.\d+)(e[+-]?\d{1,9})?", re.I | re.A)
_SAFE = re.compile(r"[^A-Za-z0-9._+\-]")


def fingerprint(point: Mapping[str, object]) -> str:
    """Return 16 digits that depend on names and values alone, not on their order."""
    pairs = sorted((name, _canonical(name, value)) for name, value in point.items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()[:16]


def folder_name(point: Mapping[str, object]) -> str:
    """Return a name like `lr=1e-3,bs=32`; a mark at its end shows that it is abridged.

    Two points never have the same name: a name without a mark shows all of its point.
    """
    parts, is_whole = [], True
    for name, value in point.items():
        text = spelled(value)
        clean = _SAFE.sub("_", text)
        is_whole &= clean == text and (isinstance(value, str) or _is_plain(value))
        parts.append(f"{name}={clean}")
    full = ",".join(parts)
    if is_whole and len(full) <= LONGEST:
        return full
    kept = full[: LONGEST - MARK_DIGITS - 1].rstrip(",=")
    return f"{kept}~{fingerprint(point)[:MARK_DIGITS]}"


def sweep_name(text: str, program: str) -> str:
    """Name a sweep by its program, and by all of its command."""
    short = _SAFE.sub("_", program)[:40].strip("._-") or "sweep"
    return f"{short}-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:6]}"


def spelled(value: object) -> str:
    """Spell a value for a command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return str(value)


def number_or_text(value: object) -> object:
    """Read a text that looks like a number as a number; return other values unchanged."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return int(value) if value.lstrip("+-").isdigit() else float(value)


def is_number(value: object) -> TypeGuard[float]:
    """True for numbers, not for booleans."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float))


def _canonical(name: str, value: object) -> str:
    def stable(other: object) -> str:
        home = getattr(other, "__qualname__", None)
        text = f"{getattr(other, '__module__', '?')}.{home}" if home else repr(other)
        if " at 0x" in text:
            raise UsageError(
                f"a value of parameter '{name}' has no name that stays: {text}.",
                "Give its class a __repr__, or use numbers and texts.",
            )
        return f"{type(other).__name__} {text}"

    try:
        return json.dumps(value, sort_keys=True, default=stable)
    except (TypeError, ValueError) as error:  # keys that are no texts, or a list inside itself
        message = f"a value of parameter '{name}' cannot be told apart from others: {error}."
        raise UsageError(message) from error
