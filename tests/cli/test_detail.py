"""The pane of `grn top` beside the tables: the selected job, its memory and its log."""

from __future__ import annotations

import pytest

from grn.cli.top import detail, screen
from grn.cli.top.board import board
from grn.cli.top.detail import Detail
from grn.cli.top.draw import ASCII, UNICODE, Line, Marks, plain, width_of
from grn.cli.top.rows import Row, Section
from grn.cli.top.screen import Look, Shown
from grn.cli.top.state import View, press
from grn.model.units import GiB
from grn.protocol.snapshot import Snapshot
from tests.cli.pictures import (
    HOSTILE,
    NOW,
    UID,
    a_gpu,
    a_job,
    a_lease,
    a_picture,
    a_request,
    an_ended_job,
)


def a_look(width: int = 120, height: int = 40, marks: Marks = UNICODE, use: str = "") -> Look:
    return Look(width, height, marks, UID, lambda uid: f"user{uid}", "host", use)


def a_machine() -> Snapshot:
    job = a_job(
        7, name="gpt2", state="running", lease="aaaa0001", gpus=[0], folder="/x/7.1", tag="t"
    )
    return a_picture(
        gpus=[a_gpu(0, "aaaa0001"), a_gpu(1)],
        leases=[a_lease("aaaa0001", 0, user=UID)],
        waiting=[a_request(f"bbbb{n}", turn=[1, 0, n]) for n in range(3)],
        jobs=[job],
        ended=[an_ended_job(3)],
    )


def drawn(view: View | None = None, at: Look | None = None, known: Detail | None = None) -> Shown:
    picture, chosen = a_machine(), view or View()
    found = board(picture, UID, chosen.wanted, chosen.is_mine, chosen.sorts)
    return screen.compose(picture, found, chosen, at or a_look(), NOW, known)


def text_of(lines: list[Line]) -> str:
    return "\n".join(map(plain, lines))


def known_of(part: Section, name: str, *log: str) -> Detail:
    lines = tuple([(text, "plain")] for text in log)
    return Detail((part, name), (GiB, 2 * GiB, 4 * GiB), 1.0, lines)


def test_from_120_columns_the_selected_job_has_a_pane_with_memory_and_log() -> None:
    known = known_of(Section.RUNNING, "7", *(f"epoch {n}" for n in range(30)))

    text = text_of(drawn(known=known).lines)

    assert " job 7 " in text
    assert "running on GPU 0 for 1m40s, user1000" in text
    assert "peak 4.0G, 8.0G reserved" in text
    assert all(f"epoch {n}" in text for n in range(20, 30))
    assert " job 7 " not in text_of(drawn(at=a_look(119, 40), known=known).lines)


def test_the_pane_follows_the_selection_and_never_shows_another_job() -> None:
    known = known_of(Section.RUNNING, "7", "epoch 1")

    shown = text_of(drawn(View(part=Section.ENDED), known=known).lines)

    assert " job 3 " in shown
    assert "epoch 1" not in shown


def test_following_gives_the_pane_to_the_log() -> None:
    known = known_of(Section.RUNNING, "7", *(f"epoch {n}" for n in range(60)))

    text = text_of(drawn(View(is_following=True), known=known).lines)

    assert "MEMORY" not in text
    assert "epoch 35" in text
    assert "epoch 59" in text


def test_f_is_an_order_for_a_job_of_the_queue_only() -> None:
    found = board(a_machine(), UID)

    _, order = press(View(), "f", found)
    view, none = press(View(part=Section.WAITING), "f", found)

    assert order is not None
    assert order.verb == "follow"
    assert none is None
    assert "not a job of your queue" in view.said


@pytest.mark.parametrize("size", [(120, 24), (120, 40), (200, 60), (300, 20), (121, 25)])
@pytest.mark.parametrize("marks", [UNICODE, ASCII])
def test_every_wide_size_is_filled_exactly(size: tuple[int, int], marks: Marks) -> None:
    look = a_look(*size, marks, "CPU 3% of 8  RAM 1.0G/8.0G")
    known = known_of(Section.RUNNING, "7", "epoch 1", HOSTILE[-1:])

    shown = drawn(at=look, known=known)

    assert len(shown.lines) == size[1]
    assert {width_of(line) for line in shown.lines} == {size[0]}
    for place, (_, row) in shown.targets.items():
        assert row.id in plain(shown.lines[place])


def test_equal_reasons_are_told_once() -> None:
    text = text_of(drawn().lines)

    assert text.count("needs 9.0") == 1
    assert text.count("″") == 2


def test_the_load_of_the_host_is_told_where_it_is_known() -> None:
    use = "CPU 43% of 8  RAM 1.0G/8.0G"

    assert use in text_of(drawn(at=a_look(use=use)).lines)
    assert use in text_of(drawn(at=a_look(119, 30, use=use)).lines)
    assert "CPU" not in text_of(drawn().lines)


def test_the_chart_has_a_scale_and_a_line_for_the_reservation() -> None:
    lines = list(map(plain, detail.chart((GiB, 2 * GiB, None), 4 * GiB, (31, 4), UNICODE)))

    assert lines[0] == "  4.0G " + "─" * 24
    assert lines[2] == " " * 7 + " " * 8 + "█" * 8
    assert lines[3] == "     0 " + "█" * 16


def test_a_chart_goes_beyond_the_reservation_where_memory_does() -> None:
    lines = list(map(plain, detail.chart((4 * GiB,), 2 * GiB, (11, 4), UNICODE)))

    assert [line[:7] for line in lines] == ["  4.0G ", "       ", "  2.0G ", "     0 "]
    assert all(line.endswith("████") for line in lines)


def test_a_held_job_tells_what_to_do() -> None:
    row = Row(Section.WAITING, "9", "held", "later", UID, job=9, why="run `grn release 9`")

    lines = detail.pane(row, Detail(), (60, 20), NOW, UNICODE, "me")

    assert [line[0] for line in lines if "release" in line[0][0]] == [
        (" run `grn release 9`", "note")
    ]
