"""What is told of a job: its type, its needs, the arguments to learn from and a mark of its code.

Numbers and short words only; nothing that looks like a secret, and nothing of the code itself,
leaves the process.
"""

from __future__ import annotations

import functools
import math
import os
import re
import stat
from binascii import crc32

from grn.model import MAX_CHOICE, MAX_GPUS, MAX_PRIORITY
from grn.model.shell_line import INDEX_MARKS, line_of, program_of, with_index
from grn.protocol.lease_messages import LeaseRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType
    from typing import Any, Final

POLICIES = {"spread": "spread", "spreading": "spread", "pack": "pack", "packing": "pack"}
MAX_ARGUMENTS = 16
MAX_SCRIPT_BYTES = 1 << 20  # a longer file is data
FIRST_WORDS = 8  # of a command: its script is among them
_SECRET = ("password", "passwd", "secret", "token", "key", "auth", "credential")
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_FLAGS_WITH_VALUE = ("-W", "-X")
_SCRIPTS = (".py", ".sh")


# --- type and needs ------------------------------------------------------------------------


def lease_request(
    job_type: str,
    label: str,
    *,
    gpus: int = 1,
    mem: str | int | None = None,
    exclusive: bool = False,
    priority: int = 0,
    policy: str = "spread",
    on: str = "",
    without: Sequence[str | int] = (),
    cpus: str | float | None = None,
    ram: str | int | None = None,
    idle_limit: str | float | None = None,
) -> LeaseRequest:
    """Return the request for a lease; raise ValueError for a need that makes no sense."""
    if policy not in POLICIES:
        raise ValueError(f"policy is '{policy}' and must be 'spread' or 'pack'")
    if not _is_whole(gpus) or not 0 <= gpus <= MAX_GPUS:
        raise ValueError(f"gpus is {gpus!r} and must be a whole number from 0 up")
    check_no_gpus(gpus, mem, exclusive, on, without)
    if not _is_whole(priority) or abs(priority) > MAX_PRIORITY:
        raise ValueError(
            f"priority is {priority!r} and must be a whole number up to {MAX_PRIORITY}"
        )
    if len(on) > MAX_CHOICE:
        raise ValueError(f"on is longer than {MAX_CHOICE} characters")
    sizes: list[int | None] = []
    for size in (mem, ram):
        if size is None:
            sizes.append(None)
        else:
            from grn.model.units import parse_memory

            sizes.append(parse_memory(size))
    if cpus is not None:
        from grn.model.units import parse_cpus

        cpus = parse_cpus(cpus)
    if idle_limit is not None:
        from grn.model.units import parse_time

        idle_limit = parse_time(idle_limit)
    return LeaseRequest(
        _text(job_type, 1024), _text(label, 256), gpus=gpus, mem=sizes[0],
        exclusive=bool(exclusive), priority=priority, policy=POLICIES[policy], on=on,
        without=tuple(map(str, without)), cpus=cpus, ram=sizes[1],
        idle_limit=idle_limit,
    )  # fmt: skip


def check_no_gpus(
    gpus: int | None, mem: object, exclusive: object, on: object, without: object
) -> None:
    """Raise UsageError when a job without GPUs says which GPUs it needs."""
    said = {"mem": mem, "exclusive": exclusive, "on": on, "without": without}
    names = [name for name, value in said.items() if value]
    if gpus == 0 and names:
        from grn.errors import UsageError

        raise UsageError(f"{names[0]} is about GPUs, and gpus is 0.", "Leave one of them out.")


def type_and_label(file: str, name: str) -> tuple[str, str]:
    """Return the unambiguous name of a job type, and a short one to show."""
    return _type_and_label(file, name, os.getcwd())


@functools.lru_cache(maxsize=1024)  # resolving a path is slow, and the same at every call
def _type_and_label(file: str, name: str, folder: str) -> tuple[str, str]:
    if "ipykernel" in file or file.startswith("<"):  # each run of a cell has a new file name
        return f"notebook in {folder}::{name}", f"notebook::{name}"
    full = os.path.realpath(file)
    short = os.path.relpath(os.path.abspath(file))
    shown = full if short.startswith("..") else short
    return f"{full}::{name}", f"{shown}::{name}"


class CommandProfile:
    """What is told of a command: its type in full and for people, its arguments, its code."""

    __slots__ = ("args", "code", "label", "type")

    def __init__(self, names: tuple[str, str], args: dict[str, float | str], code: str) -> None:
        self.type: Final = names[0]
        self.label: Final = names[1]
        self.args: Final = args
        self.code: Final = code


def command_profile(argv: Sequence[str], cwd: str = "", index: str = "") -> CommandProfile:
    """Describe a command, or the program in a line of the shell; `index` is its array number."""
    line = line_of(argv)
    if line is None:
        return CommandProfile(command_type(argv, cwd), command_arguments(argv),
                              code_of_command(argv, cwd))  # fmt: skip
    words, folder = program_of(line, cwd)
    folder = os.path.expanduser(folder)
    if not words:
        return CommandProfile(("sh", "sh"), {}, "")
    args = line_arguments(line, index)
    return CommandProfile(command_type(words, folder), args, code_of_command(words, folder))


def line_arguments(line: str, index: str = "") -> dict[str, float | str]:
    """Return the arguments of the program in a line; `index` is the job's number in an array."""
    words, _ = program_of(line)
    args = command_arguments([with_index(word, index) for word in words] if index else words)
    return {name: value for name, value in args.items() if "$" not in str(value)}


def member_arguments(
    argv: Sequence[str], index: str, shared: dict[str, float | str]
) -> dict[str, float | str]:
    """Return the arguments of a job of an array: its own where its line fills in its number."""
    line = line_of(argv)
    is_filled = line is not None and any(mark in line for mark in INDEX_MARKS)
    return line_arguments(line, index) if line and is_filled else shared


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
            return _script_type(os.path.join(cwd, words[0]), _folder())
        return "python", "python"
    path = os.path.join(cwd, argv[0]) if os.sep in argv[0] else argv[0]
    return _program(path, os.environ.get("PATH"), _folder()) or argv[0], program


def _folder() -> str:
    """Return the working folder; the root when it was removed, which `submit` refuses later."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep


@functools.lru_cache(maxsize=256)  # a thousand commands of one batch run the same program
def _program(name: str, _path: str | None, _folder: str) -> str:
    """Return the file of a program, empty when there is none."""
    found = program_file(name)
    return os.path.realpath(found) if found else ""


def program_file(name: str, cwd: str = "", path: str | None = None) -> str | None:
    """Return the file that a program name means, as a shell finds it; None when there is none."""
    if os.sep in name:
        folders = [cwd]
    else:
        folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    for folder in folders:
        file = os.path.join(folder, name)
        if "\0" not in file and os.access(file, os.X_OK) and not os.path.isdir(file):
            return file
    return None


@functools.lru_cache(maxsize=256)  # likewise
def _script_type(path: str, folder: str) -> tuple[str, str]:
    short = os.path.relpath(path, folder)
    full = os.path.realpath(path)
    return full, (full if short.startswith("..") else short)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _text(text: str, max_length: int) -> str:
    """Return a text that JSON can carry; of one that is too long, the end."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= max_length else "…" + clean[1 - max_length :]


# --- arguments -----------------------------------------------------------------------------


def worth_learning(arguments: Iterable[tuple[str, Any]]) -> dict[str, float | str]:
    """Keep numbers and short words, by name; drop the rest."""
    facts: dict[str, float | str] = {}
    for name, value in arguments:
        if len(facts) == MAX_ARGUMENTS or not _may_be_told(name):
            continue
        if isinstance(value, (bool, int, float)):
            if abs(value) < 1e18:
                facts[name] = float(value)
        elif isinstance(value, str) and len(value) <= 40 and value.isprintable():
            facts[name] = value
    return facts


def call_arguments(code: CodeType | None, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call to learn from; `code` has the names of positional ones."""
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return worth_learning([*zip(names, args, strict=False), *kwargs.items()])


@functools.lru_cache(maxsize=1024)  # the names are the same at every call
def _may_be_told(name: str) -> bool:
    if not name.isprintable() or len(name) > 64 or name == "self":
        return False
    return not any(word in name.lower() for word in _SECRET)


def command_arguments(argv: Sequence[str]) -> dict[str, float | str]:
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


def _number(text: str) -> float | str:
    return float(text) if _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


# --- code ----------------------------------------------------------------------------------


def code_of_function(function: Callable[..., Any]) -> str:
    """Return a checksum of a function and its inner functions, empty when it has no code.

    It separates runs of an older version. Comments, line numbers and its docstring do not count;
    nor do functions that it calls.
    """
    inner = getattr(function, "func", function)
    inner = getattr(inner, "__func__", inner)
    code = getattr(inner, "__code__", None)
    if code is None:
        return ""
    return f"{crc32(_spelled(code, getattr(inner, '__doc__', None)).encode()):08x}"


def code_of_command(words: Sequence[str], folder: str = "") -> str:
    """Return a checksum of the script that a command runs, empty when it runs none."""
    for word in words[:FIRST_WORDS]:
        if word.endswith(_SCRIPTS):
            found = _of_file(os.path.join(folder, word))
            if found:
                return found
    return ""


def _of_file(path: str) -> str:
    try:
        seen = os.stat(path)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > MAX_SCRIPT_BYTES:
            return ""
        return _of_content(path, seen.st_mtime_ns, seen.st_size)
    except (OSError, ValueError):  # a name with a null in it
        return ""


@functools.lru_cache(maxsize=256)  # a thousand commands of one batch run the same script
def _of_content(path: str, _changed_at: int, _size: int) -> str:
    with open(path, "rb") as file:
        return f"{crc32(file.read(MAX_SCRIPT_BYTES)):08x}"


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
