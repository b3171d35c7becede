"""How the GPUs of an outer lease are shared out."""

from __future__ import annotations

import pytest

from grn.group.choose_runner import NestedSlots
from grn.group.task import Needs, Slot, SlotGrant, Task


def task(number: int, gpus: int = 1) -> Task:
    return Task(number, ("true",), str(number), needs=Needs(gpus=gpus))


def nested(visible: str, *gpus: int) -> NestedSlots:
    found = NestedSlots("lease", visible)
    for number, count in enumerate(gpus, 1):
        found.ask(task(number, count))
    return found


def slots(grants: list[SlotGrant]) -> list[Slot]:
    return [grant.slot for grant in grants if grant.slot is not None]


def numbers(grants: list[SlotGrant]) -> list[int]:
    return [grant.task.number for grant in grants]


def test_each_task_has_a_gpu_of_its_own_and_sees_no_other() -> None:
    found = slots(nested("3,5", 1, 1, 1).grants())

    assert [slot.name for slot in found] == ["3", "5"]
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in found] == ["3", "5"]
    assert len({slot.lease for slot in found}) == 2


def test_a_gpu_that_is_free_again_goes_to_the_next() -> None:
    line = nested("3,5", 1, 1, 1)
    first, _ = slots(line.grants())
    line.unused(first)
    again = line.grants()

    assert numbers(again) == [3]
    assert slots(again)[0].name == "3"


def test_who_asks_for_several_is_not_overtaken() -> None:
    line = nested("0,1", 1, 2, 1)
    (first,) = slots(line.grants())
    assert line.grants() == []

    line.unused(first)
    assert numbers(line.grants()) == [2]


def test_with_all_gpus_everything_is_as_the_outer_job_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as a job of the queue has it
    assert [slot.environment for slot in slots(nested("0", 1).grants())] == [{}]
    assert [slot.environment for slot in slots(nested("0,1", 2).grants())] == [{}]


def test_who_asks_for_more_than_there_are_gets_all() -> None:
    assert [slot.name for slot in slots(nested("0,1", 4).grants())] == ["0,1"]


def test_a_line_that_was_withdrawn_starts_nothing_more() -> None:
    line = nested("0", 1, 1)
    (first,) = slots(line.grants())
    line.withdraw()
    line.unused(first)

    assert line.grants() == []


def test_python_prints_at_once_into_logs_of_nested_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (slot,) = slots(nested("3", 1).grants())
    assert slot.environment == {"PYTHONUNBUFFERED": "1"}

    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    (slot,) = slots(nested("3", 1).grants())
    assert slot.environment == {}


def test_a_task_that_must_run_elsewhere_is_refused_and_holds_up_no_other() -> None:
    line = NestedSlots("lease", "0")
    line.ask(task(1).but(needs=Needs(gpus=9, at="gpu2")))
    line.ask(task(2).but(needs=Needs(at="local")))
    refused, granted = line.grants()

    assert (refused.task.number, refused.slot) == (1, None)
    assert "cannot run at gpu2" in refused.refusal
    assert granted.slot is not None
