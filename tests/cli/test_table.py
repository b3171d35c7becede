"""Columns that keep to the width of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cli.output.style import paint, plain
from grn.cli.output.table import labelled, paint_bar, table
from grn.model.text import columns_of

HEADERS = ("ID", "MEMORY", "COMMAND", "WHY")
ROWS = [("1", "211 MiB", "python train.py --lr 0.1 --batch-size 64", "no GPU has room for it yet")]


def a_job_table(width: int, rows: list[tuple[str, ...]] = ROWS) -> list[str]:
    drawn = plain(table(HEADERS, rows, width, elastic=("COMMAND", "WHY"), spare=("MEMORY",)))
    return drawn.splitlines()


def test_columns_are_aligned() -> None:
    text = plain(table(("A", "LONG"), [("xxxx", "1"), ("y", "22")]))

    assert text.splitlines() == ["A     LONG", "xxxx  1", "y     22"]


def test_characters_that_take_two_columns_do_not_push_the_next_aside() -> None:
    first, second = plain(table(("A", "B"), [("模型", "1"), ("abcd", "2")])).splitlines()[1:]

    assert columns_of(first[: first.index("1")]) == second.index("2")


@pytest.mark.parametrize("width", [0, 80])
def test_columns_of_the_same_name_are_all_shown(width: int) -> None:
    assert plain(table(("gpu", "gpu"), [("a", "b")], width)).splitlines() == ["gpu  gpu", "a    b"]


@pytest.mark.parametrize("width", [1, 2, 10, 20, 61])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = plain(table(("A", "B"), [("x" * 30, "y" * 30), ("1", "2")], width))

    assert max(len(line) for line in text.splitlines()) <= width
    assert text.splitlines()[1].endswith("…")


def test_a_long_command_leaves_room_for_the_reason() -> None:
    header, line = a_job_table(60)

    assert header.split() == list(HEADERS)
    assert "python train.py" in line
    assert "no GPU has" in line
    assert len(line) <= 60


def test_what_can_be_spared_is_left_out_of_a_narrow_terminal() -> None:
    assert a_job_table(32)[0].split() == ["ID", "COMMAND", "WHY"]
    assert a_job_table(50)[0].split() == ["ID", "COMMAND", "WHY"], "20 columns of each are worth it"


def test_an_elastic_column_without_text_gives_its_room_away() -> None:
    rows = [(*ROWS[0][:3], "")]

    assert a_job_table(80, rows)[0].split() == ["ID", "MEMORY", "COMMAND"]
    assert a_job_table(0, rows)[0].split() == list(HEADERS), "a pipe gets the same columns always"


@given(st.integers(1, 200), st.lists(st.text("ab 模", max_size=60), min_size=4, max_size=4))
def test_whatever_is_in_it_a_table_keeps_to_its_width(width: int, cells: list[str]) -> None:
    assert max(map(columns_of, a_job_table(width, [tuple(cells)]))) <= width


def test_without_a_terminal_nothing_is_cut() -> None:
    assert "y" * 500 in plain(table(("A",), [("y" * 500,)], 0))


def painted(headers: tuple[str, ...], *rows: tuple[str, ...]) -> list[list[str]]:
    """Return the cells of a table with their colours."""
    return [line.split("  ") for line in table(headers, rows).splitlines()]


def test_states_are_coloured_by_what_they_mean() -> None:
    header, *rows = painted(("ID", "STATE"), ("1", "running"), ("2", "held"), ("3", "failed"))

    assert header == [paint("ID", "header"), paint("STATE", "header")]
    assert [row[1].strip() for row in rows] == [
        paint("running", "running"),
        paint("held", "attention"),
        paint("failed", "failed"),
    ]
    assert rows[0][0].strip() == paint("1", "id")


def test_what_has_ended_steps_back_behind_what_has_not() -> None:
    ended, alive = painted(("ID", "STATE"), ("1", "ok"), ("2", "queued"))[1:]

    assert [cell.strip() for cell in ended if cell] == [paint("1", "ended"), paint("ok", "ended")]
    assert alive[0].strip() == paint("2", "id")


def test_a_reason_is_dim_unless_a_person_must_act() -> None:
    rows = [("queued", "no room"), ("held", "run `grn release 2`")]
    queued, held = table(("STATE", "WHY"), rows).splitlines()[1:]

    assert queued.endswith(paint("no room", "reason"))
    assert held.endswith(paint("run `grn release 2`", "attention"))


def test_bars_are_coloured_by_who_has_the_memory() -> None:
    assert paint_bar("██▒·░") == (
        paint("██", "used") + paint("▒", "reserved") + paint("·", "free") + paint("░", "others")
    )


def test_numbers_are_aligned_to_the_right() -> None:
    assert plain(table(("ID", "FOR"), [("1", "9s"), ("2", "12m04s")])).splitlines() == [
        "ID     FOR",
        "1       9s",
        "2   12m04s",
    ]


def test_text_of_users_cannot_colour_a_table() -> None:
    assert "\x1b[31mred" not in table(("COMMAND",), [("\x1b[31mred",)])


def test_an_empty_table_is_nothing() -> None:
    assert plain(table(("A",), [])) == ""


def test_a_labelled_text_goes_on_below_itself() -> None:
    lines = plain(labelled("state", "waits because " + "there is no room " * 4, 50)).splitlines()

    assert lines[0].startswith("  state     waits because")
    assert all(line.startswith(" " * 12) and len(line) <= 50 for line in lines[1:])


def test_words_too_long_for_a_line_stay_whole_to_be_copied() -> None:
    assert "/a" * 60 in plain(labelled("files", "/a" * 60, 50))
