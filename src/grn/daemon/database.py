"""What both services ask of their SQLite files: sound pages, checksums, a file in its place.

Knows no table; schemas and rows are the services' own.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import zlib
from typing import Any

MAX_COMPLAINTS = 10_000
BROKEN = (sqlite3.DatabaseError, UnicodeDecodeError)  # the latter by words of a damaged schema
_OF_ROWS = re.compile(r"(NULL|NUMERIC|TEXT) value in ")
_OF_INDEXES = re.compile(r"\bindex\b")
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"

Identity = tuple[int, int]  # device and inode


def checksum(*values: Any) -> int:
    """Return the CRC-32 of some columns as SQLite gives them back; the same on every Python."""
    return zlib.crc32("\x1f".join(map(str, values)).encode("utf-8", "surrogatepass"))


def is_intact(stored: object, values: tuple[Any, ...]) -> bool:
    """True when columns are those the checksum was made of."""
    return stored == checksum(*values)


def read(db: sqlite3.Connection, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a query; a text that is none is for its checksum to find, and stops none.

    The other way is for damaged files only: it takes a call for each text.
    """
    try:
        return db.execute(sql, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    strict, db.text_factory = db.text_factory, _lenient_text
    try:
        return db.execute(sql, values).fetchall()
    finally:
        db.text_factory = strict


def _lenient_text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def check(db: sqlite3.Connection) -> None:
    """Raise DatabaseError when pages are broken; broken indexes are made anew.

    A value of the wrong type in one row is not a broken file: rows are looked at one by one.
    """
    complaints: list[str] = []
    for _ in range(2):
        found = [str(text) for (text,) in db.execute(f"PRAGMA integrity_check({MAX_COMPLAINTS})")]
        complaints = [text for text in found if text != "ok" and not _OF_ROWS.match(text)]
        if not complaints:
            return
        if not all(_OF_INDEXES.search(text) for text in complaints):
            break
        db.execute("REINDEX")
    raise sqlite3.DatabaseError(complaints[0])


def check_tables(db: sqlite3.Connection, schema: str) -> None:
    """Raise DatabaseError when a column that a schema makes is not there."""
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(schema)
        wanted = {name: _columns(fresh, name) for (name,) in fresh.execute(_TABLES)}
    for table, columns in wanted.items():
        if not columns <= _columns(db, table):
            raise sqlite3.DatabaseError(f"columns of its table {table} are missing")


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}


def identity(path: str) -> Identity | None:
    """Return which file is at a path, None when there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def copy_whole(db: sqlite3.Connection, path: str, *, may_replace: bool) -> None:
    """Write all that a connection knows into one synced file; raise OSError or sqlite3.Error.

    The connection may be to a file that has been removed: it still reads what it wrote.
    """
    unfinished = f"{path}.new"
    old_mask = os.umask(0o077)  # a journal holds the environments of jobs
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        db.execute("VACUUM INTO ?", (unfinished,))
        _sync(unfinished)
        if may_replace:
            os.rename(unfinished, path)
        else:
            os.link(unfinished, path)
            os.unlink(unfinished)
        _sync(os.path.dirname(path))
    except (OSError, sqlite3.Error):
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    finally:
        os.umask(old_mask)


class InPlace:
    """The file of an open connection and its log, as they were when it was opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = identity(path)
        self._wal = identity(f"{path}-wal")

    @property
    def is_removed(self) -> bool:
        return identity(self.path) is None

    @property
    def is_same_file(self) -> bool:
        return identity(self.path) == self._file

    @property
    def is_whole(self) -> bool:
        """True when what is written through the connection will be found at the path."""
        if not self.is_same_file:
            return False
        wal = identity(f"{self.path}-wal")
        if self._wal is None:
            self._wal = wal  # SQLite makes it with the first write
        return wal == self._wal


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
