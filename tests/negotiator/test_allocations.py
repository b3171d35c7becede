"""The index of GPUs and of those who wait: it finds the same as looking at all of them."""

from __future__ import annotations

import math
import random

import pytest

from grn.model.units import GiB
from grn.negotiator.schedule.placement import FreeSpace, is_calm, is_empty, is_taking
from grn.negotiator.schedule.room.ledger import Book, Rules
from grn.negotiator.schedule.room.room_index import MANY, RoomIndex
from grn.negotiator.schedule.turns.order import Reach, Refusal, WaitingRequest
from grn.negotiator.schedule.turns.wait_index import MAX_REACHES, Ahead, Rooms
from grn.negotiator.schedule.turns.wait_queue import Waitlist
from tests.builders import Story, a_gpu, a_lease, a_reading, a_request, a_use, some_gpus


def an_index(count: int) -> tuple[RoomIndex, dict[str, Book]]:
    books: dict[str, Book] = {}
    rooms = RoomIndex(books)
    for index in range(count):
        gpu = a_gpu(index)
        books[gpu.uuid] = Book(gpu, 0, a_reading(gpu))
        rooms.watch(books[gpu.uuid])
    return rooms, books


@pytest.mark.parametrize("count", [3, MANY + 40])
def test_what_the_index_says_is_what_the_books_say(count: int) -> None:
    rooms, books = an_index(count)
    draw = random.Random(count)
    for number in range(300):
        book = books[f"GPU-{draw.randrange(count)}"]
        if book.leases and draw.random() < 0.5:
            book.take(next(iter(book.leases)))
        else:
            size = draw.randrange(1, 4) * GiB
            book.put(a_lease(f"n{number}", size, gpus=(book.gpu.uuid,)))
        room = rooms.room()
        taking = sorted(each.most_takeable_bytes for each in books.values() if is_taking(each))
        assert [size for size, _ in room.free] == taking
        assert room.empty == sum(map(is_empty, books.values()))
        closed = draw.sample(sorted(books), 2)
        rest = [each for each in books.values() if each.gpu.uuid not in closed and is_taking(each)]
        rest.sort(key=lambda each: each.most_takeable_bytes)
        assert rooms.room(closed).most(1) == rest[-1].most_takeable_bytes
        roomiest = [each.most_takeable_bytes for each in rooms.roomiest(4, closed)]
        assert roomiest == [each.most_takeable_bytes for each in rest[:-5:-1]]
        rooms.check()


@pytest.mark.parametrize("count", [3, MANY + 40])
def test_parts_of_the_gpus_stay_in_order(count: int) -> None:
    rooms, books = an_index(count)
    draw = random.Random(count)
    parts = [Reach(tuple(sorted(books)[:size])) for size in (1, 2, count - 1)]
    for number in range(600):
        book = books[f"GPU-{draw.randrange(count)}"]
        if book.leases and draw.random() < 0.5:
            book.take(next(iter(book.leases)))
        else:
            size, is_probe = draw.randrange(1, 4) * GiB, draw.random() < 0.2
            lease = a_lease(f"n{number}", size, gpus=(book.gpu.uuid,), is_probe=is_probe)
            book.put(lease)
        reach = draw.choice(parts)
        booked = frozenset(draw.sample(sorted(books), draw.choice([0, 1, count // 2])))
        here = [books[uuid] for uuid in reach.gpus if uuid not in booked]
        room = rooms.room((), reach, booked)
        for entries, is_open in (
            (room.free, is_taking),
            (room.calm, lambda one: is_taking(one) and is_calm(one)),
            (room.for_probe, lambda one: is_taking(one) and not one.has_probe),
        ):
            expected = sorted(one.most_takeable_bytes for one in here if is_open(one))
            assert [size for size, _ in entries] == expected
        assert room.empty == sum(map(is_empty, here))
    rooms.check()


def test_a_gpu_with_a_first_run_has_no_room_for_another() -> None:
    rooms, books = an_index(2)
    books["GPU-0"].put(a_lease("a", GiB, is_probe=True))
    assert rooms.room().has(1, 2 * GiB)
    assert rooms.room().has(1, 2 * GiB, is_probe=True)

    books["GPU-1"].put(a_lease("b", GiB, gpus=("GPU-1",), is_probe=True))
    assert rooms.room().has(1, 2 * GiB)
    assert not rooms.room().has(1, 2 * GiB, is_probe=True)


def test_closed_gpus_give_no_room() -> None:
    rooms, books = an_index(2)
    books["GPU-0"].put(a_lease("a", 20 * GiB))

    assert rooms.room().has(1, 20 * GiB)
    assert not rooms.room(["GPU-1"]).has(1, 20 * GiB)
    assert rooms.room(["GPU-1"]).empty == 0


def test_of_very_many_gpus_the_one_that_fits_is_found() -> None:
    """All but one are full; then that one is full as well."""
    story = Story(some_gpus(3 * MANY))
    for number in range(3 * MANY - 1):
        assert story.asks(f"x{number}", mem_bytes=23 * GiB, job_type="x")
    assert story.asks("a", mem_bytes=20 * GiB) == ["a"]
    assert story.asks("b", mem_bytes=20 * GiB) == []
    assert story.asks("small", mem_bytes=GiB) == ["small"]
    assert story.ends("x7") == ["b"]
    assert story.gpus("b") == story.gpus("x7")


def test_a_gang_is_placed_on_very_many_gpus() -> None:
    story = Story(some_gpus(2 * MANY))
    for number in range(2 * MANY - 3):
        story.asks(f"x{number}", mem_bytes=23 * GiB, job_type="x")

    assert story.asks("gang", gpus=4, mem_bytes=20 * GiB) == []
    assert story.ends("x1") == ["gang"]


def test_of_very_many_gpus_some_are_reserved_for_a_starving_gang() -> None:
    story = Story(some_gpus(2 * MANY), Rules(patience_s=100.0))
    for number in range(2 * MANY):
        story.asks(f"x{number}", mem_bytes=20 * GiB, job_type="x")
    assert story.asks("gang", gpus=2, mem_bytes=20 * GiB) == []
    story.passes(150)

    assert story.ends(f"x{2 * MANY - 1}") == []
    assert story.asks("late", mem_bytes=20 * GiB) == []
    assert story.asks("small", mem_bytes=GiB) == ["small"]
    assert story.ends("x7") == ["gang"]
    assert story.ends("x8") == ["late"]


def waitlist_of(needs: dict[str, float]) -> Waitlist:
    waitlist = Waitlist()
    for place, (key, need) in enumerate(needs.items()):
        group = waitlist.add(
            WaitingRequest(a_request(key, job_type=key), place, 0.0), is_pinned=False
        )
        waitlist.refuse(group, Refusal(key, 0, need_bytes=need))
    return waitlist


def found(waitlist: Waitlist, most: float, empty: int = 0, guess: float = math.inf) -> list[str]:
    """Return the groups that may fit on GPUs with this room, by their first keys."""
    room = FreeSpace([(most, 0), (most, 1)], empty, [], [(most, 0), (most, 1)])
    groups = waitlist.candidates((-1, 0, 0, 0.0, 0), lambda reach: Rooms(lambda *_: room), guess)
    return [group.head.request.key for group in groups]


def test_every_room_holds_a_request_without_gpus() -> None:
    closed = FreeSpace([(0, 0)], 0, [(0, 0)], [], {0})
    assert closed.has(0, 1 * GiB)
    assert FreeSpace([], 0, [], []).has(0, 0, is_load_known=True)


def test_groups_that_fit_are_found_in_turn() -> None:
    draw = random.Random(1)
    needs = {f"k{n}": draw.randrange(1, 40) * GiB / 7 for n in range(200)}
    waitlist = waitlist_of(needs)
    for most in (GiB, 2.5 * GiB, 4 * GiB, 100 * GiB):
        assert found(waitlist, most) == [key for key, need in needs.items() if need <= most]


def test_a_request_that_leaves_is_not_found_and_one_that_is_woken_is() -> None:
    waitlist = waitlist_of({"a": GiB, "b": 9 * GiB})
    waitlist.pop("a")
    assert found(waitlist, 2 * GiB) == []

    waitlist.wake("b")
    assert found(waitlist, 2 * GiB) == ["b"]
    waitlist.settle(waitlist.group_of("b"))
    assert found(waitlist, 2 * GiB) == []


def test_a_group_that_needs_a_guess_or_empty_gpus_is_found_while_there_are_any() -> None:
    waitlist = waitlist_of({"a": GiB})
    for place, key in enumerate(("unknown", "alone", "gang"), 1):
        group = waitlist.add(
            WaitingRequest(a_request(key, job_type=key), place, 0.0), is_pinned=False
        )
        gpus = 2 if key == "gang" else 1
        is_alone = key != "unknown"
        refused = Refusal(key, 0, None, gpus, is_alone, math.inf, is_guess=not is_alone)
        waitlist.refuse(group, refused)

    assert found(waitlist, GiB // 2, guess=GiB) == []
    assert found(waitlist, 2 * GiB, guess=3 * GiB) == ["a"]
    assert found(waitlist, 2 * GiB, guess=GiB) == ["a", "unknown"]
    assert found(waitlist, 0, empty=1, guess=GiB) == ["alone"]
    assert found(waitlist, 2 * GiB, empty=2, guess=GiB) == ["a", "unknown", "alone", "gang"]


def test_a_group_waits_for_room_on_the_gpus_that_it_may_use() -> None:
    waitlist = waitlist_of({"any": GiB, "first": GiB, "pinned": GiB})
    waitlist.refuse(waitlist.group_of("first"), Refusal("first", 0, reach=Reach(("GPU-0",))))
    there = Reach(("GPU-1",), is_pinned=True)
    waitlist.refuse(waitlist.group_of("pinned"), Refusal("pinned", 0, reach=there))

    def on(gpu: str) -> list[str]:
        some, none = FreeSpace([(2 * GiB, 0)], 0, [], []), FreeSpace([], 0, [], [])

        def rooms(reach: Reach) -> Rooms:
            return Rooms(lambda *_: some if gpu in reach.gpus else none)

        groups = waitlist.candidates((-1, 0, 0, 0.0, 0), rooms, math.inf)
        return [group.head.request.key for group in groups]

    assert (on("GPU-0"), on("GPU-1"), on("GPU-2")) == (["first"], ["pinned"], [])


def test_reserved_gpus_count_only_for_jobs_that_end_in_time() -> None:
    lasting = {"short": 10.0, "just": 61.0, "late": 63.0, "long": 900.0, "unknown": math.inf}
    waitlist = waitlist_of(dict.fromkeys(lasting, GiB))
    for key, lasts_s in lasting.items():
        refused = Refusal(key, 0, need_bytes=GiB, lasts_s=lasts_s)
        waitlist.refuse(waitlist.group_of(key), refused)
    reserved, none = FreeSpace([(2 * GiB, 0)], 0, [], []), FreeSpace([], 0, [], [])
    rooms = Rooms(lambda is_backfill, _: reserved if is_backfill else none, 62.0)
    groups = waitlist.candidates((-1, 0, 0, 0.0, 0), lambda _: rooms, math.inf)
    assert [group.head.request.key for group in groups] == ["short", "just"]


def test_booked_gpus_count_only_for_jobs_that_end_before_the_booking() -> None:
    lasting = {"short": 10.0, "just": 62.0, "late": 63.0, "long": 900.0, "unknown": math.inf}
    waitlist = waitlist_of(dict.fromkeys(lasting, GiB))
    for key, lasts_s in lasting.items():
        refused = Refusal(key, 0, need_bytes=GiB, lasts_s=lasts_s)
        waitlist.refuse(waitlist.group_of(key), refused)
    some, none = FreeSpace([(2 * GiB, 0)], 0, [], []), FreeSpace([], 0, [], [])

    def found_before(unknown_s: float) -> list[str]:
        ahead = Ahead((frozenset(), frozenset({"GPU-0"})), (62.0,), unknown_s)
        rooms = Rooms(lambda _, closed: none if closed else some, ahead=ahead)
        groups = waitlist.candidates((-1, 0, 0, 0.0, 0), lambda _: rooms, math.inf)
        return [group.head.request.key for group in groups]

    assert found_before(unknown_s=900.0) == ["short", "just"]
    assert found_before(unknown_s=30.0) == list(lasting)  # some may have a time limit


def test_more_sets_of_gpus_than_are_told_apart_are_asked_at_every_event() -> None:
    waitlist = waitlist_of({f"k{n}": GiB for n in range(MAX_REACHES + 2)})
    for n in range(1, MAX_REACHES + 2):
        refused = Refusal(f"k{n}", 0, need_bytes=GiB, reach=Reach((f"GPU-{n}",)))
        waitlist.refuse(waitlist.group_of(f"k{n}"), refused)

    assert found(waitlist, 0) == [f"k{MAX_REACHES}", f"k{MAX_REACHES + 1}"]


def test_a_pinned_process_may_use_its_own_memory_again() -> None:
    rooms, books = an_index(2)
    books["GPU-0"].put(a_lease("a", 20 * GiB))
    books["GPU-0"].read(a_reading(books["GPU-0"].gpu, a_use(7, 3 * GiB)))
    here = ("GPU-0",)

    assert rooms.room((), Reach(here)).most(1) == GiB
    assert rooms.room((), Reach(here, is_pinned=True)).most(1) == 4 * GiB
    assert rooms.room(here, Reach(here, is_pinned=True)).most(1) == -math.inf
