"""HTML pages: escaping, tables, and bars that do not lie on each other."""

from __future__ import annotations

from grn.cli.output import html
from grn.cli.output.html import Bar


def test_text_of_users_is_escaped_and_keeps_its_lines() -> None:
    assert html.text('<b>"&"</b>\n\x1b[31m') == "&lt;b&gt;&quot;&amp;&quot;&lt;/b&gt;\n\\x1b[31m"


def test_a_table_marks_numbers_and_says_when_it_is_empty() -> None:
    drawn = html.table(("Name", "Jobs"), [("<a>", "1")], numbers_from=1)

    assert "<tr><td>&lt;a&gt;</td><td class=n>1</td></tr>" in drawn
    assert "None." in html.table(("Name",), [])


def test_bars_that_overlap_have_lanes_of_their_own_and_free_lanes_are_used_again() -> None:
    times = [(0, 4), (1, 2), (2, 5), (4, 6)]

    assert html.lanes([Bar(begin, end, "red", "") for begin, end in times]) == [0, 1, 1, 0]


def test_a_timeline_has_a_row_for_each_gpu_and_stays_inside() -> None:
    bars = [Bar(-5.0, 20.0, "red", "<long>")]

    drawn = html.timeline([(0, bars), (3, [])], 0.0, 10.0, [(0.0, "0"), (10.0, "10 s")], "x")

    assert drawn.count("<rect") == 3
    assert "GPU 3" in drawn
    assert 'x="60.0" y="19.0" width="1000.0"' in drawn
    assert "&lt;long&gt;" in drawn
    assert html.svg_file(drawn).startswith('<svg xmlns="http://www.w3.org/2000/svg"')


def test_a_wide_bar_has_its_name_and_a_thin_one_is_counted_below() -> None:
    bars = [Bar(0.0, 5.0, "red", "long", "<gpt2>"), Bar(5.0, 5.04, "blue", "thin", "short")]

    drawn = html.timeline([(0, bars)], 0.0, 10.0, [], "x")

    assert ">&lt;gpt2&gt;</text>" in drawn
    assert "short" not in drawn
    assert 'fill="blue" fill-opacity' in drawn
