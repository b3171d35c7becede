"""Text of users, made harmless for a screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cli.output.style import plain
from grn.cli.output.table import table
from grn.model.text import columns_of, cut, harmless

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
    "user\u200dname": "user\\u200dname",
    "🙂\u200dx": "🙂\\u200dx",
    "\u200d🙂": "\\u200d🙂",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_what_drives_a_terminal_is_spelled_out(text: str) -> None:
    assert harmless(text) == HOSTILE[text]


@pytest.mark.parametrize(
    "text", ["", "train.py::fit", "größe", "模型", "a b", "C:\\x", "🙂", "👩‍🔬", "🏳️‍🌈"]
)
def test_what_is_plain_stays_as_it_is(text: str) -> None:
    assert harmless(text) == text


@given(st.text(st.characters()))
def test_nothing_that_comes_out_is_a_control(text: str) -> None:
    shown = harmless(text)

    assert shown.replace("\u200d", "").isprintable()
    assert harmless(shown) == shown


COLUMNS = {
    "": 0,
    "größe": 5,
    "e\u0301": 1,
    "模型": 4,
    "한국": 4,
    "\u1112\u1161\u11ab": 2,  # one Korean syllable in three parts
    "ｆｕｌｌ": 8,
    "━━ 12 % …": 9,
    "🙂": 2,
    "🚀": 2,
    "⌚": 2,
    "✂": 1,
    "✂️": 2,
    "1️⃣": 2,
    "👍🏽": 2,
    "🇩🇪": 2,
    "👩‍🔬": 2,
    "👩‍❤️‍👨": 2,
    "🏳️‍🌈": 2,
    "👩‍🔬👩‍🔬": 4,
    "क\u200dष": 2,  # a joiner of letters joins no columns
}


@pytest.mark.parametrize("text", COLUMNS)
def test_a_text_takes_the_columns_that_a_terminal_draws(text: str) -> None:
    assert columns_of(text) == COLUMNS[text]


@pytest.mark.parametrize(
    ("text", "size", "shown"),
    [
        ("🚀🚀🚀", 6, "🚀🚀🚀"),
        ("🚀🚀🚀", 5, "🚀🚀…"),
        ("🚀🚀🚀", 4, "🚀…"),
        ("👩‍🔬👩‍🔬", 3, "👩‍🔬…"),
        ("✂️✂️", 2, "…"),
        ("模型", 3, "模…"),
        ("abc", 0, ""),
    ],
)
def test_a_cut_text_keeps_whole_characters(text: str, size: int, shown: str) -> None:
    assert cut(text, size) == shown


@given(st.text(st.sampled_from("a模🚀✂️1\u0301👩🔬\u200d🏽━"), max_size=12), st.integers(0, 12))
def test_a_cut_text_never_takes_more_columns_than_there_are(text: str, size: int) -> None:
    assert columns_of(cut(text, size)) <= size


def test_columns_stay_aligned_behind_emoji() -> None:
    rows = [("🚀 launch", "7"), ("👩‍🔬 lab", "8"), ("plain", "9")]

    lines = plain(table(("NAME", "ID"), rows)).splitlines()

    assert {columns_of(line) for line in lines[1:]} == {len("# launch") + 1 + len("  7")}
