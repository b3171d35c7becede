"""What is told of a job: names, arguments worth learning from, a checksum of its code."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grn.client.leasing import job_request
from grn.client.leasing.job_request import (
    MAX_ARGUMENTS,
    MAX_SCRIPT_BYTES,
    code_of_command,
    code_of_function,
    command_arguments,
    command_profile,
    command_type,
    type_and_label,
    worth_learning,
)

PLAIN = "def train(x):\n    y = x + 1\n    return y in {'a', 'b', 'c'}\n"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (3, 3.0),
        (0.5, 0.5),
        (True, 1.0),
        ("resnet", "resnet"),
        ("x" * 40, "x" * 40),
        ("x" * 41, None),
        ("two\nlines", None),
        (10**18, None),
        (float("inf"), None),
        (float("nan"), None),
        ([1, 2], None),
        (None, None),
        (b"bytes", None),
    ],
)
def test_numbers_and_short_words_are_kept(value: object, kept: object) -> None:
    assert worth_learning([("name", value)]) == ({} if kept is None else {"name": kept})


@pytest.mark.parametrize(
    "name", ["password", "API_KEY", "auth_header", "hf_token", "self", "n" * 65, "caf\udce9"]
)
def test_secrets_and_what_has_no_name_are_not_kept(name: str) -> None:
    assert worth_learning([(name, 1)]) == {}


def test_there_is_a_most_of_facts() -> None:
    assert len(worth_learning((f"n{number}", number) for number in range(100))) == MAX_ARGUMENTS


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("--bs 64", {"bs": 64.0}),
        ("--bs=64 --model=vgg", {"bs": 64.0, "model": "vgg"}),
        ("-b 64 --fp16", {"b": 64.0, "fp16": 1.0}),
        ("--fp16 --lr -0.5", {"fp16": 1.0, "lr": -0.5}),
        ("bs=64 plain", {"bs": 64.0}),
        ("--api-key abc", {}),
        ("--lr nan", {"lr": "nan"}),
        ("- --", {}),
    ],
)
def test_flags_of_a_command_are_its_arguments(words: str, facts: object) -> None:
    assert command_arguments(["train", *words.split()]) == facts


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python train.py --lr 0.1", "train.py"),
        ("python3.11 -u -X dev train.py", "train.py"),
        ("/usr/bin/python3 train.py", "train.py"),
        ("python -m pkg.train x", "python -m pkg.train"),
        ("python -c pass", "python"),
        ("python", "python"),
        ("./no-such-program x", "no-such-program"),
    ],
)
def test_a_command_is_called_by_its_program_or_script(words: str, name: str) -> None:
    assert command_type(words.split())[1] == name


def test_the_full_name_of_a_command_is_unambiguous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_type(["python", "train.py"]) == (os.path.realpath("train.py"), "train.py")
    assert command_type(["python", "/train.py"]) == ("/train.py", "/train.py")
    assert command_type(["sh", "-c", "true"])[0] == os.path.realpath("/bin/sh")
    assert Path(sys.executable).exists()


def test_a_command_is_looked_for_in_the_folder_it_will_run_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    folder = str(tmp_path)
    assert command_type(["./tool"], folder)[0] == os.path.realpath(tmp_path / "tool")
    assert command_type(["python", "train.py"], folder)[0] == os.path.realpath(
        tmp_path / "train.py"
    )


def test_a_line_of_the_shell_is_of_the_type_of_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "train.py").write_text("pass\n")
    monkeypatch.chdir(tmp_path)
    in_folder = command_profile(["python", "train.py", "--lr", "3"], str(tmp_path / "x"))
    for argv in (
        ["/bin/sh", "-c", "cd x && python train.py --lr 3"],
        ["bash", "-lc", "export A=1; cd x; python train.py --lr 3 > log"],
    ):
        found = command_profile(argv)
        assert (found.type, found.label) == (in_folder.type, "x/train.py")
        assert (found.args, found.code) == (in_folder.args, in_folder.code)
        assert found.code
    assert command_profile(["/bin/sh", "-c", "pwd; ls"]).label == "pwd"


def test_of_an_array_the_number_is_learned_and_not_the_name_of_its_variable() -> None:
    for mark in ("$GRN_ARRAY_INDEX", "${GRN_ARRAY_INDEX}", '"$GRN_ARRAY_INDEX"'):
        argv = ["/bin/sh", "-c", f"python a.py --seed {mark} out=run{mark} --gpu=$X"]
        assert command_profile(argv, index="7").args == {"seed": 7.0, "out": "run7"}
        assert command_profile(argv).args == {}  # what only the shell knows teaches nothing
    argv = ["python", "a.py", "--seed", "$GRN_ARRAY_INDEX"]  # no shell: the program reads this
    assert command_profile(argv, index="7").args == {"seed": "$GRN_ARRAY_INDEX"}


def test_a_command_without_a_name_is_no_trouble() -> None:
    assert command_type([""]) == ("", "")
    assert command_arguments([""]) == {}


@pytest.mark.parametrize("file", ["/tmp/ipykernel_4242/99.py", "<ipython-input-3-abc>", "<stdin>"])
def test_a_notebook_is_one_place_though_its_cells_are_files_of_ever_new_names(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert type_and_label(file, "job") == (f"notebook in {tmp_path}::job", "notebook::job")


def test_a_file_is_shown_from_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    full = f"{os.path.realpath(tmp_path)}/tests/x.py::job"
    assert type_and_label("tests/x.py", "job") == (full, "tests/x.py::job")
    assert type_and_label(f"{tmp_path}/tests/x.py", "job") == (full, "tests/x.py::job")
    monkeypatch.chdir(tmp_path / "tests")
    assert type_and_label("../x.py", "job")[1] == f"{os.path.realpath(tmp_path)}/x.py::job"


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

    assert code_of_function(made(other)) == code_of_function(made(plain))


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
    assert code_of_function(made(other)) != code_of_function(made(PLAIN))


def test_functions_inside_count() -> None:
    outer = "def train(x):\n    def inner():\n        return {}\n    return inner\n"

    assert code_of_function(made(outer.format(1))) != code_of_function(made(outer.format(2)))


def test_it_is_the_same_in_every_process() -> None:
    """Sets have another order in each."""
    told = "import grn.client.leasing.job_request as told\nprint(told.code_of_function(train))"
    code = f"{PLAIN}\n{told}"
    path = str(Path(job_request.__file__).parents[3])
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }  # fmt: skip

    assert said == {code_of_function(made(PLAIN))}


def test_methods_and_partial_functions_are_those_they_stand_for() -> None:
    class Trainer:
        def train(self) -> int:
            return 1

    assert code_of_function(Trainer().train) == code_of_function(Trainer.train)
    assert code_of_function(functools.partial(Trainer.train, None)) == code_of_function(
        Trainer.train
    )
    assert code_of_function(len) == ""


def test_a_command_has_the_fingerprint_of_its_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    first = code_of_command(["python", "-u", "train.py", "--lr", "1"], str(tmp_path))

    assert len(first) == 8
    assert code_of_command(["torchrun", "--n=2", str(script)]) == first
    script.write_text("print(22)")
    assert code_of_command(["python", "train.py"], str(tmp_path)) not in ("", first)


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
        file.truncate(MAX_SCRIPT_BYTES + 1)

    assert code_of_command(words, str(tmp_path)) == ""
