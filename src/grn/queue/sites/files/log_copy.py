"""Copies of the output of attempts on nodes: the queue's own files, or the file a job names.

A piece is written at its offset, so one that comes twice does no harm; one behind a gap is refused,
and the copy counts as incomplete. A copy into the job's own file begins at the end of that file;
`own_log` in the attempt's folder notes where.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from grn import wire
from grn.client.remote_call import MAX_REPLY_BYTES, REPLY_FILE
from grn.queue.journal.rows import Command
from grn.queue.site import Attempt
from grn.queue.sites.stream import LOG_NAME, LogPiece

log = logging.getLogger(__name__)
_NOTE = "own_log"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _OwnLog:
    """The file that a job names for its output, and where the output of an attempt begins."""

    path: str
    start: int


class LogCopies:
    """The copies of one node's attempts."""

    def __init__(self, folder_of: Callable[[Attempt], str], max_bytes: int) -> None:
        self._folder_of = folder_of
        self._max_bytes = max_bytes
        self._incomplete: set[Attempt] = set()

    def begin(self, attempt: Attempt, command: Command) -> None:
        """Note where the output of an attempt goes if its job names a file."""
        if not command.log:
            return
        path = wire.meant(command.log)
        try:
            fd = os.open(path, _FLAGS, 0o666 & ~command.umask)
            start = os.fstat(fd).st_size
            os.close(fd)
            self._note(attempt, _OwnLog(path, start))
        except OSError as error:
            self._fail(attempt, error)

    def sizes(self, attempt: Attempt) -> dict[str, int]:
        """Return how much of each file of an attempt is here."""
        folder = self._folder_of(attempt)
        try:
            own = self._own(attempt)
            if own is not None:
                return {"log": _size(own.path) - own.start}
            names = [name for name in os.listdir(folder) if LOG_NAME.fullmatch(name)]
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._fail(attempt, error)
            return {}
        return {name: _size(os.path.join(folder, name)) for name in names}

    def write(self, piece: LogPiece) -> None:
        """Add a piece."""
        try:
            if not self._write(piece):
                self._incomplete.add(piece.attempt)
        except OSError as error:  # a full disk: the node keeps the whole output
            self._fail(piece.attempt, error)

    def is_whole(self, attempt: Attempt) -> bool:
        """True when nothing of an attempt's output is missing here."""
        return attempt not in self._incomplete

    def forget(self, attempt: Attempt) -> None:
        """Drop what is noted of an attempt that is over."""
        self._incomplete.discard(attempt)

    def _fail(self, attempt: Attempt, error: OSError) -> None:
        self._incomplete.add(attempt)
        log.error("action=write-log job=%d result=failed reason=%r", attempt.job, str(error))

    def _write(self, piece: LogPiece) -> bool:
        own = self._own(piece.attempt)
        if own is not None:
            return piece.name != "log" or _write_at(own.path, piece, own.start, 0)
        most = MAX_REPLY_BYTES if piece.name == REPLY_FILE else self._max_bytes
        if piece.offset + len(piece.data) > most:
            return False
        folder = self._folder_of(piece.attempt)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_written = _write_at(os.path.join(folder, piece.name), piece, 0, os.O_NOFOLLOW)
        _drop_older(folder, piece.name)
        return is_written

    def _note(self, attempt: Attempt, own: _OwnLog) -> None:
        folder = self._folder_of(attempt)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, _NOTE), "w") as file:
            json.dump({"path": wire.spelled(own.path), "start": own.start}, file)

    def _own(self, attempt: Attempt) -> _OwnLog | None:
        try:
            with open(os.path.join(self._folder_of(attempt), _NOTE)) as file:
                found = json.load(file)
            own = _OwnLog(wire.meant(found["path"]), int(found["start"]))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise OSError(0, f"the note about the log of {attempt} is damaged") from error
        if _size(own.path) < own.start:  # it was removed or shortened meanwhile
            own = _OwnLog(own.path, _size(own.path))
            self._note(attempt, own)
        return own


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _write_at(path: str, piece: LogPiece, start: int, flags: int) -> bool:
    """Write a piece at its place; False behind a gap, or where the disk takes a part of it."""
    fd = os.open(path, _FLAGS | flags, 0o600)
    try:
        at = start + piece.offset
        if at > os.fstat(fd).st_size:
            return False
        return os.pwrite(fd, piece.data, at) == len(piece.data)
    finally:
        os.close(fd)


def _drop_older(folder: str, name: str) -> None:
    """Remove what the node has dropped of a long log: all but the last two parts."""
    base, mark, number = name.partition(".tail")
    if mark and int(number) >= 2:
        for other in os.listdir(folder):
            its_base, its_mark, its_number = other.partition(".tail")
            if (its_base, its_mark) == (base, mark) and int(its_number) <= int(number) - 2:
                os.unlink(os.path.join(folder, other))
