"""Program output as styled lines."""

from __future__ import annotations

import random

import pytest

from grn.model.ansi import PLAIN, Style, sgr, styled_lines, with_sgr


def texts(output: str) -> list[str]:
    return ["".join(text for text, _ in line) for line in styled_lines(output)[0]]


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        ("", [""]),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\n", ["a", "b", ""]),
        ("  5%|#   |\r 50%|##  |\r100%|####|\n", ["100%|####|", ""]),
        ("a long one\rshort", ["shortg one"]),
        ("a long one\r\x1b[Kshort", ["short"]),
        ("a long one\r\x1b[2Kshort", ["short"]),
        ("abc\b\bX", ["aXc"]),
        ("a\tb", ["a       b"]),
        ("one\ntwo\n\x1b[2A\rONE\n\rTWO\n", ["ONE", "TWO", ""]),
        ("\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", ["link"]),
        ("\x1b]0;title\x07rest", ["rest"]),
        ("\x1b[?25lhidden cursor\x1b[?25h", ["hidden cursor"]),
        ("bell\x07 \x1b(B", ["bell "]),
        ("turned \u202e around \x9b31mred", ["turned \\u202e around red"]),
        ("del \x7f", ["del \\x7f"]),
        ("cut off \x1b[3", ["cut off "]),
        ("\x1b[999999999999CX\x1b[500GY", ["XY"]),
    ],
)
def test_what_a_terminal_would_show(output, lines):
    assert texts(output) == lines


@pytest.mark.parametrize(
    ("parameters", "style"),
    [
        ("31", Style(1)),
        ("1;92", Style(10, is_bold=True)),
        ("", PLAIN),
        ("38;5;208", Style(208)),
        ("48;2;255;0;0", Style(background=196)),
        ("38:5:4", Style(4)),
        ("38;5;999", PLAIN),
        ("38", PLAIN),
        ("4;7;100", Style(background=8, is_underlined=True, is_inverse=True)),
        ("1;2;22", PLAIN),
        ("31;39", PLAIN),
        ("9999999999;31", Style(1)),
    ],
)
def test_colours_are_read_from_sgr_parameters(parameters, style):
    assert with_sgr(PLAIN, parameters) == style
    assert with_sgr(PLAIN, sgr(style)) == style


def test_text_keeps_its_style_when_a_part_of_the_line_is_written_over():
    lines, _ = styled_lines("\x1b[32mgreen\x1b[0m plain\r\x1b[31mR")
    assert lines == [(("R", Style(1)), ("reen", Style(2)), (" plain", PLAIN))]


def test_an_output_that_comes_in_parts_continues_in_the_style_of_its_last_line():
    text = "a\x1b[31m red\nstill red \x1b[0mand plain"
    lines, style = styled_lines(text)
    again, _ = styled_lines("still red \x1b[0mand plain", with_sgr(PLAIN, sgr(style)))
    assert again == lines[1:]


def test_any_bytes_are_lines_without_control_characters():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    pieces = [
        "\x1b[",
        "\x1b",
        "m",
        "31",
        ";",
        "A",
        "K",
        "\r",
        "\n",
        "\b",
        "x",
        "\u202e",
        "\x9b",
        "\0",
    ]
    for _ in range(300):
        text = "".join(dice.choice(pieces) for _ in range(200))
        for line in styled_lines(text)[0]:
            assert all(piece.isprintable() for piece, _ in line)
