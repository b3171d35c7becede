"""A short fingerprint of a job's code, to separate runs of an older version.

A checksum, not a secret: it need only change when the code does. Nothing of the code is sent.
"""

from __future__ import annotations

import functools
import os
import stat
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType
    from typing import Any

MAX_BYTES = 1 << 20  # of a script; a longer file is data
FIRST_WORDS = 8  # of a command: its script is among them
_SCRIPTS = (".py", ".sh")


def of_function(function: Callable[..., Any]) -> str:
    """Return the fingerprint of a function and its inner functions, empty when it has no code.

    Comments, line numbers and its docstring do not count; nor do functions that it calls.
    """
    inner = getattr(function, "func", function)
    inner = getattr(inner, "__func__", inner)
    code = getattr(inner, "__code__", None)
    if code is None:
        return ""
    return f"{crc32(_spelled(code, getattr(inner, '__doc__', None)).encode()):08x}"


def of_command(words: Sequence[str], folder: str = "") -> str:
    """Return the fingerprint of the script that a command runs, empty when it runs none."""
    for word in words[:FIRST_WORDS]:
        if word.endswith(_SCRIPTS):
            found = _of_file(os.path.join(folder, word))
            if found:
                return found
    return ""


def told(words: Sequence[str], folder: str = "") -> dict[str, str]:
    """Return the fields of a request about a command's code: none without a script."""
    code = of_command(words, folder)
    return {"code": code} if code else {}


def _of_file(path: str) -> str:
    try:
        seen = os.stat(path)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > MAX_BYTES:
            return ""
        return _of_content(path, seen.st_mtime_ns, seen.st_size)
    except (OSError, ValueError):  # a name with a null in it
        return ""


@functools.lru_cache(maxsize=256)  # a thousand commands of one batch run the same script
def _of_content(path: str, _changed_at: int, _size: int) -> str:
    with open(path, "rb") as file:
        return f"{crc32(file.read(MAX_BYTES)):08x}"


def _spelled(code: CodeType, doc: str | None = None) -> str:
    parts = [code.co_code.hex(), repr(code.co_names), repr(code.co_varnames)]
    for place, value in enumerate(code.co_consts):
        if not (place == 0 and doc is not None and value == doc):
            parts.append(_constant(value))
    return "\n".join(parts)


def _constant(value: Any) -> str:
    if hasattr(value, "co_code"):
        return _spelled(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    if isinstance(value, frozenset):  # its order changes from process to process
        return f"{{{','.join(sorted(map(_constant, value)))}}}"
    return repr(value)
