"""What of arguments and command lines is worth learning from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from grn.client.job_features import MAX_FACTS, command_type, of_command, worth_learning


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
    assert len(worth_learning((f"n{number}", number) for number in range(100))) == MAX_FACTS


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
    assert of_command(["train", *words.split()]) == facts


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


def test_a_command_without_a_name_is_no_trouble() -> None:
    assert command_type([""]) == ("", "")
    assert of_command([""]) == {}
