"""What is known of an instance from earlier: a mark in its folder says that it began, or finished.

The mark is a small file per task class. From the beginning of an instance to its end only the word
changes that says that it finished, in place: whatever a crash leaves of a mark, it is not taken for
one of an instance that finished. Decides by values in `decide`; the rest reads, writes and locks.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grn.client.logs import tail

VERSION = 1
_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Mark:
    """What stands in a folder: which instance began there, and whether it finished."""

    is_finished: bool
    test: Mapping[str, str] = field(default_factory=dict)
    common: Mapping[str, str] = field(default_factory=dict)  # the global configuration


@dataclass(frozen=True, slots=True)
class DoneMark:
    """What there is in the folder of an instance."""

    mark: Mark | None = None
    has_files: bool = False
    is_older_result: bool = False  # the older tool finished it, as far as its logs tell


@dataclass(frozen=True, slots=True)
class InstanceRun:
    """Run it; `note` says why it is run again."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Do not: it has finished. `note` says what should be known about that."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class RefuseRun:
    """It cannot be run."""

    reason: str


def decide(wanted: Mark, found: DoneMark, is_forced: bool) -> InstanceRun | Skip | RefuseRun:
    """Say whether an instance is to be run, from what an earlier run has left."""
    mark = found.mark
    if is_forced:
        return InstanceRun()
    if mark is None:
        if found.is_older_result:
            return Skip("an older release finished it; delete its folder to run it again")
        return InstanceRun(
            "its folder is there, but nothing says that it finished" * found.has_files
        )
    if mark.test != wanted.test:
        return RefuseRun("its folder has results of another instance: move them away")
    if not mark.is_finished:
        return InstanceRun("it did not finish before")
    return Skip(_changes(mark.common, wanted.common))


def _changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say what of the global configuration has changed since an instance finished."""
    changed = [
        f"{key} was {before.get(key, 'not set')} and is {now.get(key, 'not set')}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
    if not changed:
        return ""
    return f"it finished with another global_config, {'; '.join(changed)}; see force_rerun"


# --- the folder ------------------------------------------------------------------------------


class Folder:
    """The folder of one instance, kept from other schedulers while we use it."""

    def __init__(self, path: str, task_name: str) -> None:
        self.path = path
        self._mark_path = os.path.join(path, f".grn-{task_name.replace('/', '_')}.json")
        self._lock_fd = -1
        self._mark = Mark(False)

    def take(self) -> bool:
        """Make it and lock it; False when another scheduler runs this instance now."""
        fd = open_in_folder(self.path, os.O_RDONLY | os.O_DIRECTORY, folder=self.path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:
            pass  # a file system without locks for folders: go on as the older tool did
        self._lock_fd = fd
        return True

    def let_go(self) -> None:
        """Release the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def look(self, finished_before: bool, log_file: str | None) -> DoneMark:
        """See what is there. `finished_before`: a log says that the instance came to its end."""
        mark = self._read()
        if mark is not None:
            return DoneMark(mark, has_files=True)
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return DoneMark()
        has_marks = any(name.startswith(".grn-") for name in names)
        is_older = finished_before and bool(names) and not has_marks
        return DoneMark(
            has_files=bool(names),
            is_older_result=is_older and not (log_file and self._has_failed(log_file)),
        )

    def write(self, mark: Mark) -> None:
        """Set the mark."""
        self._mark = mark
        put(self._mark_path, _saved(mark), self.path)

    def finish(self) -> None:
        """Set the mark of the instance that began: it finished."""
        self.write(Mark(True, self._mark.test, self._mark.common))

    def _read(self) -> Mark | None:
        try:
            with open(self._mark_path, "rb") as file:
                return _parsed(json.loads(file.read()))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # there is none, or none that can be read: nothing says that it finished

    def _has_failed(self, log_file: str) -> bool:
        """True when the log of the older tool ends with an error, or cannot be read."""
        path = os.path.join(self.path, log_file)
        is_there = os.access(path, os.R_OK)
        return not is_there or b"Traceback (most recent call last)" in tail(path, _TAIL_BYTES)


def open_in_folder(path: str, flags: int, folder: str) -> int:
    """Open a file of a folder and make that first if need be: tasks may have removed it."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        return os.open(path, flags | os.O_CLOEXEC, 0o666)


def put(path: str, content: bytes, folder: str) -> None:
    """Write a small file as a whole, over what was there."""
    fd = open_in_folder(path, os.O_WRONLY | os.O_CREAT, folder)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
        if os.fstat(fd).st_size > len(content):
            os.ftruncate(fd, len(content))
    finally:
        os.close(fd)


def _saved(mark: Mark) -> bytes:
    """Spell a mark; it is as long when the instance has finished."""
    word = "true " if mark.is_finished else "false"
    test, common = json.dumps(dict(mark.test)), json.dumps(dict(mark.common))
    text = f'"version": {VERSION}, "is_finished": {word}, "test": {test}, "common": {common}'
    return f"{{{text}}}\n".encode()


def _parsed(saved: Any) -> Mark:
    return Mark(bool(saved["is_finished"]), dict(saved["test"]), dict(saved["common"]))


def finished_of_log(path: str | None) -> set[str]:
    """Return the strings of all instances that a scheduler's log says finished."""
    found: set[str] = set()
    if path is None:
        return found
    try:
        with open(path, errors="replace") as file:
            for line in file:
                _, is_there, string = line.rstrip("\n").partition(" finishes task ")
                if is_there:
                    found.add(string)
    except OSError:
        pass  # there was no older run
    return found
