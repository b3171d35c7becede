"""How much a service keeps for its clients: the rule, on numbers."""

from __future__ import annotations

import pytest

from grn.daemon.connection import BufferBudget

MiB = 1 << 20


@pytest.fixture
def kept() -> BufferBudget:
    return BufferBudget(8 * MiB, 64 * MiB)


def test_a_user_may_have_so_much_in_all_its_connections(kept: BufferBudget) -> None:
    kept.change(1000, 8 * MiB)
    assert not kept.is_over(1000, MiB)
    kept.change(1000, 1)
    assert kept.is_over(1000, MiB)


def test_another_user_is_not_concerned(kept: BufferBudget) -> None:
    kept.change(1000, 60 * MiB)
    kept.change(1001, MiB)
    assert not kept.is_over(1001, MiB // 2)


def test_the_only_connection_of_a_user_is_never_over(kept: BufferBudget) -> None:
    kept.change(1000, 32 * MiB)
    assert not kept.is_over(1000, 32 * MiB)


def test_when_all_have_too_much_those_with_more_than_an_equal_part_are_over(
    kept: BufferBudget,
) -> None:
    for uid in range(10):
        kept.change(uid, 7 * MiB)
    kept.change(10, MiB)
    assert kept.is_over(0, MiB)
    assert not kept.is_over(10, MiB // 2)


def test_what_was_given_back_does_not_count(kept: BufferBudget) -> None:
    kept.change(1000, 9 * MiB)
    kept.change(1000, -9 * MiB)
    assert (kept.in_all, dict(kept.by_user)) == (0, {})
