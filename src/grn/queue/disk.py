"""The file of the journal: how it is opened, what is in it, and room for when the disk is full.

`synchronous=FULL`: what a client was told is on the disk. One connection, one thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable
from typing import Any

from grn.errors import MachineError
from grn.ground import set_aside

log = logging.getLogger(__name__)
SCHEMA_VERSION = 3
FILE_NAME = "queue.sqlite3"
COPY_NAME = "queue.copy.sqlite3"
BALLAST_NAME = "ballast"
BALLAST_BYTES = 4 << 20
SPARED_BYTES = 64 << 20

_SCHEMA = """
CREATE TABLE environments (
  id INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL
);
CREATE TABLE submits (
  key TEXT PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL, at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL, argv TEXT NOT NULL, cwd TEXT NOT NULL, environment INTEGER NOT NULL,
  extra TEXT NOT NULL, umask INTEGER NOT NULL, notify TEXT NOT NULL, time_limit_s REAL,
  job_type TEXT NOT NULL, label TEXT NOT NULL, arguments TEXT NOT NULL, gpus INTEGER NOT NULL,
  mem_bytes INTEGER, is_exclusive INTEGER NOT NULL, after TEXT NOT NULL, retries INTEGER NOT NULL,
  may_requeue INTEGER NOT NULL, submitted_at REAL NOT NULL,
  state TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, tries_left INTEGER NOT NULL,
  memory_attempt INTEGER NOT NULL DEFAULT 0, is_held INTEGER NOT NULL DEFAULT 0,
  priority INTEGER NOT NULL, place INTEGER NOT NULL DEFAULT 0,
  reason TEXT, text TEXT NOT NULL DEFAULT '', status INTEGER, signal INTEGER,
  started_at REAL, ended_at REAL, code TEXT NOT NULL DEFAULT '',
  spared INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_by_state ON jobs (state, priority DESC, place);
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE state = 'ended';
CREATE TABLE attempts (
  job INTEGER NOT NULL, attempt INTEGER NOT NULL, lease TEXT NOT NULL, gpus TEXT NOT NULL,
  boot TEXT NOT NULL, reserved_bytes INTEGER NOT NULL, began_at REAL NOT NULL, ended_at REAL,
  ran_s REAL, reason TEXT, status INTEGER, signal INTEGER, peak_bytes INTEGER,
  resident_bytes INTEGER, text TEXT NOT NULL DEFAULT '', PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE TABLE identity (name TEXT NOT NULL);
CREATE TABLE switches (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

_CHANGES = {  # what leads from a version to the next
    1: "ALTER TABLE jobs ADD COLUMN code TEXT NOT NULL DEFAULT '';",
    2: "ALTER TABLE jobs ADD COLUMN spared INTEGER NOT NULL DEFAULT 0;"
    " ALTER TABLE attempts ADD COLUMN text TEXT NOT NULL DEFAULT '';",
}


class NotWritten(MachineError):
    """The disk did not take it: nothing of it counts."""


class Disk:
    """The open file, and its ballast: some room that is let go when the disk is full."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, FILE_NAME)
        self.trouble = ""  # what is to be told to whoever uses this journal
        self._copy = os.path.join(folder, COPY_NAME)
        self._ballast = os.path.join(folder, BALLAST_NAME)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self.db = self._open_or_begin_anew()
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):  # for as long as a queue runs
                raise MachineError(
                    f"another queue of this user has the journal {self.path} open.",
                    "It was started with another GRN_RUNTIME_DIR, or in a container:"
                    " end it there with `grn queue stop`.",
                ) from error
            raise MachineError(
                f"the queue's folder {folder} cannot be used: {error}.",
                "Make it writable, or name another in GRN_STATE_DIR.",
            ) from error
        self._fill_ballast()

    def transaction(self, *, may_use_ballast: bool = True) -> Transaction:
        """Begin what is written whole or not at all."""
        make_room = self._drop_ballast if may_use_ballast else _make_no_room
        return Transaction(self.db, self.path, make_room)

    def keep_copy(self, older_than_s: float) -> bool:
        """Copy the file, if the copy is old; it is replaced whole, or stays as it is."""
        if not self._is_copy_old(older_than_s) or not self._has_room():
            return False
        unfinished = f"{self._copy}.new"
        old_mask = os.umask(0o077)  # it holds the environments of jobs
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            self.db.execute("VACUUM INTO ?", (unfinished,))
            _sync(unfinished)
            os.rename(unfinished, self._copy)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            log.warning("action=copy-journal result=failed reason=%r", str(error))
            return False
        finally:
            os.umask(old_mask)
        return True

    def _is_copy_old(self, older_than_s: float) -> bool:
        made_at = _written_at(self._copy)
        written_at = max(_written_at(self.path), _written_at(f"{self.path}-wal"))
        return written_at >= made_at and not 0 <= time.time() - made_at < older_than_s

    def _has_room(self) -> bool:
        """True when a copy leaves room for what matters more."""
        needed = os.path.getsize(self.path) + SPARED_BYTES
        return shutil.disk_usage(os.path.dirname(self.path)).free > needed

    def close(self) -> None:
        """Fold the log into the file and let go."""
        self.db.close()

    def _open_or_begin_anew(self) -> sqlite3.Connection:
        """Open the file; one that is no journal is kept for whoever can mend it."""
        try:
            return open_file(self.path)
        except sqlite3.OperationalError:
            raise  # the disk or the rights, not the file
        except sqlite3.DatabaseError:
            aside = set_aside(self.path)
        self.trouble = f"the journal was broken and is set aside as {aside}; its jobs are not here"
        if os.path.exists(self._copy):
            kept = f"{self._copy}.kept-{aside.rpartition('-')[2]}"
            os.rename(self._copy, kept)  # else the next copy would take its place
            self.trouble += f"; a copy, an hour older at most, is {kept}"
        log.error("action=set-aside path=%s", aside)
        return open_file(self.path)

    def _fill_ballast(self) -> None:
        """Keep some disk back, to be let go when it fills up, so that ends can still be written."""
        with contextlib.suppress(OSError):
            if not os.path.exists(self._ballast):
                with open(self._ballast, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)

    def _drop_ballast(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._ballast)


def open_file(path: str) -> sqlite3.Connection:
    """Open a journal, or make an empty one."""
    old_mask = os.umask(0o077)
    try:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
    finally:
        os.umask(old_mask)
    db.execute("PRAGMA synchronous=FULL")
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        db.close()
        raise sqlite3.DatabaseError(verdict)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise MachineError(
            f"{path} was written by a newer grn (schema {version}).",
            "Use that grn, or name another folder in GRN_STATE_DIR.",
        )
    if version == 0:
        name = secrets.token_hex(8)
        db.executescript(
            f"BEGIN; {_SCHEMA} INSERT INTO identity VALUES ('{name}');"
            f" PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
        )
    for older in range(version or SCHEMA_VERSION, SCHEMA_VERSION):
        db.executescript(f"BEGIN; {_CHANGES[older]} PRAGMA user_version={older + 1}; COMMIT;")
    return db


def _written_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_no_room() -> None:
    """Leave the ballast to those who need it more."""


class Transaction:
    """One transaction; a failure of the disk undoes it whole and says so."""

    def __init__(self, db: sqlite3.Connection, path: str, make_room: Callable[[], None]) -> None:
        self._db = db
        self._path = path
        self._make_room = make_room

    def __enter__(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
                return
            except sqlite3.Error as failure:
                error = failure
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            self._make_room()
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> NotWritten:
        return NotWritten(
            f"{self._path} cannot be written: {error}.", "Make room on that disk; nothing is lost."
        )
