"""Garbage is collected after answers, a little at a time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from grn.negotiator.garbage import MAX_YOUNG, Garbage


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def soon() -> Iterator[list[Callable[[], None]]]:
    """What is to be called once the answers are sent; the collector is as before afterwards."""
    before = gc.get_threshold()
    gc.collect()
    yield []
    gc.set_threshold(*before)
    gc.unfreeze()


def of_many_objects(garbage: Garbage) -> list[list[int]]:
    made: list[list[int]] = [[] for _ in range(MAX_YOUNG)]
    garbage.after_event()
    return made


def test_a_cycle_is_freed_after_the_answers_and_not_before(soon: list[Callable[[], None]]) -> None:
    garbage = Garbage(soon.append)
    garbage.begin()
    cycle = weakref.ref(Cycle())
    kept = of_many_objects(garbage)
    garbage.after_event()
    assert len(soon) == 1, "asked for twice"
    assert cycle() is not None
    soon.pop()()
    assert cycle() is None
    assert kept


def test_a_cycle_that_outlived_one_look_is_freed_soon_too(
    soon: list[Callable[[], None]],
) -> None:
    garbage = Garbage(soon.append)
    garbage.begin()
    held = Cycle()
    cycle = weakref.ref(held)
    kept = of_many_objects(garbage)
    soon.pop()()
    del held
    for _ in range(3):
        kept += of_many_objects(garbage)
        soon.pop()()
    assert cycle() is None
    assert kept


def test_few_new_objects_are_left_alone(soon: list[Callable[[], None]]) -> None:
    garbage = Garbage(soon.append)
    garbage.begin()
    gc.collect()
    garbage.after_event()
    assert not soon
