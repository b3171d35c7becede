"""A command with holes: split into words first, filled second, so that no value is ever split.

A value reaches the program as it was typed, byte for byte: inside one word, or, for a shell, quoted
for its position.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from grn.errors import UsageError
from grn.sweep.space import RESERVED

_MARK = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*", re.ASCII)
_ESCAPED_IN_DOUBLE = re.compile(r'([\\"$`])')


@dataclass(frozen=True, slots=True)
class Hole:
    """A place for a value, and the quotes around it: none, `'` or `"`."""

    name: str
    quotes: str = ""


Word = tuple[str | Hole, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """A command to be filled: words, or one line for the shell."""

    words: tuple[Word, ...]
    is_shell: bool
    text: str  # as it was written

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its holes, each once, in order."""
        holes = (piece for word in self.words for piece in word if isinstance(piece, Hole))
        return tuple(dict.fromkeys(hole.name for hole in holes))

    def check(self, names: Sequence[str]) -> None:
        """Refuse holes without a parameter, and parameters that the command does not use."""
        for name in self.names:
            if name not in names and name not in RESERVED:
                raise UsageError(
                    f"the command has {{{name}}} and there is no parameter '{name}'.",
                    f"Give it with -p {name} VALUE ..., or write {{{{{name}}}}} for the text.",
                )
        if {"run_dir", "params"} & set(self.names):
            return  # the program can read all parameters there
        for name in names:
            if name not in self.names:
                raise UsageError(
                    f"the command does not use parameter '{name}'; its values would all run alike.",
                    f"Write {{{name}}} where it belongs, or {{params}} for all of them as JSON.",
                )

    def fill(self, values: Mapping[str, str]) -> tuple[str, ...]:
        """Return the words of the command for one point."""
        for name in self.names:
            _check_value(name, values[name])
        if self.is_shell:
            return ("/bin/sh", "-c", _join(self.words[0], values, is_quoted=True))
        return tuple(_join(word, values) for word in self.words)


def parse(command: str | Sequence[str], *, is_shell: bool = False) -> Template:
    """Read a command: a text is split as a shell would split it, words are taken as they are."""
    words: tuple[Word, ...]
    if is_shell:
        text = command if isinstance(command, str) else " ".join(command)
        words = (_word(text, _quotes(text)),)
    else:
        text = command if isinstance(command, str) else shlex.join(command)
        words = tuple(_word(word) for word in _split(command))
    if not text.strip() or words[:1] in ((), ((),)):
        raise UsageError("there is no command.", 'Write it first: grn sweep "python train.py ..."')
    if "\0" in text:
        raise UsageError("the command has a NUL in it; no program can be started so.")
    return Template(words, is_shell, text)


def _split(command: str | Sequence[str]) -> Sequence[str]:
    if not isinstance(command, str):
        return command
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UsageError(f"the command cannot be split into words: {error}.") from error


def _word(text: str, quotes: Sequence[str] = ()) -> Word:
    pieces: list[str | Hole] = []
    for piece, place in _pieces(text):
        if isinstance(piece, Hole) and quotes:
            piece = Hole(piece.name, quotes[place])
            if piece.quotes == "`":
                raise UsageError(
                    f"{{{piece.name}}} stands in a command inside quotes, where it cannot be kept"
                    " whole.",
                    f"Set a variable first: x={{{piece.name}}}; then use $x.",
                )
        pieces.append(piece)
    return tuple(pieces)


def _pieces(text: str) -> Iterator[tuple[str | Hole, int]]:
    """Split a text into literal parts and holes, with their positions."""
    last = 0
    for found in _MARK.finditer(text):
        if found.start() > last:
            yield text[last : found.start()], last
        last = found.end()
        if found[0] in ("{{", "}}"):
            yield found[0][0], found.start()
        elif found[1] is not None and _NAME.fullmatch(found[1]):
            yield Hole(found[1]), found.start()
        else:
            raise UsageError(
                f"'{found[0]}' in the command is not a placeholder.",
                "Write {{ and }} for braces that stand for themselves.",
            )
    if last < len(text):
        yield text[last:], last


def _quotes(text: str) -> list[str]:
    """Return the quotes around each character of a shell line; "`" where quoting cannot work."""
    states, state, is_escaped, inner = [], "", False, 0
    for place, letter in enumerate(text):
        states.append("`" if state == '"' and inner else state)
        if is_escaped:
            is_escaped = False
        elif letter == "\\" and state != "'":
            is_escaped = True
        elif state == '"' and letter == "`":
            inner = 1 - inner
        elif state == '"' and letter == "(" and text[place - 1] == "$":
            inner += 1
        elif state == '"' and letter == ")" and inner:
            inner -= 1
        elif letter in "'\"" and not inner and state in ("", letter):
            state = "" if state else letter
    return states


def _check_value(name: str, value: str) -> None:
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, as JSON can hold it
        data = b"\0"
    if b"\0" in data:
        raise UsageError(f"a value of '{name}' has a character in it that no program can get.")


def _join(word: Word, values: Mapping[str, str], is_quoted: bool = False) -> str:
    return "".join(
        piece
        if isinstance(piece, str)
        else _quoted(values[piece.name], piece.quotes)
        if is_quoted
        else values[piece.name]
        for piece in word
    )


def _quoted(value: str, quotes: str) -> str:
    if quotes == "'":
        return value.replace("'", "'\\''")
    if quotes == '"':
        return _ESCAPED_IN_DOUBLE.sub(r"\\\1", value)
    return shlex.quote(value)
