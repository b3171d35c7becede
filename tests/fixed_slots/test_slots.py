"""Fixed slots: the order they are given in, and how they are held at a negotiator."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from grn.fixed_slots.slot_leases import shares
from grn.fixed_slots.slots import FixedSlots
from grn.group.task import CommandEnd, Slot
from tests.conftest import Negotiators
from tests.group.runner_parts import run, sh
from tests.harness import Negotiator, Story, wait_for

KNOWN: list[dict[str, Any]] = [
    {"index": 0, "uuid": "GPU-aaa0"},
    {"index": 1, "uuid": "GPU-aab1"},
    {"index": 2, "uuid": "GPU-bbb2"},
]


def granted(slots: FixedSlots) -> list[str]:
    return [grant.slot.name for grant in slots.grants() if grant.slot is not None]


def test_slots_are_a_stack() -> None:
    slots = FixedSlots("abc")
    for number in range(3):
        assert slots.has_room()
        slots.ask(sh("true", number))
    assert granted(slots) == ["c", "b", "a"]

    assert slots.has_room()
    slots.ask(sh("true", 3))
    assert not slots.has_room()  # one is kept at hand, no more
    assert granted(slots) == []
    for name in "ab":
        slots.give(CommandEnd(sh("true"), Slot(name, {}), 0, 0.0, 0.0))
    assert granted(slots) == ["b"]


def test_a_slot_sets_one_variable() -> None:
    slots = FixedSlots(["0,1"])
    slots.ask(sh("true"))
    (grant,) = slots.grants()

    assert grant.slot == Slot("0,1", {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (["0", "1"], {"0": {"GPU-aaa0"}, "1": {"GPU-aab1"}}),
        (["0", "GPU-aaa0", "GPU-aaa"],
         {"0": {"GPU-aaa0"}, "GPU-aaa0": {"GPU-aaa0"}, "GPU-aaa": {"GPU-aaa0"}}),
        (["0,1", "1, 2"], {"0,1": {"GPU-aaa0", "GPU-aab1", "GPU-bbb2"},
                           "1, 2": {"GPU-aaa0", "GPU-aab1", "GPU-bbb2"}}),
        (["7", "GPU-aa", "", "MIG-x", "0,7"], {}),
    ],
)  # fmt: skip
def test_what_is_to_be_leased_for_which_slot(
    slots: list[str], expected: dict[str, set[str]]
) -> None:
    found = shares(slots, KNOWN)

    assert {slot: set(share.gpus) for slot, share in found.items()} == expected


def test_slots_that_share_gpus_share_a_lease() -> None:
    found = shares(["0", "1", "0,2", "1"], KNOWN)

    assert found["0"] is found["0,2"]
    assert found["0"] is not found["1"]


# --- with a negotiator ---------------------------------------------------------------------


def held(here: Negotiator) -> list[list[int]]:
    return sorted(lease["gpus"] for lease in here.leases())


def test_what_is_used_is_held_to_the_end_and_then_free(negotiator: Negotiators) -> None:
    here = negotiator("virtual:3x256MiB")
    seen: list[list[list[int]]] = []
    ear = run(
        [sh("true 1"), sh("true 2"), sh("true 3")],
        FixedSlots(["0", "2,1"]),
        lambda runner, ended: seen.append(held(here)),
    )

    assert set(ear.statuses.values()) == {0}
    assert [1, 2] in seen[-1]
    wait_for(lambda: not here.leases(), "all to be free again")


def test_the_same_gpu_in_several_slots_does_not_wait_for_itself(negotiator: Negotiators) -> None:
    negotiator("virtual:2x256MiB")
    ear = run([sh(f"true {n}") for n in range(6)], FixedSlots(["0", "0", "0,1", "1"]))

    assert len(ear.ends) == 6


def test_a_gpu_in_use_is_passed_over_while_another_is_free(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator("virtual:2x256MiB")
    story.hold("other", mem="64MiB")
    story.hear("other runs")  # on GPU 0, the first
    said: list[str] = []
    ear = run([sh("true 1"), sh("true 2")], FixedSlots(["1", "0"], say=said.append))
    story.gate("other").open()

    assert ear.starts == [("true 1", "1"), ("true 2", "1")]
    (text,) = said
    assert re.fullmatch(
        r"waiting for GPU 0: needs a GPU to itself; GPU 0 has .* \(lease \w+\)", text
    )


def test_gpus_that_the_negotiator_does_not_know_are_simply_used(negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x256MiB")
    seen: list[list[list[int]]] = []
    ear = run([sh("true")], FixedSlots(["9"]), lambda runner, ended: seen.append(held(here)))

    assert ear.starts == [("true", "9")]
    assert seen == [[]]


def test_under_a_lease_that_lease_serves(
    story: Story, negotiator: Negotiators, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = negotiator("virtual:1x256MiB")
    story.hold("outer", mem="64MiB")
    story.hear("outer runs")
    monkeypatch.setenv("GRN_LEASE", here.leases()[0]["id"])
    ear = run([sh("true")], FixedSlots(["0"]))
    story.gate("outer").open()

    assert ear.statuses == {"true": 0}


@pytest.mark.slow
def test_a_negotiator_that_dies_while_it_is_waited_for_is_done_without(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:1x256MiB")
    story.hold("other", mem="64MiB")
    story.hear("other runs")
    ear = run([sh("true")], FixedSlots(["0"], say=lambda text: here.kill()))
    story.gate("other").open()

    assert ear.statuses == {"true": 0}


def test_a_socket_where_nobody_answers_is_no_negotiator(story: Story) -> None:
    os.makedirs(story.env["GRN_RUNTIME_DIR"])
    open(f"{story.env['GRN_RUNTIME_DIR']}/{os.getuid()}.sock", "w").close()

    assert run([sh("true")], FixedSlots(["0"])).statuses == {"true": 0}
