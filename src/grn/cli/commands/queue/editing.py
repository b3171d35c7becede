"""`grn edit` without options: a waiting job as TOML in an editor, and what was changed there.

The file has every option that can be changed, at its present value. Only options whose values were
changed are sent, so that rounded sizes and times stay exact.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grn import option_file
from grn.client.job_options import OPTIONS, edited
from grn.client.submit import wanted, words
from grn.errors import GrnError, UsageError
from grn.model.units import show_limit, show_size
from grn.protocol.queue_rows import JobRow

EDITORS = ("nano", "vim", "vi")  # where neither VISUAL nor EDITOR names one


class Field(NamedTuple):
    """One line of the file."""

    name: str
    value: Any
    note: str = ""


def fields(row: JobRow) -> list[Field]:
    """Return the options of a job as the file shows them; an empty text stands for none."""
    begin = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.begin_at)) if row.begin_at else ""
    return [
        Field("command", _command(row.argv), "a list of words, or one line for the shell"),
        Field("name", row.name),
        Field("cwd", _text(row.cwd)),
        Field("tags", list(row.tags)),
        Field("gpus", row.gpus_asked),
        Field("mem", _size(row.mem_bytes), "12GiB on each GPU; empty: learned"),
        Field("cpus", f"{row.cpus:g}" if row.cpus else "", "8 or 0.5; empty: learned"),
        Field("ram", _size(row.ram_bytes), "32GiB; empty: learned"),
        Field("exclusive", row.is_exclusive),
        Field("on", row.on, "a100, a100|h100, >=40GiB"),
        Field("not", list(row.without), "indices or UUIDs"),
        Field("at", row.at, "a site, a node or local"),
        Field("priority", row.priority),
        Field("begin", begin, "22:00, now+2h, 2030-01-31 9:00"),
        Field("only", row.only, "20:00-08:00"),
        Field("time_limit", _limit(row.time_limit_s), "90s, 30m, 12h, 2d; empty: none"),
        Field("idle_limit", _limit(row.idle_limit_s), "30m; empty: as set for the machine"),
        Field("retry", row.retries),
        Field("requeue", row.may_requeue, "run it again if the machine goes down under it"),
        Field("notify", row.notify, "run by the shell when it has ended"),
    ]  # fmt: skip


def as_toml(row: JobRow) -> str:
    """Spell the options of a job as TOML."""
    lines = [
        f"# Job {row.id}. Change values, save the file and close the editor.",
        "# Without a change nothing is sent. `grn edit --help` explains the options.",
        "",
    ]
    for one in fields(row):
        line = f"{one.name} = {_toml(one.value)}"
        lines.append(f"{line:<33} # {one.note}" if one.note else line)
    return "\n".join(lines) + "\n"


def changes(row: JobRow, text: str) -> dict[str, Any]:
    """Return the options that differ in the text of a file; raise UsageError for a bad file."""
    try:
        found = option_file.toml(text.encode())
    except ValueError as error:
        raise UsageError(f"the file is not TOML: {' '.join(str(error).split())}.") from error
    known = {one.name: one.value for one in fields(row)}
    for name in found:
        if name not in known:
            near = option_file.nearest(name, known)
            raise UsageError(
                f"no such option '{name}'." + (f" Did you mean '{near}'?" if near else "")
            )
    return dict(_changed(known, found))


def _changed(known: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if value != known[name] or type(value) is not type(known[name]):
            yield name, _checked(name, value, known[name])


def _checked(name: str, value: Any, before: Any) -> Any:
    """Return a new value in the form of `grn edit`; raise UsageError for one of another kind."""
    if name == "command" and isinstance(value, str | list):
        is_good = bool(value) and (isinstance(value, str) or all(map(_is_text, value)))
        kind = "text, or a list of texts"
    elif isinstance(before, list):
        is_good = isinstance(value, list) and all(map(_is_text, value))
        kind = 'a list of texts, as ["night"]'
    else:
        is_good = type(value) is type(before)
        kind = {str: "a text in quotes", int: "a whole number", bool: "true or false"}[type(before)]
    if not is_good:
        raise UsageError(f"{name} = {_toml(value)} must be {kind}.")
    clearing = OPTIONS[name].clearing if name in OPTIONS else ()
    return next(iter(clearing)) if value == "" and clearing else value


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _command(argv: Sequence[str]) -> str | list[str]:
    is_line = tuple(argv[:2]) == ("/bin/sh", "-c") and len(argv) == 3
    return _text(argv[2]) if is_line else [_text(word) for word in argv]


def _text(word: str) -> str:
    """Escape bytes that are no text, which TOML cannot hold."""
    return word.encode("utf-8", "backslashreplace").decode()


def _limit(limit_s: float | None) -> str:
    return show_limit(limit_s) if limit_s else ""


def _size(size_bytes: int | None) -> str:
    return show_size(size_bytes).replace(" ", "") if size_bytes else ""


def _toml(value: Any) -> str:
    """Spell a value; texts of JSON are texts of TOML."""
    try:
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    except TypeError:  # a date, which only TOML has
        return str(value)


# --- the editor ----------------------------------------------------------------------------


def in_editor(text: str, name: str) -> tuple[str, str]:
    """Let a person edit a text; return it and the path of its file, which stays for now."""
    words = _editor()
    descriptor, path = tempfile.mkstemp(prefix=f"grn-{name}-", suffix=".toml")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        status = subprocess.call([*words, path])
    except OSError as error:
        os.unlink(path)
        text = f"the editor {words[0]} cannot be run: {error.strerror}."
        raise UsageError(text, "Name another in EDITOR.") from error
    if status:
        os.unlink(path)
        raise UsageError(f"the editor {words[0]} ended with status {status}: nothing is changed.")
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(), path


def _editor() -> list[str]:
    for variable in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(os.environ.get(variable, ""))
        except ValueError as error:
            raise UsageError(f"{variable} cannot be read as a command: {error}.") from error
        if words:
            return words
    found = next(filter(shutil.which, EDITORS), None)
    if found is None:
        raise UsageError("no editor is known.", "Name one in EDITOR, or use options as --mem.")
    return [found]


def edit(row: JobRow, file: str | None, change: Callable[[dict[str, Any]], Any]) -> bool:
    """Change a job by a file, or by one that an editor opens; False when nothing differs."""
    if file is not None:
        message = message_of(row, _read(file))
        return message is not None and bool(change(message))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "Name an option, as in --mem 12GiB; on a terminal an editor opens."
        raise UsageError("there is nothing to change.", hint)
    text, path = in_editor(as_toml(row), str(row.id))
    try:
        message = message_of(row, text)
        is_changed = message is not None and bool(change(message))
    except GrnError as error:
        error.hint = f"{error.hint} Your text is kept: grn edit {row.id} --file {path}".strip()
        raise
    os.unlink(path)
    return is_changed


def message_of(row: JobRow, text: str) -> dict[str, Any] | None:
    """Return the request that a changed file asks for; None without a change."""
    found = changes(row, text)
    if not found:
        return None
    if "not" in found:
        found["without"] = found.pop("not")
    command = found.pop("command", None)
    message = {"op": "edit", "job": row.id, **edited(found)}
    if command is not None:
        message["command"] = _wanted(row, words(command, isinstance(command, str)))
    return message


def _wanted(row: JobRow, argv: list[str]) -> dict[str, Any]:
    """Describe a new command; a type that was stated stays."""
    is_inferred = wanted(list(row.argv), None, "", row.cwd)["type"] == row.job_type
    return wanted(argv, None if is_inferred else row.job_type, "", row.cwd, row.array_index)


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read()
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{file} cannot be read: {said}.") from error
