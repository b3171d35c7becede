"""Conditions: what they can say, and that they can do nothing else."""

from __future__ import annotations

import pytest

from grn.errors import UsageError
from grn.sweep.condition import parse

POINT = {
    "lr": "1e-3",
    "bs": "64",
    "opt": "adam",
    "deep": True,
    "under": "1_0",
    "word": "nan",
    "long": "9" * 5000,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lr < 0.01", True),
        ("bs == 64", True),
        ("bs == '64'", False),  # a text that looks like a number is a number
        ("16 < bs <= 64", True),
        ("16 < bs < 64", False),
        ("opt == 'adam' and not bs > 64", True),
        ("opt in ('sgd', 'lion')", False),
        ("opt not in ['sgd']", True),
        ("bs * lr > 0.06", True),
        ("bs % 48 == 16 and bs // 10 == 6", True),
        ("-bs + 1 < 0 or 1 / 0", True),  # the rest is not looked at
        ("2 ** 3 == 8", True),
        ("deep", True),
        ("opt > 'aaa'", True),
        ("under == '1_0' and word == 'nan' and long != 1", True),  # texts, all of them
    ],
)
def test_a_condition_holds_or_not(text: str, expected: bool) -> None:
    assert parse(text).holds(POINT) is expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "lr.real",
        "opt[0] == 'a'",
        "[x for x in (1, 2)]",
        "lambda: 1",
        "bs if lr else 1",
        "f'{lr}'",
        "(x := 1)",
        "bs << 1000000000",
        "lr <",
        "",
        "lr = 1",
        "(" * 1000 + ")" * 1000,
        "1" + "+1" * 5000,
        "a\0b",
    ],
)
def test_anything_but_comparisons_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize("text", ["opt < 3", "opt * 99 == 1", "1 / 0", "9.0 ** 9999", "bs in lr"])
def test_what_cannot_be_computed_is_a_line_that_names_the_point(text: str) -> None:
    with pytest.raises(UsageError, match="makes no sense for lr=1e-3, bs=64"):
        parse(text).holds(POINT)


def test_a_name_that_is_no_parameter_is_refused() -> None:
    parse("lr < 1").check(("lr", "bs"))
    with pytest.raises(UsageError, match="'wd', which is not a parameter"):
        parse("lr < 1 or wd > 2").check(("lr", "bs"))
