"""What a GPU has promised, what it really holds, and what is free."""

import pytest

from grn.model.gpu import GpuHealth, Reading
from grn.model.units import GiB, MiB
from grn.negotiator.events import LeaseState
from grn.negotiator.schedule.room.ledger import Guard, check_books
from tests.builders import a_book, a_gpu, a_lease, a_reading, a_use, a_virtual_gpu


def grown(gib: int) -> int:
    """Return what a job is counted with that has more than it reserved."""
    return gib * GiB + gib * GiB // 10


@pytest.mark.parametrize(
    ("guard", "total_bytes", "guard_bytes"),
    [
        (Guard(), 40 * GiB, 2 * GiB + 512 * MiB),
        (Guard(), 24 * GiB, int(1.2 * GiB) + 512 * MiB),
        (Guard(), 480 * MiB, 24 * MiB + 10 * MiB),  # the fixed part scales down
        (Guard(0.0, 0), 24 * GiB, 0),
        (Guard(0.5, GiB), 96 * GiB, 49 * GiB),
    ],
)
def test_the_guard_is_a_part_and_a_fixed_piece_that_scales_down(guard, total_bytes, guard_bytes):
    assert guard.of(total_bytes) == guard_bytes


A, B = a_lease("a", 4 * GiB), a_lease("b", 6 * GiB)


@pytest.mark.parametrize(
    ("leases", "reading", "booked_gib", "strangers_gib", "unexplained_gib"),
    [
        ([], a_reading(), 0, 0, 0),
        ([A], a_reading(), 4, 0, 0),  # a slow start is not free memory
        ([A, B], a_reading(), 10, 0, 0),
        ([A], a_reading(0, a_use(1, 3 * GiB, "lease-a")), 4, 0, 0),
        ([A], a_reading(0, a_use(1, 5 * GiB, "lease-a")), 5.5, 0, 0),  # grown: a tenth more
        (  # the memory of a tree is that of all its processes
            [A],
            a_reading(0, a_use(1, 3 * GiB, "lease-a"), a_use(2, 4 * GiB, "lease-a")), 7.7, 0, 0,
        ),
        ([], a_reading(0, a_use(9, 2 * GiB)), 0, 2, 0),
        ([A], a_reading(0, a_use(1, 3 * GiB, "lease-a"), a_use(9, 2 * GiB)), 4, 2, 0),
        ([A], a_reading(0, a_use(1, 3 * GiB, "lease-gone")), 4, 3, 0),  # its lease has ended
        ([], a_reading(used_bytes=3 * GiB), 0, 0, 3),
        ([A], a_reading(0, a_use(1, 3 * GiB, "lease-a"), used_bytes=5 * GiB), 4, 0, 2),
        ([A], a_reading(0, a_use(1, 3 * GiB, "lease-a"), used_bytes=GiB), 4, 0, 0),
        # Two leases in one process share what it uses.
        ([A, B], a_reading(0, a_use(1, 8 * GiB, "lease-a", "lease-b")), 10, 0, 0),
        ([A, B], a_reading(0, a_use(1, 14 * GiB, "lease-a", "lease-b")), 14, 0, 0),
        ([A], a_reading(0, a_use(1, 14 * GiB, "lease-a", "lease-gone")), 15.4, 0, 0),
        # Hidden memory of a process shows only in the GPU's total and is not counted twice.
        ([A], a_reading(0, a_use(1, None, "lease-a"), used_bytes=3 * GiB), 4, 0, 0),
        ([A], a_reading(0, a_use(1, None, "lease-a"), used_bytes=5 * GiB), 4, 0, 1),
        ([A], a_reading(0, a_use(9, None), used_bytes=6 * GiB), 4, 0, 6),  # A has not begun yet
        (
            [A, B],
            a_reading(0, a_use(1, None, "lease-a"), a_use(2, GiB, "lease-b"), used_bytes=6 * GiB),
            10, 0, 1,
        ),
        (
            [A],
            a_reading(0, a_use(1, None, "lease-a"), a_use(2, GiB, "lease-a"), used_bytes=3 * GiB),
            4, 0, 0,
        ),
        ([A], a_reading(0, a_use(1, None, "lease-a"), a_use(9, GiB), used_bytes=7 * GiB), 4, 1, 2),
    ],
)  # fmt: skip
def test_free_is_what_is_left_by_leases_strangers_and_the_unexplained(
    leases, reading, booked_gib, strangers_gib, unexplained_gib
):
    book = a_book(leases=leases, reading=reading)

    assert book.booked_bytes == int(booked_gib * GiB)
    assert book.strangers_bytes == strangers_gib * GiB
    assert book.unexplained_bytes == unexplained_gib * GiB
    left = 24 * GiB - book.booked_bytes - (strangers_gib + unexplained_gib) * GiB
    assert book.free_bytes == left


def test_the_guard_is_never_free_and_free_may_be_negative():
    book = a_book(reading=a_reading(0, a_use(9, 23 * GiB)), guard_bytes=2 * GiB)

    assert book.capacity_bytes == 22 * GiB
    assert book.free_bytes == -GiB


def test_sums_follow_every_change():
    book = a_book()
    seen = [book.free_bytes]
    for change in (
        lambda: book.put(A),
        lambda: book.put(a_lease("a", 8 * GiB)),
        lambda: book.put(B),
        lambda: book.read(a_reading(0, a_use(9, GiB))),
        lambda: book.take("lease-a"),
        lambda: book.take("lease-never-there"),
    ):
        change()
        seen.append(book.free_bytes)

    assert [free // GiB for free in seen] == [24, 20, 16, 10, 9, 17, 17]


@pytest.mark.parametrize(
    ("reading", "is_usable"),
    [
        (a_reading(), True),
        (Reading("GPU-0", GpuHealth.OK, used_bytes=None), False),
        (Reading("GPU-0", GpuHealth.UNKNOWN), False),
        (Reading("GPU-0", GpuHealth.LOST), False),
        (Reading("GPU-0", GpuHealth.UNKNOWN, used_bytes=0), False),
    ],
)
def test_a_gpu_is_usable_only_while_the_driver_says_what_is_used(reading, is_usable):
    assert a_book(reading=reading).is_usable is is_usable


def test_what_was_measured_before_a_gpu_fell_silent_still_counts():
    book = a_book(leases=[A], reading=a_reading(0, a_use(1, 9 * GiB, "lease-a")))
    book.read(Reading("GPU-0", GpuHealth.UNKNOWN))

    assert book.measured == {"lease-a": 9 * GiB}
    assert book.booked_bytes == grown(9)


def test_a_released_lease_leaves_its_memory_behind_as_a_strangers():
    book = a_book(leases=[A], reading=a_reading(0, a_use(1, 3 * GiB, "lease-a")))
    book.take("lease-a")

    assert (book.booked_bytes, book.strangers_bytes, book.free_bytes) == (0, 3 * GiB, 21 * GiB)
    assert book.used_by_stranger(1) == 3 * GiB
    assert book.used_by_stranger(2) == 0


def test_on_a_virtual_gpu_the_memory_goes_with_the_lease():
    reading = a_reading(0, a_use(1, 3 * GiB, "lease-a"), a_use(2, GiB, "lease-b"))
    book = a_book(a_virtual_gpu(), [A, B], reading)
    book.take("lease-a")

    assert (book.booked_bytes, book.strangers_bytes, book.unexplained_bytes) == (6 * GiB, 0, 0)
    assert book.reading.used_bytes == GiB


def test_what_two_leases_of_one_process_shared_is_the_others_when_one_ends():
    book = a_book(leases=[A, B], reading=a_reading(0, a_use(1, 16 * GiB, "lease-a", "lease-b")))
    book.take("lease-a")

    assert (book.measured, book.free_bytes) == ({"lease-b": 16 * GiB}, 24 * GiB - grown(16))


def test_on_a_virtual_gpu_a_process_keeps_its_memory_while_another_of_its_leases_lasts():
    reading = a_reading(0, a_use(1, 10 * GiB, "lease-a", "lease-b"))
    book = a_book(a_virtual_gpu(), [A, B], reading)
    book.take("lease-a")

    assert (book.booked_bytes, book.reading.used_bytes) == (grown(10), 10 * GiB)


@pytest.mark.parametrize(
    ("leases", "used_gib", "names", "outgrown"),
    [
        ([A], 5, ["lease-a"], ["lease-a"]),
        ([A], 4, ["lease-a"], []),
        ([A, B], 30, ["lease-a", "lease-b"], []),  # one process: nobody knows whose it is
        ([a_lease("a", 0, state=LeaseState.DRAINING)], 5, ["lease-a"], []),  # it is gone already
    ],
)
def test_who_has_more_than_it_reserved_is_known(leases, used_gib, names, outgrown):
    book = a_book(leases=leases, reading=a_reading(0, a_use(1, used_gib * GiB, *names)))

    assert book.outgrown() == outgrown


def test_a_closed_gpu_has_nothing_free_until_who_grew_is_gone():
    book = a_book(leases=[A, B], reading=a_reading(0, a_use(1, 5 * GiB, "lease-a")))
    before = book.free_bytes
    book.close(True)
    assert (before > 0, book.free_bytes) == (True, 0)
    book.take("lease-b")
    assert book.free_bytes == 0
    book.take("lease-a")
    assert book.free_bytes > 0


def test_a_virtual_gpu_that_is_silent_does_not_become_usable_by_the_end_of_a_lease():
    book = a_book(a_virtual_gpu(), [A], Reading("GPU-0", GpuHealth.OK, used_bytes=None))
    book.take("lease-a")

    assert not book.is_usable


@pytest.mark.parametrize(
    ("book", "has_pid", "holds"),
    [
        (a_book(), False, False),
        (a_book(reading=a_reading(0, a_use(5, GiB))), True, False),
        (a_book(reading=a_reading(0, a_use(5, None))), True, False),
        (a_book(reading=a_reading(0, a_use(6, GiB))), False, False),
        (a_book(leases=[a_lease(pid=5)]), True, True),
        (a_book(leases=[a_lease(pid=6)]), False, False),
        (a_book(leases=[a_lease(pid=5, state=LeaseState.DRAINING)]), False, False),
        (a_book(leases=[a_lease(pid=5, is_command=True)]), False, False),
        (a_book(a_virtual_gpu(), reading=a_reading(0, a_use(5, GiB))), False, False),
    ],
)
def test_a_process_is_on_a_gpu_by_its_memory_or_by_its_lease(book, has_pid, holds):
    assert (book.has_pid(5), book.holds(5)) == (has_pid, holds)


def test_a_gpu_answers_to_its_index_and_to_its_uuid():
    assert a_book(a_gpu(3)).names == ("GPU-3", "3")


def test_first_runs_and_exclusive_jobs_are_seen():
    assert not a_book(leases=[A]).has_probe
    assert not a_book(leases=[A]).has_exclusive
    assert a_book(leases=[A, a_lease("b", is_probe=True)]).has_probe
    assert a_book(leases=[a_lease("b", is_exclusive=True)]).has_exclusive


# --- contradictions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "leases",
    [
        [a_lease("a", 20 * GiB), a_lease("b", 5 * GiB)],
        [a_lease("a", GiB, is_probe=True), a_lease("b", GiB, is_probe=True)],
        [a_lease("a", GiB, is_exclusive=True), a_lease("b", GiB)],
    ],
    ids=["promised twice", "two first runs", "exclusive and shared"],
)
def test_books_that_promise_too_much_are_found_out(leases):
    books = {"GPU-0": a_book(leases=leases)}

    with pytest.raises(AssertionError):
        check_books(books, {lease.id: lease for lease in leases})


@pytest.mark.parametrize(
    ("in_book", "known"),
    [
        ([A], {}),
        ([], {"lease-a": A}),
        ([A], {"lease-a": a_lease("a", 5 * GiB)}),
        ([A], {"lease-a": A, "lease-x": a_lease("x", gpus=("GPU-0", "GPU-0"))}),
        ([A], {"lease-a": A, "lease-y": B}),
    ],
)
def test_books_and_leases_that_do_not_agree_are_found_out(in_book, known):
    with pytest.raises(AssertionError):
        check_books({"GPU-0": a_book(leases=in_book)}, known)


def test_books_that_agree_pass():
    check_books({"GPU-0": a_book(leases=[A, B])}, {"lease-a": A, "lease-b": B})
