"""`simple_hypersearch`: every example and every promise of the older tool."""

from __future__ import annotations

import itertools
import os
import random
import resource
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Scripts


@pytest.fixture
def tool(script: Scripts) -> Path:
    return script("simple_hypersearch")


def lines(tool: Path, *arguments: str) -> list[str]:
    return subprocess.check_output([tool, *arguments], text=True).splitlines()


def refusal(tool: Path, *arguments: str) -> str:
    """Run it, expecting exit status 2, and return its last words."""
    ended = subprocess.run([tool, *arguments], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_the_grid_of_the_older_readme_comes_in_its_order(tool: Path) -> None:
    pattern = "my_program --param1 {param1} --param2 {param2}"
    said = lines(tool, pattern, "-p", "param1", "0", "1", "-p", "param2", "2", "3",
                 "--sampling-mode", "grid")  # fmt: skip

    assert said == [
        "my_program --param1 0 --param2 2",
        "my_program --param1 0 --param2 3",
        "my_program --param1 1 --param2 2",
        "my_program --param1 1 --param2 3",
    ]


def test_a_seed_shuffles_as_it_always_did(tool: Path) -> None:
    said = lines(tool, "a {x}", "--seed", "42", "-p", "x", *"123456")

    assert said == ["a 4", "a 2", "a 3", "a 5", "a 1", "a 6"]


def test_the_shuffle_is_that_of_the_list_of_combinations(tool: Path) -> None:
    random.seed(7)
    expected = list(itertools.product("abc", "1234"))
    random.shuffle(expected)
    said = lines(tool, "{x}{y}", "--seed=7", "-p", "x", *"abc", "-p", "y", *"1234")

    assert said == ["".join(one) for one in expected]


def test_shuffled_grid_is_the_default_and_complete(tool: Path) -> None:
    values = [str(number) for number in range(200)]
    said = lines(tool, "{x}", "-p", "x", *values)

    assert sorted(said) == sorted(values)
    assert said != values


@pytest.mark.parametrize(("wanted", "given"), [("2", 2), ("0", 0), ("4", 4), ("99", 4)])
@pytest.mark.parametrize("mode", ["grid", "shuffled_grid"])
def test_the_first_n_are_printed_or_all(tool: Path, mode: str, wanted: str, given: int) -> None:
    arguments = ("{x}", "-p", "x", *"abcd", "--seed", "1", "--sampling-mode", mode)
    everything = lines(tool, *arguments)

    assert lines(tool, *arguments, "--n-samples", wanted) == everything[:given]


def test_the_pattern_may_also_come_last(tool: Path) -> None:
    for tail in (["--", "a {x}"], ["a {x}"], ["--sampling-mode", "grid", "a {x}"]):
        assert sorted(lines(tool, "-p", "x", "1", "2", *tail)) == ["a 1", "a 2"]


def test_values_come_out_byte_for_byte(tool: Path) -> None:
    values = [b"-1", b"-1e-3", b"'two  words'", b"\xff\xfe", "é".encode(), b""]
    said = subprocess.check_output([tool, "a {x}", "--sampling-mode", "grid", "-p", "x", *values])

    assert said == b"".join(b"a " + value + b"\n" for value in values)


def test_braces_can_be_written_twice(tool: Path) -> None:
    assert lines(tool, "awk '{{print {x}}}'", "-p", "x", "1") == ["awk '{print 1}'"]


# --- what it refuses -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("a {y}", "-p", "x", "1"), "the pattern has {y} and there is no parameter 'y'"),
        (("a {x}",), "there are no parameters"),
        (("a",), "there are no parameters"),
        (("a {x}", "-p", "x", "1", "-p", "x", "2"), "parameter 'x' is given twice"),
        (("a {x}", "-p", "x"), "parameter 'x' has no values"),
        (("a {x", "-p", "x", "1"), "the pattern cannot be filled"),
        (("a {}", "-p", "x", "1"), "the pattern cannot be filled"),
        (("a {x:d}", "-p", "x", "1"), "the pattern cannot be filled"),
        (("a {x.no}", "-p", "x", "1"), "the pattern cannot be filled"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    tool: Path, arguments: tuple[str, ...], part: str
) -> None:
    said = refusal(tool, *arguments)

    assert part in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("a {x}", "-p", "x", "1", "--sampling-mode", "random"),
        ("a {x}", "-p", "x", "1", "--n-samples", "-1"),
        ("a {x}", "-p", "x", "1", "--seed", "x"),
        ("-p", "x", "1"),
        (),
    ],
)
def test_an_unknown_mode_and_the_like_show_the_usage(
    tool: Path, arguments: tuple[str, ...]
) -> None:
    assert refusal(tool, *arguments).startswith("usage: simple_hypersearch")


# --- streams -------------------------------------------------------------------------------

MANY = ("{x} {y} {z}", "--sampling-mode", "grid", "-p", "x", *map(str, range(100)),
        "-p", "y", *map(str, range(100)), "-p", "z", *map(str, range(1000)))  # fmt: skip


def test_a_closed_pipe_is_a_quiet_end(tool: Path) -> None:
    with subprocess.Popen([tool, *MANY], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0 0 0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_ten_million_combinations_need_no_more_memory_than_two(tool: Path) -> None:
    def peak(*arguments: str) -> int:
        process = subprocess.Popen([tool, *arguments], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(100_000):
            if not process.stdout.readline():
                break
        process.stdout.close()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        return int(usage.ru_maxrss) * 1024

    few = peak("{x}", "--sampling-mode", "grid", "-p", "x", "1", "2")
    assert peak(*MANY) < few + (4 << 20)


def test_a_full_disk_is_told(tool: Path) -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([tool, "{x}", "-p", "x", "1"], stdout=full, stderr=subprocess.PIPE)

    assert ended.returncode == 4
    assert ended.stderr == (
        b"simple_hypersearch: the commands cannot be written: No space left on device.\n"
    )


def test_too_many_to_shuffle_is_told(tool: Path) -> None:
    many = [arg for arg in MANY if arg not in ("--sampling-mode", "grid")]
    ended = subprocess.run(
        [tool, *many],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (80 << 20, 80 << 20)),
    )

    assert ended.returncode == 4
    assert "too many combinations to shuffle" in ended.stderr
