"""The program in a line of the shell, and the folder it runs in."""

from __future__ import annotations

import shlex

import pytest

from grn.model.shell_line import line_of, program_of


@pytest.mark.parametrize(
    ("line", "program", "folder"),
    [
        ("cd x && python train.py --lr 3", "python train.py --lr 3", "/w/x"),
        ("cd x; cd y\npython train.py", "python train.py", "/w/x/y"),
        ("cd x; cd ~/y && python a.py", "python a.py", "~/y"),
        ("cd '/a b' && ./run.sh", "./run.sh", "/a b"),
        ("(cd x && python a.py) & wait", "python a.py", "/w/x"),
        ("CUDA=1 X='a b' python a.py", "python a.py", "/w"),
        ("export X=1; source .venv/bin/activate && python a.py", "python a.py", "/w"),
        ("conda activate torch && python a.py", "python a.py", "/w"),
        ("for i in 1 2; do python a.py --n $i; done", "python a.py --n $i", "/w"),
        ("if test -f done; then exit; fi; python a.py", "exit", "/w"),
        ("time python a.py", "python a.py", "/w"),
        ("python a.py > out.txt 2>&1", "python a.py", "/w"),
        ("python a.py 2>/dev/null --lr 3", "python a.py --lr 3", "/w"),
        ("python a.py | tee log", "python a.py", "/w"),
        ("pwd; ls", "pwd", "/w"),
        ("cd x", "cd x", "/w/x"),
        ("  ", "", "/w"),
        ("X=1", "", "/w"),
    ],
)
def test_the_program_of_a_line_is_the_first_that_does_more_than_set_up(
    line: str, program: str, folder: str
) -> None:
    assert program_of(line, "/w") == (program.split(), folder)


@pytest.mark.parametrize(
    "line", ["a  b\tc", "a 'b c' d", 'a "b c"', r"a\ b", 'a "b\\"c" x', "a ''", "é f", "a\x0bb"]
)
def test_words_are_those_of_a_shell(line: str) -> None:
    assert program_of(line)[0] == shlex.split(line)


def test_a_line_that_no_shell_takes_has_words_too() -> None:
    assert program_of("python 'a b")[0] == ["python", "'a", "b"]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["/bin/sh", "-c", "a b"], "a b"),
        (["bash", "-lc", "a"], "a"),
        (["sh", "a.sh"], None),
        (["sh", "-x", "a.sh"], None),
        (["/bin/sh", "-c", "a", "/bin/sh", "piece"], None),
        (["python", "-c", "pass"], None),
    ],
)
def test_a_shell_that_is_given_a_line_is_told_from_one_that_runs_a_file(
    argv: list[str], line: str | None
) -> None:
    assert line_of(argv) == line
