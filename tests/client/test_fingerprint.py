"""The fingerprint of code changes when the code does, and only then."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grn.client import fingerprint
from grn.client.fingerprint import of_command, of_function

PLAIN = "def train(x):\n    y = x + 1\n    return y in {'a', 'b', 'c'}\n"


def made(text: str):
    space: dict = {}
    exec(text, space)
    return space["train"]


@pytest.mark.parametrize(
    "other",
    [
        "# a comment\n\n\n" + PLAIN,
        PLAIN.replace("    return", "    # why\n\n    return"),
        PLAIN.replace("x):\n", 'x):\n    """Say what it does."""\n'),
    ],
    ids=["moved", "comment", "docstring"],
)
def test_what_does_not_change_the_code_does_not_change_its_fingerprint(other: str) -> None:
    documented = PLAIN.replace("x):\n", 'x):\n    """Other words."""\n')
    plain = documented if '"""' in other else PLAIN

    assert of_function(made(other)) == of_function(made(plain))


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("1", "2"),
        PLAIN.replace("+", "*"),
        PLAIN.replace("'b'", "'d'"),
        PLAIN.replace("x + 1", "len(x)"),
        PLAIN.replace("x + 1", "(lambda: x + 2)()"),
    ],
)
def test_other_code_has_another_fingerprint(other: str) -> None:
    assert of_function(made(other)) != of_function(made(PLAIN))


def test_functions_inside_count() -> None:
    outer = "def train(x):\n    def inner():\n        return {}\n    return inner\n"

    assert of_function(made(outer.format(1))) != of_function(made(outer.format(2)))


def test_it_is_the_same_in_every_process() -> None:
    """Sets have another order in each."""
    code = f"{PLAIN}\nfrom grn.client.fingerprint import of_function\nprint(of_function(train))"
    path = str(Path(fingerprint.__file__).parents[2])
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }  # fmt: skip

    assert said == {of_function(made(PLAIN))}


def test_methods_and_partial_functions_are_those_they_stand_for() -> None:
    class Trainer:
        def train(self) -> int:
            return 1

    assert of_function(Trainer().train) == of_function(Trainer.train)
    assert of_function(functools.partial(Trainer.train, None)) == of_function(Trainer.train)
    assert of_function(len) == ""


def test_a_command_has_the_fingerprint_of_its_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    first = of_command(["python", "-u", "train.py", "--lr", "1"], str(tmp_path))

    assert len(first) == 8
    assert of_command(["torchrun", "--n=2", str(script)]) == first
    script.write_text("print(22)")
    assert of_command(["python", "train.py"], str(tmp_path)) not in ("", first)


@pytest.mark.parametrize(
    "words",
    [[], ["python", "-c", "1"], ["python", "gone.py"], ["cat", "\0.py"], ["sh", "folder.sh"],
     ["sh", "pipe.sh"], ["python", "large.py"], ["a"] * 8 + ["train.py"]],
)  # fmt: skip
def test_what_cannot_be_read_has_no_fingerprint(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "folder.sh").mkdir()
    (tmp_path / "train.py").write_text("1")
    os.mkfifo(tmp_path / "pipe.sh")
    with open(tmp_path / "large.py", "wb") as file:
        file.truncate(fingerprint.MAX_BYTES + 1)

    assert of_command(words, str(tmp_path)) == ""
    assert fingerprint.told(words, str(tmp_path)) == {}
