"""Lines as they come in, and lines of any length as commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from grn.batch.line_reader import LONGEST_WORD_BYTES, LineReader, shell_argv


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            pass


def test_a_line_is_given_when_it_is_complete(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = LineReader(reader)
    os.write(writer, b"one\ntw")
    lines.hear()
    assert (lines.next_line(), lines.next_line()) == (b"one", None)
    os.write(writer, b"o\n\nthree")
    lines.hear()
    assert [lines.next_line() for _ in range(3)] == [b"two", b"", None]
    os.close(writer)
    assert not lines.is_over
    lines.hear()
    assert not lines.is_over
    assert (lines.next_line(), lines.next_line()) == (b"three", None)
    assert lines.is_over
    assert lines.fileno() is None


@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\n", b"a\nb", b"\xff\0\n\x80", b"\r\n\n\n"])
def test_lines_are_cut_as_everywhere(pipe: tuple[int, int], data: bytes) -> None:
    reader, writer = pipe
    os.write(writer, data)
    os.close(writer)
    lines, found = LineReader(reader), []
    while not lines.is_over:
        line = lines.next_line()
        if line is None:
            lines.hear()
        else:
            found.append(line)
    pieces = data.split(b"\n")
    assert found == (pieces if pieces[-1] else pieces[:-1])


def test_what_cannot_be_read_is_told() -> None:
    fd = os.open("/", os.O_RDONLY)
    try:
        lines = LineReader(fd)
        lines.hear()
    finally:
        os.close(fd)
    assert lines.trouble == "the commands cannot be read: Is a directory."
    assert lines.is_over


@pytest.mark.parametrize("length", [LONGEST_WORD_BYTES, LONGEST_WORD_BYTES + 1, 200_000, 1_000_000])
def test_a_line_of_any_length_runs_byte_for_byte(length: int) -> None:
    head = b"printf %s '"
    line = head + bytes([0xC3, 0xA9, 0xFF]) * ((length - len(head) - 1) // 3)
    line += b"x" * (length - len(line) - 1) + b"'"
    assert len(line) == length

    said = subprocess.check_output(shell_argv(line))
    assert said == line[len(head) : -1]


def test_a_long_line_sees_the_shell_as_a_short_one_does() -> None:
    padding = b" " * LONGEST_WORD_BYTES
    line = b'x="a  b"; echo "$x" $# "$0" ${grn_line-unset} ${grn_piece-unset}; exit 3 ' + padding

    short = subprocess.run(shell_argv(line.rstrip()), stdout=subprocess.PIPE)
    long = subprocess.run(shell_argv(line), stdout=subprocess.PIPE)
    assert short.stdout == long.stdout == b"a  b 0 /bin/sh unset unset\n"
    assert short.returncode == long.returncode == 3
