"""What people see, as plain text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cli.output import idle_text, ps_text, render
from grn.cli.output.ps_text import MachineRows
from grn.cli.output.style import plain
from grn.model.units import GiB, MiB
from grn.protocol.negotiator_rows import (
    BookingRow,
    GpuRow,
    HostRow,
    LeaseRow,
    ProfileRow,
    ShareRow,
    WaitingRow,
)
from grn.protocol.queue_rows import NodeRow
from grn.protocol.rows import read, read_all
from tests.cli.pictures import a_node, away

Row = dict[str, Any]


def a_gpu_row(**changes: Any) -> GpuRow:
    plain = {
        "index": 0, "uuid": "GPU-0", "model": "Card", "health": "ok", "total_bytes": 20 * GiB,
        "guard_bytes": 1 * GiB, "used_bytes": 4 * GiB, "reserved_bytes": 8 * GiB,
        "strangers_bytes": 0, "unexplained_bytes": 0, "free_bytes": 11 * GiB, "load_pct": 50.4,
        "leases": ["a"],
    }  # fmt: skip
    return read(GpuRow, plain | changes)


def a_lease_row(**changes: Any) -> LeaseRow:
    plain = {
        "id": "264f3432", "state": "running", "user": 1000, "pid": 77, "gpus": [0, 2],
        "gpus_asked": 2, "used_bytes": 312 * MiB, "reserved_bytes": 2 * GiB, "for_s": 61.0,
        "label": "train.py", "why": "runs on GPU 0, 2", "first_run": False, "reason": None,
    }  # fmt: skip
    return read(LeaseRow, plain | changes)


def a_waiting_row(**changes: Any) -> WaitingRow:
    plain = {
        "id": "b0296a64", "state": "waiting", "user": 1000, "pid": 78, "gpus_asked": 1, "place": 3,
        "for_s": 2.0, "label": "train.py", "why": "no GPU is free", "reason": "no-room",
    }  # fmt: skip
    return read(WaitingRow, plain | changes)


def a_profile_row(**changes: Any) -> ProfileRow:
    run = {"outcome": "ok", "peak_bytes": 2 * GiB, "duration_s": 90.0, "args": {}, "counts": True}
    plain = {
        "type": "/x/train.py", "label": "train.py", "model": "Card", "runs": 1, "known": True,
        "largest_bytes": 2 * GiB, "estimate_bytes": 3 * GiB, "because": "of its last run",
        "usual_duration_s": 90.0, "history": [run],
    }  # fmt: skip
    return read(ProfileRow, plain | changes)


def name_of(uid: int) -> str:
    return {1000: "ada"}.get(uid, str(uid))


# --- bars ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "drawn"),
    [
        ({}, "████▒▒▒▒···········░"),
        ({"used_bytes": 0, "reserved_bytes": 0}, "···················░"),
        ({"used_bytes": 1, "reserved_bytes": 1}, "█··················░"),  # a little is not nothing
        ({"reserved_bytes": 0}, "████···············░"),
        ({"used_bytes": 10 * GiB, "strangers_bytes": 6 * GiB}, "████▒▒▒▒·····░░░░░░░"),
        ({"unexplained_bytes": 4 * GiB}, "▒▒▒▒▒▒▒▒·······░░░░░"),
        ({"used_bytes": 20 * GiB, "reserved_bytes": 20 * GiB}, "███████████████████░"),
        ({"used_bytes": 30 * GiB, "strangers_bytes": 30 * GiB}, "░░░░░░░░░░░░░░░░░░░░"),
        ({"used_bytes": None}, "????????????????????"),
    ],
)
def test_a_bar_shows_who_has_the_memory(changes: Row, drawn: str) -> None:
    assert render.bar(a_gpu_row(**changes), 20) == drawn


def test_a_bar_can_do_without_anything_but_ascii() -> None:
    assert render.bar(a_gpu_row(), 20, is_ascii=True) == "####====...........x"


sizes = st.integers(0, 40 * GiB)


@given(sizes, sizes, sizes, sizes, sizes, st.integers(1, 60), st.booleans())
def test_a_bar_is_as_long_as_it_should_be_whatever_the_numbers(
    used: int, reserved: int, strangers: int, unexplained: int, guard: int, size: int, ascii_: bool
) -> None:
    gpu = a_gpu_row(
        used_bytes=used, reserved_bytes=reserved, strangers_bytes=strangers,
        unexplained_bytes=unexplained, guard_bytes=guard,
    )  # fmt: skip

    assert len(render.bar(gpu, size, ascii_)) == size


# --- times -----------------------------------------------------------------------------------


# --- gpus, ps, why -------------------------------------------------------------------------


def test_gpus_are_a_line_each_under_a_header_and_over_a_legend() -> None:
    lines = plain(render.gpus([a_gpu_row(), a_gpu_row(index=1)])).splitlines()

    assert len(lines) == 4
    assert " ".join(lines[0].split()) == "GPU MODEL MEMORY USED RESERVED FREE TOTAL LOAD JOBS"
    assert "4.0 GiB" in lines[1]
    assert "50%" in lines[1]
    assert "used by jobs" in lines[-1]


def test_gpus_of_nodes_stand_below_and_nodes_without_any_say_why() -> None:
    nodes = read_all(NodeRow, [a_node("gpu2", 2), away("gpu3"), away("-", site="uni", trouble="")])
    lines = plain(render.gpus([a_gpu_row()], 120, nodes=nodes)).splitlines()

    assert lines[0].split()[:3] == ["WHERE", "GPU", "MODEL"]
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["local", "0"],
        ["gpu2", "0"],
        ["gpu2", "1"],
    ]
    assert lines[-2:] == ["gpu3 (lab) is cut: No route to host", "uni is cut"]
    assert max(map(len, lines)) <= 120


def test_what_is_unknown_of_a_gpu_is_a_question_mark() -> None:
    silent = a_gpu_row(health="unknown", used_bytes=None, free_bytes=None, load_pct=None)

    line = plain(render.gpus([silent])).splitlines()[1]

    assert "Card (unknown)" in line
    assert line.count("?") == 20 + 3  # the bar; used, free and load


def test_gpus_that_are_linked_to_each_other_are_named_together() -> None:
    def linked(index: int, **kinds: list[int]) -> GpuRow:
        links = [
            {"to": f"GPU-{other}", "by": kind, "lanes": 4 if kind == "nvlink" else None}
            for kind, others in kinds.items()
            for other in others
        ]
        return a_gpu_row(index=index, uuid=f"GPU-{index}", links=links)

    rows = [
        linked(0, nvlink=[1, 2], socket=[3]),
        linked(1, nvlink=[0, 2, 3]),
        linked(2, nvlink=[0, 1], switch=[9]),  # to one that is not managed here
        linked(3, nvlink=[1], socket=[0]),
    ]
    lines = plain(render.gpus(rows)).splitlines()

    assert lines[6:] == ["nvlink x4: 0,1,2  1,3", "socket: 0,3"]


def test_bookings_are_listed_with_their_users_and_times() -> None:
    row = {"id": 3, "user": 1000, "user_name": "", "gpus_asked": 2, "gpus": [0, 1],
           "from_at": 3600.0, "until_at": 10800.0, "state": "active"}  # fmt: skip
    rows = read_all(BookingRow, [row, {**row, "used": True}, {**row, "state": "ahead"}])

    lines = [line.split() for line in plain(render.bookings(rows, name_of, 7200.0)).splitlines()]

    assert lines[1][:5] == ["3", "ada", "2", "0,", "1"]
    assert lines[1][-2:] == ["2h00m", "unused"]
    assert [line[-1] for line in lines[2:]] == ["active", "ahead"]
    assert plain(render.bookings([], name_of, 0.0)) == "nothing is booked"


def test_users_are_listed_with_what_they_have_had() -> None:
    had = {"weight": 1.0, "gpus_now": 0.5, "waits": 3}
    found = [{"user": 1000, "had_gpu_h": 1.0, **had}, {"user": 7, "had_gpu_h": 3.0, **had}]
    rows = read_all(ShareRow, found)

    lines = [line.split() for line in plain(render.shares(rows, name_of)).splitlines()]

    assert lines[1] == ["ada", "1", "1.00", "25%", "0.5", "3"]
    assert lines[2][3] == "75%"
    assert plain(render.shares([], name_of)) == "no GPU has been used lately"


@pytest.mark.parametrize(("before", "words"), [(0, None), (1, "another user"), (4, "4 others")])
def test_why_tells_of_users_who_have_had_less(before: int, words: str | None) -> None:
    text = plain(render.why([a_waiting_row(users_before=before, had_gpu_h=2.345)], name_of))

    assert ("2.3 GPU hours" in text) is (words is not None)
    assert words is None or words in text


@pytest.mark.parametrize("width", [50, 60, 70, 80, 90, 100, 120])
def test_gpus_fit_any_terminal_and_show_what_matters_most(width: int) -> None:
    gpus = [a_gpu_row(model="NVIDIA GeForce RTX 3090"), a_gpu_row(index=1, model="NVIDIA H100 NVL")]
    header, first, *_ = lines = plain(render.gpus(gpus, width)).splitlines()

    assert max(map(len, lines)) <= width
    assert "…" not in header + first
    assert {"GPU", "MODEL", "USED", "FREE", "JOBS"} <= set(header.split())
    assert ("█" in first) is (width >= 70)


def test_gpus_in_ascii_are_ascii() -> None:
    assert plain(render.gpus([a_gpu_row()], is_ascii=True)).isascii()


def test_what_runs_and_what_waits_is_listed_with_its_reason() -> None:
    header, running, waiting = plain(
        ps_text.ps([MachineRows("local", [a_lease_row(), a_waiting_row()])], name_of)
    ).splitlines()

    assert header.split()[0] == "ID"
    assert "ada" in running
    assert "0,2" in running
    assert "312 MiB/2.0 GiB" in running
    assert "runs on" not in running  # its place is a column already
    assert "(1)" in waiting
    assert "no GPU is free" in waiting


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"first_run": True}, "first run"),
        ({"state": "draining", "why": "its process is gone"}, "its process is gone"),
        ({"used_bytes": None}, "?/2.0 GiB"),
        ({"pid": None}, "  ?  "),
        ({"user": 4242}, "4242"),
    ],
)
def test_what_is_special_about_a_lease_is_seen(changes: Row, text: str) -> None:
    assert text in plain(ps_text.ps([MachineRows("local", [a_lease_row(**changes)])], name_of))


def test_who_is_idle_is_seen_in_all_lists() -> None:
    stranger = {"pid": 9, "user": 1000, "used_bytes": GiB, "idle_for_s": 60.0}
    gpu = a_gpu_row(idle_leases=["264f3432"], idle_strangers=[stranger])
    lease = a_lease_row(idle_for_s=1830.0)
    _, row, other = plain(ps_text.ps([MachineRows("local", [lease], [gpu])], name_of)).splitlines()

    assert "idle" in row.split()
    assert "has used less than 5% of GPU 0, 2 for 30m30s" in row
    assert "no lease; has used less than 5% of GPU 0 for 1m00s" in other
    assert "for 30m30s" in plain(render.why([lease], name_of))
    assert "1 (2 idle)" in plain(render.gpus([gpu]))


def test_the_list_of_idle_ones_has_the_longest_first() -> None:
    stranger = {"pid": 9, "user": None, "used_bytes": GiB, "idle_for_s": 3600.0}
    gpu = a_gpu_row(idle_strangers=[stranger])
    rows = idle_text.idle_rows([gpu], [a_lease_row(), a_lease_row(idle_for_s=1830.0, type="/t")])
    header, first, second = plain(idle_text.idle(rows, name_of)).splitlines()

    assert header.split() == ["USER", "PID", "LEASE", "GPU", "HOLDS", "IDLE", "TYPE"]
    assert first.split() == ["?", "9", "no", "lease", "0", "1.0", "GiB", "1h00m"]
    assert second.split() == ["ada", "77", "264f3432", "0,2", "4.0", "GiB", "30m30s", "train.py"]
    assert plain(idle_text.idle([], name_of)) == "nothing that holds a GPU is idle"


def test_when_there_is_nothing_that_is_said() -> None:
    assert (
        plain(ps_text.ps([MachineRows("local", [])], name_of)) == "nothing runs and nothing waits"
    )
    assert "run a job first" in plain(render.profiles([]))


def test_an_explanation_has_the_sentence_the_place_and_the_word_for_programs() -> None:
    text = plain(render.why([a_waiting_row(), a_lease_row()], name_of))

    assert "b0296a64  train.py  of ada (pid 78)" in text
    assert "waits for 2.0s, place 3: no GPU is free  [no-room]" in text
    assert "runs on GPU 0, 2, for 1m01s; 312 MiB used of 2.0 GiB reserved" in text


# --- profiles ------------------------------------------------------------------------------


def test_profiles_are_a_line_each() -> None:
    unknown = a_profile_row(largest_bytes=None, estimate_bytes=None, usual_duration_s=None)

    _, known, other = plain(render.profiles([a_profile_row(), unknown])).splitlines()

    assert " ".join(known.split()) == "train.py Card 1 2.0 GiB 3.0 GiB 1m30s"
    assert " ".join(other.split()) == "train.py Card 1 ? ? ?"


def test_types_of_one_label_are_told_apart_by_their_folders() -> None:
    one, two = (a_profile_row(type=f"/home/ada/{name}/train.py") for name in ("w1", "w2"))

    _, *lines = plain(render.profiles([one, two, one])).splitlines()

    assert [line.split()[0] for line in lines] == ["w1/train.py", "w2/train.py", "w1/train.py"]


def test_a_profile_is_explained_run_by_run() -> None:
    runs = [
        {"outcome": "ok", "peak_bytes": 4 * GiB, "duration_s": 9.0, "counts": True,
         "args": {"bs": 64.0, "net": "res"}},
        {"outcome": "oom", "peak_bytes": 1 * GiB, "duration_s": 1.0, "counts": False, "args": {}},
    ]  # fmt: skip
    text = plain(render.profile(a_profile_row(history=runs, runs=2)))

    assert "estimate  3.0 GiB: of its last run" in text
    assert "█" * 24 + "   4.0 GiB in   9.0s bs=64 net=res" in text
    assert "(at least: it did not end well)" in text.splitlines()[-2]
    assert text.splitlines()[-1].split() == ["next", "▒" * 18, "3.0", "GiB", "as", "estimated"]


def test_a_profile_tells_what_its_type_needs_of_the_host() -> None:
    of_host = {"ram_bytes": 12 * GiB, "ram_because": "11.0 GiB at most in 3 runs", "cpus": 2.104,
               "peak_cpus": 5.25}  # fmt: skip
    text = plain(render.profile(a_profile_row(**of_host)))

    assert "host RAM  12.0 GiB: 11.0 GiB at most in 3 runs" in text
    assert "cores     2.1 usually, 5.25 at most" in text
    assert "cores" not in plain(render.profile(a_profile_row()))


def test_the_host_is_one_line_below_the_gpus() -> None:
    row = HostRow(cpus=16.0, ram_bytes=64 * GiB, reserved_bytes=20 * GiB, free_bytes=40 * GiB,
                  reserved_cpus=6.0, free_cpus=9.2, strangers_bytes=GiB)  # fmt: skip
    text = plain(render.gpus([a_gpu_row()], of_host=row))

    assert text.splitlines()[-1] == (
        "host RAM: 40.0 GiB of 64.0 GiB free, 20.0 GiB reserved, 1.0 GiB of others; "
        "9.2 of 16 cores free, 6 reserved"
    )
    assert "host RAM" not in plain(render.gpus([a_gpu_row()]))


def test_runs_that_do_not_count_any_more_are_drawn_faintly_with_the_reason() -> None:
    run = {"outcome": "ok", "peak_bytes": GiB, "duration_s": 9.0, "counts": True, "args": {},
           "outdated": True}  # fmt: skip
    note = "not counted: 1 run of an older code"
    text = plain(render.profile(a_profile_row(history=[run], notes=[note])))

    assert f"            {note}" in text.splitlines()
    assert "░░░░░░░░ " in text
    assert "(older: does not count any more)" in text


def test_a_profile_keeps_to_the_terminal_and_its_text_to_its_column() -> None:
    row = a_profile_row(notes=["headroom is large: " + "peaks " * 20])
    lines = plain(render.profile(row, width=60)).splitlines()

    assert max(map(len, lines)) <= 60
    assert lines[4].startswith(" " * 12 + "peaks")


def test_a_profile_in_ascii_is_ascii() -> None:
    assert plain(render.profile(a_profile_row(), is_ascii=True)).isascii()


def test_a_profile_without_memory_or_runs_is_drawn_too() -> None:
    run = {"outcome": "ok", "peak_bytes": 0, "duration_s": None, "args": {}, "counts": True}

    assert "█" in plain(render.profile(a_profile_row(history=[run])))
    assert "the last 0" in plain(render.profile(a_profile_row(history=[])))
