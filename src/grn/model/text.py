"""Text of users on its way to somebody's screen."""

from __future__ import annotations


def harmless(text: str) -> str:
    """Spell out what could drive a terminal or turn a line around."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
