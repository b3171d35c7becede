"""Text of users, made harmless for a screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.model.text import harmless

HOSTILE = {
    "\x1b[31m": "\\x1b[31m",
    "a\nb\r": "a\\nb\\r",
    "\x7f\x9b0m\x00": "\\x7f\\x9b0m\\x00",
    "\u202egnp.exe": "\\u202egnp.exe",
    "\u2066x\u2069": "\\u2066x\\u2069",
    "zero\u200bwidth\ufeff": "zero\\u200bwidth\\ufeff",
    "\u2028\u2029\x85": "\\u2028\\u2029\\x85",
    "\U000e0041": "\\U000e0041",
    "\ud800": "\\ud800",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_drives_a_terminal_is_spelled_out(text: str) -> None:
    assert harmless(text) == HOSTILE[text]


@pytest.mark.parametrize("text", ["", "train.py::fit", "größe", "模型", "a b", "C:\\x", "🙂"])
def test_what_is_plain_stays_as_it_is(text: str) -> None:
    assert harmless(text) == text


@given(st.text(st.characters()))
def test_nothing_that_comes_out_is_a_control(text: str) -> None:
    shown = harmless(text)

    assert shown.isprintable()
    assert harmless(shown) == shown
