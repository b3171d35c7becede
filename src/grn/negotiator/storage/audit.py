"""Audit log: changes, and attempts to change, what belongs to other users; append-only.

A user's own requests are not logged here. A full disk never blocks the action itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Any

import msgspec

log = logging.getLogger(__name__)
FILE_NAME = "audit.jsonl"
MAX_BYTES = 4 << 20  # of one file; one older file is kept

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Audit:
    """The file, in the folder of the user who runs the negotiator."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, FILE_NAME)
        self._before = f"{self._path}.1"

    def note(self, uid: int, pid: int | None, verb: str, thing: str, result: str) -> None:
        """Add a line."""
        row = {"at": time.time(), "uid": uid, "pid": pid, "verb": verb, "object": thing}
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self._path, flags, 0o600)
            try:
                os.write(fd, _encode({**row, "result": result}) + b"\n")
                is_full = os.fstat(fd).st_size >= MAX_BYTES
            finally:
                os.close(fd)
            if is_full:
                os.rename(self._path, self._before)
        except OSError as error:
            log.warning("action=audit result=failed reason=%r", str(error))

    def last(self, most: int) -> list[dict[str, Any]]:
        """Return the last lines, oldest first; an incomplete line is left out."""
        rows: list[dict[str, Any]] = []
        for path in (self._before, self._path):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                for line in file:
                    with contextlib.suppress(msgspec.DecodeError):
                        rows.append(_decode(line))
        return rows[-most:]
