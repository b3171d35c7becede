"""The arguments of a job that are used for learning, and the type of a command.

Numbers and short words only; nothing that looks like a secret leaves the process.
"""

from __future__ import annotations

import functools
import math
import os
import re
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

MAX_FACTS = 16
_SECRET = ("password", "passwd", "secret", "token", "key", "auth", "credential")
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_FLAGS_WITH_VALUE = ("-W", "-X")


def worth_learning(arguments: Iterable[tuple[str, Any]]) -> dict[str, float | str]:
    """Keep numbers and short words, by name; drop the rest."""
    facts: dict[str, float | str] = {}
    for name, value in arguments:
        if len(facts) == MAX_FACTS or not _may_be_told(name):
            continue
        if isinstance(value, (bool, int, float)):
            if abs(value) < 1e18:
                facts[name] = float(value)
        elif isinstance(value, str) and len(value) <= 40 and value.isprintable():
            facts[name] = value
    return facts


@functools.lru_cache(maxsize=1024)  # the names are the same at every call
def _may_be_told(name: str) -> bool:
    if not name.isprintable() or len(name) > 64 or name == "self":
        return False
    return not any(word in name.lower() for word in _SECRET)


def of_command(argv: Sequence[str]) -> dict[str, float | str]:
    """Read flags as arguments: `--bs 64`, `--bs=64`, `-b 64`, `bs=64`."""
    found: list[tuple[str, Any]] = []
    words = list(argv[1:])
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else "-"
        name = word.lstrip("-")
        if "=" in name and not name.startswith("="):
            name, _, text = name.partition("=")
            found.append((name, _number(text)))
        elif word in ("-c", "-e"):
            break  # the next word is a program, not a value
        elif word.startswith("-") and name and not _is_number(word):
            is_switch = following.startswith("-") and not _is_number(following)
            found.append((name, 1.0 if is_switch else _number(following)))
    return worth_learning(found)


def command_type(argv: Sequence[str], cwd: str = "") -> tuple[str, str]:
    """Return the type of a command, unambiguous and for people: its program or its script."""
    program = os.path.basename(argv[0]) or argv[0]
    if _PYTHON.fullmatch(program):
        words = list(argv[1:])
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            words = words[2:] if words[0] in _PYTHON_FLAGS_WITH_VALUE else words[1:]
        if words and words[0] == "-m" and len(words) > 1:
            return f"python -m {words[1]}", f"python -m {words[1]}"
        if words and words[0] not in ("-c", "-m"):
            return _file(os.path.join(cwd, words[0]))
        return "python", "python"
    found = shutil.which(os.path.join(cwd, argv[0]) if os.sep in argv[0] else argv[0])
    return (os.path.realpath(found), program) if found else (argv[0], program)


def _file(path: str) -> tuple[str, str]:
    short = os.path.relpath(path)
    full = os.path.realpath(path)
    return full, (full if short.startswith("..") else short)


def _number(text: str) -> float | str:
    return float(text) if _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
