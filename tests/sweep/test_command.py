"""`grn sweep` as people type it: values, files, dry runs, resuming, showing, plotting."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from grn.cli.commands.run.sweep import take_values
from grn.cli.output.style import plain
from grn.errors import UsageError
from tests.cli.live import GRN, Shell
from tests.conftest import Negotiators
from tests.harness import Ended, Story, wait_for

TRAIN = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--bs", type=int)
given = parser.parse_args()
if given.bs == 13:
    raise SystemExit("13 brings bad luck")
print("training")
print(json.dumps({"loss": given.lr * given.bs, "acc": 1 - given.lr}))
"""
COMMAND = f"{sys.executable} -S train.py --lr {{lr}} --bs {{bs}}"


@pytest.fixture
def grn(story: Story) -> Shell:
    story.write("train.py", TRAIN)
    return Shell(story)


# --- words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "given", "rest"),
    [
        ("cmd -p lr 1 2 -p bs 3", {"lr": ["1", "2"], "bs": ["3"]}, ["cmd"]),
        ("cmd -p lr=1 2 --dry-run", {"lr": ["1", "2"]}, ["cmd", "--dry-run"]),
        ("cmd -p lr=log:1..2", {"lr": ["log:1..2"]}, ["cmd"]),
        ("cmd -p x -1 -1e-3 -.5 -inf --out d", {"x": ["-1", "-1e-3", "-.5", "-inf"]}, None),
        ("cmd -px 1 2", {"x": ["1", "2"]}, ["cmd"]),
        ("cmd --param x 1 --param=y 2", {"x": ["1"], "y": ["2"]}, ["cmd"]),
        ("-p x 1 -- cmd -p 5 {x}", {"x": ["1"]}, ["--", "cmd", "-p", "5", "{x}"]),
        ("cmd --parallel 2 --priority 3", {}, ["cmd", "--parallel", "2", "--priority", "3"]),
        ("cmd -p x - 1", {"x": ["-", "1"]}, ["cmd"]),
        ("cmd -p f=--fast", {"f": ["--fast"]}, ["cmd"]),
    ],
)
def test_values_are_taken_up_to_the_next_flag(
    line: str, given: dict[str, list[str]], rest: list[str] | None
) -> None:
    found, left = take_values(line.split())
    assert dict(found) == given
    assert rest is None or left == rest


def test_a_flag_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="no name"):
        take_values(["cmd", "-p", "--dry-run"])


# --- dry runs ------------------------------------------------------------------------------


def test_a_dry_run_prints_each_command_and_touches_nothing(grn: Shell, story: Story) -> None:
    before = sorted(os.listdir(story.folder))
    ended = grn("sweep", "train --lr {lr} --tag {t}", "-p", "lr", "1e-3", "1e-4", "-p", "t", "a b",
                "--dry-run")  # fmt: skip
    assert ended.out == "train --lr 1e-3 --tag 'a b'\ntrain --lr 1e-4 --tag 'a b'\n"
    assert "2 to run" in ended.err
    assert ended.code == 0
    new = set(os.listdir(story.folder)) - set(before)
    assert all(name.endswith((".out", ".err")) for name in new)


def test_a_dry_run_speaks_json_too(grn: Shell) -> None:
    ended = grn("sweep", "t {x}", "-p", "x", "1", "2", "--dry-run", "--json")
    rows = [json.loads(line) for line in ended.out.splitlines()]
    assert [row["command"] for row in rows] == [["t", "1"], ["t", "2"]]
    assert rows[0]["params"] == {"x": "1"}


def dry(grn: Shell, *words: str) -> list[str]:
    ended = grn("sweep", "t {x}", *words, "--dry-run")
    assert ended.code == 0, ended.err
    return ended.out.split("\n")[:-1]


def test_points_are_shuffled_sampled_drawn_seeded_zipped_and_left_out(grn: Shell) -> None:
    many = ["-p", "x", *map(str, range(8))]
    assert sorted(dry(grn, *many, "--shuffle")) == dry(grn, *many)
    assert dry(grn, *many, "--shuffle") != dry(grn, *many)
    assert dry(grn, *many, "--shuffle", "--n-samples", "3") == dry(grn, *many, "--shuffle")[:3]
    assert dry(grn, *many, "--if", "x > 5 or x == 1") == ["t 1", "t 6", "t 7"]
    drawn = dry(grn, "-p", "x=log:1e-5..1e-2", "--n-samples", "5", "--seed", "3")
    assert len(drawn) == 5
    assert all(1e-5 <= float(line[2:]) <= 1e-2 for line in drawn)
    assert drawn == dry(grn, "-p", "x", "log:1e-5..1e-2", "--n-samples", "5", "--seed", "3")
    lists = ["-p", "a", "1", "2", "-p", "b", "3", "4"]
    both = grn("sweep", "t {a} {b} {seed}", *lists, "--zip", "a,b", "--seeds", "2", "--dry-run")
    assert both.out == "t 1 3 0\nt 1 3 1\nt 2 4 0\nt 2 4 1\n"


def test_a_sweep_comes_from_a_file_and_flags_go_first(grn: Shell, story: Story) -> None:
    story.write(
        "s.toml",
        """
        command = "t {x} {y}"
        [parameters]
        x = [1, 2]
        y = "a"
        """,
    )
    assert grn("sweep", "--file", "s.toml", "--dry-run").out == "t 1 a\nt 2 a\n"
    more = grn("sweep", "--file", "s.toml", "-p", "x", "9", "--dry-run", "--shell")
    assert more.out == "t 9 a\n"


def test_words_after_two_dashes_are_the_command(grn: Shell) -> None:
    ended = grn("sweep", "-p", "x", "1", "--dry-run", "--", "t", "a b", "-p", "{x}")
    assert ended.out == "t 'a b' -p 1\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "x", "1"], "there is no command"),
        (["t {x}"], "no parameter"),
        (["t {x} {y}", "-p", "x", "1"], "no parameter 'y'"),
        (["t {x}", "-p", "x", "1", "-p", "x", "2"], "given twice"),
        (["t {x}", "-p", "x"], "no value"),
        (["t {x}", "-p", "x", "normal:0..1"], "is not a range"),
        (["t {x}", "-p", "x", "log:1..2"], "--n-samples"),
        (["t {x}", "-p", "x", "1", "--if", "x <"], "cannot be read"),
        (["t {x}", "-p", "x", "1", "--if", "x > 1"], "leave no point"),
        (["t {x}", "-p", "x", "1", "--mem", "lots"], "is not a size"),
        (["t {x}", "-p", "x", "1", "--zip", "x,y"], "cannot be zipped"),
        (["--file", "none.toml"], "cannot be read"),
        (["t {x}", "-p", "x", "1", "--trials", "3"], "--sampler optuna"),
        (["t {x", "-p", "x", "1"], "not a placeholder"),
        (["show", "nowhere"], "no sweep in nowhere"),
        (["plot", "nowhere"], "no sweep in nowhere"),
    ],
)
def test_mistakes_are_told_in_a_line_with_status_2(grn: Shell, words: list[str], said: str) -> None:
    ended = grn("sweep", *words)
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) <= 2


def test_more_points_than_anybody_wants_are_refused_at_once(grn: Shell) -> None:
    lists = [word for name in "abcdef" for word in ("-p", name, *map(str, range(12)))]
    ended = grn("sweep", "t {a} {b} {c} {d} {e} {f}", *lists, "--dry-run")
    assert ended.code == 2
    assert "more than 100000 points" in ended.err


# --- runs ----------------------------------------------------------------------------------


def swept(grn: Shell, *words: str, command: str = COMMAND) -> Ended:
    return grn("sweep", command, *words, "--mem", "50MiB", "--out", "o")


def test_a_sweep_runs_shows_and_is_taken_up_again(
    grn: Shell, story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    ended = swept(grn, "-p", "lr", "0.1", "0.2", "-p", "bs", "2", "4", "--maximize", "acc")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[0] == "by acc, highest first"
    assert "4 finished" in ended.err
    assert ended.err.count("finished  ") == 4

    more = swept(grn, "-p", "lr", "0.1", "0.2", "-p", "bs", "2", "4", "8", "--json")
    found = json.loads(more.out)
    assert len(found["runs"]) == 6
    assert (found["metric"], found["is_maximized"]) == ("acc", True)
    assert more.err.count("finished  ") == 2

    shown = grn("sweep", "show", "o", "--metric", "loss", "-n", "1")
    assert shown.out.splitlines()[0] == "by loss, lowest first"
    assert shown.out.splitlines()[2].split()[1:5] == ["1", "0.2", "0.1", "2"]
    assert "… and 5 more" in shown.out
    rows = grn("sweep", "show", "o", "--csv").out.splitlines()
    assert len(rows) == 7
    assert len(json.loads(grn("sweep", "show", "o", "--json").out)["runs"]) == 6

    drawn = grn("sweep", "plot", "o", "--metric", "loss")
    assert drawn.code == 0, drawn.err
    assert "by loss, lowest first" in drawn.out
    assert (story.folder / "o" / "plot.html").read_text().startswith("<!doctype html>")
    assert (story.folder / "o" / "plot.png").read_bytes().startswith(b"\x89PNG")
    page_only = grn("sweep", "plot", "o", "--no-png", "--html", "page.html")
    assert page_only.code == 0
    assert (story.folder / "page.html").exists()


def test_failures_are_told_and_the_status_tells(grn: Shell, negotiator: Negotiators) -> None:
    negotiator()
    ended = swept(grn, "-p", "lr", "0.1", "-p", "bs", "13", "2")
    assert ended.code == 1
    assert "failed  lr=0.1,bs=13: 13 brings bad luck" in ended.out
    assert "1 finished, 1 failed; run the same command again to go on" in ended.err


def test_a_terminal_gets_a_line_of_progress_and_a_clean_end(
    grn: Shell, negotiator: Negotiators
) -> None:
    negotiator()
    code, shown = grn.on_terminal(
        "sweep", COMMAND.replace("train.py", f"{grn.story.folder}/train.py"),
        "-p", "lr", "0.1", "-p", "bs", "2", "13", "--out", f"{grn.story.folder}/t", "--mem", "9MiB",
    )  # fmt: skip
    assert code == 1
    assert "2/2  1 failed" in plain(shown)
    assert "best loss 0.2 (lr=0.1, bs=2)" in plain(shown)
    assert "lr=0.1,bs=13: 13 brings bad luck" in plain(shown)


def test_ctrl_c_leaves_what_finished_and_the_rest_to_be_run(
    grn: Shell, story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    line = "test {x} = 1 || { touch up.{x}; test -e go || exec sleep 1000; }"
    line = line.replace("{ touch", "{{ touch").replace("1000; }", "1000; }}")
    words = ["sweep", line, "--shell", "-p", "x", "1", "2", "3", "--mem", "50MiB", "--out", "o"]
    job = story.start(*GRN, *words)
    wait_for(lambda: (story.folder / "up.2").exists(), "the second run")
    wait_for(lambda: _state(story, "x=1") == "finished", "the end of the first run")
    job.signal(signal.SIGINT)
    ended = job.wait()
    assert ended.code == 130
    assert _state(story, "x=2") == "interrupted"
    (story.folder / "go").touch()
    again = grn(*words)
    assert again.code == 0
    assert "2 finished, 1 had finished before" in again.err


def _state(story: Story, run: str) -> str:
    path = story.folder / "o" / "runs" / run / "run.json"
    return str(json.loads(path.read_text())["state"]) if path.exists() else ""


def test_a_sweep_that_waits_says_why(grn: Shell, story: Story, negotiator: Negotiators) -> None:
    here = negotiator("virtual:1x512MiB")
    holder = story.hold("other", exclusive=True)
    here.wait_for_leases(1)
    job = story.start(*GRN, "sweep", "true {x}", "-p", "x", "1", "--mem", "9MiB", "--out", "o")
    wait_for(lambda: "waiting: " in job.err, lambda: job.err)
    story.gate("other").open()
    assert job.wait().code == 0
    holder.ended_well()


def test_optuna_searches_from_the_command_line(grn: Shell, negotiator: Negotiators) -> None:
    negotiator()
    ended = swept(
        grn, "-p", "lr", "log:1e-4..1", "-p", "bs", "2", "4", "--sampler", "optuna",
        "--maximize", "acc", "--trials", "8", "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert 1 <= len(found["runs"]) <= 8
    best = next(row for row in found["runs"] if row["run"] == found["best"])
    assert best["acc"] == max(row["acc"] for row in found["runs"])


def test_pictures_of_nothing_are_refused(grn: Shell, negotiator: Negotiators) -> None:
    negotiator()
    assert swept(grn, "-p", "x", "1", command="true {x}").code == 0
    ended = grn("sweep", "plot", "o")
    assert ended.code == 2
    assert "has given a number" in ended.err
    assert grn("sweep", "show", "o").out.splitlines()[1].split()[0] == "1"


def test_a_folder_that_cannot_be_written_is_a_line(grn: Shell, story: Story) -> None:
    story.write("file", "")
    ended = grn("sweep", "true {x}", "-p", "x", "1", "--out", "file/o")
    assert ended.code == 4
    assert "cannot be written" in ended.err


def test_what_is_not_installed_is_told_with_how_to_get_it(
    grn: Shell, story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    assert swept(grn, "-p", "lr", "0.1", "0.2", "-p", "bs", "2").code == 0
    missing = "optuna matplotlib yaml pandas"
    code = f"import sys\nfor name in {missing.split()}: sys.modules[name] = None"
    story.write("site/sitecustomize.py", code)
    story.prepend_path(story.folder / "site")
    search = ["--sampler", "optuna", "--trials", "2", "--minimize", "y"]
    ended = grn("sweep", "true {x}", "-p", "x", "1", *search)
    assert (ended.code, "pip install" in ended.err) == (2, True)
    story.write("s.yaml", "command: t {x}")
    ended = grn("sweep", "--file", "s.yaml")
    assert (ended.code, "pip install pyyaml" in ended.err) == (2, True)
    drawn = grn("sweep", "plot", "o")
    assert drawn.code == 0
    assert "no picture: matplotlib is not installed" in drawn.err
    assert (story.folder / "o" / "plot.html").exists()
    ended = grn("sweep", "plot", "o", "--png", "p.png")
    assert (ended.code, "pip install matplotlib" in ended.err) == (2, True)
    code = "from grn.sweep.results import Table; Table([]).to_pandas()"
    ended = story.start(sys.executable, "-c", code).wait()
    assert "pip install pandas" in ended.err


def test_help_names_all_there_is(grn: Shell) -> None:
    said = grn("sweep", "--help").out
    assert "grn sweep show sweeps/" in said
    assert "--n-samples" in said
    assert grn("sweep", "show", "--help").code == 0
