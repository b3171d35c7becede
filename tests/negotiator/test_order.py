"""Whose turn it is."""

import math

import pytest

from grn.model.job import Policy
from grn.negotiator.schedule.placement import FreeSpace
from grn.negotiator.schedule.turns.order import Reach, Refusal, WaitingRequest, turn
from grn.negotiator.schedule.turns.wait_index import Rooms
from grn.negotiator.schedule.turns.wait_queue import MAX_SET_APART, Waitlist
from tests.builders import a_holder, a_request


def a_waitlist(*waiting, is_pinned=False):
    waitlist = Waitlist()
    for one in waiting:
        waitlist.add(one, is_pinned)
    return waitlist


def a_waiting(key, sequence=0, since=0.0, **changes):
    return WaitingRequest(a_request(key, **changes), sequence, since)


def in_turn(waitlist):
    return [waiting.request.key for waiting in sorted(waitlist, key=turn)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (a_waiting("a", 1), a_waiting("b", 2)),
        (a_waiting("a", 2, priority=1), a_waiting("b", 1)),
        (a_waiting("a", 1), a_waiting("b", 2, priority=-1)),
        (a_waiting("a", 2, attempt=1), a_waiting("b", 1)),
        (a_waiting("a", 2, attempt=1), a_waiting("b", 1, priority=9)),
        (a_waiting("a", 1, attempt=1), a_waiting("b", 2, attempt=2)),
        (a_waiting("a", 2, attempt=1, priority=1), a_waiting("b", 1, attempt=1)),
    ],
)
def test_retries_come_first_then_priority_then_age(first, second):
    assert in_turn(a_waitlist(second, first)) == ["a", "b"]
    heads = [group.head.request.key for group in a_waitlist(first, second).in_turn()]
    assert heads[0] == "a"


def keys(group):
    return [waiting.request.key for waiting in group.in_line()]


def test_requests_that_are_alike_wait_in_one_group():
    waitlist = a_waitlist(a_waiting("a", 1), a_waiting("b", 2), a_waiting("c", 3, pid=7))

    (group,) = waitlist.in_turn()
    assert keys(group) == ["a", "b", "c"]
    assert group.head.request.key == "a"


@pytest.mark.parametrize(
    "difference",
    [
        {"job_type": "other.py"},
        {"user": 1001},
        {"priority": 1},
        {"gpus": 2},
        {"mem_bytes": 5},
        {"is_exclusive": True},
        {"policy": Policy.PACK},
        {"slots": ("0",)},
        {"stay": ("GPU-0",)},
        {"attempt": 1},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_requests_that_differ_in_what_counts_wait_apart(difference):
    waitlist = a_waitlist(a_waiting("a", 1), a_waiting("b", 2, **difference))

    assert len(list(waitlist.in_turn())) == 2


def test_a_process_that_cannot_move_waits_apart_from_all_others():
    waitlist = a_waitlist(a_waiting("a", 1, pid=7))
    waitlist.add(a_waiting("b", 2, pid=7), is_pinned=True)
    waitlist.add(a_waiting("c", 3, pid=8), is_pinned=True)
    waitlist.add(a_waiting("d", 4, pid=8), is_pinned=True)

    assert [keys(group) for group in waitlist.in_turn()] == [["a"], ["b"], ["c", "d"]]


def test_one_that_comes_back_takes_its_old_place_among_its_like():
    waitlist = a_waitlist(*(a_waiting("abcd"[place], place) for place in (2, 0, 3, 1)))

    (group,) = waitlist.in_turn()
    assert keys(group) == ["a", "b", "c", "d"]


def test_one_whose_process_cannot_move_any_more_is_set_apart_in_its_place():
    waitlist = a_waitlist(*(a_waiting(key, n, pid=5 + n) for n, key in enumerate("abc")))
    first = waitlist.group_of("a").head
    waitlist.set_apart(first)
    apart = waitlist.group_of("a")
    waitlist.set_apart(first)

    assert waitlist.group_of("a") is apart
    assert [keys(group) for group in waitlist.in_turn()] == [["a"], ["b", "c"]]


def test_all_a_process_waits_for_is_set_apart_but_not_what_it_asks_for_children():
    waitlist = a_waitlist(
        a_waiting("a", 0, pid=5),
        a_waiting("b", 1, pid=6),
        a_waiting("c", 2, pid=5),
        a_waiting("d", 3, pid=5, is_command=True),
        a_waiting("e", 4, pid=5, gpus=2),
    )
    waitlist.on_gpu("GPU-0", {5, 7})
    waitlist.pin_some()

    groups = [keys(group) for group in waitlist.in_turn()]
    assert groups == [["a", "c"], ["b", "d"], ["e"]]
    for key in "abcde":
        waitlist.pop(key)
    waitlist.on_gpu("GPU-0", {5})
    waitlist.pin_some()
    assert len(waitlist) == 0


def woken(waitlist):
    """Return the first keys of the groups that are asked though no GPU has room."""
    none = FreeSpace([], 0, [], [])
    groups = waitlist.candidates((-1, 0, 0, 0.0, 0), lambda reach: Rooms(lambda *_: none), math.inf)
    return [group.head.request.key for group in groups]


def test_a_refusal_of_its_former_group_does_not_hold_for_a_request_that_is_set_apart():
    waitlist = a_waitlist(a_waiting("a", 0, pid=5), a_waiting("b", 1, pid=6))
    waitlist.refuse(waitlist.group_of("a"), Refusal("train.py", 1))
    waitlist.on_gpu("GPU-0", {5})
    waitlist.pin_some()

    assert waitlist.group_of("a").refused is None
    assert woken(waitlist) == ["a"]


def test_requests_of_a_process_are_asked_again_when_it_comes_to_a_gpu_or_leaves_one():
    waitlist = a_waitlist(a_waiting("a", 0, pid=5), a_waiting("b", 1, pid=6), is_pinned=True)

    def refuse(key, *gpus):
        waitlist.refuse(waitlist.group_of(key), Refusal("train.py", 1, reach=Reach(gpus, True)))

    refuse("a", "GPU-0")
    refuse("b", "GPU-0")
    waitlist.on_gpu("GPU-0", {5, 6, 7})
    assert woken(waitlist) == []
    waitlist.on_gpu("GPU-0", {6})
    assert woken(waitlist) == ["a"]
    refuse("a")
    waitlist.on_gpu("GPU-1", {5})
    assert woken(waitlist) == ["a"]


def test_very_many_requests_of_a_process_are_set_apart_in_parts():
    count = MAX_SET_APART + 1
    waitlist = a_waitlist(*(a_waiting(f"k{n}", n, pid=5) for n in range(count)))
    waitlist.on_gpu("GPU-0", {5})
    waitlist.pin_some()
    assert [len(group.members) for group in waitlist.in_turn()] == [MAX_SET_APART, 1]
    waitlist.pin_some()

    assert [len(group.members) for group in waitlist.in_turn()] == [count]


def test_the_order_of_all_requests_follows_each_that_comes_or_goes():
    waitlist = a_waitlist(
        *(a_waiting(f"k{n}", n, priority=n % 3, gpus=1 + n % 2) for n in range(9))
    )
    for number in (20, 21):
        waitlist.ordered()
        waitlist.add(a_waiting(f"k{number}", number, priority=1), is_pinned=False)
        waitlist.pop(f"k{number - 18}")
        assert waitlist.ordered() == sorted(waitlist, key=turn)


def test_a_waitlist_knows_who_waits():
    waitlist = a_waitlist(a_waiting("a", 1), a_waiting("b", 2, priority=3))

    assert len(waitlist) == 2
    assert "a" in waitlist
    assert "x" not in waitlist
    assert waitlist.group_of("x") is None
    assert waitlist.group_of("b").head.request.key == "b"


def test_taking_out_the_last_of_a_group_ends_the_group():
    waitlist = a_waitlist(a_waiting("a", 1), a_waiting("b", 2))

    assert waitlist.pop("a").sequence == 1
    assert waitlist.pop("a") is None
    assert [group.head.request.key for group in waitlist.in_turn()] == ["b"]
    assert waitlist.pop("b").sequence == 2
    assert (len(waitlist), list(waitlist.in_turn()), list(waitlist)) == (0, [], [])


def test_the_longest_wait_is_known():
    waitlist = a_waitlist(a_waiting("a", 1, since=30.0), a_waiting("b", 2, since=20.0, gpus=2))

    assert waitlist.oldest_since() == 20.0
    assert Waitlist().oldest_since() == math.inf


def test_who_holds_makes_no_difference_while_it_can_move():
    waitlist = a_waitlist(
        a_waiting("a", 1, holder=a_holder(1)), a_waiting("b", 2, holder=a_holder(2))
    )

    assert len(list(waitlist.in_turn())) == 1
