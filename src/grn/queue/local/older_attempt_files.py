"""Attempt files of the first form: `lock`, `claim` and `exit` in a folder.

Shims of that version may still run after an update, so their files are read. The only file written
in this form is a claim that forbids such a shim to begin.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORBIDDEN = "queue"  # the claim of a queue


def lock_of(folder: str) -> str:
    """Return the file that a shim locked while it lived."""
    return os.path.join(folder, "lock")


def forbid(folder: str) -> bool:
    """Forbid an attempt to begin; False when it has begun."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(os.path.join(folder, "claim"), flags, 0o600)
    except FileExistsError:
        return read_claim(folder) == FORBIDDEN
    try:
        os.write(fd, FORBIDDEN.encode())
    finally:
        os.close(fd)
    return True


def read_claim(folder: str) -> str | None:
    """Return the process that made the claim, None when there is none."""
    try:
        with open(os.path.join(folder, "claim"), errors="replace") as file:
            return file.read()
    except OSError:
        return None


def read_exit(folder: str) -> dict[str, Any] | None:
    """Return how it ended, None when there is no end that can be read."""
    try:
        with open(os.path.join(folder, "exit"), "rb") as file:
            record = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("format") == 1 else None
