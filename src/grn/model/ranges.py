"""Sets of numbers as people write them: `3-9`, `0,2,4`, `0-10:2`."""

from __future__ import annotations

import re

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_NUMBERS = 100_000
_PART = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")


def parse_ranges(text: str) -> list[int]:
    """Read numbers and ranges, with a step if given; each number once, in the order written."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(f"invalid range '{text}'.", "Write it like 0-9, 0,2,4 or 0-10:2.")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not step:
            raise UsageError(f"the step of '{text}' is 0.", "Write it like 0-10:2.")
        numbers = range(first, last + 1, step)
        if not 0 < len(numbers) <= MAX_NUMBERS - len(found):
            count = "no numbers" if not numbers else "too many numbers"
            raise UsageError(f"'{text}' has {count}; 1 to {MAX_NUMBERS} are allowed.")
        found.update(dict.fromkeys(numbers))
    return list(found)


def parse_array(text: str) -> tuple[str, int]:
    """Return the numbers of an array as written, and how many run at once (0: no limit)."""
    numbers, mark, limit = text.partition("%")
    if mark and not (limit.isascii() and limit.isdigit() and 0 < int(limit[:7]) <= MAX_NUMBERS):
        raise UsageError(f"invalid limit '{limit}' of an array.", "Write it like 0-99%4.")
    parse_ranges(numbers)
    return numbers, int(limit or 0)


def show_ranges(numbers: Sequence[int], most: int = 3) -> str:
    """Spell numbers as ranges; of more than `most` parts the middle is left out."""
    parts = list(_parts(sorted(numbers)))
    if len(parts) > most:
        parts = [*parts[: most - 1], "…", parts[-1]]
    return ",".join(parts)


def _parts(numbers: Sequence[int]) -> Iterator[str]:
    start = 0
    while start < len(numbers):
        step = numbers[start + 1] - numbers[start] if start + 1 < len(numbers) else 1
        end = start + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        first, last = numbers[start], numbers[end - 1]
        if step > 1 and end - start < 3:  # two numbers with a gap are no range
            yield str(first)
            start += 1
            continue
        ending = f":{step}" if step > 1 else ""
        yield str(first) if end - start == 1 else f"{first}-{last}{ending}"
        start = end
