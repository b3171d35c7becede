"""Which GPUs go together."""

import random
from itertools import combinations

import pytest

from grn.model.gpu import Link, LinkKind
from grn.model.job import Policy
from grn.model.units import GiB
from grn.negotiator.schedule.gang import best_linked
from grn.negotiator.schedule.placement import Need, Place, place
from tests.builders import Story, a_book, a_gpu, a_lease, a_profile, a_request

NVLINK, SWITCH, SOCKET = LinkKind
# Eight GPUs as in a DGX-1: two squares with all diagonals, joined corner to corner.
MESH = [
    *((a, b, NVLINK, 2 if (a, b) in {(0, 3), (1, 2), (4, 7), (5, 6)} else 1)
      for half in ((0, 1, 2, 3), (4, 5, 6, 7)) for a, b in combinations(half, 2)),
    *((a, a + 4, NVLINK, 2) for a in range(4)),
]  # fmt: skip
BRIDGES = [(0, 1, NVLINK, 4), (2, 3, NVLINK, 4), (0, 2, SWITCH, 0), (1, 3, SOCKET, 0)]


def some(count, links=(), **changes):
    """Return GPUs joined as listed: one, the other, how, by how many lanes."""
    found = {index: [] for index in range(count)}
    for one, other, kind, lanes in links:
        found[one].append(Link(f"GPU-{other}", kind, lanes))
        found[other].append(Link(f"GPU-{one}", kind, lanes))
    return [a_gpu(index, links=tuple(found[index]), **changes) for index in range(count)]


def chosen(gpus, count, taken=(), **changes):
    """Return where a gang goes when some GPUs have a job already."""
    books = [
        a_book(gpu, [a_lease(f"x{gpu.index}", GiB, gpus=(gpu.uuid,))] if gpu.index in taken else [])
        for gpu in gpus
    ]
    needs = {gpu.model: Need(4 * GiB, False, "as stated") for gpu in gpus}
    answer = place(a_request(gpus=count, **changes), needs, books)
    assert isinstance(answer, Place)
    assert len(set(answer.reserved)) == 1
    return sorted(int(uuid.removeprefix("GPU-")) for uuid in answer.gpus)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [([], [0, 1]), ([0], [2, 3]), ([1], [2, 3]), ([2], [0, 1]), ([0, 3], [1, 2])],
)
def test_a_pair_gets_a_bridge_of_gpus_without_jobs_if_there_is_one(taken, expected):
    assert chosen(some(4, BRIDGES), 2, taken) == expected


def test_a_link_makes_up_for_no_gpu_that_has_a_job():
    assert chosen(some(4, BRIDGES), 2, taken=[0, 2]) == [1, 3]


@pytest.mark.parametrize("policy", Policy)
def test_with_pack_a_bridge_comes_before_the_fullest_gpus(policy):
    taken = [1, 2] if policy is Policy.PACK else []

    assert chosen(some(4, BRIDGES), 2, taken, policy=policy) == [0, 1]


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([(0, 1, SOCKET, 0), (2, 3, SWITCH, 0)], [2, 3]),
        ([(0, 1, SWITCH, 0), (1, 3, NVLINK, 0)], [1, 3]),
        ([(0, 1, NVLINK, 2), (1, 3, NVLINK, 4)], [1, 3]),
        ([(0, 3, SOCKET, 0)], [0, 3]),
        ([], [0, 1]),
    ],
)
def test_nvlink_comes_before_a_switch_before_a_socket_before_the_unknown(links, expected):
    assert chosen(some(4, links), 2) == expected


@pytest.mark.parametrize(
    ("taken", "expected"),
    [([], [0, 1, 2, 3]), ([1], [4, 5, 6, 7]), ([0, 1, 2, 3], [4, 5, 6, 7])],
)
def test_four_of_a_mesh_of_eight_are_all_linked_to_each_other(taken, expected):
    assert chosen(some(8, MESH), 4, taken) == expected


def test_a_pair_of_a_mesh_has_the_most_lanes():
    one, other = chosen(some(8, MESH), 2)

    assert (one, other, NVLINK, 2) in MESH


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_where_no_link_is_known_all_is_as_without_links(count):
    assert chosen(some(8), count) == list(range(count))


@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_of_very_many_gpus_a_gang_gets_those_of_one_board(count):
    board = 16
    links = [
        (a, b, NVLINK, 0)
        for first in range(0, 1000 - board, board)
        for a, b in combinations(range(first, first + board), 2)
    ]
    gpus = some(1000, links)[3:]

    places, (weakest, _) = best_linked(gpus, count)
    assert len({gpus[place].index // board for place in places}) == 1 or count == board
    assert weakest > 0 or count == board  # the first board lacks three


def weakest_link(gpus):
    links = [{link.to: link.kind for link in gpu.links} for gpu in gpus]
    kinds = [links[a].get(gpus[b].uuid) for a, b in combinations(range(len(gpus)), 2)]
    return min(0 if kind is None else 3 - list(LinkKind).index(kind) for kind in kinds)


def test_growing_a_set_finds_what_trying_all_finds_in_most_machines():
    draw, worse = random.Random(7), 0
    for _ in range(20):
        gpus = some(12, [
            (a, b, kind, 0) for a, b in combinations(range(12), 2)
            if (kind := draw.choice([NVLINK, SWITCH, SOCKET, None]))
        ])  # fmt: skip
        places, _ = best_linked(gpus, 4)  # of 495 sets: too many to try
        best = max(map(weakest_link, combinations(gpus, 4)))
        worse += weakest_link([gpus[place] for place in places]) < best
    assert worse <= 4


# --- GPUs of different models --------------------------------------------------------------


def a_mixed_machine(*models):
    return [a_gpu(index, model=model) for index, model in enumerate(models)]


@pytest.mark.parametrize(
    ("models", "taken", "expected"),
    [
        ("abab", [], [0, 2]),
        ("abba", [], [0, 3]),
        ("abb", [], [1, 2]),
        ("abab", [0], [1, 3]),
        ("abb", [1], [1, 2]),  # a mixed gang is as slow as its slowest: rather share
        ("ab", [], [0, 1]),
    ],
)
def test_a_gang_gets_gpus_of_one_model_if_it_can(models, taken, expected):
    assert chosen(a_mixed_machine(*models), 2, taken) == expected


def test_a_gang_of_several_models_reserves_alike_on_all():
    gpus = a_mixed_machine("a", "b")
    needs = {"a": Need(4 * GiB, False, "seen"), "b": Need(6 * GiB, False, "seen")}

    answer = place(a_request(gpus=2), needs, [a_book(gpu) for gpu in gpus])
    assert answer == Place(("GPU-0", "GPU-1"), (6 * GiB, 6 * GiB), is_probe=False)


@pytest.mark.parametrize("policy", Policy)
def test_a_gang_of_several_models_may_be_a_first_run_on_one_of_them(policy):
    gpus = a_mixed_machine("a", "b")
    needs = {"a": Need(4 * GiB, False, "seen"), "b": Need(6 * GiB, True, "never measured")}

    answer = place(a_request(gpus=2, policy=policy), needs, [a_book(gpu) for gpu in gpus])
    assert isinstance(answer, Place)
    assert answer.is_probe
    assert set(answer.gpus) == {"GPU-0", "GPU-1"}


def test_two_first_runs_do_not_meet_in_a_gang_of_several_models():
    gpus = a_mixed_machine("a", "b")
    measured = a_lease("x", GiB, gpus=("GPU-0",), is_probe=True)
    needs = {"a": Need(4 * GiB, False, "seen"), "b": Need(6 * GiB, True, "never measured")}

    answer = place(a_request(gpus=2), needs, [a_book(gpus[0], [measured]), a_book(gpus[1])])
    assert not isinstance(answer, Place)


def test_a_job_of_one_gpu_does_not_care_for_links():
    gpus = some(4, [(2, 3, NVLINK, 4)])

    assert chosen(gpus, 1) == [0]


def test_a_gang_comes_to_a_bridge_through_the_engine_and_its_job_alone_does_not():
    story = Story(some(4, BRIDGES), profiles=(a_profile(4 * GiB, 4 * GiB),))
    story.asks("a")
    story.asks("b", gpus=2)

    assert (story.gpus("a"), story.gpus("b")) == ([0], [2, 3])
    assert len(set(story.leases["b"].reserved)) == 1


@pytest.mark.parametrize("policy", Policy)
def test_a_gang_may_be_known_on_one_model_and_a_first_run_on_another(policy):
    books = [a_book(a_gpu(0, model="Old")), a_book(a_gpu(1, model="New"))]
    needs = {"Old": Need(4 * GiB, False, "known"), "New": Need(9 * GiB, True, "guessed")}

    answer = place(a_request(gpus=2, policy=policy), needs, books)

    assert isinstance(answer, Place)
    assert set(answer.gpus) == {"GPU-0", "GPU-1"}
