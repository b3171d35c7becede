"""Rows of `grn top`: a job and its lease are one, what others run is there too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grn.cli.top.board import SORTS, board
from grn.cli.top.rows import Section
from grn.cli.top.state import View, press
from grn.cli.web import job_list
from grn.model.units import GiB
from grn.protocol.snapshot import QUEUE
from tests.cli.pictures import (
    HOSTILE,
    NOW,
    OTHER,
    UID,
    a_gpu,
    a_job,
    a_lease,
    a_node,
    a_picture,
    a_request,
    an_end,
    an_ended_job,
    away,
)


def test_a_job_of_the_queue_and_its_lease_are_one_row() -> None:
    picture = a_picture(
        gpus=[a_gpu(0, "cccc0001", "aaaa0001")],
        leases=[a_lease("aaaa0001", user=UID), a_lease("cccc0001")],
        jobs=[a_job(4, state="running", lease="aaaa0001", name="exp")],
    )

    own, other = sorted(board(picture, UID).rows[Section.RUNNING], key=lambda row: row.id)

    assert (own.id, own.job, own.lease, own.seats) == ("4", 4, "aaaa0001", "0B")
    assert own.what == "exp: python train4.py"
    assert (other.id, other.job, other.what, other.seats) == (
        "cccc0001",
        None,
        "train.py::fit",
        "0A",
    )


def test_an_idle_lease_says_so_and_for_how_long() -> None:
    picture = a_picture(leases=[a_lease("aaaa0001", idle_since_at=NOW - 3600)])

    (row,) = board(picture, UID).rows[Section.RUNNING]
    (listed,) = job_list.listed(picture, UID).rows

    assert (row.state, row.idle_since_at) == ("idle", NOW - 3600)
    assert (listed.state, listed.idle_since_at) == ("idle", NOW - 3600)


def test_a_running_job_is_shown_while_no_negotiator_answers() -> None:
    job = a_job(4, state="running", lease="aaaa0001", gpus=[2], started_at=NOW - 5)

    (row,) = board(a_picture(jobs=[job]), UID).rows[Section.RUNNING]

    assert (row.id, row.gpus, row.since_at) == ("4", (2,), NOW - 5)


def test_a_queued_job_and_its_request_are_one_row_with_the_fresh_reason() -> None:
    picture = a_picture(
        waiting=[a_request(user=UID, tag="x", why="fresh")],
        jobs=[a_job(4, tag="x", why="stale"), a_job(5), a_job(6, state="held", is_held=True)],
    )

    rows = board(picture, UID).rows[Section.WAITING]

    assert rows[0].why == "fresh"
    assert [row.id for row in rows] == ["4", "5", "6"]


def test_requests_stand_in_turn() -> None:
    turns = {"aaaa0001": [1, 0, 9], "aaaa0002": [1, -5, 10], "aaaa0003": [0, 0, 11]}
    picture = a_picture(waiting=[a_request(id, turn=turn) for id, turn in turns.items()])

    rows = board(picture, UID).rows[Section.WAITING]

    assert [row.id for row in rows] == ["aaaa0003", "aaaa0002", "aaaa0001"]


def test_an_ended_job_is_not_shown_a_second_time_as_a_lease() -> None:
    picture = a_picture(
        ends=[an_end("dddd0001"), an_end("eeee0001", ended_at=NOW - 5)],
        ended=[an_ended_job(1, reason="failed", text="exit status 3")],
    )

    rows = board(picture, UID).rows[Section.ENDED]

    assert [(row.id, row.state) for row in rows] == [("eeee0001", "ok"), ("1", "failed")]


def test_a_job_whose_end_only_the_negotiator_knows_still_runs() -> None:
    picture = a_picture(
        ends=[an_end("aaaa0001")], jobs=[a_job(4, state="running", lease="aaaa0001")]
    )

    whole = board(picture, UID)

    assert [row.id for row in whole.rows[Section.RUNNING]] == ["4"]
    assert whole.rows[Section.ENDED] == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("", 3), ("train4", 1), ("TRAIN4", 1), ("aaaa0002", 1), ("gpu 3", 1), ("gpu3", 1),
     ("first run", 1), ("nothing", 0)],
)  # fmt: skip
def test_the_filter_finds_ids_names_states_and_gpus(wanted: str, found: int) -> None:
    picture = a_picture(
        leases=[a_lease("aaaa0001"), a_lease("aaaa0002", 3), a_lease("aaaa0003", first_run=True)],
        jobs=[a_job(4, state="running", lease="aaaa0001")],
    )

    whole = board(picture, UID, wanted)

    assert len(whole.rows[Section.RUNNING]) == found
    assert whole.totals[Section.RUNNING] == 3


def test_mine_leaves_out_others() -> None:
    picture = a_picture(leases=[a_lease("aaaa0001", user=UID), a_lease("aaaa0002", user=OTHER)])

    assert [row.id for row in board(picture, UID, is_mine=True).rows[Section.RUNNING]] == [
        "aaaa0001"
    ]


@pytest.mark.parametrize(("part", "sort"), [(part, s) for part in Section for s in SORTS[part]])
def test_every_order_keeps_all_rows(part: Section, sort: str) -> None:
    picture = a_picture(
        leases=[a_lease(f"aaaa{n:04}", n % 3, used_bytes=n, user=n) for n in range(9)],
        waiting=[a_request(f"bbbb{n:04}", turn=[1, 0, n]) for n in range(9)],
        ends=[an_end(f"cccc{n:04}", peak_bytes=None) for n in range(9)],
    )

    assert len(board(picture, UID, sorts={part: sort}).rows[part]) == 9


def test_orders_differ() -> None:
    leases = [a_lease("aaaa0001", 1, used_bytes=9, since_at=5.0),
              a_lease("aaaa0002", 0, used_bytes=1, since_at=1.0)]  # fmt: skip
    picture = a_picture(leases=leases)

    by = {
        sort: [
            row.id[-1]
            for row in board(picture, UID, sorts={Section.RUNNING: sort}).rows[Section.RUNNING]
        ]
        for sort in ("gpu", "age", "memory")
    }

    assert by == {"gpu": ["2", "1"], "age": ["2", "1"], "memory": ["1", "2"]}


def test_hostile_names_of_own_jobs_are_spelled_out() -> None:
    jobs = [a_job(1, name=HOSTILE, argv=["x", HOSTILE], why=HOSTILE)]
    ended = [an_ended_job(2, name=HOSTILE, text=HOSTILE)]

    whole = board(a_picture(jobs=jobs, ended=ended), UID)

    texts = [t for part in Section for r in whole.rows[part] for t in (r.what, r.why, r.name)]
    assert all(text.isprintable() for text in texts)
    assert any("\\x1b" in text for text in texts)


def test_a_job_on_a_node_is_a_row_with_what_the_node_shows_of_its_lease() -> None:
    job = a_job(4, state="running", lease="gpu2/boot/aaaa0001", where="gpu2", gpus=[0])
    job |= {"why": "running", "reserved_bytes": 1, "attempt": 1}
    picture = a_picture(
        gpus=[a_gpu(0, "aaaa0001")],
        leases=[a_lease("aaaa0001")],  # of this machine, though of the same name
        jobs=[job],
        nodes=[a_node("gpu2", 2, "bbbb0001", "aaaa0001")],
    )

    here, there = board(picture, UID).rows[Section.RUNNING]

    assert (here.id, here.where) == ("aaaa0001", "")
    assert (there.id, there.where, there.seats, there.state) == ("4", "gpu2", "0B", "running")
    assert (there.used_bytes, there.reserved_bytes) == (3 * GiB, 8 * GiB)


def test_a_job_whose_node_is_out_of_sight_says_so_instead_of_its_state() -> None:
    said = "gpu3 not heard of for 3 min"
    job = a_job(4, state="running", lease="gpu3/boot/x", where="gpu3", gpus=[1], why=said)

    (row,) = board(a_picture(jobs=[job], nodes=[away()]), UID).rows[Section.RUNNING]

    assert (row.state, row.where, row.seats, row.used_bytes) == (said, "gpu3", "1", None)


def test_a_filter_finds_jobs_by_their_node() -> None:
    ended = [an_ended_job(1, where="gpu2", gpus=[0]), an_ended_job(2, gpus=[2])]
    picture = a_picture(ended=ended)

    def found(wanted: str) -> list[str]:
        return sorted(row.id for row in board(picture, UID, wanted).rows[Section.ENDED])

    assert found("gpu2") == ["1", "2"], "the node of that name, and GPU 2 of this machine"
    assert found("gpu 0") == [], "GPU 0 of a node is not GPU 0 here"
    assert found("gpu 2") == ["2"]


def test_jobs_go_by_the_names_that_their_owners_know() -> None:
    call = ["python", "-P", "-m", "grn.client.remote_call", "calls", "1"]
    jobs = [
        a_job(1, name="sweep-1/lr=1e-3,bs=32", group="sweep-1"),
        a_job(2, array_index="3"),
        a_job(3, name="search.py", group="search.py", label="__main__::train", argv=call),
        a_job(4, name="gpt2"),
    ]

    rows = board(a_picture(jobs=jobs), UID).rows[Section.WAITING]

    assert [row.name for row in rows] == [
        "lr=1e-3,bs=32",
        "train.py[3]",
        "search.py: train()",
        "gpt2",
    ]
    assert rows[0].what == "lr=1e-3,bs=32: python train1.py"


def an_array(ids: range, **changes: object) -> list[dict[str, object]]:
    same = {"argv": ["train"], "name": "grid", **changes}
    return [a_job(n, array_index=str(n - ids[0]), **same) for n in ids]


def test_waiting_jobs_of_an_array_are_one_row_and_expanded_one_each() -> None:
    picture = a_picture(jobs=[*an_array(range(10, 15)), a_job(20)])

    array, other = board(picture, UID).rows[Section.WAITING]

    assert (array.id, array.what, array.members) == ("10-14", "grid[0-4]", (10, 11, 12, 13, 14))
    assert other.id == "20"
    assert board(picture, UID).shown[Section.WAITING] == 6
    assert len(board(picture, UID, is_expanded=True).rows[Section.WAITING]) == 6


def test_held_jobs_of_an_array_are_a_row_of_their_own() -> None:
    held = an_array(range(10, 12), state="held", is_held=True)
    jobs = [*an_array(range(10, 14))[2:], *held]

    rows = board(a_picture(jobs=jobs), UID).rows[Section.WAITING]

    assert [(row.id, row.state) for row in rows] == [("12-13", "queued"), ("10-11", "held")]


def test_an_array_that_ended_alike_is_one_row_with_its_largest_peak() -> None:
    same = {"argv": ["train"], "name": "grid", "reason": "failed", "text": "exit status 1"}
    ended = [an_ended_job(n, array_index=str(n), peak_bytes=n * GiB, **same) for n in (1, 2, 3)]

    (row,) = board(a_picture(ended=ended), UID).rows[Section.ENDED]

    assert (row.id, row.state, row.used_bytes) == ("1-3", "3 failed", 3 * GiB)


def test_ended_leases_of_ones_own_queue_are_not_rows() -> None:
    ends = [an_end("dddd0001", user=UID, origin="q"), an_end("eeee0001", user=OTHER, origin="q")]
    picture = a_picture(ends=ends)
    picture.queue = replace(picture.queue, origin="q")

    assert [row.id for row in board(picture, UID).rows[Section.ENDED]] == ["eeee0001"]


def test_a_request_of_ones_own_queue_whose_job_is_not_known_yet_is_no_row() -> None:
    own = a_request("dddd0001", user=UID, origin="q", tag="new")
    picture = a_picture(waiting=[own, a_request("eeee0001", user=UID, origin="other")])
    picture.queue = replace(picture.queue, origin="q")
    assert [row.id for row in board(picture, UID).rows[Section.WAITING]] == ["eeee0001"]

    picture.lost(QUEUE, "no grn queue answers", NOW)  # nothing else would tell of it
    assert len(board(picture, UID).rows[Section.WAITING]) == 2


def test_a_selected_array_stays_selected_when_its_first_job_starts() -> None:
    waiting = an_array(range(10, 15))
    before = board(a_picture(jobs=[a_job(3), *waiting]), UID)
    view, _ = press(View(part=Section.WAITING), "down", before)

    after = board(a_picture(jobs=[a_job(3), a_job(4), *waiting[1:]]), UID)

    row = view.row(after)
    assert row is not None
    assert row.what == "grid[1-4]"


def test_a_running_job_tells_what_it_has_of_the_host() -> None:
    of_host = {"used_ram_bytes": 3 * GiB, "reserved_ram_bytes": 8 * GiB, "used_cpus": 1.52,
               "reserved_cpus": 4.0}  # fmt: skip
    leases = [a_lease("aaaa0001", **of_host), a_lease("aaaa0002")]

    rows = board(a_picture(leases=leases), UID).rows[Section.RUNNING]

    assert {row.id: row.on_host for row in rows} == {
        "aaaa0001": "host RAM 3.0G, 8.0G reserved; 1.5 of 4 cores", "aaaa0002": ""
    }  # fmt: skip
