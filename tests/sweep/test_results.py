"""Results read from what runs leave, and the table made of them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from grn.errors import UsageError
from grn.sweep.manifest import About, RunManifest, RunState, plain
from grn.sweep.results import (
    NoResult,
    Table,
    from_file,
    from_output,
    from_value,
    is_large_good,
    last_line,
    rank,
)

ABOUT = About("s", "cmd", False, ("x",), 0.0)


def a_run(x: Any, state: RunState = RunState.FINISHED, /, **result: Any) -> RunManifest:
    return RunManifest(f"x={x}", str(x), int(x), {"x": x}, state, result=result)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b'{"a": 1}\n', {"a": 1}),
        (b'{"a": 1}\n{"a": 2}\nbye\n', {"a": 2}),
        (b'noise {"a": 1}\n', {}),
        (b'{"a": 1}\n[1, 2]\n{broken}\n{"b": }\n', {"a": 1}),
        (b'  {"a": NaN, "b": Infinity}  \r\n', {"a": None, "b": None}),
        (b"\xff\xfe\x00{}\n" * 3, {}),
        (b"", {}),
        (b"x" * 200_000 + b'\n{"a": 1}\n', {"a": 1}),
        (b'{"a": 1}\n' + b"[" * 100_000, {"a": 1}),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"\n", {}),
    ],
)
def test_the_last_json_object_of_the_output_is_the_result(
    tmp_path: Path, said: bytes, expected: dict[str, Any]
) -> None:
    (tmp_path / "log").write_bytes(said)
    assert from_output(str(tmp_path / "log")) == expected


def test_a_run_without_output_has_no_result(tmp_path: Path) -> None:
    assert from_output(str(tmp_path / "none")) == {}
    assert last_line(str(tmp_path / "none")) == ""


def test_the_last_line_that_says_anything_is_cut(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\n" + "y" * 500 + "\n\n  \n")
    assert last_line(str(tmp_path / "log")) == "y" * 199 + "…"


def test_a_file_may_hold_one_object_or_lines_of_them(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{\n "a": {"b": 1}\n}')
    assert from_file(str(path)) == {"a": {"b": 1}}
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert from_file(str(path)) == {"a": 2}
    for text in ("", "[1]", "no json", '"text"'):
        path.write_text(text)
        with pytest.raises(NoResult, match="no JSON object"):
            from_file(str(path))
    with pytest.raises(NoResult, match="left no other"):
        from_file(str(tmp_path / "other"))
    with pytest.raises(NoResult, match="cannot be read"):
        from_file(str(tmp_path))


def test_a_returned_value_becomes_a_row() -> None:
    import numpy

    assert from_value(None) == {}
    assert from_value(0.5) == {"value": 0.5}
    assert from_value({"a": numpy.float32(0.5), "b": (1, 2)}) == {"a": 0.5, "b": [1, 2]}
    assert from_value({"a": float("inf"), 3: object}) == {"a": None, "3": "<class 'object'>"}


def test_columns_are_parameters_results_and_what_grn_knows() -> None:
    table = Table([a_run("1", acc=0.5, val={"loss": 2}), a_run("2", extra=1)], ["x"])
    assert table.columns[:6] == ("run", "state", "x", "acc", "val.loss", "extra")
    assert table.rows[1]["acc"] is None
    assert table.rows[0]["val.loss"] == 2


def test_a_result_called_like_a_parameter_does_not_hide_it() -> None:
    (row,) = Table([a_run("1", x=9, state_of="x", status="fine")], ["x"])
    assert (row["x"], row["result.x"], row["result.status"]) == ("1", 9, "fine")


def test_a_table_is_csv_json_lines_and_pandas(tmp_path: Path) -> None:
    table = Table([a_run("1", acc=0.5, words=["a", "b,c"]), a_run("2", acc=1)], ["x"])
    rows = list(csv.DictReader(io.StringIO(table.to_csv(tmp_path / "t.csv"))))
    assert [row["acc"] for row in rows] == ["0.5", "1"]
    assert json.loads(rows[0]["words"]) == ["a", "b,c"]
    assert rows[1]["words"] == ""
    assert (tmp_path / "t.csv").read_text() == table.to_csv()
    lines = [json.loads(line) for line in table.to_json_lines().splitlines()]
    assert lines == [plain(row) for row in table]
    frame = table.to_pandas()
    assert list(frame.columns) == list(table.columns)
    assert frame["x"].tolist() == [1, 2]
    assert frame.sort_values("acc")["run"].tolist() == ["x=1", "x=2"]
    assert "2 finished" in repr(table)


def test_an_empty_table_is_a_table() -> None:
    assert Table([], ["x"]).to_csv().startswith("run,state,x,duration_s")
    assert rank(Table([]), ABOUT) is None


def test_the_best_come_first_and_what_failed_does_not_count() -> None:
    runs = [a_run("1", acc=0.1), a_run("2", acc=0.9), a_run("3", RunState.FAILED, acc=5.0)]
    table = Table([*runs, a_run("4", acc="high"), a_run("5", acc=True)], ["x"])
    ranking = rank(table, ABOUT)
    assert ranking is not None
    assert [row["x"] for row in ranking.rows] == ["2", "1"]
    assert ranking.text == "by acc, highest first"
    turned = rank(table, ABOUT, "acc", False)
    assert turned is not None
    assert [row["x"] for row in turned.rows] == ["1", "2"]


def test_a_metric_that_nobody_gave_is_refused() -> None:
    table = Table([a_run("1", acc=0.1)])
    with pytest.raises(UsageError, match="There are: acc"):
        rank(table, ABOUT, "loss")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", True),
        ("val.acc", True),
        ("eval_f1", True),
        ("mAP@50", True),
        ("loss", False),
        ("val.loss", False),
        ("perplexity", False),
        ("track_error", False),
    ],
)
def test_the_direction_is_guessed_from_the_name(name: str, expected: bool) -> None:
    assert is_large_good(name) is expected
