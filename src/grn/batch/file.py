"""Parse the lines of a batch into jobs: continuation lines, comments, options.

A line keeps its bytes; only the leading `[...]` is parsed.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from grn.errors import UsageError
from grn.group.task import Needs, read_needs
from grn.model import MAX_GPUS, MAX_PRIORITY

OPTIONS = (
    "gpus", "mem", "cpus", "ram", "exclusive", "priority", "type", "at", "on", "not", "idle_limit",
    "name",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One job of a batch: its line in the file, its command, and its needs."""

    line: int  # of the file, from 1
    text: bytes  # for the shell
    needs: Needs
    name: str = ""  # for people; the command itself where there is none
    repeat: int = 0  # how many jobs of the same text came before


class BatchParser:
    """Takes the lines of a batch one by one and returns each job at its last line."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs  # the defaults of a job
        self._begun: list[bytes] = []  # lines of a job that continues
        self._line = 0
        self._first = 0
        self._seen: dict[bytes, int] = {}

    @property
    def begun_at(self) -> int:
        """The line at which the latest job begins."""
        return self._first

    def take(self, line: bytes) -> BatchJob | None:
        """Take one line, without its end."""
        self._line += 1
        line = line.rstrip(b"\r\n")
        if not self._begun:
            stripped = line.strip()
            if not stripped or stripped.startswith(b"#"):
                return None
            self._first = self._line
        if _goes_on(line):
            self._begun.append(line[:-1])
            return None
        return self._job([*self._begun, line])

    def finish(self) -> BatchJob | None:
        """End the input; the last line may have ended in a backslash."""
        return self._job(self._begun) if self._begun else None

    def _job(self, lines: list[bytes]) -> BatchJob | None:
        self._begun = []
        text = b"".join(lines).strip()
        if not text:
            return None
        needs, name, text = _options(text, self._needs, self._first)
        repeat = self._seen.get(text, 0)
        self._seen[text] = repeat + 1
        return BatchJob(self._first, text, needs, name, repeat)


def jobs(lines: Iterable[bytes], needs: Needs) -> Iterator[BatchJob]:
    """Read a whole batch."""
    parser = BatchParser(needs)
    for line in lines:
        job = parser.take(line)
        if job is not None:
            yield job
    job = parser.finish()
    if job is not None:
        yield job


def _goes_on(line: bytes) -> bool:
    """True when a line ends in a backslash that is not itself escaped."""
    return (len(line) - len(line.rstrip(b"\\"))) % 2 == 1


def _options(text: bytes, needs: Needs, line: int) -> tuple[Needs, str, bytes]:
    """Strip a leading `[mem=6GiB gpus=2]`. A `[` or `[[` of the shell is followed by a blank."""
    if not text.startswith(b"[") or text[1:2] in (b" ", b"\t", b"[", b""):
        return needs, "", text
    inner, bracket, command = text[1:].partition(b"]")
    if not bracket:
        raise UsageError(f"line {line}: the options in [ ] are not closed.")
    if not command.strip():
        raise UsageError(f"line {line}: there is no command after the options.")
    try:
        words = shlex.split(inner.decode())
    except ValueError as error:
        raise UsageError(f"line {line}: the options cannot be read: {error}.") from error
    given: dict[str, object] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name in given:
            raise UsageError(f"line {line}: '{name}' stands twice among the options.")
        given[name] = _value(name, value if equals else None, line)
        try:
            needs = read_needs({name: given[name]}, needs)
        except UsageError as error:
            raise UsageError(f"line {line}: {word}: {error.message}", error.hint) from error
    return needs, str(given.get("name", "")), command.strip()


def _value(name: str, value: str | None, line: int) -> object:
    """Read the value of one option."""
    if name == "exclusive" and value in (None, "true", "false"):
        return value != "false"
    if name == "exclusive":
        raise UsageError(f"line {line}: '{name}' takes no value but true and false.")
    if name not in OPTIONS:
        near = difflib.get_close_matches(name, OPTIONS, 1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(OPTIONS)}."
        raise UsageError(f"line {line}: there is no option '{name}'.", hint)
    if not value:
        raise UsageError(f"line {line}: '{name}' needs a value, as in [mem=6GiB gpus=2].")
    if name == "not":
        return value.split(",")
    if name not in ("gpus", "priority"):
        return value
    try:
        number = int(value)
    except ValueError as error:
        text = f"line {line}: {name}={value} is not a whole number."
        raise UsageError(text) from error
    is_good = 0 <= number <= MAX_GPUS if name == "gpus" else abs(number) <= MAX_PRIORITY
    if not is_good:
        raise UsageError(f"line {line}: {name}={value} is out of range.")
    return number
