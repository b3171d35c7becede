"""Sweeps that run, on fixed slots: folders, results, resuming, failures."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from grn.errors import UsageError
from grn.fixed_slots.slots import FixedSlots
from grn.sweep.manifest import SweepFolder, git_commit
from grn.sweep.sweep import Sweep
from grn.sweep.sweep_run import Study
from tests.harness import SOURCES, wait_for

DOUBLED = "import json,sys; print(json.dumps(dict(y=float(sys.argv[1])*2)))"
PRINT = f"{sys.executable} -S -c '{DOUBLED}'"


def ran(sweep: Sweep, slots: int = 2) -> Study:
    """Run a sweep on fixed slots."""
    return sweep.study(slots=FixedSlots(map(str, range(slots))))


def a_sweep(folder: Path, what: Any = PRINT + " {x}", **options: Any) -> Sweep:
    parameters = options.pop("parameters", {"x": [1, 2, 3]})
    return Sweep(what, parameters, out=folder / "out", **options)


def states(study: Study) -> dict[str, str]:
    return {row["run"]: row["state"] for row in study.table()}


def test_each_point_is_run_and_its_last_json_line_is_its_result(tmp_path: Path) -> None:
    study = ran(a_sweep(tmp_path))

    assert [(row["x"], row["y"]) for row in study.table()] == [("1", 2.0), ("2", 4.0), ("3", 6.0)]
    assert (study.progress.finished, study.progress.failed, study.progress.running) == (3, 0, 0)
    lines = (tmp_path / "out" / "results.csv").read_text().splitlines()
    assert lines[0].startswith("run,state,x,y,duration_s")
    assert lines[1].startswith("x=1,finished,1,2.0,") or lines[1].startswith('"x=1"')
    rows = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert [json.loads(row)["y"] for row in rows] == [2.0, 4.0, 6.0]


def test_a_run_has_a_folder_with_its_manifest_and_its_output(tmp_path: Path) -> None:
    ran(a_sweep(tmp_path, seeds=[7], what=PRINT + " {x} {seed}", parameters={"x": [1]}))

    folder = tmp_path / "out" / "runs" / "x=1,seed=7"
    manifest = json.loads((folder / "run.json").read_text())
    assert manifest["params"] == {"x": "1", "seed": "7"}
    assert manifest["seed"] == "7"
    assert manifest["command"][-2:] == ["1", "7"]
    assert (manifest["state"], manifest["status"], manifest["attempt"]) == ("finished", 0, 1)
    assert manifest["started_at"] <= manifest["ended_at"]
    assert manifest["gpu"] in ("0", "1")
    assert manifest["result"] == {"y": 2.0}
    assert json.loads((folder / "log.txt").read_text()) == {"y": 2.0}
    about = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert about["parameters"] == ["x", "seed"]
    assert about["command"].endswith("{x} {seed}")


def test_what_finished_is_not_run_again_and_new_points_are(tmp_path: Path) -> None:
    what = f"/bin/sh -c 'echo {{x}} >> {tmp_path}/ran'"
    ran(a_sweep(tmp_path, what))
    again = ran(a_sweep(tmp_path, what))
    assert (again.progress.total, again.progress.skipped) == (0, 3)
    more = ran(a_sweep(tmp_path, what, parameters={"x": [3, 4, 2, 5]}))
    assert more.progress.total == 2

    assert sorted((tmp_path / "ran").read_text().split()) == ["1", "2", "3", "4", "5"]
    assert [row["x"] for row in more.table()] == ["1", "2", "3", "4", "5"]


def test_everything_is_run_again_if_asked(tmp_path: Path) -> None:
    ran(a_sweep(tmp_path))
    study = ran(a_sweep(tmp_path, rerun=True))
    assert study.progress.finished == 3
    assert {row["attempt"] for row in study.table()} == {2}


def test_a_failed_run_says_why_and_is_run_again_next_time(tmp_path: Path) -> None:
    what = f"/bin/sh -c 'test -e {tmp_path}/mended || {{{{ echo no data >&2; exit 3; }}}}; : {{x}}'"
    study = ran(a_sweep(tmp_path, what, parameters={"x": [1]}))
    (row,) = study.table()
    assert (row["state"], row["status"], row["trouble"]) == ("failed", 3, "no data")

    (tmp_path / "mended").touch()
    (row,) = ran(a_sweep(tmp_path, what, parameters={"x": [1]})).table()
    assert (row["state"], row["status"], row["trouble"], row["attempt"]) == ("finished", 0, "", 2)
    folder = tmp_path / "out" / "runs" / "x=1"
    assert (folder / "log.1.txt").read_text() == "no data\n"


def test_a_failing_run_is_tried_again_as_often_as_asked(tmp_path: Path) -> None:
    what = (
        f"/bin/sh -c 'echo t >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) -ge 3 # {{x}}'"
    )
    study = ran(a_sweep(tmp_path, what, parameters={"x": [1]}, retry=2))
    assert states(study) == {"x=1": "finished"}
    assert (study.progress.finished, study.progress.failed) == (1, 0)
    (row,) = study.table()
    assert row["attempt"] == 3

    bad = ran(a_sweep(tmp_path / "b", "/bin/false {x}", retry=1, parameters={"x": [1]}))
    assert [(row["state"], row["attempt"]) for row in bad.table()] == [("failed", 2)]


def test_a_command_that_cannot_be_started_fails_with_its_reason(tmp_path: Path) -> None:
    study = ran(a_sweep(tmp_path, "no-such-program {x}", parameters={"x": [1, 2]}))
    for row in study.table():
        assert (row["state"], row["status"]) == ("failed", 127)
        assert "no-such-program" in row["trouble"]


def test_one_failure_does_not_stop_the_others_unless_asked(tmp_path: Path) -> None:
    what = "/bin/sh -c 'test {x} != 1'"
    study = ran(a_sweep(tmp_path, what), slots=1)
    assert list(states(study).values()) == ["failed", "finished", "finished"]
    fast = ran(a_sweep(tmp_path / "f", what, keep_going=False), slots=1)
    assert "x=1" in states(fast)
    assert "x=3" not in states(fast)  # the second may have been on its way


def test_results_come_from_a_file_in_the_runs_folder(tmp_path: Path) -> None:
    what = '/bin/sh -c \'echo {{\\"acc\\": {x}}} > {run_dir}/metrics.json; echo "$GRN_RUN_DIR"\''
    study = ran(a_sweep(tmp_path, what, result="metrics.json"))
    assert [row["acc"] for row in study.table()] == [1, 2, 3]
    said = (tmp_path / "out" / "runs" / "x=1" / "log.txt").read_text().strip()
    assert said == str(tmp_path / "out" / "runs" / "x=1")


def test_a_result_that_is_missing_is_a_failure_even_if_an_old_one_lies_there(
    tmp_path: Path,
) -> None:
    what = f"/bin/sh -c 'test -e {tmp_path}/off || echo {{{{}}}} > {{run_dir}}/m.json # {{x}}'"
    one = {"x": [1]}
    assert states(ran(a_sweep(tmp_path, what, result="m.json", parameters=one))) == {
        "x=1": "finished"
    }
    (tmp_path / "off").touch()
    study = ran(a_sweep(tmp_path, what, result="m.json", parameters=one, rerun=True))
    (row,) = study.table()
    assert (row["state"], row["trouble"]) == ("failed", "it left no m.json")


NASTY = ["a b", "it's", '"', "$HOME `x`", "*", "", "ä\n", os.fsdecode(b"\xff\xfe"), "{y}", "-n"]


@pytest.mark.parametrize("is_shell", [False, True])
def test_values_reach_the_program_byte_for_byte(tmp_path: Path, is_shell: bool) -> None:
    code = "import json,os,sys; print(json.dumps(dict(got=os.fsencode(sys.argv[1]).hex())))"
    what = f"{sys.executable} -S -c '{code}' {{v}}"
    study = ran(a_sweep(tmp_path, what, parameters={"v": NASTY}, shell=is_shell))
    got = {row["v"]: row["got"] for row in study.table()}
    assert got == {value: os.fsencode(value).hex() for value in NASTY}


def test_all_parameters_can_be_had_as_json(tmp_path: Path) -> None:
    study = ran(a_sweep(tmp_path, ["echo", "{params}"], parameters={"a": [1], "b": ["x y"]}))
    (row,) = study.table()
    assert (row["result.a"], row["result.b"]) == ("1", "x y")


def test_a_folder_is_not_shared_by_two_commands(tmp_path: Path) -> None:
    ran(a_sweep(tmp_path, "true {x}"))
    with pytest.raises(UsageError, match="another command: true"):
        ran(a_sweep(tmp_path, "false {x}"))


def test_a_sweep_that_runs_is_not_run_by_another(tmp_path: Path) -> None:
    study = Study(a_sweep(tmp_path).plan, lambda *_: None)
    study.open()
    with pytest.raises(UsageError, match="run by another process"):
        ran(a_sweep(tmp_path))
    study.close()
    assert ran(a_sweep(tmp_path)).progress.finished == 3


# --- functions -----------------------------------------------------------------------------


def test_a_function_is_called_with_each_point_and_what_it_returns_is_the_row(
    tmp_path: Path,
) -> None:
    def area(width: int, height: float) -> dict[str, object]:
        return {"area": width * height, "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}

    parameters = {"width": [2, 3], "height": [0.5]}
    study = ran(Sweep(area, parameters, out=tmp_path / "out"))
    assert [(row["width"], row["area"]) for row in study.table()] == [(2, 1.0), (3, 1.5)]
    assert {row["result.gpu"] for row in study.table()} <= {"0", "1"}
    left = os.listdir(tmp_path / "out" / "runs" / "width=2,height=0.5")
    assert sorted(left) == ["log.txt", "run.json"]


def test_a_function_that_raises_fails_with_its_error(tmp_path: Path) -> None:
    def train(x: int) -> float:
        if x == 2:
            raise ValueError("two is bad")
        return x / 2

    sweep = Sweep(train, {"x": [1, 2]}, out=tmp_path / "out")
    study = ran(sweep)
    assert [(row["state"], row["value"]) for row in study.table()] == [
        ("finished", 0.5),
        ("failed", None),
    ]
    assert study.table().rows[1]["trouble"] == "ValueError: two is bad"


def test_points_that_only_differ_in_kind_have_folders_of_their_own(tmp_path: Path) -> None:
    study = ran(Sweep(lambda obj: type(obj).__name__, {"obj": [1, "1"]}, out=tmp_path / "o2"))
    assert sorted(row["value"] for row in study.table()) == ["int", "str"]
    assert len(os.listdir(tmp_path / "o2" / "runs")) == 2


def test_functions_are_told_apart(tmp_path: Path) -> None:
    def train(x: int, epochs: int = 1) -> int:
        return x * epochs

    def of(function: Any) -> str:
        return Sweep(function, {"x": [1]}).plan.out

    short, long = functools.partial(train, epochs=1), functools.partial(train, epochs=9)
    names = [of(train), of(short), of(long), of(lambda x: x + 1), of(lambda x: x + 2)]
    assert len(set(names)) == 5
    assert of(functools.partial(train, epochs=9)) == of(long)
    study = ran(Sweep(long, {"x": [2]}, out=tmp_path / "out"))
    assert [row["value"] for row in study.table()] == [18]


def test_a_function_that_does_not_take_the_parameters_is_refused_at_once(tmp_path: Path) -> None:
    def train(lr: float) -> float:
        return lr

    with pytest.raises(UsageError, match="cannot be called with lr, bs"):
        Sweep(train, {"lr": [1], "bs": [2]}, out=tmp_path / "out")
    with pytest.raises(UsageError, match="mapping of names"):
        Sweep(train, ["lr"], out=tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="missing a required argument"):
        Sweep(lambda lr, bs: lr, {"lr": [1]}, out=tmp_path / "out")


def test_a_function_that_cannot_travel_is_refused_with_its_reason(tmp_path: Path) -> None:
    lock = threading.Lock()

    def train(x: int) -> bool:
        return lock.locked()

    with pytest.raises(UsageError, match="cannot be sent to another process"):
        ran(Sweep(train, {"x": [1, 2]}, out=tmp_path / "out"))


def test_a_value_too_long_for_the_system_fails_its_run_alone(tmp_path: Path) -> None:
    values = ["short", "long" * 100_000]
    study = ran(a_sweep(tmp_path, "/bin/echo {x}", parameters={"x": values}))
    found = {len(row["x"]): (row["state"], row["trouble"]) for row in study.table()}
    assert found[5] == ("finished", "")
    assert found[400_000][0] == "failed"
    assert "too long" in found[400_000][1]
    assert all(len(row["run"]) <= 100 for row in study.table())


def test_the_commit_of_the_repository_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert git_commit(".") is None
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    (tmp_path / "code.py").write_text("1")
    for words in (["init", "-q"], ["add", "code.py"], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], check=True)
    ran(a_sweep(tmp_path, "true {x}", parameters={"x": [1]}))
    (clean,) = SweepFolder(str(tmp_path / "out")).runs()
    assert clean.git is not None
    assert len(clean.git) == 40
    (tmp_path / "code.py").write_text("2")
    assert git_commit(".") == clean.git + "+"


def test_a_broken_manifest_counts_as_never_run(tmp_path: Path) -> None:
    ran(a_sweep(tmp_path, "true {x}"))
    (tmp_path / "out" / "runs" / "x=1" / "run.json").write_bytes(b"\xff{half")
    (tmp_path / "out" / "runs" / "stray").write_text("a file")
    study = ran(a_sweep(tmp_path, "true {x}"))
    assert (study.progress.finished, study.progress.skipped) == (1, 2)
    newer = tmp_path / "out" / "runs" / "x=2" / "run.json"
    newer.write_text(newer.read_text().replace('"version": 1', '"version": 99'))
    with pytest.raises(UsageError, match="another version of grn"):
        ran(a_sweep(tmp_path, "true {x}"))


@pytest.mark.parametrize(("name", "value"), [("state", "finisher"), ("index", "x"), ("params", 7)])
def test_a_damaged_manifest_breaks_no_sweep_and_is_kept(
    tmp_path: Path, name: str, value: object
) -> None:
    ran(a_sweep(tmp_path, "true {x}"))
    manifest = tmp_path / "out" / "runs" / "x=1" / "run.json"
    text = json.dumps({**json.loads(manifest.read_text()), name: value})
    manifest.write_text(text)
    study = ran(a_sweep(tmp_path, "true {x}"))
    assert (study.progress.finished, study.progress.skipped) == (1, 2)
    assert manifest.with_name("run.json.broken").read_text() == text


# --- interruptions -------------------------------------------------------------------------

SCRIPT = """
import sys
from grn.fixed_slots.slots import FixedSlots
from grn.sweep.sweep import Sweep

what = ["/bin/sh", "-c", 'touch "$0/$1.ran"; test $1 = 1 || exec sleep 1000', sys.argv[1], "{x}"]
Sweep(what, {"x": [1, 2, 3, 4]}, out=sys.argv[1] + "/out").study(slots=FixedSlots("01"))
"""


def started(tmp_path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    wait_for(lambda: (tmp_path / "3.ran").exists(), "the third run")
    wait_for(lambda: kept(tmp_path)["x=1"] == "finished", "the end of the first")
    return process


def kept(tmp_path: Path) -> dict[str, str]:
    return {run.run: run.state.value for run in SweepFolder(str(tmp_path / "out")).runs()}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_can_be_taken_up_again(tmp_path: Path, signum: int) -> None:
    process = started(tmp_path)
    process.send_signal(signum)
    process.wait(60)
    assert kept(tmp_path) == {"x=1": "finished", "x=2": "interrupted", "x=3": "interrupted"}

    what = [
        "/bin/sh",
        "-c",
        'touch "$0/$1.ran"; test $1 = 1 || exec sleep 1000',
        str(tmp_path),
        "{x}",
    ]
    sweep = Sweep(what, {"x": [1, 2, 3, 4]}, out=tmp_path / "out")
    assert len(sweep.points()) == 4
    study = Study(sweep.plan, lambda *_: None)
    study.open()
    assert [study.is_finished(point) for point in sweep.points()] == [True, False, False, False]
    study.close()


def test_a_sweep_that_was_killed_leaves_runs_that_count_as_interrupted(tmp_path: Path) -> None:
    process = started(tmp_path)
    process.kill()
    process.wait(60)
    assert kept(tmp_path)["x=2"] == "running"

    what = [
        "/bin/sh",
        "-c",
        'touch "$0/$1.ran"; test $1 = 1 || exec sleep 1000',
        str(tmp_path),
        "{x}",
    ]
    study = Study(Sweep(what, {"x": [1]}, out=tmp_path / "out").plan, lambda *_: None)
    study.open()
    study.close()
    assert kept(tmp_path) == {"x=1": "finished", "x=2": "interrupted", "x=3": "interrupted"}


def test_children_of_a_script_that_sweeps_keep_their_exit_status(tmp_path: Path) -> None:
    """Those that end during the sweep, with a session of their own, are not buried by it."""
    children = [
        subprocess.Popen(["sh", "-c", f"sleep 0.{number}; exit 3"], start_new_session=True)
        for number in range(1, 6)
    ]
    ran(a_sweep(tmp_path, "sleep {x}", parameters={"x": ["0.6", "1.1"]}), slots=1)

    assert [child.wait() for child in children] == [3] * 5
