"""The whole of `grn top` as text: every size, every state of the machine, hostile names."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grn.cli.top import screen
from grn.cli.top.board import board
from grn.cli.top.draw import ASCII, UNICODE, Marks, width_of
from grn.cli.top.rows import Section
from grn.cli.top.screen import Look, Shown
from grn.cli.top.state import KeyAction, View
from grn.protocol.negotiator_rows import BookingRow
from grn.protocol.queue_rows import QueueFacts
from grn.protocol.snapshot import NEGOTIATOR, QUEUE, Snapshot
from tests.cli.pictures import (
    HOSTILE,
    NOW,
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

WORDS = st.text().filter(lambda text: "\0" not in text)  # no queue takes such a word
SIZES = [(80, 24), (200, 60), (60, 16), (40, 10), (300, 20)]


def look(width: int = 80, height: int = 24, marks: Marks = UNICODE) -> Look:
    return Look(width, height, marks, UID, lambda uid: f"user{uid}", "host")


def drawn(picture: Snapshot, view: View | None = None, at: Look | None = None) -> Shown:
    chosen = view or View()
    found = board(picture, UID, chosen.wanted, chosen.is_mine, chosen.sorts)
    return screen.compose(picture, found, chosen, at or look(), NOW)


def text_of(shown: Shown) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in shown.lines)


def a_busy_machine(gpus: int = 8, jobs: int = 1000) -> Snapshot:
    chance = random.Random(3)
    held = [f"aaaa{n:04}" for n in range(jobs // 5)]
    on = {name: chance.randrange(gpus) for name in held}
    rows = [a_gpu(n, *(name for name in held if on[name] == n)) for n in range(gpus)]
    leases = [a_lease(name, on[name], used_bytes=10 << 20) for name in held]
    waiting = [a_request(f"bbbb{n:04}", turn=[1, 0, n]) for n in range(jobs - len(held))]
    ends = [an_end(f"cccc{n:04}") for n in range(50)]
    return a_picture(gpus=rows, leases=leases, waiting=waiting, ends=ends)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("marks", [UNICODE, ASCII])
def test_a_busy_machine_fills_every_size_exactly(size: tuple[int, int], marks: Marks) -> None:
    shown = drawn(a_busy_machine(), at=look(*size, marks))

    assert len(shown.lines) == size[1]
    assert {width_of(line) for line in shown.lines} == {size[0]}
    assert text_of(shown).isascii() or marks is UNICODE


@pytest.mark.parametrize("size", SIZES)
def test_an_empty_machine_says_what_to_do(size: tuple[int, int]) -> None:
    shown = drawn(a_picture(gpus=[a_gpu(0)]), at=look(*size))

    assert len(shown.lines) == size[1]
    assert "nothing runs" in text_of(shown)


def test_at_80_by_24_all_gpus_and_every_part_are_seen() -> None:
    text = text_of(drawn(a_busy_machine()))

    assert re.findall(r"^  (\d) ", text, re.MULTILINE) == [str(n) for n in range(8)]
    for name in ("RUNNING 200", "WAITING 800", "ENDED 50"):
        assert re.search(rf"^{name}.*\n[ ▶].*\S", text, re.MULTILINE), name
    assert "needs 9.0 GiB; GPU 0" in text


def test_more_gpus_than_lines_are_counted() -> None:
    text = text_of(drawn(a_busy_machine(gpus=64)))

    assert re.search(r"and \d+ more", text)
    assert "RUNNING 200" in text


def test_the_selected_row_is_seen_however_far_down() -> None:
    picture = a_busy_machine()
    view = View(part=Section.WAITING, selected={Section.WAITING: "bbbb0700"})

    text = text_of(drawn(picture, view))

    assert "▶bbbb0700" in text
    assert text.count("▶") == 1


def test_what_can_be_clicked_is_where_it_is_drawn() -> None:
    shown = drawn(a_busy_machine(), at=look(120, 40))

    assert len(shown.targets) > 20
    for place, (_, row) in shown.targets.items():
        assert row.id in "".join(text for text, _ in shown.lines[place])


def test_trouble_is_told_and_what_was_known_is_kept() -> None:
    picture = a_busy_machine()
    picture.lost(NEGOTIATOR, "the negotiator closed the connection.", NOW)
    picture.lost(QUEUE, "the queue closed the connection.", NOW)

    text = text_of(drawn(picture))

    assert "! the negotiator closed the connection: `grn start` starts one." in text
    assert "! the queue closed the connection." in text
    assert "RUNNING 200" in text


def test_a_queue_that_never_ran_is_no_trouble() -> None:
    picture = a_busy_machine()
    picture.queue = QueueFacts()
    picture.lost(QUEUE, "no grn queue answers", NOW)

    assert "!" not in text_of(drawn(picture))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (View(wanted="abc", is_typing=True), "filter: abc_"),
        (View(wanted="abc"), "filter: abc"),
        (View(wanted="zzz"), "no job matches the filter"),
        (View(is_mine=True), "mine"),
        (View(said="done"), " done"),
        (View(sorts={Section.RUNNING: "memory"}), "by memory"),
    ],
)
def test_what_was_chosen_is_shown(view: View, words: str) -> None:
    assert words in text_of(drawn(a_busy_machine(), view))


def test_a_question_names_the_job() -> None:
    picture = a_picture(jobs=[a_job(7)])
    row = board(picture, UID).rows[Section.WAITING][0]

    text = text_of(drawn(picture, View(asking=KeyAction("cancel", row))))

    assert "cancel job 7 (python train7.py)? y or n" in text


@pytest.mark.parametrize("width", [40, 80])
def test_a_question_is_whole_however_long_the_name_is(width: int) -> None:
    picture = a_picture(jobs=[a_job(7, name="名 " * 60)])
    row = board(picture, UID).rows[Section.WAITING][0]

    shown = drawn(picture, View(asking=KeyAction("cancel", row)), look(width, 24))

    assert text_of(shown).splitlines()[-1].rstrip().endswith("…)? y or n")


def test_hostile_names_reach_no_terminal() -> None:
    jobs = [a_job(1, name=HOSTILE, argv=[HOSTILE], why=HOSTILE)]
    ended = [an_ended_job(2, name=HOSTILE, text=HOSTILE)]
    lines = drawn(a_picture(jobs=jobs, ended=ended), at=look(200, 40)).lines

    assert all(text.isprintable() for line in lines for text, _ in line)


@settings(max_examples=300)
@given(WORDS, WORDS, WORDS)
def test_no_text_whatever_drives_the_terminal_or_breaks_a_line(a: str, b: str, c: str) -> None:
    jobs = [a_job(1, name=a, argv=[b, c], why=c)]
    ended = [an_ended_job(2, name=b, argv=[a], text=c)]
    picture = a_picture(jobs=jobs, ended=ended)
    picture.queue = replace(picture.queue, trouble=a)
    lines = drawn(picture, View(said=b), look(100, 30)).lines

    assert all(text.isprintable() for line in lines for text, _ in line)
    assert {width_of(line) for line in lines} == {100}


@pytest.mark.parametrize("size", SIZES)
def test_help_fits(size: tuple[int, int]) -> None:
    lines = screen.help_lines(look(*size))

    assert len(lines) == size[1]
    assert {width_of(line) for line in lines} == {size[0]}


def test_jobs_beyond_those_that_were_told_are_counted() -> None:
    picture = a_picture(jobs=[a_job(1)])
    counts = {"running": 0, "queued": 5001, "ended": 0}
    picture.queue = replace(picture.queue, counts=counts)

    assert "5,001 waiting" in text_of(drawn(picture))
    shown = text_of(drawn(picture))
    assert "WAITING 5,001" in shown
    assert "and 5,000 more of your queue" in shown
    assert "WAITING 1/5," in text_of(drawn(picture, View(wanted="train")))


def test_bookings_stand_below_the_gpus_the_first_to_begin_first() -> None:
    picture = a_picture(gpus=[a_gpu(0)])
    active = BookingRow(1, 7, "ada", 1, (0,), NOW - 60, NOW + 600, "active")
    ahead = BookingRow(2, 8, "eve" + HOSTILE, 2, (), NOW + 90000, NOW + 93600, "ahead")
    picture.negotiator = replace(picture.negotiator, bookings=(active, ahead))
    text = text_of(drawn(picture, at=look(140, 40)))
    (line,) = (line for line in text.splitlines() if "booked:" in line)
    assert re.search(r"booked: GPU 0 for ada until \d\d:\d\d", line)
    assert re.search(r"; 2 GPUs for eve.*from \d\d:\d\d to ", line)
    assert "booked" not in text_of(drawn(a_picture(gpus=[a_gpu(0)]), at=look(140, 40)))


def test_a_feed_that_has_not_answered_yet_is_told() -> None:
    picture = a_picture()
    assert "loading" not in text_of(drawn(picture))
    picture.queue = QueueFacts()
    assert "loading" in text_of(drawn(picture))


def test_expected_starts_and_ends_have_a_column() -> None:
    picture = a_picture(gpus=[a_gpu(0, "aaaa0001")], leases=[a_lease("aaaa0001")],
                        waiting=[a_request("bbbb0001")])  # fmt: skip
    assert "LEFT" not in text_of(drawn(picture))

    picture.expected_at = {"aaaa0001": (NOW + 60, NOW + 240), "bbbb0001": (NOW + 90, NOW + 90)}
    text = text_of(drawn(picture))
    wide = text_of(drawn(picture, at=look(140, 40)))

    assert "LEFT" in text
    assert "START" in text
    assert "~2m30s" in text
    assert "~1m30s" in text
    assert "ends in about 2m (1m to 4m)" in wide


def test_cancelling_an_array_says_how_many_jobs_it_ends() -> None:
    picture = a_picture(jobs=[a_job(n, argv=["x"], name="g", array_index=str(n)) for n in range(9)])
    (row,) = board(picture, UID).rows[Section.WAITING]

    text = text_of(drawn(picture, View(asking=KeyAction("cancel", row))))

    assert "cancel 9 jobs of an array (g[0-8])? y or n" in text


def on_nodes(nodes: int = 2) -> Snapshot:
    job = a_job(4, state="running", lease="gpu2/boot/aaaa0001", where="gpu2", gpus=[0])
    found = [a_node("gpu2", 2, "aaaa0001"), *(a_node(f"n{n}", 4) for n in range(nodes - 1))]
    return a_picture(
        gpus=[a_gpu(0)], jobs=[job | {"why": "running"}], nodes=[*found, away()],
        ended=[an_ended_job(2)],
    )  # fmt: skip


def test_nodes_are_shown_below_this_machine_with_their_gpus_and_jobs_with_their_node() -> None:
    text = text_of(drawn(on_nodes(), at=look(100, 40)))

    assert re.search(r"^  gpu2 \(lab\): 2 GPUs, .* used, 1 job of yours$", text, re.MULTILINE)
    assert re.search(r"^  gpu3 \(lab\): cut: No route to host$", text, re.MULTILINE)
    assert len(re.findall(r"^  \d ", text, re.MULTILINE)) == 1 + 2 + 4
    assert re.search(r"^RUNNING 1 +WHERE  GPU ", text, re.MULTILINE)
    assert re.search(r"^▶4 +gpu2 +0A ", text, re.MULTILINE)
    assert "WHERE" not in re.findall(r"^ENDED.*$", text, re.MULTILINE)[0]
    assert "7 GPUs" in text.splitlines()[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("nodes", [1, 3, 60])
def test_nodes_fit_every_size_and_leave_room_for_jobs(size: tuple[int, int], nodes: int) -> None:
    shown = drawn(on_nodes(nodes), at=look(*size))

    assert len(shown.lines) == size[1]
    assert {width_of(line) for line in shown.lines} == {size[0]}
    assert "RUNNING 1" in text_of(shown)


def test_nodes_that_find_no_room_are_counted() -> None:
    assert re.search(r"and \d+ more nodes: see `grn sites`", text_of(drawn(on_nodes(60))))


def test_with_nodes_no_negotiator_is_needed_here() -> None:
    picture = on_nodes()
    picture.lost(NEGOTIATOR, "no negotiator answers", NOW)

    assert "!" not in text_of(drawn(picture))


def test_hostile_words_of_a_node_reach_no_terminal() -> None:
    nodes = [away(HOSTILE, trouble=HOSTILE, site=HOSTILE), a_node(HOSTILE)]
    ended = [an_ended_job(2, where=HOSTILE)]
    lines = drawn(a_picture(nodes=nodes, ended=ended), at=look(200, 40)).lines

    assert all(text.isprintable() for line in lines for text, _ in line)
