"""How many job types are remembered, and which one is forgotten first."""

from __future__ import annotations

from typing import Any

import pytest

from grn.model.units import GiB
from grn.negotiator.actions import DropProfile, SaveRun
from grn.negotiator.learn.memory.profiling import RUNS_KEPT
from grn.negotiator.learn.memory.quota import (
    MAX_ARGUMENTS_BYTES,
    MAX_BYTES,
    MAX_BYTES_PER_USER,
    MAX_TYPES,
    MAX_TYPES_PER_USER,
    TypeQuota,
    kept_arguments,
)
from tests.builders import Story, a_profile, a_run, an_engine

LONG = {f"{number:02}" + "n" * 62: "v" * 64 for number in range(32)}


def is_unused(_job_type: str) -> bool:
    """Say that no type is in use."""
    return False


def run_once(quota: TypeQuota, job_type: str, owner: int = 1000, **changes: Any) -> None:
    quota.ran(job_type, owner, a_run(GiB, **changes), 1)


def test_a_user_may_have_so_many_types_and_the_least_recently_used_goes() -> None:
    quota = TypeQuota()
    for number in range(MAX_TYPES_PER_USER):
        run_once(quota, f"type {number}")
    assert not quota.is_over()
    run_once(quota, "one more")

    assert quota.excess(is_unused) == ["type 0"]
    assert not quota.is_over()
    assert quota.dropped == {1000: 1}


def test_a_type_in_use_is_never_forgotten() -> None:
    quota = TypeQuota()
    for number in range(MAX_TYPES_PER_USER + 2):
        run_once(quota, f"type {number}")
    assert quota.excess({"type 0", "type 2"}.__contains__) == ["type 1", "type 3"]


def test_a_flood_of_new_types_costs_a_user_none_that_ran_again() -> None:
    quota = TypeQuota()
    for count in (1, 2, 3):
        for number in range(100):
            quota.ran(f"good {number}", 1000, a_run(GiB), count)
    dropped: list[str] = []
    for number in range(3 * MAX_TYPES_PER_USER):
        run_once(quota, f"flood {number}")
        dropped += quota.excess(is_unused)
    assert len(dropped) > MAX_TYPES_PER_USER
    assert not [one for one in dropped if one.startswith("good")]


def test_there_is_room_for_new_types_among_many_that_ran_again() -> None:
    quota = TypeQuota()
    for number in range(MAX_TYPES_PER_USER):
        for count in (1, 2):
            quota.ran(f"old {number}", 1000, a_run(GiB), count)
    run_once(quota, "new")
    assert quota.excess(is_unused) == ["old 0"]


def test_one_user_costs_another_nothing() -> None:
    quota = TypeQuota()
    run_once(quota, "of another", owner=1001)
    for number in range(2 * MAX_TYPES_PER_USER):
        run_once(quota, f"type {number}")
        assert "of another" not in quota.excess(is_unused)


def test_of_all_users_the_one_with_the_most_loses_one() -> None:
    quota = TypeQuota()
    for user in range(MAX_TYPES // MAX_TYPES_PER_USER):
        for number in range(MAX_TYPES_PER_USER):
            run_once(quota, f"{user} {number}", owner=user)
    run_once(quota, "small", owner=99)
    (dropped,) = quota.excess(is_unused)
    assert dropped != "small"


def test_long_names_and_many_runs_count_by_their_size() -> None:
    quota = TypeQuota()
    arguments = kept_arguments(LONG.items())
    number = 0
    while not quota.is_over():
        number += 1
        for count in range(1, RUNS_KEPT + 1):
            run = a_run(GiB, arguments=arguments)
            quota.ran(f"{number}" + "x" * 1000, 1000, run, count)
    assert number < MAX_BYTES_PER_USER // (RUNS_KEPT * 1000)
    assert MAX_BYTES_PER_USER < MAX_BYTES


def test_a_profile_that_is_full_does_not_grow() -> None:
    quota = TypeQuota()
    for _ in range(200_000):
        quota.ran("busy", 1000, a_run(GiB), RUNS_KEPT)
    assert not quota.is_over()


def test_arguments_are_cut_before_they_are_stored() -> None:
    kept = kept_arguments(LONG.items())
    assert sum(len(name) + len(str(value)) for name, value in kept) <= MAX_ARGUMENTS_BYTES
    assert kept == tuple(LONG.items())[: len(kept)]
    honest = {"batch_size": 64.0, "model": "resnet50", "lr": 0.1}
    assert kept_arguments(honest.items()) == tuple(honest.items())


def test_the_engine_forgets_what_is_too_much_in_memory_and_in_the_store() -> None:
    story = Story()
    known = story.engine.view.memory
    actions: list[object] = []
    for number in range(MAX_TYPES_PER_USER + 50):
        story.asks("a", job_type=f"type {number}", mem_bytes=GiB)
        story.ends("a", peak_bytes=GiB)
        actions += story.actions
    saved = sum(isinstance(one, SaveRun) for one in actions)
    dropped = [one.job_type for one in actions if isinstance(one, DropProfile)]

    assert saved == MAX_TYPES_PER_USER + 50
    assert len(known.profiles()) == len(known.quota) == MAX_TYPES_PER_USER
    assert dropped == [f"type {number}" for number in range(50)]
    assert not {"type 0", "type 49"} & {*known.changed, *known.woken}


def test_too_many_that_were_saved_are_forgotten_at_the_start() -> None:
    learned = tuple(
        a_profile(a_run(GiB, ended_at=float(number)), job_type=f"type {number}")
        for number in range(MAX_TYPES_PER_USER + 3)
    )
    engine = an_engine(profiles=learned)
    assert len(engine.view.memory.profiles()) == MAX_TYPES_PER_USER
    assert engine.view.memory.profile("type 0", learned[0].model) is None


@pytest.mark.parametrize("name", ["é" * 100, "😀" * 100])
def test_letters_that_are_wide_count_as_wide(name: str) -> None:
    assert len(kept_arguments([(name[:64], name[:64])] * 9)) <= 2
