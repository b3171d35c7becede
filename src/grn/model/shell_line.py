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
_RUNS_MORE = re.compile(r"[`(]")  # functions, and commands within words
_WORKED_OUT = re.compile(r"[$~*?\[]")  # what the word stands for is known only to a shell
_CHOOSES = re.compile(r"PATH|HOME|VIRTUAL_ENV|(?:PYTHON|PYTORCH|CONDA|LD_).*")
_WITHOUT_PYTHON = frozenset(("cat", "date", "echo", "mkdir", "sleep", "tee", "touch", "true"))


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
    for words, _ in _commands(line):
        if not words:
            continue
        first = first or words
        if words[0] in ("cd", "pushd") and len(words) > 1:
            folder = words[-1] if words[-1][0:1] == "~" else posixpath.join(folder, words[-1])
        elif words[0] not in _SETUP and words[1:2] != ["activate"]:
            return words, folder
    return first, folder


def plain_programs(line: str, folder: str = "") -> list[tuple[str, str]] | None:
    """Return the programs of a line that may run Python, each with the folder it runs in.

    None unless that is certain: no program or folder that the shell works out, no assignment that
    chooses a Python.
    """
    found: list[tuple[str, str]] = []
    if _RUNS_MORE.search(line):
        return None
    for words, given in _commands(line):
        deciding = words if words[:1] == ["cd"] else words[:1]
        if any(map(_CHOOSES.fullmatch, given)) or any(map(_WORKED_OUT.search, deciding)):
            return None
        if words[:1] == ["cd"] and len(words) == 2:
            folder = posixpath.join(folder, words[1])
        elif words and words[0] not in _WITHOUT_PYTHON:
            found.append((words[0], folder))
    return found


def _commands(line: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words of each simple command, and the names assigned before it.

    Keywords and redirections are left out.
    """
    words: list[str] = []
    given: list[str] = []
    is_target = False  # the next word is the file of a redirection
    for kind, text in _tokens(line):
        if kind == "word" and not is_target:
            if not words and _is_assignment(text):
                given.append(text.partition("=")[0])
            elif words or text not in _PREFIXES:
                words.append(_unquoted(text))
        elif kind == "end":
            yield words, given
            words, given = [], []
        is_target = kind == "redirect"
    yield words, given


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
