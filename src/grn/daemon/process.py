"""The process of a daemon: its arguments, signals and limits, and its log on standard error.

The file behind standard error has a size limit. A full file is copied and truncated, not renamed,
because child processes have it open too and a crash report must still reach it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import shutil
import signal
import sys

from grn.proc.processes import open_again

MAX_LOG_BYTES = 8 << 20  # of one file; one older file is kept
MAX_LINE_CHARS = 2000
_STDERR = 2
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def parser(module: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every daemon has."""
    found = argparse.ArgumentParser(prog=f"python -m {module}")
    found.add_argument("--ready-fd", type=int, help="write one line here when ready, or why not")
    found.add_argument("--log", help="the file that standard error is, to be kept small")
    return found


def report(fd: int | None, line: str) -> None:
    """Report to the process that started this one in the background; it may be gone."""
    if fd is not None:
        with contextlib.suppress(OSError):
            os.write(fd, line.replace("\n", " ").encode() + b"\n")
            os.close(fd)


def stop_event() -> asyncio.Event:
    """Return an event that the signals to stop set."""
    stopped = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    return stopped


def raise_file_limit(most: int) -> int:
    """Raise the limit of open files, up to `most`; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(hard if hard != resource.RLIM_INFINITY else most, most))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def log_to_stderr(path: str | None, level: int = logging.INFO, datefmt: str | None = None) -> None:
    """Log to standard error; `path` names the file behind it, to be kept below the cap."""
    handler = CappedHandler(path)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s", datefmt))
    logging.basicConfig(level=level, handlers=[handler])


class LineFormatter(logging.Formatter):
    """Spells the time once for all lines of a second."""

    _second, _spelled = 0, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        if datefmt is None:
            return super().formatTime(record)
        if int(record.created) != self._second:
            self._second = int(record.created)
            self._spelled = super().formatTime(record, datefmt)
        return self._spelled


class CappedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # not generic before 3.11
    """Writes lines of a limited length, and empties the file when it is full."""

    def __init__(self, path: str | None) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; names of job types come from users and may be long."""
        text = record.getMessage()
        if len(text) > MAX_LINE_CHARS:
            text = f"{text[:MAX_LINE_CHARS]}..."
        record.msg, record.args = text, None  # the line is not put together a second time
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
