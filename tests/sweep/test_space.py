"""Points of a space: what is in it, in which order, and what is refused."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from grn.errors import UsageError
from grn.sweep import condition
from grn.sweep.space import Space, drawn, from_words, listed, points


def a_space(*parameters: str, zipped: Any = (), when: tuple[str, ...] = (), **more: Any) -> Space:
    """Make a space of words: `a_space("lr 1 2", "bs 3")`."""
    made = [from_words(text.split()[0], text.split()[1:]) for text in parameters]
    return Space(tuple(made), zipped, tuple(map(condition.parse, when)), **more)


def values(space: Space, seed: int = 0, **options: Any) -> list[str]:
    """Walk through the points and write each as its values."""
    found = points(space, random.Random(seed), **options)
    return [" ".join(map(str, point.values())) for point in found]


def test_a_grid_is_walked_with_the_last_list_fastest() -> None:
    assert values(a_space("a 0 1", "b 2 3")) == ["0 2", "0 3", "1 2", "1 3"]


def test_values_stay_as_they_were_typed() -> None:
    assert values(a_space("lr 1e-3 0.0010 1E-3")) == ["1e-3", "0.0010", "1E-3"]


def test_a_shuffled_grid_has_the_same_points_in_another_order() -> None:
    space = a_space("a 0 1 2 3 4", "b 0 1 2 3")
    shuffled = values(space, seed=1, is_shuffled=True)
    assert shuffled != values(space)
    assert sorted(shuffled) == sorted(values(space))
    assert shuffled == values(space, seed=1, is_shuffled=True)
    assert shuffled != values(space, seed=2, is_shuffled=True)


def test_only_so_many_samples_are_taken_and_more_begin_the_same() -> None:
    space = a_space("a 0 1 2 3 4", "b 0 1 2 3")
    few = values(space, is_shuffled=True, most=3)
    assert len(few) == 3
    assert values(space, is_shuffled=True, most=9)[:3] == few
    assert len(values(space, most=1000)) == 20


@given(some.integers(1, 40), some.integers(0, 1000))
def test_a_shuffle_of_any_size_takes_each_point_once(size: int, seed: int) -> None:
    space = Space((listed("a", range(size)),))
    found = [point["a"] for point in points(space, random.Random(seed), is_shuffled=True)]
    assert sorted(found) == list(range(size))  # type: ignore[type-var]


@pytest.mark.slow
def test_conditions_that_leave_nothing_of_a_huge_grid_end() -> None:
    lists = tuple(listed(name, range(1000)) for name in "abcd")
    space = Space(lists, conditions=(condition.parse("a < 0"),))
    with pytest.raises(UsageError, match="in a row"):
        next(points(space, random.Random(0)))


def test_draws_from_a_huge_shuffled_grid_begin_the_same() -> None:
    lists = tuple(listed(name, range(1000)) for name in "abcd")
    space = Space((*lists, drawn("lr", "log:1e-5..1")))
    few = list(points(space, random.Random(0), is_shuffled=True, most=3))
    more = list(points(space, random.Random(0), is_shuffled=True, most=9))
    assert more[:3] == few


def test_a_huge_grid_is_walked_without_being_built() -> None:
    space = Space(tuple(listed(name, range(1000)) for name in "abcd"))
    assert space.grid_size == 10**12
    shuffled = points(space, random.Random(0), is_shuffled=True)
    assert len({tuple(point.values()) for point in islice(shuffled, 50)}) == 50


def test_zipped_lists_go_together() -> None:
    space = a_space("model s m", "x 0 1", "bs 64 32", zipped=(("model", "bs"),))
    assert values(space) == ["s 0 64", "s 1 64", "m 0 32", "m 1 32"]


def test_conditions_leave_points_out() -> None:
    space = a_space("lr 1e-2 1e-4", "bs 32 64", when=("bs < 64 or lr < 1e-3",))
    assert values(space) == ["1e-2 32", "1e-4 32", "1e-4 64"]
    assert values(a_space("a 1 2 3 4", when=("a > 1", "a != 3"))) == ["2", "4"]


def test_samples_are_counted_after_conditions() -> None:
    assert values(a_space("a 1 2 3 4", when=("a > 2",)), most=2) == ["3", "4"]


def test_each_point_is_run_with_each_seed() -> None:
    space = a_space("lr 1 2", seeds=("0", "1"))
    assert values(space) == ["1 0", "1 1", "2 0", "2 1"]
    assert len(values(space, most=1)) == 2
    odd = a_space("lr 1 2", seeds=("0", "1"), when=("seed == 0 or lr == 2",))
    assert values(odd) == ["1 0", "2 0", "2 1"]


@pytest.mark.parametrize("kind", ["log", "uniform"])
def test_drawn_numbers_stay_inside_their_range(kind: str) -> None:
    space = Space((drawn("x", f"{kind}:1e-5..1e-2"),))
    found = [point["x"] for point in points(space, random.Random(3), most=300)]
    assert all(isinstance(x, float) and 1e-5 <= x <= 1e-2 for x in found)
    small = sum(x < 1e-3 for x in found)  # type: ignore[operator]
    assert (small > 150) == (kind == "log")


def test_drawn_whole_numbers_reach_both_ends() -> None:
    space = Space((drawn("n", "int:1..4"),))
    found = [point["n"] for point in points(space, random.Random(0), most=4)]
    assert sorted(found) == [1, 2, 3, 4]  # type: ignore[type-var]


def test_a_range_on_a_command_line_gives_texts() -> None:
    (first,) = points(a_space("lr log:1e-5..1e-2"), random.Random(0), most=1)
    assert isinstance(first["lr"], str)
    assert 1e-5 <= float(first["lr"]) <= 1e-2


def test_draws_go_round_the_lists_and_more_of_them_begin_the_same() -> None:
    space = a_space("opt sgd adam", "lr log:1e-5..1e-2")
    six = values(space, most=6)
    assert [text.split()[0] for text in six] == ["sgd", "adam"] * 3
    assert len(set(six)) == 6
    assert values(space, most=10)[:6] == six


def test_drawn_points_keep_to_the_conditions() -> None:
    space = a_space("lr uniform:0..1", when=("lr > 0.5",))
    assert all(float(text) > 0.5 for text in values(space, most=50))


def refused(words: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(UsageError) as error:
        values(a_space(*arguments, **options))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_makes_no_sense_is_refused_in_one_line() -> None:
    refused("given twice", "a 1", "a 2")
    refused("no parameter")
    refused("no value", "a")
    refused("stands twice", "a 1 2 1")
    refused("is not a name", "a! 1")
    refused("meaning of its own", "run_dir 1")
    refused("given twice", "seed 1", seeds=("0",))
    refused("--n-samples", "a log:1e-3..1")
    refused("not a range", "a normal:0..1")
    refused("does not say how to sample", "a 1e-5..1e-2")
    refused("does not go up", "a uniform:2..1")
    refused("begin above 0", "a log:0..1")
    refused("not whole", "a int:0.5..3")
    refused("not a number", "a log:x..3")
    refused("not a number", "a uniform:0..inf")
    refused("stands alone", "a log:1e-3..1 5")
    refused("one length (a: 2, b: 3)", "a 1 2", "b 1 2 3", zipped=(("a", "b"),))
    refused("not a parameter with a list", "a 1 2", zipped=(("a", "c"),))
    refused("zipped twice", "a 1 2", "b 1 2", "c 1 2", zipped=(("a", "b"), ("b", "c")))
    refused("two or more", "a 1 2", zipped=(("a",),))
    refused("'wd', which is not a parameter", "a 1 2", when=("wd < 1",))


def test_more_different_points_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="only 3 of 5"):
        values(a_space("n int:1..3"), most=5)
    with pytest.raises(UsageError, match="only 0 of 1"):
        values(a_space("n int:1..3", when=("n > 3",)), most=1)


def test_a_text_that_only_resembles_a_range_is_a_text() -> None:
    assert values(a_space("path file:../../data")) == ["file:../../data"]
    assert values(a_space("host a:1 b:2")) == ["a:1", "b:2"]
