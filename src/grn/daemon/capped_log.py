"""The log of a daemon: lines on standard error, and a size limit for the file behind it.

A full file is copied and truncated, not renamed, because child processes have it open too and a
crash report must still reach it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys

from grn.proc.processes import open_again

MAX_LOG_BYTES = 8 << 20  # of one file; one older file is kept
MAX_LINE_CHARS = 2000
_STDERR = 2
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def begin(path: str | None, level: int = logging.INFO, datefmt: str | None = None) -> None:
    """Log to standard error; `path` names the file behind it, to be kept below the cap."""
    handler = CappedHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt))
    logging.basicConfig(level=level, handlers=[handler])


class CappedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # not generic before 3.11
    """Writes lines of a limited length, and empties the file when it is full."""

    def __init__(self, path: str | None) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; names of job types come from users and may be long."""
        text = record.getMessage()
        if len(text) > MAX_LINE_CHARS:
            record.msg, record.args = f"{text[:MAX_LINE_CHARS]}...", None
        super().emit(record)
        if self._path is not None and os.fstat(_STDERR).st_size >= MAX_LOG_BYTES:
            with contextlib.suppress(OSError):  # a full disk keeps no copy
                _copy(f"{self._path}.1")
            with contextlib.suppress(OSError):
                os.ftruncate(_STDERR, 0)


def _copy(path: str) -> None:
    fd = os.open(path, _FLAGS, 0o600)
    with os.fdopen(fd, "wb") as copy, os.fdopen(open_again(_STDERR), "rb") as log:
        shutil.copyfileobj(log, copy, 1 << 20)
