"""Lines of `grn top`: true sums, every width, no meaning by colour alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.cli.top import draw
from grn.cli.top.draw import ASCII, UNICODE, Line, Marks
from grn.cli.top.rows import Row, Section
from grn.model.units import GiB, MiB
from grn.protocol.negotiator_rows import GpuRow, LeaseRow
from grn.protocol.rows import read
from tests.cli import pictures
from tests.cli.pictures import NOW


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def a_gpu(*about: Any, **changes: Any) -> GpuRow:
    return read(GpuRow, pictures.a_gpu(*about, **changes))


def a_lease(*about: Any, **changes: Any) -> LeaseRow:
    return read(LeaseRow, pictures.a_lease(*about, **changes))


def bar_of(gpu: GpuRow, leases: list[LeaseRow], size: int = 48) -> str:
    return text_of(draw.bar(gpu, {lease.id: lease for lease in leases}, size, UNICODE))


def test_a_bar_shows_who_uses_and_who_has_reserved_what() -> None:
    leases = [
        a_lease("a", used_bytes=4 * GiB, reserved_bytes=6 * GiB),
        a_lease("b", used_bytes=1 * GiB, reserved_bytes=1 * GiB),
    ]
    gpu = a_gpu(0, "a", "b", strangers_bytes=3 * GiB, unexplained_bytes=1 * GiB)

    # 48 characters for 24 GiB: two for each.
    assert bar_of(gpu, leases) == "A███████▒▒▒▒B█╳╳╳╳╳╳??" + "·" * 22 + "╱╱╱╱"


def test_who_is_idle_is_counted_beside_the_name_of_the_gpu() -> None:
    stranger = {"pid": 9, "user": 7, "used_bytes": GiB}
    gpu = a_gpu(idle_leases=["a"], idle_strangers=[stranger])

    assert "2 idle, " in text_of(draw.gpu_line(gpu, {}, [], 100, UNICODE))


def test_a_job_that_uses_nothing_yet_has_its_letter_in_what_is_reserved() -> None:
    leases = [a_lease("a", used_bytes=None, reserved_bytes=6 * GiB)]

    assert bar_of(a_gpu(0, "a"), leases).startswith("A▒▒▒▒▒▒▒▒▒▒▒·")


def test_the_smallest_job_has_a_letter() -> None:
    leases = [a_lease(name, used_bytes=1, reserved_bytes=MiB) for name in "abc"]

    assert bar_of(a_gpu(0, "a", "b", "c"), leases).startswith("ABC·")


@given(st.randoms(use_true_random=False), st.integers(1, 200), st.sampled_from([UNICODE, ASCII]))
def test_a_bar_is_as_wide_as_it_is_told_whatever_is_on_it(
    chance: random.Random, size: int, marks: Marks
) -> None:
    leases = {
        f"l{n}": a_lease(f"l{n}", used_bytes=chance.choice([None, chance.randrange(30 * GiB)]),
                         reserved_bytes=chance.randrange(30 * GiB))
        for n in range(chance.randrange(40))
    }  # fmt: skip
    foreign = {"strangers_bytes": chance.randrange(9 * GiB), "unexplained_bytes": 5}
    gpu = a_gpu(0, *leases, **foreign)

    assert len(text_of(draw.bar(gpu, leases, size, marks))) == size


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200, 400])
@pytest.mark.parametrize("marks", [UNICODE, ASCII])
@pytest.mark.parametrize("health", ["ok", "unknown", "lost"])
def test_the_line_of_a_gpu_fits_every_width(width: int, marks: Marks, health: str) -> None:
    gpu = a_gpu(12, "a", health=health)
    line = draw.gpu_line(gpu, {"a": a_lease("a")}, [1.0, None, 99.0], width, marks)

    text = text_of(draw.clipped(line, width, marks))
    assert len(text) == width
    assert text.isascii() or marks is UNICODE


def test_a_gpu_that_is_silent_says_so_in_words() -> None:
    line = draw.gpu_line(a_gpu(health="unknown"), {}, [], 100, UNICODE)

    assert "the driver does not answer" in text_of(line)


@pytest.mark.parametrize("width", [60, 80, 110, 200])
@pytest.mark.parametrize("part", Section)
def test_cells_stand_under_their_headings(part: Section, width: int) -> None:
    row = Row(part, "41", "running", "JOBTEXT", 1, name="JOBTEXT", seats="0A", used_bytes=GiB,
              reserved_bytes=GiB, since_at=NOW - 5, ended_at=NOW, why="WHYTEXT")  # fmt: skip
    heading = text_of(draw.heading(part, width, "7", "age", True, UNICODE))
    line = text_of(draw.job_line(row, NOW, width, "USERNAME", UNICODE))

    assert len(heading) == len(line) == width
    assert heading.startswith(f"{part.value.upper()} 7")
    names = (
        [("JOB", "JOBTEXT"), ("WHY", "WHYTEXT")] if part is Section.WAITING else [("JOB", "JOBT")]
    )
    for name, text in names:
        assert heading.index(name) == line.index(text[:4])


def test_a_selected_row_is_marked_by_a_character_too() -> None:
    row = Row(Section.RUNNING, "41", "running", "x", 1)

    assert text_of(draw.job_line(row, NOW, 80, "me", UNICODE, is_selected=True)).startswith("▶41")
    assert text_of(draw.job_line(row, NOW, 80, "me", ASCII, is_selected=True)).startswith(">41")


def test_a_sparkline_is_empty_for_nothing_and_never_for_something() -> None:
    assert draw.spark([0.0, 0.1, 50.0, 100.0, None], 8, 100.0, UNICODE) == "    ▁▄█ "[-8:].rjust(8)


def test_a_curve_keeps_its_peak_however_narrow() -> None:
    values: list[int | None] = [1] * 500
    values[333] = 8

    drawn = draw.squeezed(values, 20)

    assert len(drawn) == 20
    assert drawn.count(8) == 1
    assert draw.squeezed([], 20) == []


@given(st.text(), st.integers(0, 60))
def test_a_cut_text_has_the_width_it_was_cut_to(text: str, size: int) -> None:
    assert draw.width_of([(draw.cut(text, size, UNICODE), "")]) == size


def test_wide_characters_count_twice() -> None:
    assert draw.cut("模型模型", 5, UNICODE) == "模型…"
    assert draw.cut("模型", 6, UNICODE) == "模型  "


@pytest.mark.parametrize(
    ("room", "wanted", "shares"),
    [
        (13, [5, 4, 2], [5, 5, 3]),
        (20, [1, 1, 1], [2, 2, 16]),
        (30, [1000, 1000, 1000], [10, 10, 10]),
        (30, [1000, 2, 50], [14, 3, 13]),
        (2, [5, 5, 5], [1, 1, 0]),
    ],
)
def test_lines_are_shared_among_the_parts(room: int, wanted: list[int], shares: list[int]) -> None:
    assert draw.heights(room, wanted) == shares


@given(st.integers(0, 99), st.lists(st.integers(0, 2000), min_size=3, max_size=3))
def test_no_line_is_lost_or_given_twice(room: int, wanted: list[int]) -> None:
    shares = draw.heights(room, wanted)

    assert sum(shares) == room
    assert min(shares) >= 0


@given(st.integers(0, 500), st.integers(1, 500), st.integers(0, 50), st.integers(0, 600))
def test_the_selected_row_is_always_in_the_window(
    selected: int, count: int, size: int, first: int
) -> None:
    selected = min(selected, count - 1)
    begin = draw.window(selected, count, size, first)

    assert 0 <= begin < count
    if size:
        assert begin <= selected < begin + size
        assert begin == 0 or begin + size <= count


def test_only_a_wait_that_needs_a_person_stands_out() -> None:
    row = Row(Section.WAITING, id="1", state="waiting", what="x", user=0, why="needs 9.0 GiB")
    for state, style in (("waiting", "why"), ("held", "note")):
        line = draw.job_line(row._replace(state=state), NOW, 120, "me", UNICODE)
        assert ("needs 9.0 GiB" in line[-1][0], line[-1][1]) == (True, style)


def test_a_first_run_does_not_stand_out_and_a_command_is_dimmer_than_its_name() -> None:
    row = Row(Section.RUNNING, id="1", state="first run", what="x", user=0)
    text, style = draw.job_line(row, NOW, 120, "me", UNICODE)[-1]
    assert (text.rstrip(), style) == ("[first run] x", "plain")
    named = row._replace(name="gpt2", what="gpt2: python train.py")
    name, command = draw.job_line(named, NOW, 120, "me", UNICODE)[-2:]
    assert (name, command[0].rstrip()) == (("gpt2 [first run]", "plain"), ": python train.py")
    row = row._replace(state="running", name="gpt2", what="gpt2: python train.py")
    name, command = draw.job_line(row, NOW, 120, "me", UNICODE)[-2:]
    assert name == ("gpt2", "plain")
    assert (command[0].rstrip(), command[1]) == (": python train.py", "dim")


def test_temperature_power_and_clock_are_shown_only_where_the_driver_tells_them() -> None:
    row = a_gpu(0, temperature_c=71, power_w=250, clock_mhz=1980)
    assert [draw.sensors_of([row], width) for width in (77, 80, 120)] == [0, 12, 20]
    assert draw.sensors_of([a_gpu(0)], 120) == 0

    told = draw.gpu_line(row, {}, (), 120, UNICODE, 20)
    unknown = draw.gpu_line(a_gpu(0), {}, (), 120, UNICODE)

    assert " 71°C  250W 1980MHz " in text_of(told)
    assert "MHz" not in text_of(draw.gpu_line(row, {}, (), 80, UNICODE, 12))
    assert draw.width_of(told) == draw.width_of(unknown)
    assert "°C" not in text_of(unknown)
