"""Sweeps written down: TOML, JSON, YAML, and what is wrong with some of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from grn import option_file
from grn.errors import BadSetting, UsageError
from grn.sweep import plan
from grn.sweep.space import points

TOML = """
command = "python train.py --lr {lr} --bs {bs} --deep {deep}"
name = "first"
n_samples = 4
seed = 3
if = "bs < 128"
mem = "2GiB"
gpus = 2
at = "lab"
keep_going = false

[parameters]
lr = "log:1e-5..1e-2"
bs = [32, 64, 128]
deep = true
"""
YAML = """
command: python train.py --lr {lr} --bs {bs} --deep {deep}
name: first
n_samples: 4
seed: 3
if: bs < 128
mem: 2GiB
gpus: 2
at: lab
keep_going: false
parameters:
  lr: log:1e-5..1e-2
  bs: [32, 64, 128]
  deep: true
"""
JSON = """
{"command": "python train.py --lr {lr} --bs {bs} --deep {deep}", "name": "first", "n_samples": 4,
 "seed": 3, "if": "bs < 128", "mem": "2GiB", "gpus": 2, "at": "lab",
 "keep_going": false,
 "parameters": {"lr": "log:1e-5..1e-2", "bs": [32, 64, 128], "deep": true}}
"""


@pytest.mark.parametrize(("ending", "text"), [("toml", TOML), ("yaml", YAML), ("json", JSON)])
def test_all_kinds_of_files_say_the_same(tmp_path: Path, ending: str, text: str) -> None:
    path = tmp_path / f"sweep.{ending}"
    path.write_text(text)
    made = plan.make(option_file.read(str(path)))
    assert (made.name, made.most, made.seed, made.is_fail_fast) == ("first", 4, 3, True)
    assert (made.needs.gpus, made.needs.mem_bytes, made.needs.at) == (2, 2 << 30, "lab")
    found = list(points(made.space, random.Random(3), most=4))
    assert {point["bs"] for point in found} == {"32", "64"}
    assert {point["deep"] for point in found} == {"true"}


def refused(words: str, **options: Any) -> None:
    base = {"command": "c {x}", "parameters": {"x": [1]}}
    with pytest.raises((UsageError, BadSetting)) as error:
        plan.make({**base, **options})
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_options_that_make_no_sense_are_refused_in_one_line() -> None:
    refused("Did you mean 'shuffle'", shufle=True)
    refused("must be int, not 'two'", gpus="two")
    refused("must be int, not True", gpus=True)
    refused("must be 0 or more", gpus=-1)
    refused("not a number of cores", cpus=0)
    refused("must be 0 or more", retry=-1)
    refused("-1000 to 1000", priority=5000)
    refused("is not a size", mem="much")
    refused("2 nodes: not yet", nodes=2)
    refused("must be str, not 3", at=3)
    refused("must be a text, or a list of words", command=["a", 1])
    refused("no command", command="")
    refused("must be dict", parameters=[1])
    refused("not a name for a parameter", parameters={1: [2]})
    refused("has no value", parameters={"x": []})
    refused("no parameter", parameters={})
    refused("list of texts", **{"if": [1]})
    refused("list of lists", zip=["ab"])
    refused("not a name for a sweep", name="../x")
    refused("1 or more, or a list", seeds=0)
    refused("given twice", seeds=2, parameters={"x": [1], "seed": [1]})
    refused("--sampler optuna", trials=3)
    refused("there is no sampler", sampler="grid", trials=3, maximize="a")
    refused("needs a metric", sampler="optuna", trials=3)
    refused("needs to know when to end", sampler="optuna", maximize="a")
    refused("not both", maximize="a", minimize="b")
    refused("does not go with a sampler", sampler="optuna", trials=3, maximize="a", seeds=2)
    refused("does not lie in the folder", result="/tmp/m.json")
    refused("does not lie in the folder", result="../m.json")
    refused("keeps that file itself", result="./run.json")
    refused("does not use parameter 'y'", parameters={"x": [1], "y": [2]})


def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path: Path) -> None:
    cases = {
        "a.toml": "x = ",
        "b.json": "{",
        "c.yaml": "a: [1",
        "d.json": "[1]",
        "e.txt": "",
        "f.yaml": "!!python/object/apply:os.system ['true']",
        "g.json": "[" * 200_000,
    }
    for name, text in cases.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "h.toml").write_bytes(b"\xff\xfe")
    for name in [*cases, "h.toml", "missing.toml", "."]:
        with pytest.raises(UsageError) as error:
            option_file.read(str(tmp_path / name))
        assert "\n" not in str(error.value), name


def test_scalars_and_ranges_may_stand_without_a_list() -> None:
    made = plan.make({"command": "c {a} {b} {c}", "parameters": {"a": 5, "b": "x y", "c": [None]}})
    (point,) = points(made.space, random.Random(0))
    assert point == {"a": "5", "b": "x y", "c": "None"}


def test_a_range_in_a_list_is_a_text() -> None:
    made = plan.make({"command": "c {a}", "parameters": {"a": ["log:1..2"]}})
    assert list(points(made.space, random.Random(0))) == [{"a": "log:1..2"}]


def test_the_same_command_has_the_same_folder_and_another_one_has_not() -> None:
    def out(command: str) -> str:
        return plan.make({"command": command, "parameters": {"x": [1]}}).out

    assert out("python a/train.py {x}").startswith("sweeps/train-")
    assert out("python a/train.py {x}") == out("python a/train.py {x}")
    assert out("python a/train.py {x}") != out("python a/train.py -v {x}")
