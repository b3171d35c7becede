"""The journal's SQLite file: opening, copying, and space kept back for a full disk.

`synchronous=FULL`: a job is on the disk before its client gets the id. One connection, one thread.
Before a submit is answered, and every few seconds, the file is checked to be the one at its path; a
removed file is written again from the open connection (docs/decisions/0033-damaged-records.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable
from typing import Any

from grn.daemon import database, wal
from grn.errors import MachineError
from grn.queue.journal import rows

log = logging.getLogger(__name__)
SCHEMA_VERSION = 11
FILE_NAME = "queue.sqlite3"
COPY_NAME = "queue.copy.sqlite3"
BALLAST_NAME = "ballast"
BALLAST_BYTES = 4 << 20
SPARED_BYTES = 64 << 20

_ARRAYS = """
CREATE TABLE arrays (
  id INTEGER PRIMARY KEY, count INTEGER NOT NULL, numbers TEXT NOT NULL, template TEXT NOT NULL,
  environment INTEGER NOT NULL, priority INTEGER NOT NULL, is_held INTEGER NOT NULL,
  checksum INTEGER, folded TEXT NOT NULL, folded_checksum INTEGER
);
"""
_SCHEMA = (
    """
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
  spared INTEGER NOT NULL DEFAULT 0, checksum INTEGER, state_checksum INTEGER,
  group_name TEXT NOT NULL DEFAULT '', submitter TEXT NOT NULL DEFAULT '',
  log TEXT NOT NULL DEFAULT '', is_fail_fast INTEGER NOT NULL DEFAULT 0,
  policy TEXT NOT NULL DEFAULT '', at TEXT NOT NULL DEFAULT '',
  options TEXT NOT NULL DEFAULT '', tags TEXT NOT NULL DEFAULT ''
);
CREATE INDEX jobs_by_state ON jobs (state, priority DESC, place);
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE state = 'ended';
CREATE TABLE attempts (
  job INTEGER NOT NULL, attempt INTEGER NOT NULL, lease TEXT NOT NULL, gpus TEXT NOT NULL,
  boot TEXT NOT NULL, reserved_bytes INTEGER NOT NULL, began_at REAL NOT NULL, ended_at REAL,
  ran_s REAL, reason TEXT, status INTEGER, signal INTEGER, peak_bytes INTEGER,
  resident_bytes INTEGER, text TEXT NOT NULL DEFAULT '', checksum INTEGER,
  PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE TABLE identity (name TEXT NOT NULL, checksum INTEGER);
CREATE TABLE switches (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
    + _ARRAYS
)

_CHANGES = {  # migrations from one version to the next
    1: "ALTER TABLE jobs ADD COLUMN code TEXT NOT NULL DEFAULT '';",
    2: "ALTER TABLE jobs ADD COLUMN spared INTEGER NOT NULL DEFAULT 0;"
    " ALTER TABLE attempts ADD COLUMN text TEXT NOT NULL DEFAULT '';",
    3: "ALTER TABLE jobs ADD COLUMN checksum INTEGER;"
    " ALTER TABLE jobs ADD COLUMN state_checksum INTEGER;"
    " ALTER TABLE attempts ADD COLUMN checksum INTEGER;"
    " ALTER TABLE identity ADD COLUMN checksum INTEGER;",
    4: "ALTER TABLE jobs ADD COLUMN group_name TEXT NOT NULL DEFAULT '';"
    " ALTER TABLE jobs ADD COLUMN submitter TEXT NOT NULL DEFAULT '';"
    " ALTER TABLE jobs ADD COLUMN log TEXT NOT NULL DEFAULT '';"
    " ALTER TABLE jobs ADD COLUMN is_fail_fast INTEGER NOT NULL DEFAULT 0;",
    5: "ALTER TABLE jobs ADD COLUMN policy TEXT NOT NULL DEFAULT '';",
    6: "ALTER TABLE jobs ADD COLUMN at TEXT NOT NULL DEFAULT '';",
    7: "ALTER TABLE jobs ADD COLUMN options TEXT NOT NULL DEFAULT '';",
    8: "",  # `options` may name a folder that is sent, and files that are fetched
    9: "ALTER TABLE jobs ADD COLUMN tags TEXT NOT NULL DEFAULT '';",  # `options` limits arrays
    10: _ARRAYS,
}


def _give_name(db: sqlite3.Connection) -> None:
    name = secrets.token_hex(8)
    db.execute("INSERT INTO identity VALUES (?,?)", (name, database.checksum(name)))


SCHEMA = database.Schema(SCHEMA_VERSION, _SCHEMA, _CHANGES, {0: _give_name, 3: rows.fill_checksums})


class NotWritten(MachineError):
    """A write failed and was undone as a whole."""


class Disk:
    """The open file, and its ballast: disk space that is freed when the disk is full."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, FILE_NAME)
        self.trouble = ""  # a warning for the users of this journal
        self._folder = folder
        self._copy = os.path.join(folder, COPY_NAME)
        self._ballast = os.path.join(folder, BALLAST_NAME)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self.db = self._open_or_create()
        except (OSError, sqlite3.Error) as error:
            if "locked" in str(error):  # for as long as a queue runs
                raise MachineError(
                    f"another queue of this user has the journal {self.path} open.",
                    "It was started with another GRN_RUNTIME_DIR, or in a container:"
                    " end it there with `grn queue stop`.",
                ) from error
            raise MachineError(
                f"the queue's folder {folder} cannot be used: {error}.",
                database.way_out(error),
            ) from error
        self._in_place = database.InPlace(self.path)
        self._is_displaced = False
        self._fill_ballast()

    def keep_in_place(self) -> None:
        """Check that the file is still the one at its path; write it again where it was removed.

        Raise NotWritten when that fails: further writes would be lost with this process.
        """
        if self._in_place.is_whole:
            return
        if not self._is_displaced:
            self._is_displaced = True
            log.error("action=journal-removed path=%s", self.path)
        try:
            self.db = database.restore_file(self.db, self._in_place, open_file)
        except database.Replaced as error:
            raise NotWritten(
                f"the journal {self.path} was replaced by another file under this queue.",
                "Running jobs go on. Put the journal back, or end this queue with"
                " `grn queue stop` to go on with the other file.",
            ) from error
        except (OSError, sqlite3.Error) as error:
            raise NotWritten(
                f"the journal {self.path} was removed under this queue and cannot be written"
                f" again: {error}.",
                "Running jobs go on. Make its folder writable and try again.",
            ) from error
        self._in_place, self._is_displaced = database.InPlace(self.path), False
        self._fill_ballast()
        log.warning("action=journal-restored path=%s", self.path)

    def read(self, sql: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query; raise MachineError when reading fails."""
        try:
            return database.read(self.db, sql, tuple(values))
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error

    def transaction(self, *, may_use_ballast: bool = True) -> Transaction:
        """Begin a transaction."""
        make_room = self._drop_ballast if may_use_ballast else _make_no_room
        return Transaction(self.db, self.path, make_room)

    def keep_copy(self, older_than_s: float) -> bool:
        """Replace the copy atomically, if it is old."""
        if not self._is_copy_old(older_than_s) or not self._has_room():
            return False
        try:
            database.copy_whole(self.db, self._copy, may_replace=True)
        except (OSError, sqlite3.Error) as error:
            log.warning("action=copy-journal result=failed reason=%r", str(error))
            return False
        return True

    def _is_copy_old(self, older_than_s: float) -> bool:
        made_at = _written_at(self._copy)
        written_at = max(_written_at(self.path), _written_at(f"{self.path}-wal"))
        return written_at >= made_at and not 0 <= time.time() - made_at < older_than_s

    def _has_room(self) -> bool:
        """True when a copy leaves enough room for other writes."""
        needed = os.path.getsize(self.path) + SPARED_BYTES
        return shutil.disk_usage(os.path.dirname(self.path)).free > needed

    def close(self) -> None:
        """Checkpoint the log and close the file."""
        self.db.close()

    def _open_or_create(self) -> sqlite3.Connection:
        """Open the file; set aside one that is no journal, so that it can be repaired."""
        unread, log_aside = wal.set_damage_aside(self.path)
        db, aside = database.open_or_set_aside(self.path, open_file)
        if unread and not aside:
            self.trouble = (
                f"the last {unread} changes before the queue was killed cannot be read: its log was"
                f" damaged and is kept as {log_aside}; jobs may be missing, and one that waits may"
                " have run, so nothing is started until `grn drain --off`"
            )
            db.execute("INSERT OR REPLACE INTO switches VALUES ('drained', 1)")
        if aside:
            self.trouble = (
                f"the journal was broken and is set aside as {aside}; its jobs are not here"
            )
            if os.path.exists(self._copy):
                kept = f"{self._copy}.kept-{aside.rpartition('-')[2]}"
                os.rename(self._copy, kept)  # else the next copy would replace it
                self.trouble += f"; a copy, an hour older at most, is {kept}"
        return db

    def _fill_ballast(self) -> None:
        """Reserve disk space, to be freed when the disk is full, so that ends can be written."""
        with contextlib.suppress(OSError):
            if not os.path.exists(self._ballast):
                with open(self._ballast, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)

    def _drop_ballast(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._ballast)


def open_file(path: str) -> sqlite3.Connection:
    """Open a journal, or make an empty one."""
    return database.open_file(path, SCHEMA, "FULL")


def _written_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _unreadable(path: str, error: sqlite3.Error) -> MachineError:
    return MachineError(
        f"{path} cannot be read: {error}.",
        "Running jobs go on. Look for errors of that disk in `dmesg`, then try again.",
    )


def _make_no_room() -> None:
    """Keep the ballast for writes that matter more."""


class Transaction:
    """One transaction; a failed write undoes it and raises NotWritten."""

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
        is_full = "full" in str(error)
        hint = "Make room on that disk" if is_full else "Look for errors of that disk in `dmesg`"
        return NotWritten(
            f"{self._path} cannot be written: {error}.",
            f"{hint}; running jobs go on and nothing is lost.",
        )
