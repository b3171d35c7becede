"""Colour by meaning, as terminal escapes inside text. Pure.

Everything for people is painted; the place that prints it (`terminal.echo`, or click) removes the
escapes where colour is not wanted. A style is one of the words below, never a colour.
"""

from __future__ import annotations

import re

from grn.model.outcome import OutcomeKind, kind_of

_CODES = {
    "running": "32",
    "waiting": "36",
    "attention": "33",  # only a person can make it go on
    "failed": "31",
    "good": "32",
    "ended": "2",
    "reason": "2",
    "header": "2",
    "id": "1",
    "strong": "1",
    "used": "32",
    "reserved": "2;32",
    "others": "35",
    "free": "2",
    "error": "1;31",
    "hint": "36",
}
_STATES = {
    "first run": "running",
    "idle": "attention",
    "starting": "running",
    "stopping": "attention",
    "draining": "attention",
    "queued": "waiting",
    "active": "running",
    "ahead": "waiting",
    "unused": "attention",
    "held": "attention",
    "finished": "good",
    "up": "good",
    "cut": "failed",
    "unusable": "failed",
    "note": "waiting",
    "BAD": "failed",
    "done": "good",
    "denied": "failed",
}
_KINDS = {
    OutcomeKind.GOOD: "good",
    OutcomeKind.BAD: "failed",
    OutcomeKind.CANCELLED: "ended",
    OutcomeKind.INTERRUPTED: "attention",
}
_ESCAPE = re.compile("\x1b\\[[0-9;]*m")


def paint(text: str, style: str) -> str:
    """Return a text in a style; without a style, or without text, as it is."""
    code = _CODES.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if code and text else text


def plain(text: str) -> str:
    """Return a painted text without its colours."""
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def state_style(word: str) -> str:
    """Return the style of a state or an outcome."""
    if word in _CODES or word in _STATES:
        return _STATES.get(word, word)
    kind = kind_of(word)
    return _KINDS[kind] if kind is not None else ""
