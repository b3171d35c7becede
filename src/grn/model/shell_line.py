"""Find the program in a line of the shell, and the folder it runs in: pure text, runs nothing.

Reads what people write in front of a program: assignments, `cd`, `export`, keywords. A line that no
shell takes is split at spaces.
"""

from __future__ import annotations

import posixpath
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INDEX_MARKS = ("${GRN_ARRAY_INDEX}", "$GRN_ARRAY_INDEX")
SHELLS = ("sh", "bash", "dash", "zsh")
_LINE_FLAG = re.compile(r"-[a-z]*c")  # -c, -lc, -ec
_TOKEN = re.compile(
    r"""[ \t]*(?:(?P<redirect>\d*[<>]+[&|]?[ \t]*)|(?P<end>[;&|()\n]+)
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^ \t\n;&|()<>'"\\]+)+))""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)
_ESCAPED = re.compile(r'\\([\\"$`\n])')
_PREFIXES = frozenset(("!", "{", "if", "then", "else", "elif", "while", "until", "do", "time",
                       "exec", "command", "nohup", "env"))  # fmt: skip
_SETUP = frozenset(("cd", "pushd", "export", "set", "unset", "source", ".", "ulimit", "umask",
                    "module", "mkdir", "echo", "eval", "trap", "test", "[", "for", "done", "fi",
                    "}", ":"))  # fmt: skip


def line_of(argv: Sequence[str]) -> str | None:
    """Return the line that a command has a shell run; None when it runs a program itself."""
    if len(argv) != 3 or posixpath.basename(argv[0]) not in SHELLS:
        return None
    return argv[2] if _LINE_FLAG.fullmatch(argv[1]) else None


def with_index(word: str, index: str) -> str:
    """Fill the number of a job in its array into a word of its shell line."""
    for mark in INDEX_MARKS:
        word = word.replace(mark, index)
    return word


def program_of(line: str, folder: str = "") -> tuple[list[str], str]:
    """Return the first command of a line that does more than set up, and its folder.

    A folder below a home begins with `~`.
    """
    first: list[str] = []
    for words in _commands(line):
        first = first or words
        if words[0] in ("cd", "pushd") and len(words) > 1:
            folder = words[-1] if words[-1][0:1] == "~" else posixpath.join(folder, words[-1])
        elif words[0] not in _SETUP and words[1:2] != ["activate"]:
            return words, folder
    return first, folder


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, without assignments, keywords and redirections."""
    words: list[str] = []
    is_target = False  # the next word is the file of a redirection
    for kind, text in _tokens(line):
        if kind == "word" and not is_target:
            if words or not (_is_assignment(text) or text in _PREFIXES):
                words.append(_unquoted(text))
        elif kind == "end" and words:
            yield words
            words = []
        is_target = kind == "redirect"
    if words:
        yield words


def _tokens(line: str) -> Iterator[tuple[str, str]]:
    """Yield the tokens of a line; of one that no shell takes, its words."""
    found: list[tuple[str, str]] = []
    at, end = 0, len(line.rstrip())
    while at < end:
        match = _TOKEN.match(line, at)
        if match is None:
            return iter([("word", word) for word in line.split()])
        found.append((match.lastgroup or "", match[match.lastgroup or 0]))
        at = match.end()
    return iter(found)


def _is_assignment(word: str) -> bool:
    name, mark, _ = word.partition("=")
    return bool(mark) and name.isidentifier()


def _unquoted(word: str) -> str:
    return _QUOTED.sub(_plain, word) if any(mark in word for mark in "'\"\\") else word


def _plain(match: re.Match[str]) -> str:
    if match[2] is not None:
        return _ESCAPED.sub(r"\1", match[2])
    return match[1] if match[1] is not None else match[3]
