"""Commands with holes: values arrive as they are, whatever is in them."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from grn.errors import UsageError
from grn.sweep.template import parse

NASTY = "a b'c\"d $HOME `x` \\ \n* ;|&{}~"


def test_words_are_split_before_values_are_filled_in() -> None:
    made = parse("python train.py --lr {lr} --out=runs/{lr}-{bs}")
    assert made.fill({"lr": "1 2", "bs": "'"}) == (
        *("python", "train.py", "--lr", "1 2", "--out=runs/1 2-'"),
    )
    assert made.names == ("lr", "bs")


def test_quotes_keep_words_together_and_double_braces_stand_for_one() -> None:
    assert parse("echo 'a {x} b' {{x}}").fill({"x": "1"}) == ("echo", "a 1 b", "{x}")
    assert parse("p '{{\"a\": {x}}}'").fill({"x": "1"}) == ("p", '{"a": 1}')


def test_an_empty_value_is_an_empty_word() -> None:
    assert parse("echo {x}").fill({"x": ""}) == ("echo", "")


def test_words_given_one_by_one_are_not_split_again() -> None:
    assert parse(["echo", "a b", "{x}"]).fill({"x": "c d"}) == ("echo", "a b", "c d")


@pytest.mark.parametrize("value", [NASTY, "", "-n", os.fsdecode(b"\xff\xfe"), "ä"])
def test_a_value_reaches_the_program_byte_for_byte(value: str) -> None:
    argv = parse("printf %s x{x}").fill({"x": value})
    assert subprocess.check_output(argv) == b"x" + os.fsencode(value)


@pytest.mark.parametrize("form", ["{x}", '"{x}"', "'{x}'", "'a'\"{x}\"", "\\'{x}"])
@pytest.mark.parametrize("value", [NASTY, "", "it's", '"', "\\", "a\\", os.fsdecode(b"\xff")])
def test_a_shell_gets_values_quoted_for_where_they_stand(form: str, value: str) -> None:
    argv = parse(f"printf %s {form} | cat", is_shell=True).fill({"x": value})
    around = {"'a'\"{x}\"": b"a", "\\'{x}": b"'"}.get(form, b"")
    assert subprocess.check_output(argv) == around + os.fsencode(value)


@settings(max_examples=30, deadline=None)
@given(some.text(some.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20))
def test_any_text_comes_through_a_shell(value: str) -> None:
    argv = parse("printf '%s|' {x} \"{x}\" '{x}'", is_shell=True).fill({"x": value})
    assert subprocess.check_output(argv) == f"{value}|".encode() * 3


def test_a_shell_line_keeps_its_own_syntax() -> None:
    argv = parse("for i in 1 2; do echo $i-{x}; done", is_shell=True).fill({"x": "a"})
    assert subprocess.check_output(argv) == b"1-a\n2-a\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "no command"),
        ("  ", "no command"),
        ("echo 'a", "cannot be split"),
        ("echo {x", "'{' in the command is not a placeholder"),
        ("echo x}", "not a placeholder"),
        ("echo {}", "not a placeholder"),
        ("echo {a b}", "not a placeholder"),
        ("echo {x!r}", "not a placeholder"),
        ("echo a\0b", "NUL"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused(command: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(command)


def test_holes_and_parameters_must_match() -> None:
    with pytest.raises(UsageError, match="no parameter 'bs'"):
        parse("train {lr} {bs}").check(["lr"])
    with pytest.raises(UsageError, match="does not use parameter 'bs'"):
        parse("train {lr}").check(["lr", "bs"])
    parse("train {lr} {index} {run}").check(["lr"])
    parse("train {run_dir}").check(["lr", "bs"])
    parse("train {params}").check(["lr", "bs"])


def test_values_no_program_can_get_are_refused() -> None:
    for value in ("a\0b", "\ud800"):
        with pytest.raises(UsageError, match="no program can get"):
            parse("echo {x}").fill({"x": value})


def test_a_hole_where_no_quoting_helps_is_refused() -> None:
    with pytest.raises(UsageError, match="inside quotes"):
        parse('echo "$(cat {x})"', is_shell=True)
    with pytest.raises(UsageError, match="inside quotes"):
        parse('echo "`cat {x}`"', is_shell=True)
    argv = parse("echo $(printf %s {x})", is_shell=True).fill({"x": "a;b"})
    assert subprocess.check_output(argv) == b"a;b\n"
