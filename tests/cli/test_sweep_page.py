"""Pictures of sweeps: what is drawn where, harmless text, nothing from outside."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grn.cli.report.sweep_chart import MAX_DRAWN, ChartData, axis, column_texts, draw
from grn.cli.report.sweep_page import STYLE, body, page
from grn.cli.report.sweep_png import write_png
from grn.sweep.manifest import About, RunManifest, RunState
from grn.sweep.results import Table, rank

EVIL = "<script>alert(1)</script>\"'&$x^2$\x1b[31m"


def a_picture(points: list[dict[str, Any]], name: str = "s", metric: str = "loss") -> ChartData:
    """Draw a sweep; the value of a point is its metric, else its number is."""
    runs = []
    for number, point in enumerate(points):
        params = {key: value for key, value in point.items() if key != "value"}
        result = {metric: point.get("value", number)}
        made = RunManifest(
            f"r{number}", str(number), number, params, RunState.FINISHED, result=result
        )
        runs.append(made)
    names = tuple(runs[0].params)
    runs.append(RunManifest("bad", "bad", len(runs), {}, RunState.FAILED, trouble="x"))
    about = About(name, f"cmd {name}", False, names, 0.0)
    table = Table(runs, names)
    ranking = rank(table, about)
    assert ranking is not None
    return draw(about, table, ranking)


class Seen(HTMLParser):
    """Collects the tags and attributes of a page and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Seen:
    seen = Seen()
    seen.feed(text)
    seen.close()
    assert seen.open == []
    return seen


def test_numbers_lie_evenly_or_by_magnitude() -> None:
    even = axis("x", [1, 2, 3])
    assert not even.is_log
    assert even.places[1] == pytest.approx(0.5)
    by_size = axis("lr", ["1e-5", "1e-3", "1e-1"])
    assert by_size.is_log
    assert by_size.places[1] == pytest.approx(0.5)
    assert axis("bs", ["16", "32", "64", "128"]).is_log
    assert [tick.text for tick in by_size.ticks] == ["1e-5", "0.001", "0.1"]


def test_words_have_a_place_each() -> None:
    words = axis("opt", ["sgd", "adam", "sgd", None])
    assert words.is_grouped
    assert [tick.text for tick in words.ticks] == ["adam", "sgd"]
    assert words.places == (0.75, 0.25, 0.75, None)
    mixed = axis("x", ["1", "two"])
    assert mixed.is_grouped


def test_runs_with_the_same_value_do_not_hide_each_other() -> None:
    words = axis("opt", ["a", "b"] * 10)
    assert len(set(words.spread)) == 20
    for place, moved in zip(words.places, words.spread, strict=True):
        assert place is not None
        assert moved is not None
        assert abs(place - moved) <= 0.05
    alone = axis("x", [1, 2, 3])
    assert alone.spread == alone.places


@pytest.mark.parametrize(
    "values", [[5], [0, 0], [-1e30, 1e30], [1e-300, 1e300], [True, False], [1, None, 1e9], [None]]
)
def test_odd_values_have_places_inside(values: list[Any]) -> None:
    made = axis("x", values)
    assert all(place is None or 0 <= place <= 1 for place in made.places)
    assert all(0 <= tick.at <= 1 for tick in made.ticks)


@pytest.mark.parametrize("high", [1e-9, 0.3, 1, 7.7, 40, 12345])
def test_ticks_are_round_and_few(high: float) -> None:
    values = [high * share / 20 for share in range(21)]
    ticks = axis("x", values, can_group=False).ticks
    assert 2 <= len(ticks) <= 8
    assert all(len(tick.text) <= 8 for tick in ticks)


def test_the_best_run_is_drawn_last_and_strongest() -> None:
    picture = a_picture([{"x": 1, "value": 3}, {"x": 2, "value": 1}, {"x": 3, "value": 2}])
    assert [row["loss"] for row in picture.rows] == [3, 2, 1]
    assert picture.levels == (0, 4, 7)
    assert [row["loss"] for row in picture.best] == [1, 2, 3]
    counts = {"running": 0, "finished": 3, "failed": 1, "interrupted": 0, "requeued": 0}
    assert dict(picture.counts) == counts


def test_parameters_that_do_not_vary_are_told_and_not_drawn() -> None:
    picture = a_picture([{"x": 1, "y": "same"}, {"x": 2, "y": "same"}])
    assert [one.name for one in picture.axes] == ["x"]
    assert picture.fixed == (("y", "same"),)


def test_a_page_is_whole_and_needs_nothing_from_outside() -> None:
    text = page(a_picture([{"lr": 10.0**-n, "opt": o} for n in range(5) for o in ("sgd", "adam")]))
    seen = read(text)
    tags = [tag for tag, _ in seen.tags]
    assert tags.count("svg") == 4  # the lines twice: for a wide page and for a phone
    assert tags.count("circle") == 20
    assert tags.count("path") == 10
    assert "prefers-color-scheme: dark" in text
    assert "Failed runs" in text
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not {"link", "img", "iframe"} & set(tags)
    for _, attributes in seen.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "").startswith(("", "#", "./runs/"))


def test_a_failed_run_leads_to_its_output_and_times_are_spelled() -> None:
    picture = a_picture([{"x": 1}, {"x": 2}])
    assert 'href="./runs/bad/log.txt">bad</a>' in page(picture)
    assert 'href="../my%20sweep/runs/bad/log.txt"' in page(picture, "../my sweep")
    assert 'href="#/history/bad"' in body(picture)
    assert column_texts("duration_s", [186.4], 60) == ["3m06s"]
    assert column_texts("loss", [0.715, 1.828, None], 60) == ["0.715", "1.828", "–"]
    assert column_texts("lr", ["8.12715e-05", "0.001"], 60) == ["8.127e-05", "1.000e-03"]
    assert column_texts("name", ["abcdef"], 4) == ["abc…"]
    assert "time (s)" not in page(picture)


def test_the_best_runs_can_be_sorted_by_pointer_and_keyboard() -> None:
    text = page(a_picture([{"x": 1}, {"x": 2}]))
    heads = [one for tag, one in read(text).tags if tag == "th" and "tabindex" in one]
    assert len(heads) == 5  # place, loss, x, time, GPU
    assert "sweepPage(document, document.body)" in text


def test_text_of_users_cannot_become_part_of_the_page() -> None:
    points = [{EVIL.replace("$", ""): EVIL, "x": n} for n in range(3)]
    points += [{EVIL.replace("$", ""): "b", "x": 9}]
    text = page(a_picture(points, name=EVIL, metric="loss" + EVIL))
    seen = read(text)
    assert [tag for tag, _ in seen.tags].count("script") == 1  # our own
    assert "<script>alert" not in text
    assert "\x1b" not in text


@pytest.mark.process
def test_one_run_and_no_varying_parameter_still_make_a_page(tmp_path: Path) -> None:
    picture = a_picture([{"x": 1}])
    read(page(picture))
    assert write_png(picture, str(tmp_path / "p.png"))


@pytest.mark.process
def test_a_png_is_written_whole(tmp_path: Path) -> None:
    points = [{"lr": 10.0**-n, EVIL: o, "z": None} for n in range(5) for o in (EVIL, "adam")]
    picture = a_picture(points, name=EVIL)
    assert write_png(picture, str(tmp_path / "p.png"))
    data = (tmp_path / "p.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data.rstrip().endswith(b"IEND\xaeB`\x82")
    wide, tall = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert wide == 1800
    assert tall > 900
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


def test_a_huge_sweep_makes_a_page_of_a_sane_size(tmp_path: Path) -> None:
    picture = a_picture([{"x": n, "y": -n} for n in range(5000)])
    assert len(picture.rows) == MAX_DRAWN
    assert picture.is_partial
    (tmp_path / "p.html").write_text(page(picture))
    assert (tmp_path / "p.html").stat().st_size < 3_000_000


@pytest.mark.slow
@pytest.mark.process
def test_a_sweep_of_many_parameters_is_still_drawn(tmp_path: Path) -> None:
    many = a_picture([{f"p{k}": n * k % 7 for k in range(1, 40)} for n in range(3000)])
    (tmp_path / "m.html").write_text(page(many))
    assert (tmp_path / "m.html").stat().st_size < 6_000_000
    assert write_png(many, str(tmp_path / "m.png"))


def test_parallel_coordinates_are_drawn_closer_together_on_a_phone_not_smaller() -> None:
    narrow = STYLE.partition("@media (max-width: 720px)")[2]
    assert "svg.lines { display: none; } svg.narrow { display: block; }" in narrow
    assert "section { overflow-x: auto; }" in narrow

    drawn = page(a_picture([{"x": n, "y": -n} for n in range(3)]))
    assert 'class="lines narrow" viewBox="0 0 340 340"' in drawn
    many = page(a_picture([{f"p{k}": n for k in range(9)} for n in range(3)]))
    assert 'class="lines narrow" viewBox="0 0 820 340"' in many  # scrolls


@pytest.mark.process
@pytest.mark.parametrize("charts", [1, 2, 4])
def test_no_row_of_a_png_ends_in_a_gap(tmp_path: Path, charts: int) -> None:
    from matplotlib.image import imread

    points = [{f"p{k}": n * (k + 1) for k in range(charts)} for n in range(6)]
    assert write_png(a_picture(points), str(tmp_path / "p.png"))
    pixels = imread(tmp_path / "p.png")
    tall, wide = pixels.shape[:2]
    last_column = pixels[int(tall * 0.5) : int(tall * 0.65), int(wide * 0.72) : int(wide * 0.95)]
    assert last_column.min() < 0.95
