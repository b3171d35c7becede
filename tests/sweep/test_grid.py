"""Cross products, in order and by number."""

from __future__ import annotations

import itertools

import pytest

from grn.sweep import grid


@pytest.mark.parametrize(
    "axes", [[], [[1]], [[1, 2], [3, 4, 5]], [["a"], ["b", "c"], ["d", "e", "f"]], [[1, 2], []]]
)
def test_each_combination_has_its_number(axes: list[list[object]]) -> None:
    expected = list(itertools.product(*axes))

    assert list(grid.product(axes)) == expected
    assert grid.size(axes) == len(expected)
    assert [grid.nth(axes, index) for index in range(len(expected))] == expected


def test_the_last_turns_fastest() -> None:
    assert list(grid.product(["ab", "12"])) == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
