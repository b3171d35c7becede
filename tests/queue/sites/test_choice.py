"""Which places are asked for the lease of a job: a table of cases."""

from __future__ import annotations

import pytest

from grn.queue.sites.leases.choice import (
    LOCAL,
    MAX_ASKED,
    CandidateNode,
    CandidateNodes,
    Choice,
    choose,
    is_meant,
)
from tests.queue.builders import a_spec

GiB = 1 << 30


def _place(
    name: str, busy: int = 0, gpus: int = 1, is_up: bool = True, size: int = GiB, work_s: float = 0
) -> CandidateNode:
    site = LOCAL if name == LOCAL else "lab"
    return CandidateNode(name, site, is_up, (size,) * gpus, busy, work_s=work_s)


FOUR = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("places", "asked", "refused", "expected"),
    [
        ([], [], [], Choice()),
        ([_place(LOCAL)], [], [], Choice((LOCAL,))),
        # The least crowded first, this machine before others that are as crowded.
        ([_place("a", 1), _place("b"), _place(LOCAL)], [], [], Choice((LOCAL, "b", "a"))),
        ([_place("a", 3, gpus=4), _place("b", 1)], [], [], Choice(("a", "b"))),
        # A node that is away, or has refused, or was asked, is not asked.
        ([_place("a", is_up=False), _place("b")], [], [], Choice(("b",))),
        ([_place("a"), _place("b")], [], ["a"], Choice(("b",))),
        ([_place("a"), _place("b")], ["b"], [], Choice(("a",))),
        # At most four.
        ([_place(one) for one in "abcdef"], [], [], Choice(("a", "b", "c", "d"))),
        ([_place(one, 1) for one in "abcdef"], FOUR, [], Choice()),
        # A free one replaces the most crowded of four; not where that one has a free GPU too.
        (
            [_place("a", 1), _place("b", 5), _place("c", 2), _place("d", 1), _place("e")],
            FOUR, [], Choice(("e",), ("b",)),
        ),
        ([*(_place(one, 1, gpus=2) for one in FOUR), _place("e")], FOUR, [], Choice()),
        # Without a free GPU the one whose jobs end sooner comes first, and the latest is replaced.
        (
            [_place("a", 2, work_s=90), _place("b", 3, work_s=20), _place("c", 2, 2, work_s=60)],
            [], [], Choice(("b", "c", "a")),
        ),
        ([_place("a", 1), _place("b", 1, work_s=5), _place("c", 2, gpus=4, work_s=900)],
         [], [], Choice(("c", "a", "b"))),
        (
            [_place("a", 1, work_s=9), _place("b", 5), _place("c", 2), _place("d", 1), _place("e")],
            FOUR, [], Choice(("e",), ("a",)),
        ),
        # A place that is too small comes last, and replaces none.
        ([_place("a", size=1), _place("b", 9)], [], [], Choice(("b", "a"))),
        ([*(_place(one, 4) for one in FOUR), _place("e", size=1)], FOUR, [], Choice()),
        # A place of unknown size may be large enough.
        ([CandidateNode("a", "lab", True, (), 0), _place("b", 1)], [], [], Choice(("a", "b"))),
    ],
)  # fmt: skip
def test_the_places_that_are_asked(
    places: list[CandidateNode], asked: list[str], refused: list[str], expected: Choice
) -> None:
    assert choose(a_spec(mem_bytes=1000), CandidateNodes.of(places), asked, refused) == expected


@pytest.mark.parametrize(
    ("at", "expected"),
    [("", ("a", "b", LOCAL)), ("a", ("a",)), ("lab", ("a", "b")), (LOCAL, (LOCAL,)), ("c", ())],
)
def test_a_job_goes_to_the_site_or_node_that_it_names(at: str, expected: tuple[str, ...]) -> None:
    places = [_place("a"), _place("b"), _place(LOCAL, 1)]

    assert choose(a_spec(at=at), CandidateNodes.of(places), [], []).ask == expected
    assert [place.name for place in places if is_meant(at, place)] == list(expected)


def test_a_job_for_two_gpus_needs_two_that_are_large_enough() -> None:
    spec = a_spec(gpus=2, mem_bytes=GiB)
    places = [CandidateNode("a", "lab", True, (4 * GiB, 1), 0), _place("b", 5, gpus=2)]

    assert choose(spec, CandidateNodes.of(places), [], []).ask == ("b", "a")


def test_no_more_than_four_are_ever_asked() -> None:
    assert MAX_ASKED == 4
