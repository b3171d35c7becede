"""What keys of `grn top` mean, on values alone."""

from __future__ import annotations

import pytest

from grn.cli.top.board import Board, board
from grn.cli.top.rows import Section
from grn.cli.top.state import KeyAction, View, point, press
from tests.cli.pictures import UID, a_job, a_lease, a_picture, an_ended_job

PICTURE = a_picture(
    leases=[a_lease("aaaa0001", user=UID, since_at=1.0), a_lease("aaaa0002", since_at=2.0)],
    jobs=[
        a_job(1, state="running", lease="aaaa0001"),
        a_job(2),
        a_job(3, state="held", is_held=True),
    ],
    ended=[an_ended_job(9)],
)
BOARD = board(PICTURE, UID)


def after(*keys: str, view: View | None = None) -> tuple[View, KeyAction | None]:
    """Press keys one after the other."""
    now, order = view or View(), None
    for key in keys:
        now, order = press(now, key, BOARD)
    return now, order


def selected(view: View, whole: Board = BOARD) -> str | None:
    row = view.row(whole)
    return row.id if row is not None else None


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        ([], "1"),
        (["down"], "aaaa0002"),
        (["down", "down", "down"], "aaaa0002"),
        (["end"], "aaaa0002"),
        (["end", "home"], "1"),
        (["j", "k"], "1"),
        (["tab"], "2"),
        (["tab", "pagedown"], "3"),
        (["tab", "tab"], "9"),
        (["tab", "tab", "tab"], "1"),
        (["shift+tab"], "9"),
        (["down", "tab", "shift+tab"], "aaaa0002"),
    ],
)
def test_moving_selects_and_each_part_remembers(keys: list[str], row: str) -> None:
    assert selected(after(*keys)[0]) == row


def test_the_selection_stays_with_its_job_when_rows_come_and_go() -> None:
    view, _ = after("down")
    more = a_picture(leases=[a_lease("aaaa0000", since_at=0.5), a_lease("aaaa0002")])

    assert selected(view, board(more, UID)) == "aaaa0002"


def test_when_the_selected_job_is_gone_the_first_is_selected() -> None:
    view, _ = after("down")

    assert selected(view, board(a_picture(leases=[a_lease("bbbb0001")]), UID)) == "bbbb0001"
    assert selected(view, board(a_picture(), UID)) is None


@pytest.mark.parametrize(
    ("keys", "verb", "row"),
    [
        (["e"], "explain", "1"),
        (["enter"], "explain", "1"),
        (["down", "e"], "explain", "aaaa0002"),
        (["l"], "log", "1"),
        (["c", "y"], "cancel", "1"),
        (["tab", "c", "y"], "cancel", "2"),
        (["tab", "h"], "hold", "2"),
        (["tab", "down", "h"], "release", "3"),
        (["tab", "tab", "r"], "retry", "9"),
    ],
)
def test_a_key_orders_something_for_the_selected_job(keys: list[str], verb: str, row: str) -> None:
    _, order = after(*keys)

    assert order is not None
    assert order.row is not None
    assert (order.verb, order.row.id) == (verb, row)


@pytest.mark.parametrize("answer", ["n", "escape", "q", "c", "enter"])
def test_nothing_is_cancelled_without_a_yes(answer: str) -> None:
    asked, order = after("c")
    assert order is None
    assert asked.asking is not None

    view, order = after(answer, view=asked)

    assert order is None
    assert view.asking is None


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        (["down", "c"], "not a job of your queue"),
        (["down", "l"], "not a job of your queue"),
        (["h"], "does not wait"),
        (["r"], "has not ended"),
        (["tab", "tab", "c"], "has ended already"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(keys: list[str], word: str) -> None:
    view, order = after(*keys)

    assert order is None
    assert word in view.said


def test_a_filter_is_typed_kept_and_dropped() -> None:
    typing, _ = after("slash", "x", "q", "space", "backspace", "1")
    kept, _ = after("enter", view=typing)
    dropped, _ = after("escape", view=typing)

    assert (typing.wanted, typing.is_typing) == ("xq1", True)
    assert (kept.wanted, kept.is_typing) == ("xq1", False)
    assert (dropped.wanted, dropped.is_typing) == ("", False)
    assert after("escape", view=kept)[0].wanted == ""


def test_keys_that_are_none_change_nothing() -> None:
    assert after("f5", "x", "ctrl+z") == (View(), None)
    assert after("slash", "f5", "left")[0].wanted == ""


def test_sorting_goes_round() -> None:
    sorts = [after(*["s"] * count)[0].sort_of(Section.RUNNING) for count in range(6)]

    assert sorts == ["gpu", "age", "memory", "user", "name", "gpu"]


def test_help_goes_away_with_any_key_and_quit_is_an_order() -> None:
    helped, _ = after("question_mark")

    assert helped.is_helping
    assert after("q", view=helped) == (View(), None)
    assert after("q")[1] == KeyAction("quit")


def test_a_click_selects() -> None:
    row = BOARD.rows[Section.ENDED][0]
    view = point(View(), Section.ENDED, row)

    assert (view.part, selected(view)) == (Section.ENDED, "9")
