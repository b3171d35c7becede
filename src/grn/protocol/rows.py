"""Rows of the daemons' replies as values, read from the JSON that docs/json.md describes.

Standard library only: clients import it. A field that the sender leaves out has its default, so
rows of older daemons can be read; a field of the wrong type is an error of the sender.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from grn.errors import ProtocolError

_NUMBER = (int, float)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool, int),
    "float": _NUMBER,
    "int | None": (int, type(None)),
    "str | None": (str, type(None)),
    "float | None": (*_NUMBER, type(None)),
}


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt of a job, as `show` tells it."""

    attempt: int
    gpus: tuple[int, ...] = ()
    reason: str | None = None
    text: str | None = None
    ran_s: float | None = None
    peak_bytes: int | None = None
    where: str = ""  # the node; empty for this machine

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> AttemptRow:
        """Read one attempt."""
        return cls(**_checked(cls, {**row, "gpus": tuple(row.get("gpus") or ())}))


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job of a queue, as `list`, `show` and the change feed tell it."""

    id: int
    state: str
    argv: tuple[str, ...]
    name: str = ""
    cwd: str = ""
    label: str = ""
    why: str = ""
    reason: str | None = None  # how it ended
    status: int | None = None
    signal: int | None = None
    gpus_asked: int = 1
    mem_bytes: int | None = None
    is_exclusive: bool = False
    priority: int = 0
    after: tuple[tuple[int, bool], ...] = ()  # job, and whether it must end well
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float | None = None
    attempt: int = 0
    gpus: tuple[int, ...] = ()
    where: str = ""  # the node; empty for this machine
    lease: str | None = None
    used_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    folder: str | None = None
    attempts: tuple[AttemptRow, ...] = ()
    environment: tuple[str, ...] = ()  # names only

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> JobRow:
        """Read one job; its words are those that were typed."""
        return cls(**_checked(cls, {
            **row,
            **{name: tuple(row.get(name) or ()) for name in ("argv", "gpus", "environment")},
            "after": tuple((job, must) for job, must in row.get("after") or ()),
            "attempts": tuple(AttemptRow.from_json(one) for one in row.get("attempts") or ()),
        }))  # fmt: skip

    @property
    def has_ended(self) -> bool:
        return self.state == "ended"

    @property
    def is_waiting(self) -> bool:
        return self.state in ("queued", "held")


def _checked(kind: type[AttemptRow] | type[JobRow], row: Mapping[str, Any]) -> dict[str, Any]:
    """Take the known fields of a row; refuse a value of the wrong type."""
    found: dict[str, Any] = {}
    for field in fields(kind):
        if field.name not in row:
            continue
        value = row[field.name]
        kinds = _KINDS.get(str(field.type))
        if kinds is not None and not isinstance(value, kinds):
            raise ProtocolError(f"the field '{field.name}' of a job is {value!r}")
        found[field.name] = value
    return found
