"""The scheduler's log: a file, unless there is to be none, and the console.

Lines as `logging` writes them, without what that does for others: it took a fifth of the time that
an instance costs here.
"""

from __future__ import annotations

import os
import sys
import time

from grn.errors import MachineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

DATES = "%a, %d %b %Y %H:%M:%S"


class Log:
    """Writes lines to the file and to the console, at once."""

    def __init__(self, path: str | None) -> None:
        self._file = None if path is None else _opened(path)
        self._streams = [one for one in (sys.stderr, self._file) if one is not None]

    def info(self, text: str) -> None:
        """Say what happens."""
        self._write("INFO", text)

    def warning(self, text: str) -> None:
        """Say what should be known."""
        self._write("WARNING", text)

    def error(self, text: str) -> None:
        """Say what failed."""
        self._write("ERROR", text)

    def _write(self, level: str, text: str) -> None:
        line = f"{time.strftime(DATES)} {level} {text}\n"
        for stream in self._streams:
            try:
                stream.write(line)
                stream.flush()
            except (OSError, ValueError):
                pass  # the console is gone or the disk is full: no reason to run nothing more

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                pass  # the disk is still full


def _opened(path: str) -> TextIO:
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        return open(path, "a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise MachineError(
            f"the log {path} cannot be written: {error.strerror}.",
            "Name another file in scheduler_log_file_path, or None.",
        ) from error
