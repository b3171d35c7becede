"""Where a request goes, and why not."""

import pytest

from grn.model.gpu import GpuHealth, Reading
from grn.model.job import Policy
from grn.model.units import GiB
from grn.negotiator.events import Wait, WaitReason
from grn.negotiator.schedule.placement import Need, Place, allowed, pinned, place
from tests.builders import MODEL, a_book, a_gpu, a_lease, a_reading, a_request, a_use

GUESSED = Need(12 * GiB, True, "never measured")


def needs(need_gib=4, model=MODEL):
    return {model: Need(need_gib * GiB, False, "as stated")}


def a_filled_book(index=0, filled_gib=0, **changes):
    """Return the book of a GPU of which so much is promised to one lease."""
    gpu = a_gpu(index, **changes)
    key = f"x{index}"
    leases = [a_lease(key, filled_gib * GiB, gpus=(gpu.uuid,))] if filled_gib else []
    return a_book(gpu, leases, a_reading(gpu))


def chosen(answer):
    assert isinstance(answer, Place), answer
    return [int(uuid.removeprefix("GPU-")) for uuid in answer.gpus]


def reason(answer):
    assert isinstance(answer, Wait), answer
    assert answer.text
    return answer.reason


# --- which GPU -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "filled_gib", "index"),
    [
        (Policy.SPREAD, [0, 0], 0),
        (Policy.SPREAD, [4, 0], 1),
        (Policy.SPREAD, [8, 4, 12], 1),
        (Policy.PACK, [0, 0], 0),
        (Policy.PACK, [4, 0], 0),
        (Policy.PACK, [8, 4, 12], 2),
        (Policy.PACK, [8, 22, 12], 2),  # the fullest that still fits
        (Policy.PACK, [20, 20], 0),
    ],
)
def test_spread_takes_the_emptiest_gpu_and_pack_the_fullest_that_fits(policy, filled_gib, index):
    books = [a_filled_book(i, gib) for i, gib in enumerate(filled_gib)]

    assert chosen(place(a_request(policy=policy), needs(4), books)) == [index]


def test_spread_takes_a_gpu_without_jobs_before_a_roomier_one_with_some():
    books = [a_filled_book(0, 4, total_bytes=80 * GiB), a_filled_book(1)]

    assert chosen(place(a_request(), needs(4), books)) == [1]


def test_a_known_job_reserves_what_it_needs():
    answer = place(a_request(), needs(4), [a_filled_book(0, 20)])

    assert answer == Place(("GPU-0",), (4 * GiB,), is_probe=False)


def test_a_first_run_reserves_all_that_is_free():
    answer = place(a_request(), {MODEL: GUESSED}, [a_filled_book(0, 10)])

    assert answer == Place(("GPU-0",), (14 * GiB,), is_probe=True)


def test_a_first_run_is_spread_even_where_pack_is_asked_for():
    books = [a_filled_book(0, 8), a_filled_book(1)]

    assert chosen(place(a_request(policy=Policy.PACK), {MODEL: GUESSED}, books)) == [1]


def test_a_first_run_does_not_stand_beside_another():
    probing = a_book(leases=[a_lease("x", GiB, is_probe=True)])

    answer = place(a_request(), {MODEL: GUESSED}, [probing])
    assert reason(answer) is WaitReason.NO_ROOM_FOR_FIRST_RUN
    assert chosen(place(a_request(), needs(4), [probing])) == [0]  # a known job may


@pytest.mark.parametrize("filled_gib", [0, 4])
def test_needs_are_those_of_each_model(filled_gib):
    books = [a_filled_book(0, filled_gib, model="Old"), a_filled_book(1, filled_gib)]
    by_model = needs(23, "Old") | needs(4)

    assert chosen(place(a_request(gpus=1), by_model, books))[0] == (0 if not filled_gib else 1)


@pytest.mark.parametrize(("gpus", "where"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 0])])
def test_several_gpus_are_taken_all_at_once(gpus, where):
    books = [a_filled_book(0, 4), a_filled_book(1), a_filled_book(2)]
    answer = place(a_request(gpus=gpus), needs(4), books)

    assert chosen(answer) == where
    assert answer.reserved == (4 * GiB,) * gpus


def test_a_first_run_on_several_gpus_takes_all_that_is_free_on_each():
    answer = place(a_request(gpus=2), {MODEL: GUESSED}, [a_filled_book(0, 4), a_filled_book(1)])

    assert answer == Place(("GPU-1", "GPU-0"), (24 * GiB, 20 * GiB), is_probe=True)


def test_a_first_run_on_two_models_stands_beside_no_other_first_run():
    probing = a_book(a_gpu(0), [a_lease("x", GiB, is_probe=True)])
    by_model = needs(4) | {"New": GUESSED}

    answer = place(a_request(gpus=2), by_model, [probing, a_filled_book(1, model="New")])
    assert reason(answer) is WaitReason.NOT_ENOUGH_GPUS


# --- alone ---------------------------------------------------------------------------------

GUARD = 2 * GiB


@pytest.mark.parametrize("is_by_request", [True, False])
@pytest.mark.parametrize(
    ("leases", "uses", "fits"),
    [
        ([], [], True),
        ([], [a_use(9, GUARD)], True),  # a desktop does not count
        ([], [a_use(9, GUARD + 1)], False),
        ([a_lease("x", GiB)], [], False),
    ],
)
def test_a_job_that_is_to_be_alone_takes_an_empty_gpu_and_all_of_it(
    is_by_request, leases, uses, fits
):
    book = a_book(a_gpu(is_exclusive=not is_by_request), leases, a_reading(0, *uses), GUARD)
    answer = place(a_request(is_exclusive=is_by_request), needs(4), [book])

    if fits:
        assert answer == Place(("GPU-0",), (book.free_bytes,), is_probe=False)
    else:
        assert reason(answer) is WaitReason.NO_EMPTY_GPU


def test_a_job_that_is_to_be_alone_is_not_kept_out_by_what_its_own_process_left():
    book = a_book(reading=a_reading(0, a_use(5, 10 * GiB)), guard_bytes=GUARD)

    answer = place(a_request(pid=5, is_exclusive=True), needs(4), [book])
    assert answer == Place(("GPU-0",), (22 * GiB,), is_probe=False)


def test_nobody_joins_a_job_that_is_alone():
    book = a_book(leases=[a_lease("x", GiB, is_exclusive=True)])

    assert reason(place(a_request(), needs(4), [book])) is WaitReason.NO_ROOM


def test_a_job_that_is_to_be_alone_need_not_be_measured_first():
    answer = place(a_request(is_exclusive=True), {MODEL: GUESSED}, [a_book()])

    assert answer == Place(("GPU-0",), (24 * GiB,), is_probe=False)


@pytest.mark.parametrize(
    ("uses", "changes", "fits"),
    [
        ([], {}, True),
        ([a_use(9, GiB)], {}, True),
        ([], {"used_bytes": GUARD}, True),
        ([a_use(9, GiB)], {"used_bytes": GUARD + 1}, False),
        ([a_use(9, 3 * GiB)], {}, False),
    ],
)
def test_a_whole_gpu_is_what_is_left_of_an_empty_one_beside_a_desktop(uses, changes, fits):
    book = a_book(reading=a_reading(0, *uses, **changes), guard_bytes=GUARD)
    answer = place(a_request(), needs(22), [book])

    if fits:
        assert answer == Place(("GPU-0",), (book.free_bytes,), is_probe=False)
    else:
        assert reason(answer) is WaitReason.NO_ROOM


def test_more_than_a_gpu_can_promise_is_not_given_even_on_an_empty_one():
    assert reason(place(a_request(), needs(23), [a_book(guard_bytes=GUARD)])) is WaitReason.NO_ROOM


# --- processes that cannot move ------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "homes"),
    [
        (a_request(), []),
        (a_request(pid=5), [1]),
        (a_request(pid=6), [2]),
        (a_request(pid=7), []),
        (a_request(stay=("GPU-0",)), [0]),
        (a_request(stay=("GPU-0",), pid=5), [0]),
        (a_request(stay=("GPU-9",), pid=5), [1]),
    ],
)
def test_a_process_stays_where_it_says_or_has_memory_or_holds_a_lease(request_, homes):
    books = [
        a_book(a_gpu(0)),
        a_book(a_gpu(1), reading=a_reading(1, a_use(5, GiB))),
        a_book(a_gpu(2), [a_lease("x", gpus=("GPU-2",), pid=6)], a_reading(2)),
    ]

    assert [book.gpu.index for book in pinned(request_, books)] == homes


def test_a_process_that_stays_does_not_go_to_an_emptier_gpu():
    books = [a_filled_book(0, 8), a_filled_book(1)]

    assert chosen(place(a_request(stay=("GPU-0",)), needs(4), books)) == [0]


def test_a_process_that_stays_waits_for_its_own_gpu():
    books = [a_filled_book(0, 22), a_filled_book(1)]
    answer = place(a_request(stay=("GPU-0",)), needs(4), books)

    assert reason(answer) is WaitReason.STAYS_ON_ITS_GPU
    assert "GPU 0" in answer.text


def test_a_process_may_use_again_what_it_left_behind():
    book = a_book(reading=a_reading(0, a_use(5, 20 * GiB)))

    assert place(a_request(pid=5), needs(20), [book]) == Place(("GPU-0",), (20 * GiB,), False)
    assert reason(place(a_request(pid=6), needs(20), [book])) is WaitReason.NO_ROOM


def test_a_child_cannot_use_what_its_parent_left_behind():
    book = a_book(reading=a_reading(0, a_use(5, 20 * GiB)))

    answer = place(a_request(pid=5, is_command=True), needs(20), [book])
    assert reason(answer) is WaitReason.NO_ROOM


def test_a_process_on_one_gpu_that_wants_two_is_told_so():
    books = [a_book(a_gpu(0), [a_lease("x", pid=5)]), a_filled_book(1)]

    answer = place(a_request(gpus=2, pid=5), needs(4), books)
    assert reason(answer) is WaitReason.STAYS_ON_ITS_GPU


def test_a_process_on_a_gpu_that_is_smaller_than_it_states_is_not_placed_there():
    small = a_gpu(0, total_bytes=12 * GiB, model="Small")
    books = [a_book(small, reading=a_reading(0, a_use(5, GiB))), a_filled_book(1)]
    stated = {"Small": Need(24 * GiB, False, "as stated"), **needs(24)}

    answer = place(a_request(pid=5, mem_bytes=24 * GiB), stated, books)
    assert reason(answer) is WaitReason.STAYS_ON_ITS_GPU
    assert "24.0 GiB" in answer.text


# --- why not -------------------------------------------------------------------------------

SILENT = a_book(a_gpu(3), reading=Reading("GPU-3", GpuHealth.UNKNOWN))
LOST = a_book(a_gpu(4), reading=Reading("GPU-4", GpuHealth.LOST))
VAGUE = a_book(a_gpu(5), reading=Reading("GPU-5", GpuHealth.OK, used_bytes=None))


@pytest.mark.parametrize("book", [SILENT, LOST, VAGUE])
def test_a_gpu_of_which_nothing_is_known_gets_no_job(book):
    answer = place(a_request(), needs(1), [book])

    assert reason(answer) is WaitReason.GPU_SILENT
    assert str(book.gpu.index) in answer.text
    assert chosen(place(a_request(), needs(1), [book, a_filled_book(0, 20)])) == [0]


def test_a_closed_gpu_is_kept_for_somebody_older():
    books = [a_filled_book(0), a_filled_book(1, 4)]

    assert chosen(place(a_request(), needs(4), books, closed={"GPU-0"})) == [1]
    answer = place(a_request(), needs(4), books, closed={"GPU-0", "GPU-1"})
    assert reason(answer) is WaitReason.YIELDS_TO_OLDER


def test_a_wait_for_room_says_what_is_needed_and_what_there_is():
    answer = place(a_request(), needs(6), [a_filled_book(0, 20), a_filled_book(1, 21)])

    assert reason(answer) is WaitReason.NO_ROOM
    for part in ("6.0 GiB", "as stated", "GPU 0", "4.0 GiB"):
        assert part in answer.text


@pytest.mark.parametrize(("count", "where"), [(1, "GPU 0"), (2, "any GPU")])
def test_a_wait_where_all_is_promised_says_so_in_words(count, where):
    books = [a_filled_book(index, 24) for index in range(count)]

    assert place(a_request(), needs(6), books).text.endswith(f"nothing is free on {where}")


@pytest.mark.parametrize("reserved", [20 * GiB, 24 * GiB])
def test_a_wait_behind_a_job_that_has_all_gpus_to_itself_names_only_that_job(reserved):
    gpus = [a_gpu(index) for index in range(2)]
    hog = a_lease("hog", reserved, gpus=("GPU-0", "GPU-1"), is_exclusive=True)
    books = [a_book(gpu, [hog], a_reading(gpu)) for gpu in gpus]

    answer = place(a_request(), needs(6), books)
    assert reason(answer) is WaitReason.NO_ROOM
    assert (
        answer.text == f"GPUs 0 and 1 are held by {hog.request.label} (lease lease-hog, exclusive)"
    )


def test_a_wait_for_several_gpus_to_itself_names_no_memory():
    books = [a_filled_book(0), a_filled_book(1, 22)]
    answer = place(a_request(gpus=2, is_exclusive=True), needs(4), books)

    assert answer.text.startswith("needs 2 GPUs to itself; only 1 can take it now: GPU 1 has ")


def test_a_wait_for_room_names_the_memory_of_strangers():
    book = a_book(reading=a_reading(0, a_use(9, 20 * GiB)))

    answer = place(a_request(), needs(6), [book])
    assert "20.0 GiB is used by processes without a lease" in answer.text


def test_a_first_run_that_waits_for_room_says_so():
    answer = place(a_request(), {MODEL: GUESSED}, [a_filled_book(0, 20)])

    assert reason(answer) is WaitReason.NO_ROOM_FOR_FIRST_RUN
    assert "12.0 GiB" in answer.text


def test_a_wait_for_several_gpus_says_how_many_there_are():
    books = [a_filled_book(0), a_filled_book(1, 22), a_filled_book(2, 22)]
    answer = place(a_request(gpus=2), needs(4), books)

    assert reason(answer) is WaitReason.NOT_ENOUGH_GPUS
    assert "needs 2 GPUs at once" in answer.text
    assert "only 1" in answer.text


@pytest.mark.parametrize(
    ("slots", "indices"),
    [((), [0, 1, 2]), (("1",), [1]), (("GPU-2", "0"), [0, 2]), (("9",), [])],
)
def test_slots_say_which_gpus_may_be_used(slots, indices):
    books = [a_filled_book(index) for index in range(3)]

    assert [b.gpu.index for b in allowed(a_request(slots=slots), books)] == indices
