"""Pages of `grn top`: the end of a log as harmless lines, and moving in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grn.cli.top import actions, draw
from grn.cli.top.actions import LogPage, log_lines
from grn.cli.top.draw import UNICODE, width_of
from grn.cli.top.screen import Look

LOOK = Look(40, 10, UNICODE, 0, str)


def text_of(page: LogPage) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in page.lines(LOOK)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_a_log_of_any_bytes_is_shown_as_harmless_lines(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "log").write_bytes(data)

    assert all(draw.plain(line).isprintable() for line in log_lines(str(tmp_path)))


def test_a_bar_that_was_written_over_and_over_shows_as_it_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"start\n 10%\r 50%\r100%\ndone\r\n")

    assert [draw.plain(line) for line in log_lines(str(tmp_path))] == ["start", "100%", "done", ""]


def test_a_log_keeps_the_colours_of_its_program(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"loss \x1b[32m0.5\x1b[0m\r\n")

    first, _ = log_lines(str(tmp_path))
    assert first == [("loss ", "sgr:"), ("0.5", "sgr:38;5;2")]


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"x" * (2 * actions.MAX_LOG_BYTES) + b"\nthe end\n")
    (tmp_path / "log.tail0").write_bytes(b"after the end\n")

    lines = [draw.plain(line) for line in log_lines(str(tmp_path))]

    assert lines[-3:] == ["the end", "after the end", ""]
    assert sum(map(len, lines)) <= actions.MAX_LOG_BYTES


def test_a_job_that_printed_nothing_says_so(tmp_path: Path) -> None:
    assert [draw.plain(line) for line in log_lines(str(tmp_path))] == ["nothing was printed yet"]


def test_a_followed_page_keeps_its_end_in_sight_until_it_is_moved() -> None:
    texts = [f"line {number}" for number in range(100)]
    page = LogPage("title", lambda: [[(text, "plain")] for text in texts], is_followed=True)
    assert text_of(page)[8] == "line 99"
    texts.append("line 100")
    assert text_of(page)[8] == "line 100"
    assert page.press("up", 10)
    texts.append("line 101")
    assert text_of(page)[8] == "line 99"
    assert page.press("home", 10)
    assert text_of(page)[1] == "line 0"
    assert page.press("pagedown", 10)
    assert text_of(page)[1] == "line 8"
    assert page.press("end", 10)
    assert text_of(page)[8] == "line 101"


@pytest.mark.parametrize("key", ["q", "escape", "l", "x"])
def test_any_other_key_closes_a_page(key: str) -> None:
    assert not LogPage("t", list, is_followed=False).press(key, 10)


def test_a_page_fills_the_terminal_exactly() -> None:
    page = LogPage(
        "a long title " * 9,
        lambda: [[("short", "plain")], [("long " * 50, "plain")]],
        is_followed=False,
    )
    lines = page.lines(LOOK)

    assert len(lines) == 10
    assert {width_of(line) for line in lines} == {40}
