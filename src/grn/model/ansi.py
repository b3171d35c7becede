"""Program output as styled lines: colours and carriage returns interpreted as a terminal does.

Standard library only. Escape sequences other than colours, erasing and moves of the cursor are
dropped; control characters and marks of direction are spelled out.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, NamedTuple

from grn.model.text import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_UP = 200  # lines that a program may move the cursor up
TAB = 8
_TOKENS = re.compile(
    r"(?P<text>[^\x00-\x1f\x7f-\x9f]+)"
    r"|(?P<sequence>(?:\x1b\[|\x9b)[\x30-\x3f]*[\x20-\x2f]*[\x40-\x7e]?)"
    r"|(?P<string>(?:\x1b[P\]X^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?)"
    r"|(?P<escape>\x1b[\x20-\x2f]*[\x30-\x7e]?)"
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])"
)


class Style(NamedTuple):
    """How text looks; a colour is a number of the 256 that terminals have, or None."""

    colour: int | None = None
    background: int | None = None
    is_bold: bool = False
    is_dim: bool = False
    is_italic: bool = False
    is_underlined: bool = False
    is_inverse: bool = False


Piece = tuple[str, Style]
Line = tuple[Piece, ...]
PLAIN = Style()
_FLAGS = {
    1: ("is_bold", True), 2: ("is_dim", True), 3: ("is_italic", True), 4: ("is_underlined", True),
    7: ("is_inverse", True), 23: ("is_italic", False), 24: ("is_underlined", False),
    27: ("is_inverse", False), 39: ("colour", None), 49: ("background", None),
}  # fmt: skip


def styled_lines(text: str, style: Style = PLAIN) -> tuple[list[Line], Style]:
    """Return the lines of an output, and the style in which its last, unfinished line begins.

    There is always a last line; it is empty after a line end. `style` is that of the beginning.
    """
    screen = _Screen(style)
    for token in _TOKENS.finditer(text):
        kind, found = token.lastgroup, token.group()
        if kind == "text":
            screen.write(harmless(found))
        elif kind == "sequence":
            screen.obey(found)
        elif kind == "control":
            screen.control(found)
    return [line.pieces() for line in screen.lines], screen.line_style


def with_sgr(style: Style, parameters: str) -> Style:
    """Return a style changed by the parameters of an SGR sequence: `1;31` is bold and red."""
    numbers = _numbers(parameters.replace(":", ";"))
    for number in numbers:
        if number == 0:
            style = PLAIN
        elif number == 22:
            style = style._replace(is_bold=False, is_dim=False)
        elif number in _FLAGS:
            name, value = _FLAGS[number]
            style = _changed(style, name, value)
        elif number in (38, 48):
            name = "colour" if number == 38 else "background"
            style = _changed(style, name, _extended(numbers))
        elif 30 <= number <= 37 or 90 <= number <= 97:
            style = style._replace(colour=number - 30 if number < 90 else number - 82)
        elif 40 <= number <= 47 or 100 <= number <= 107:
            style = style._replace(background=number - 40 if number < 100 else number - 92)
    return style


def sgr(style: Style) -> str:
    """Return the parameters that make a style from PLAIN, for `with_sgr`; empty for PLAIN."""
    found = [
        str(number)
        for number, (name, value) in _FLAGS.items()
        if value is True and getattr(style, name)
    ]
    if style.colour is not None:
        found.append(f"38;5;{style.colour}")
    if style.background is not None:
        found.append(f"48;5;{style.background}")
    return ";".join(found)


def _changed(style: Style, name: str, value: int | bool | None) -> Style:
    changes: dict[str, Any] = {name: value}
    return style._replace(**changes)


def _numbers(parameters: str) -> Iterator[int]:
    for part in parameters.split(";"):
        yield int(part) if part.isdecimal() and len(part) < 6 else 0


def _extended(numbers: Iterator[int]) -> int | None:
    """Read the rest of 38 or 48: one of 256 colours, or the nearest one to a mixed colour."""
    kind = next(numbers, 0)
    if kind == 5:
        number = next(numbers, 0)
        return number if number < 256 else None
    if kind == 2:
        red, green, blue = (min(255, next(numbers, 0)) for _ in range(3))
        return 16 + 36 * _step(red) + 6 * _step(green) + _step(blue)
    return None


def _step(value: int) -> int:
    """Return the nearest of the six shades 0, 95, 135, 175, 215 and 255."""
    return int(value > 47) if value < 115 else (value - 35) // 40


class _Cells:
    """One line, character by character, each with its style."""

    __slots__ = ("chars", "styles")

    def __init__(self) -> None:
        self.chars: list[str] = []
        self.styles: list[Style] = []

    def write(self, column: int, text: str, style: Style) -> None:
        """Write over what is there, with blanks between it and text beyond its end."""
        blanks = column - len(self.chars)
        if blanks > 0:
            self.write(len(self.chars), " " * blanks, PLAIN)
        self.chars[column : column + len(text)] = text
        self.styles[column : column + len(text)] = [style] * len(text)

    def cut(self, column: int) -> None:
        """Erase from a column to the end."""
        del self.chars[column:], self.styles[column:]

    def pieces(self) -> Line:
        """Return the line as runs of equal style."""
        if self.styles and self.styles.count(self.styles[0]) == len(self.styles):
            return (("".join(self.chars), self.styles[0]),)  # most lines
        found, at = [], 0
        for style, group in itertools.groupby(self.styles):
            end = at + sum(1 for _ in group)
            found.append(("".join(self.chars[at:end]), style))
            at = end
        return tuple(found)


class _Screen:
    """Lines with a cursor: as high as the output is long, and as wide."""

    def __init__(self, style: Style) -> None:
        self.lines = [_Cells()]
        self.style = self.line_style = style
        self._row = 0
        self._column = 0

    def write(self, text: str) -> None:
        """Write at the cursor."""
        self.lines[self._row].write(self._column, text, self.style)
        self._column += len(text)

    def control(self, char: str) -> None:
        """Obey a control character, or spell it out."""
        if char == "\n":
            self._row, self._column = self._row + 1, 0
            if self._row == len(self.lines):
                self.lines.append(_Cells())
                self.line_style = self.style
        elif char == "\r":
            self._column = 0
        elif char == "\b":
            self._column = max(0, self._column - 1)
        elif char == "\t":
            self.write(" " * (TAB - self._column % TAB))
        elif char not in "\x00\x07\x0e\x0f":
            self.write(harmless(char))

    def obey(self, sequence: str) -> None:
        """Obey a control sequence: colours, erasing, moves within what was printed."""
        body = sequence.removeprefix("\x1b[").removeprefix("\x9b")
        parameters, final = body[:-1], body[-1:]
        if final == "m":
            self.style = with_sgr(self.style, parameters)
            return
        count = next(_numbers(parameters), 0)
        line = self.lines[self._row]
        if final == "K":
            self._erase(line, count)
        elif final == "G":
            self._column = min(max(0, count - 1), len(line.chars))
        elif final in ("A", "F"):
            self._row = max(0, self._row - min(count or 1, MAX_UP))
        elif final in ("B", "E"):
            self._row = min(len(self.lines) - 1, self._row + (count or 1))
        elif final == "D":
            self._column = max(0, self._column - (count or 1))
        elif final == "C":
            self._column = min(self._column + (count or 1), len(line.chars))
        if final in ("E", "F"):
            self._column = 0

    def _erase(self, line: _Cells, which: int) -> None:
        if which == 1:
            line.write(0, " " * min(self._column, len(line.chars)), PLAIN)
        else:
            line.cut(0 if which == 2 else self._column)
