"""Sets of numbers as people write them."""

from __future__ import annotations

import pytest

from grn.errors import UsageError
from grn.model.ranges import parse_ranges, show_ranges


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("3", [3]), ("0-3", [0, 1, 2, 3]), ("4,2", [4, 2]), ("0-10:5", [0, 5, 10]), ("1-2,2", [1, 2])],
)
def test_ranges_are_read_as_slurm_writes_them(text: str, numbers: list[int]) -> None:
    assert parse_ranges(text) == numbers


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1,,2", "5-3", "0-1000000", "1:2", "٣"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ranges(text)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([5], "5"),
        ([1, 2, 3], "1-3"),
        ([3, 1], "1,3"),
        ([0, 2, 4, 7], "0-4:2,7"),
        ([1, 4, 5, 6], "1,4-6"),
        ([1, 5, 9, 20, 21, 40, 90], "1-9:4,20-21,…,90"),
    ],
)
def test_numbers_are_shown_as_ranges(numbers: list[int], text: str) -> None:
    assert show_ranges(numbers) == text
