"""Columns that keep to the width of a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cli.output.table import labelled, table
from grn.model.text import columns_of

HEADERS = ("ID", "MEMORY", "COMMAND", "WHY")
ROWS = [("1", "211 MiB", "python train.py --lr 0.1 --batch-size 64", "no GPU has room for it yet")]


def a_job_table(width: int, rows: list[tuple[str, ...]] = ROWS) -> list[str]:
    drawn = table(HEADERS, rows, width, elastic=("COMMAND", "WHY"), spare=("MEMORY",))
    return drawn.splitlines()


def test_columns_are_aligned() -> None:
    text = table(("A", "LONG"), [("xxxx", "1"), ("y", "22")])

    assert text.splitlines() == ["A     LONG", "xxxx  1", "y     22"]


def test_characters_that_take_two_columns_do_not_push_the_next_aside() -> None:
    first, second = table(("A", "B"), [("模型", "1"), ("abcd", "2")]).splitlines()[1:]

    assert columns_of(first[: first.index("1")]) == second.index("2")


@pytest.mark.parametrize("width", [0, 80])
def test_columns_of_the_same_name_are_all_shown(width: int) -> None:
    assert table(("gpu", "gpu"), [("a", "b")], width).splitlines() == ["gpu  gpu", "a    b"]


@pytest.mark.parametrize("width", [1, 2, 10, 20, 61])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = table(("A", "B"), [("x" * 30, "y" * 30), ("1", "2")], width)

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


def test_an_elastic_column_without_text_gives_its_room_away() -> None:
    rows = [(*ROWS[0][:3], "")]

    assert a_job_table(80, rows)[0].split() == ["ID", "MEMORY", "COMMAND"]
    assert a_job_table(0, rows)[0].split() == list(HEADERS), "a pipe gets the same columns always"


@given(st.integers(1, 200), st.lists(st.text("ab 模", max_size=60), min_size=4, max_size=4))
def test_whatever_is_in_it_a_table_keeps_to_its_width(width: int, cells: list[str]) -> None:
    assert max(map(columns_of, a_job_table(width, [tuple(cells)]))) <= width


def test_without_a_terminal_nothing_is_cut() -> None:
    assert "y" * 500 in table(("A",), [("y" * 500,)], 0)


def test_an_empty_table_is_nothing() -> None:
    assert table(("A",), []) == ""


def test_a_labelled_text_goes_on_below_itself() -> None:
    lines = labelled("state", "waits because " + "there is no room " * 4, 50).splitlines()

    assert lines[0].startswith("  state     waits because")
    assert all(line.startswith(" " * 12) and len(line) <= 50 for line in lines[1:])


def test_words_too_long_for_a_line_stay_whole_to_be_copied() -> None:
    assert "/a" * 60 in labelled("files", "/a" * 60, 50)
