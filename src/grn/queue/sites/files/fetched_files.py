"""Bring files of an attempt on a node into its submitter's folder, one after another.

What a node says is not trusted. A path must match what the job asked for and stay below its folder,
no link is followed on the way, and a file takes its name only when all of it is here.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grn import wire
from grn.errors import ProtocolError
from grn.model.fetch_patterns import is_safe, is_wanted
from grn.model.text import harmless
from grn.queue.journal.rows import Command
from grn.queue.site import Attempt
from grn.queue.sites.stream import FilePiece, Message

log = logging.getLogger(__name__)
MAX_BYTES, MAX_FILES = 1 << 30, 1000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """A file that a node has for home."""

    path: str
    size: int
    mtime_ns: int
    is_program: bool


def offered(given: object, patterns: tuple[str, ...]) -> tuple[list[OfferedFile], str]:
    """Read the files that a node offers; raise ProtocolError for one that was not asked for."""
    if not isinstance(given, dict) or not isinstance(given.get("rows"), list):
        raise ProtocolError("the files of an attempt are not as they should be.")
    files = [_file(row, patterns) for row in given["rows"]]
    if len(files) > MAX_FILES or sum(one.size for one in files) > MAX_BYTES:
        raise ProtocolError("more files are offered than are fetched.")
    return files, harmless(str(given.get("note", "")))


def _file(row: Any, patterns: tuple[str, ...]) -> OfferedFile:
    kinds = [str, int, int, bool]
    if not isinstance(row, list) or [type(one) for one in row] != kinds or row[1] < 0:
        raise ProtocolError("the files of an attempt are not as they should be.")
    if not (is_safe(row[0]) and is_wanted(wire.meant(row[0]), patterns)):
        raise ProtocolError(f"the file {row[0]!r} is offered and was not asked for.")
    return OfferedFile(*row)


class Fetch:
    """The files of one attempt, on their way."""

    def __init__(
        self,
        attempt: Attempt,
        command: Command,
        send: Callable[[Message], None],
        done: Callable[[list[str]], None],
    ) -> None:
        self._attempt = attempt
        self._command = command
        self._send = send
        self._done = done
        self._files: list[OfferedFile] = []
        self._number = -1
        self._target: _Target | None = None
        self._faults: list[str] = []

    def begin(self, files: list[OfferedFile]) -> None:
        """Ask for the first file."""
        self._files = files
        self._next()

    def close(self) -> None:
        """Drop what is on its way."""
        if self._target is not None:
            self._target.drop()
            self._target = None

    def receive(self, piece: FilePiece) -> None:
        """Write a part of the present file."""
        if self._target is None or not piece.name.endswith(f".{self._number}"):
            return
        try:
            self._target.write(piece)
        except OSError as error:
            self._fail(error.strerror or str(error))

    def got(self, message: Message) -> None:
        """Give the present file its name, if all of it is here; ask for the next."""
        if message.get("file") != self._number:
            return
        text = harmless(str(message.get("text", "")))
        if text:
            self._fail(text)
        elif self._target is not None:
            try:
                if self._target.digest != message.get("digest"):
                    raise OSError(0, "what arrived is damaged, or it was changed meanwhile")
                self._target.finish()
                self._target = None
            except OSError as error:
                self._fail(error.strerror or str(error))
        self._next()

    def _fail(self, text: str) -> None:
        self._faults.append(f"{harmless(self._files[self._number].path)}: {text}")
        self.close()

    def _next(self) -> None:
        while self._number + 1 < len(self._files):
            self._number += 1
            file = self._files[self._number]
            try:
                self._target = _Target(self._command, file, self._attempt)
            except OSError as error:
                self._fail(error.strerror or str(error))
                continue
            if self._target.is_here:
                self.close()
                continue
            self._send({
                "op": "get", "job": self._attempt.job, "attempt": self._attempt.number,
                "file": self._number, "path": file.path,
            })  # fmt: skip
            return
        self._done(self._faults)


class _Target:
    """A file at home that is being written, under another name until it is complete."""

    def __init__(self, command: Command, file: OfferedFile, attempt: Attempt) -> None:
        *folders, self._name = wire.meant(file.path).split("/")
        self._part = f".grn-{attempt.job}.{attempt.number}.part"
        self._file = file
        self._umask = command.umask
        self._digest = hashlib.sha256()
        self._size = 0
        self._fd = -1
        self._folder = _folder(wire.meant(command.cwd), folders, 0o777 & ~command.umask)
        try:
            self.is_here = self._is_here()
            if not self.is_here:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._part, dir_fd=self._folder)
                self._fd = os.open(self._part, _NEW, 0o600, dir_fd=self._folder)
        except OSError:
            self._close()
            raise

    def _is_here(self) -> bool:
        """True for the very file, through a shared file system or from an earlier fetch."""
        try:
            found = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(found.st_mode):
            raise OSError(0, "there is a folder or a link of that name")
        return (found.st_size, found.st_mtime_ns) == (self._file.size, self._file.mtime_ns)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def write(self, piece: FilePiece) -> None:
        if piece.offset != self._size or self._size + len(piece.data) > MAX_BYTES:
            raise OSError(0, "a part of it is missing, or it is too large")
        view = memoryview(piece.data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._digest.update(piece.data)
        self._size += len(piece.data)

    def finish(self) -> None:
        mode = (0o777 if self._file.is_program else 0o666) & ~self._umask
        os.fchmod(self._fd, mode)
        os.utime(self._fd, ns=(self._file.mtime_ns, self._file.mtime_ns))
        os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._close()

    def drop(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._part, dir_fd=self._folder)
        self._close()

    def _close(self) -> None:
        for fd in (self._fd, self._folder):
            if fd >= 0:
                os.close(fd)
        self._fd = self._folder = -1


def _folder(cwd: str, folders: list[str], mode: int) -> int:
    """Open a folder below the submitter's, make it if need be, follow no link."""
    fd = os.open(cwd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in folders:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=fd)
            below = os.open(name, _FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd
