"""Texts about ended tasks."""

from __future__ import annotations

import pytest

from grn.group.task import CommandEnd, Slot, Task


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"is_out_of_memory": True, "because": "b took it"}, "attempt 2: out-of-memory, b took it"),
        ({}, "attempt 2: not-started"),
    ],
)
def test_what_was_not_enough_is_said_after_what_was_said_before(how: dict, said: str) -> None:
    ended = CommandEnd(Task(1, ("train",), "train"), Slot("0", {}), 1, 0.0, 1.0, **how)

    assert ended.past(2) == said
    assert ended.past(2, "attempt 1: requeued") == f"attempt 1: requeued; {said}"
