"""SQLite files of both daemons: versions, integrity, checksums, files removed while open.

A damaged file is set aside, so that the daemon starts; a file of a newer grn or an unusable folder
keeps it from starting. Schemas and rows belong to the daemons.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grn.errors import MachineError

log = logging.getLogger(__name__)
SEPARATOR = "\x1f"  # of the columns in a checksum
MAX_COMPLAINTS = 10_000
_OF_DISK = (  # messages of SQLite: `sqlite_errorcode` is not there before Python 3.11
    "unable to open", "disk I/O", "disk is full", "locked", "locking protocol", "interrupted",
    "permission", "large file support",
)  # fmt: skip
_VERSIONS_AT, _VERSIONS = slice(18, 20), (b"\1\1", b"\2\2")  # of the format, to write and to read
_OF_ROWS = re.compile(r"(NULL|NUMERIC|TEXT) value in ")
_OF_INDEXES = re.compile(r"\bindex\b")
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"

Identity = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a file, and the migrations from each version to the next.

    Each version adds a column and drops none, so that a damaged number is not taken for a newer
    version.
    """

    version: int
    sql: str
    changes: Mapping[int, str]
    fill: Mapping[int, Callable[[sqlite3.Connection], None]]  # follows a change; 0: the creation


def open_or_set_aside(
    path: str, opener: Callable[[str], sqlite3.Connection]
) -> tuple[sqlite3.Connection, str]:
    """Open a file; a damaged one is set aside for a new one. Return also where it is then."""
    try:
        return opener(path), ""
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if not _is_damage(error, path):
            raise
        aside = _set_aside(path)
        log.error("action=set-aside path=%s to=%s reason=%r", path, aside, str(error))
    return opener(path), aside


def _is_damage(error: Exception, path: str) -> bool:
    """True when an error is of the file's content, not of the disk or of permissions."""
    if not isinstance(error, sqlite3.OperationalError):
        return True
    if "readonly" in str(error):  # also by a format that SQLite may not write
        with open(path, "rb") as file:
            return file.read(100)[_VERSIONS_AT] not in _VERSIONS
    return not any(words in str(error) for words in _OF_DISK)


def _set_aside(path: str) -> str:
    number = 1
    while os.path.lexists(f"{path}.broken-{number}"):
        number += 1
    aside = f"{path}.broken-{number}"
    for part in ("-wal", "-shm", "-journal", ""):  # leftovers must not meet the next file
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + part, aside + part)
    return aside


def open_file(
    path: str,
    schema: Schema,
    synchronous: str,
    *,
    patience_s: float = 5.0,
    is_lenient: bool = False,
) -> sqlite3.Connection:
    """Open a file for this process alone, check it and bring it up to date, or make a new one.

    A lenient connection replaces text that is not UTF-8; a checksum finds it later.
    """
    old_mask = os.umask(0o077)
    try:
        db = sqlite3.connect(path, timeout=patience_s, isolation_level=None)
        try:
            if is_lenient:
                db.text_factory = _lenient_text
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={synchronous}")
            prepare(db, path, schema)
        except BaseException:  # the file must not stay open and locked
            db.close()
            raise
    finally:
        os.umask(old_mask)
    return db


def prepare(db: sqlite3.Connection, path: str, schema: Schema) -> None:
    """Check a file and bring it up to date, or make its tables.

    Raise MachineError for a file of a newer grn, sqlite3.Error for a damaged one.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    check(db)
    found, wanted = _columns(db), _columns_of(schema.sql)
    if version > schema.version and found > wanted:
        raise MachineError(
            f"{path} was written by a newer grn (schema {version}).",
            "Use that grn, or name another folder in GRN_STATE_DIR.",
        )
    if found == wanted and version != schema.version:
        log.error("action=mend-version path=%s was=%d is=%d", path, version, schema.version)
        db.execute(f"PRAGMA user_version={schema.version}")
    elif not found and version == 0:
        _change(db, schema.sql, schema.fill.get(0), schema.version)
    elif found != wanted:
        for older in range(max(version, 0), schema.version):
            _change(db, schema.changes.get(older, ""), schema.fill.get(older), older + 1)
    missing = wanted - _columns(db)
    if missing:
        raise sqlite3.DatabaseError(f"columns are missing: {sorted(missing)[:3]}")


def _change(
    db: sqlite3.Connection,
    sql: str,
    fill: Callable[[sqlite3.Connection], None] | None,
    version: int,
) -> None:
    """Migrate to a version in one transaction."""
    db.executescript(f"BEGIN IMMEDIATE; {sql}")
    if fill is not None:
        fill(db)
    db.execute(f"PRAGMA user_version={version}")
    db.execute("COMMIT")


def checksum(*values: Any) -> int:
    """Return the CRC-32 of columns as SQLite returns them; the same on every Python."""
    return text_checksum(joined(values))


def joined(values: Iterable[Any]) -> str:
    """Return columns as the text of which a checksum is made."""
    return SEPARATOR.join(map(str, values))


def way_out(error: Exception) -> str:
    """Say what to do about a folder that cannot be used."""
    is_full = "full" in str(error) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    first = "Free some disk space" if is_full else "Make it writable"
    return f"{first}, or name another in GRN_STATE_DIR."


def text_checksum(text: str) -> int:
    """Return the CRC-32 of columns that were joined."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def is_intact(stored: object, values: tuple[Any, ...]) -> bool:
    """True when columns are those the checksum was made of."""
    return stored == checksum(*values)


def read(db: sqlite3.Connection, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a query; text that is not UTF-8 is left to its checksum to find.

    Lenient decoding is for damaged files only: it costs a call for each text.
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
    """Raise DatabaseError when pages are broken; rebuild broken indexes.

    A value of the wrong type in one row is not a broken file: rows are checked one by one.
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


def _columns_of(sql: str) -> set[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(sql)
        return _columns(fresh)


def _columns(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Return table, name and type of all columns."""
    tables = [name for (name,) in read(db, _TABLES)]
    return {
        (table, column[1], column[2])
        for table in tables
        for column in read(db, "SELECT * FROM pragma_table_info(?)", (table,))
    }


def identity(path: str) -> Identity | None:
    """Return the identity of the file at a path, None when there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def copy_whole(db: sqlite3.Connection, path: str, *, may_replace: bool) -> None:
    """Copy a database into one synced file; raise OSError or sqlite3.Error.

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


class Replaced(OSError):
    """Another file is at the path of an open one."""


def restore_file(
    db: sqlite3.Connection, in_place: InPlace, opener: Callable[[str], sqlite3.Connection]
) -> sqlite3.Connection:
    """Write a removed file, or its removed log, again; return the connection to use from now on.

    Raise Replaced where another file is in its place, OSError or sqlite3.Error where it fails.
    """
    path = in_place.path
    if in_place.is_removed:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        copy_whole(db, path, may_replace=False)
    elif not in_place.is_same_file:
        raise Replaced("another file is in its place")
    db.close()  # which checkpoints the log, also a removed one
    return opener(path)


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
        """True when writes of the connection reach the file at the path."""
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
