"""Whose fault it is when memory runs out: a table of scenes, each of which can be told in words."""

from __future__ import annotations

import pytest

from grn.model.units import GiB
from grn.negotiator.learn.blame import Fault, Participant, Scene, judge


def a_job(used_gib: float, reserved_gib: float = 4, name: str = "a") -> Participant:
    return Participant(f"lease-{name}", f"{name}.py", int(reserved_gib * GiB), int(used_gib * GiB))


INSIDE, ABOVE = a_job(2, 6, "b"), a_job(9, 6, "c")


@pytest.mark.parametrize(
    ("used_gib", "asked_gib", "neighbours", "strangers_gib", "fault"),
    [
        # Nobody else is there; a desktop within the guard is nobody.
        (3, 30, [], 0, Fault.OWN),
        (3, None, [], 1, Fault.OWN),
        # It stays inside, and somebody beside it does not.
        (2, 1, [ABOVE], 0, Fault.NEIGHBOUR),
        (2, None, [ABOVE], 0, Fault.NEIGHBOUR),
        (2, 1, [INSIDE, ABOVE], 8, Fault.NEIGHBOUR),
        # Both are above.
        (5, 1, [ABOVE], 0, Fault.ABOVE),
        (3, 2, [ABOVE], 0, Fault.ABOVE),
        (5, None, [ABOVE], 0, Fault.ABOVE),
        # All are inside: nobody is to blame, if it is known what the job asked for.
        (2, 1, [INSIDE], 0, Fault.NOBODY),
        (2, None, [INSIDE], 0, Fault.ABOVE),
        (3, 2, [INSIDE], 0, Fault.ABOVE),
        # A process without a lease.
        (2, 1, [], 8, Fault.STRANGER),
        (2, None, [INSIDE], 8, Fault.STRANGER),
        (3, 30, [], 8, Fault.ABOVE),
    ],
)
def test_whose_fault_it_was(
    used_gib: float,
    asked_gib: float | None,
    neighbours: list[Participant],
    strangers_gib: int,
    fault: Fault,
) -> None:
    asked = None if asked_gib is None else int(asked_gib * GiB)
    verdict = judge(Scene(a_job(used_gib), asked, neighbours, strangers_gib * GiB, 2 * GiB))

    assert verdict.fault is fault
    assert verdict.is_victim == (fault in (Fault.NEIGHBOUR, Fault.STRANGER))
    assert verdict.is_innocent == (verdict.is_victim or fault is Fault.NOBODY)
    beside_others = fault is not Fault.OWN
    assert [part.lease for part in verdict.offenders] == (
        ["lease-c"] if beside_others and ABOVE in neighbours else []
    )
    assert verdict.text


def test_the_sentence_names_the_worst_neighbour_and_what_it_had() -> None:
    text = judge(Scene(a_job(2), GiB, [a_job(7, 6, "b"), ABOVE])).text

    assert text == (
        "ran out of memory because c.py (lease lease-c) and 1 more beside it grew beyond what it "
        "had (9.0 GiB of 6.0 GiB)"
    )


def test_who_asked_for_too_much_is_told_how_much() -> None:
    assert "needed 5.0 GiB where 4.0 GiB" in judge(Scene(a_job(3), 2 * GiB, [INSIDE])).text
    assert "4.0 GiB were not enough" in judge(Scene(a_job(3), None, [INSIDE])).text
    assert "8.0 GiB of its GPU" in judge(Scene(a_job(3), None, (), 8 * GiB, GiB)).text
