"""`grn simulate` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grn.cli import app
from grn.cli.output.style import plain
from grn.cli.report import replay_charts as show
from grn.simulate.policies import PolicyFigures
from grn.simulate.replay import Replayed
from grn.simulate.workload import Assumptions


def grn(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        app.main(["simulate", *words])
    return int(left.value.code or 0)


@pytest.fixture
def jobs_file(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    rows = [f"train.py,{n * 60},600,3GiB,0.3" for n in range(6)]
    path.write_text("\n".join(["type,arrival_s,duration_s,memory,load", *rows, ""]))
    return str(path)


def test_the_table_names_the_policies_the_bound_and_what_was_assumed(
    jobs_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grn("--gpus", "2x24GiB", "--jobs", jobs_file) == 0
    shown = capsys.readouterr().out

    for word in (
        "exclusive",
        "first-run",
        "fifo-gate",
        "clairvoyant",
        "all-knowing",
        "lower bound",
        "assumed:",
    ):
        assert word in shown
    assert "GPU 1 " in shown


def test_json_pictures_and_the_workload_can_be_had(
    jobs_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, saved = tmp_path / "runs.html", tmp_path / "saved.csv"
    words = ("--policy", "exclusive", "--policy", "grn", "--arrivals", "at-once", "--json")

    assert grn("--gpus", "1x24GiB", "--jobs", jobs_file, *words, "--picture", str(page),
               "--save", str(saved)) == 0  # fmt: skip
    told = json.loads(capsys.readouterr().out)

    alone, ours = told["policies"]
    assert alone["policy"] == "exclusive"
    assert alone["makespan_s"] == pytest.approx(3600)
    assert ours["makespan_s"] < 0.75 * alone["makespan_s"]
    assert told["lower_bound_s"] <= ours["makespan_s"]
    assert page.read_text().count("<rect") >= 6
    assert len(saved.read_text().splitlines()) == 7


@pytest.mark.parametrize(
    "words",
    [
        ("--gpus", "many"),
        ("--gpus", "1x8GiB", "--jobs", "/nowhere.csv"),
        ("--gpus", "1x8GiB", "--generate", "5", "--arrivals", "-3"),
        ("--gpus", "1x1GiB", "--generate", "50"),
        ("--gpus", "1x8GiB", "--generate", "5", "--picture", "x.png"),
        ("--gpus", "1x8GiB", "--policy", "magic"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert grn(*words) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("makespan_s", "shown"), [(45.0, "45.00 s"), (600.0, "10.00 min"), (7200.0, "2.00 h")]
)
def test_times_have_the_unit_that_the_longest_needs(makespan_s: float, shown: str) -> None:
    assert shown in plain(show.table([a_figure(makespan_s)], makespan_s))


@pytest.mark.parametrize("width", [50, 80, 200])
def test_the_table_and_its_words_fit_the_terminal(width: int) -> None:
    drawn = plain(show.table([a_figure(7200.0)], 7200.0, width))
    words = show.legend(Assumptions(), ["grn"], width)

    assert max(len(line) for line in [*drawn.splitlines(), *words.splitlines()]) <= width
    assert drawn.split()[:2] == ["policy", "makespan"]
    assert ("first runs" in drawn) is (width == 200)


def a_figure(makespan_s: float) -> PolicyFigures:
    return PolicyFigures("grn", makespan_s, makespan_s, makespan_s, 0, 0, 0.1, 1.0, 5.0, Replayed())
