"""Make text of users safe to print on a terminal."""

from __future__ import annotations

import re

# Characters that take two columns of a terminal, and those that take none.
_WIDE = re.compile(
    "[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f"
    "\uff00-\uff60\uffe0-\uffe6\U0001f300-\U0001f64f\U0001f900-\U0001f9ff\U00020000-\U0003fffd]"
)
_JOINED = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]")


def harmless(text: str) -> str:
    """Escape characters that control a terminal or change the direction of text."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return len(text) + len(_WIDE.findall(text)) - len(_JOINED.findall(text))


def cut(text: str, size: int, mark: str = "…") -> str:
    """Cut a text to a number of columns, with a mark where it was cut."""
    if size <= 0:
        return ""
    if columns_of(text) <= size:
        return text
    kept, used = "", 0
    for char in text:
        used += columns_of(char)
        if used > size - 1:
            break
        kept += char
    return kept + mark


def counted(number: int, noun: str) -> str:
    """Spell a count: `1 job`, `2 jobs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
