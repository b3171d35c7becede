"""Choose the runner: this user's queue, the GPUs of the surrounding job, or given slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grn.fixed_slots.runner import Runner
from grn.group.group_runner import AHEAD, GroupRunner
from grn.group.nested_slots import NestedSlots
from grn.group.roles import RunControl, RunListener, Slots, Source
from grn.group.task import Task


def runner_for(
    source: Source,
    listener: RunListener,
    group: str,
    *,
    slots: Slots | None = None,
    retries: int = 0,
    is_fail_fast: bool = False,
    on_wait: Callable[[Task, str], None] | None = None,
    on_submit: Callable[[Task, int], None] | None = None,
    shared: dict[str, Any] | None = None,
    ahead: int = AHEAD,
    mark: str = "",
) -> RunControl:
    """Return the runner for the tasks of a source; `mark` is that of the runner for fixed slots."""
    slots = slots or NestedSlots.here()
    if slots is not None:
        return Runner(slots, source, listener, mark=mark, retries=retries)
    return GroupRunner(
        source, listener, group, retries=retries, is_fail_fast=is_fail_fast, on_wait=on_wait,
        on_submit=on_submit, shared=shared, ahead=ahead,
    )  # fmt: skip
