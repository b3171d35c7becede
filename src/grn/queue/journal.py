"""SQLite: every job, its environment and its attempts, durable before anything else happens.

`synchronous=FULL`: what a client was told is on the disk. One connection, one thread, and one
transaction for all that a turn of the loop brings.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grn.errors import MachineError
from grn.queue.events import (
    Action,
    After,
    JobSpec,
    JobState,
    Kept,
    SaveAttemptEnd,
    SaveBegin,
    SaveDrain,
    SaveEnd,
    SaveState,
)

log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
FILE_NAME = "queue.sqlite3"
BALLAST_NAME = "ballast"
BALLAST_BYTES = 4 << 20
MOST_AT_HAND = 64

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
  started_at REAL, ended_at REAL
);
CREATE INDEX jobs_by_state ON jobs (state, priority DESC, place);
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE state = 'ended';
CREATE TABLE attempts (
  job INTEGER NOT NULL, attempt INTEGER NOT NULL, lease TEXT NOT NULL, gpus TEXT NOT NULL,
  boot TEXT NOT NULL, reserved_bytes INTEGER NOT NULL, began_at REAL NOT NULL, ended_at REAL,
  ran_s REAL, reason TEXT, status INTEGER, signal INTEGER, peak_bytes INTEGER,
  resident_bytes INTEGER, PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE TABLE identity (name TEXT NOT NULL);
CREATE TABLE switches (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Command:
    """All of a job that only its launch needs."""

    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    umask: int
    name: str = ""
    notify: str = ""
    time_limit_s: float | None = None
    extra: dict[str, str] = field(default_factory=dict)  # variables of this job alone
    environment_id: int = 0  # what the journal calls the environment


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as it is submitted: it has no id yet."""

    command: Command
    spec: JobSpec  # with id 0
    extra: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, float | str] = field(default_factory=dict)


class NotWritten(MachineError):
    """The disk did not take it: nothing of it counts."""


class Journal:
    """The queue's file."""

    def __init__(self, folder: str, boot: str, wall: Callable[[], float]) -> None:
        self.path = os.path.join(folder, FILE_NAME)
        self._boot = boot
        self._wall = wall
        self.trouble = ""  # what is to be told to whoever uses this journal
        self._environments: dict[int, dict[str, str]] = {}
        self._ballast = os.path.join(folder, BALLAST_NAME)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            try:
                self._db = self._open()
            except sqlite3.OperationalError:
                raise  # the disk or the rights, not the file
            except sqlite3.DatabaseError:
                self._set_aside()
                self._db = self._open()
        except (OSError, sqlite3.Error) as error:
            raise MachineError(
                f"the queue's folder {folder} cannot be used: {error}.",
                "Make it writable, or name another in GRN_STATE_DIR.",
            ) from error
        self._fill_ballast()
        # A journal made anew numbers its jobs anew: this keeps old jobs' files apart from them.
        self.identity = str(self._db.execute("SELECT name FROM identity").fetchone()[0])
        count = self._db.execute("SELECT count(*) FROM jobs WHERE state = 'ended'")
        self.ended = int(count.fetchone()[0])  # kept up to date: counting takes long with many

    # --- writing -------------------------------------------------------------------------

    def submit(self, key: str, jobs: Sequence[NewJob], is_held: bool = False) -> tuple[int, bool]:
        """Write new jobs down; return the first id, and False when this key was known already."""
        known = self.first_of(key)
        if known is not None:
            return known, False
        first = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name='jobs'").fetchone()
        first_id = (first[0] if first else 0) + 1
        now = self._wall()
        environments: dict[int, int] = {}

        def rows() -> Iterable[tuple[Any, ...]]:
            for job_id, job in enumerate(jobs, first_id):
                identity = id(job.command.environment)
                if identity not in environments:
                    environments[identity] = self._environment_id(job.command.environment)
                yield (*_row(job_id, job, environments[identity], now), is_held)

        with self._transaction(may_use_ballast=False):
            self._db.executemany(_INSERT, rows())
            self._db.execute(
                "INSERT INTO submits VALUES (?,?,?,?)", (key, first_id, len(jobs), now)
            )
        return first_id, True

    def write(self, actions: Iterable[Action]) -> None:
        """Write down what the engine says, in one transaction; raise NotWritten when it fails."""
        todo = [(writer, action) for action in actions if (writer := _WRITERS.get(type(action)))]
        if not todo:
            return
        with self._transaction():
            for writer, action in todo:
                writer(self._db, action, self._boot, self._wall())
        self.ended += sum(isinstance(action, SaveEnd) for _, action in todo)

    def clean(self, before: float) -> list[tuple[int, int]]:
        """Forget jobs that ended before a time; return their ids and how often each was tried."""
        ended = "state = 'ended' AND ended_at <= ?"
        rows = self._db.execute(f"SELECT id, attempt FROM jobs WHERE {ended}", (before,)).fetchall()
        with self._transaction():
            self._db.execute(
                f"DELETE FROM attempts WHERE job IN (SELECT id FROM jobs WHERE {ended})", (before,)
            )
            self._db.execute(f"DELETE FROM jobs WHERE {ended}", (before,))
            self._db.execute(
                "DELETE FROM environments WHERE id NOT IN (SELECT environment FROM jobs)"
            )
            self._db.execute("DELETE FROM submits WHERE at <= ?", (before - 7 * 86400,))
        self.ended -= len(rows)
        return rows

    # --- reading -------------------------------------------------------------------------

    def kept(self) -> list[Kept]:
        """Return all jobs that have not ended."""
        rows = self._db.execute(
            "SELECT id, job_type, label, gpus, mem_bytes, is_exclusive, priority, after, retries,"
            " may_requeue, state, attempt, tries_left, memory_attempt, is_held, place"
            " FROM jobs WHERE state IN ('queued','starting','running','stopping') ORDER BY id"
        )
        texts: dict[str, str] = {}
        return [_kept(row, texts) for row in rows]

    def first_of(self, key: str) -> int | None:
        """Return the first id of a submit that was accepted, None when it was not."""
        row = self._db.execute("SELECT first FROM submits WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else None

    def is_drained(self) -> bool:
        row = self._db.execute("SELECT value FROM switches WHERE name = 'drained'").fetchone()
        return bool(row and row[0])

    def ended_well(self, ids: Iterable[int]) -> dict[int, bool]:
        """Return of each job that has ended whether it ended well."""
        found: dict[int, bool] = {}
        for job_id in ids:
            row = self._db.execute(
                "SELECT reason FROM jobs WHERE id = ? AND state = 'ended'", (job_id,)
            ).fetchone()
            if row is not None:
                found[job_id] = row[0] == "ok"
        return found

    def command(self, job_id: int) -> Command:
        """Return what is to be run."""
        argv, cwd, environment, extra, umask, name, notify, limit = self._db.execute(
            "SELECT argv, cwd, environment, extra, umask, name, notify, time_limit_s FROM jobs"
            " WHERE id = ?",
            (job_id,),
        ).fetchone()
        return Command(
            tuple(json.loads(argv)), cwd, self._environment(environment), umask, name, notify,
            limit, json.loads(extra), environment,
        )  # fmt: skip

    def notify_of(self, job_id: int) -> str:
        """Return the command to run when a job has ended."""
        row = self._db.execute("SELECT notify FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return str(row[0]) if row else ""

    def end_of(self, job_id: int) -> dict[str, Any] | None:
        """Return how a job ended, None when there is no such job."""
        names = ("id", "reason", "text", "status", "signal", "attempt")
        row = self._db.execute(
            f"SELECT {', '.join(names)} FROM jobs WHERE id = ?", (job_id,)
        ).fetchone()
        return dict(zip(names, row, strict=True)) if row else None

    def _environment(self, environment_id: int) -> dict[str, str]:
        """Return an environment; the last few used are kept at hand."""
        if environment_id not in self._environments:
            row = self._db.execute(
                "SELECT body FROM environments WHERE id = ?", (environment_id,)
            ).fetchone()
            if len(self._environments) >= MOST_AT_HAND:
                self._environments.clear()
            self._environments[environment_id] = json.loads(row[0])
        return self._environments[environment_id]

    def arguments(self, job_id: int) -> dict[str, Any]:
        row = self._db.execute("SELECT arguments FROM jobs WHERE id = ?", (job_id,)).fetchone()
        facts: dict[str, Any] = json.loads(row[0])
        return facts

    def lease_of(self, job_id: int, attempt: int) -> tuple[str, str]:
        """Return the lease an attempt was begun under, and the boot it was begun in."""
        row = self._db.execute(
            "SELECT lease, boot FROM attempts WHERE job = ? AND attempt = ?", (job_id, attempt)
        ).fetchone()
        return (row[0], row[1]) if row else ("", "")

    def rows(
        self, where: str, values: Sequence[Any], order: str, most: int
    ) -> list[dict[str, Any]]:
        """Return jobs as rows for people; `where` and `order` are texts of ours, never a user's."""
        cursor = self._db.execute(
            f"SELECT {_SHOWN} FROM jobs LEFT JOIN attempts ON attempts.job = jobs.id"
            f" AND attempts.attempt = jobs.attempt WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, most),
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def attempts(self, job_id: int) -> list[dict[str, Any]]:
        """Return all attempts of a job as rows for people."""
        cursor = self._db.execute(
            "SELECT attempt, lease, gpus, reserved_bytes, began_at, ended_at, ran_s, reason,"
            " status, signal, peak_bytes, resident_bytes FROM attempts WHERE job = ?"
            " ORDER BY attempt",
            (job_id,),
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self) -> None:
        """Fold the log into the file and let go."""
        self._db.close()

    # --- the file ------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        old_mask = os.umask(0o077)
        try:
            db = sqlite3.connect(self.path, isolation_level=None)
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("PRAGMA journal_mode=WAL")
        finally:
            os.umask(old_mask)
        db.execute("PRAGMA synchronous=FULL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise MachineError(
                f"{self.path} was written by a newer grn (schema {version}).",
                "Use that grn, or name another folder in GRN_STATE_DIR.",
            )
        if version == 0:
            name = secrets.token_hex(8)
            db.executescript(
                f"BEGIN; {_SCHEMA} INSERT INTO identity VALUES ('{name}');"
                f" PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
            )
        return db

    def _set_aside(self) -> None:
        """Put a file that is no journal out of the way; it is kept for whoever can mend it."""
        number = 1
        while os.path.exists(f"{self.path}.broken-{number}"):
            number += 1
        aside = f"{self.path}.broken-{number}"
        os.rename(self.path, aside)
        for end in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.path + end, aside + end)
        self.trouble = f"the journal was broken and is set aside as {aside}; its jobs are not here"
        log.error("action=set-aside path=%s", aside)

    def _transaction(
        self, *, may_use_ballast: bool = True
    ) -> contextlib.AbstractContextManager[None]:
        make_room = self._drop_ballast if may_use_ballast else _make_no_room
        return _Transaction(self._db, self.path, make_room)

    def _environment_id(self, environment: dict[str, str]) -> int:
        body = json.dumps(environment, sort_keys=True).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(body).digest()
        row = self._db.execute("SELECT id FROM environments WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            values = (digest, body)
            cursor = self._db.execute(
                "INSERT INTO environments (digest, body) VALUES (?,?)", values
            )
            return int(cursor.lastrowid or 0)
        return int(row[0])

    def _fill_ballast(self) -> None:
        """Keep some disk back, to be let go when it fills up, so that ends can still be written."""
        with contextlib.suppress(OSError):
            if not os.path.exists(self._ballast):
                with open(self._ballast, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, BALLAST_BYTES)

    def _drop_ballast(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._ballast)


def _make_no_room() -> None:
    """Leave the ballast to those who need it more."""


class _Transaction:
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


_SHOWN = (
    "jobs.id, name, argv, cwd, label, job_type, jobs.gpus AS gpus_asked, mem_bytes, is_exclusive,"
    " after, retries, may_requeue, time_limit_s, submitted_at, state, jobs.attempt, is_held,"
    " priority, jobs.reason, text, jobs.status, jobs.signal, started_at, jobs.ended_at,"
    " attempts.lease, attempts.gpus AS gpus, reserved_bytes, peak_bytes, ran_s"
)
_INSERT = (
    "INSERT INTO jobs (id, name, argv, cwd, environment, extra, umask, notify, time_limit_s,"
    " job_type, label, arguments, gpus, mem_bytes, is_exclusive, after, retries, may_requeue,"
    " submitted_at, state, tries_left, priority, place, is_held)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,'queued',?,?,?,?)"
)


def _row(job_id: int, job: NewJob, environment: int, now: float) -> tuple[Any, ...]:
    command, spec = job.command, job.spec
    after = json.dumps([[one.job, one.must_be_ok] for one in spec.after]) if spec.after else ""
    return (
        job_id, command.name, json.dumps(command.argv), command.cwd, environment,
        json.dumps(job.extra), command.umask, command.notify, command.time_limit_s, spec.job_type,
        spec.label, json.dumps(job.arguments), spec.gpus, spec.mem_bytes, spec.is_exclusive, after,
        spec.retries, spec.may_requeue, now, spec.retries, spec.priority, job_id,
    )  # fmt: skip


def _kept(row: tuple[Any, ...], texts: dict[str, str]) -> Kept:
    (job_id, job_type, label, gpus, mem, exclusive, priority, after, retries, may_requeue, state,
     attempt, tries_left, memory_attempt, is_held, place) = row  # fmt: skip
    spec = JobSpec(
        job_id, texts.setdefault(job_type, job_type), texts.setdefault(label, label), gpus, mem,
        bool(exclusive), priority,
        tuple(After(*one) for one in json.loads(after)) if after else (),
        retries, bool(may_requeue),
    )  # fmt: skip
    return Kept(spec, JobState(state), attempt, tries_left, memory_attempt, bool(is_held), place)


def _save_state(db: sqlite3.Connection, action: SaveState, _boot: str, _now: float) -> None:
    db.execute(
        "UPDATE jobs SET state=?, attempt=?, tries_left=?, memory_attempt=?, is_held=?,"
        " priority=?, place=? WHERE id=?",
        (
            action.state.value, action.attempt, action.tries_left, action.memory_attempt,
            action.is_held, action.priority, action.place, action.job,
        ),
    )  # fmt: skip


def _save_begin(db: sqlite3.Connection, action: SaveBegin, boot: str, now: float) -> None:
    gpus = ",".join(map(str, action.gpus))
    db.execute(
        "INSERT OR REPLACE INTO attempts (job, attempt, lease, gpus, boot, reserved_bytes,"
        " began_at) VALUES (?,?,?,?,?,?,?)",
        (action.job, action.attempt, action.lease, gpus, boot, action.reserved_bytes, now),
    )
    db.execute("UPDATE jobs SET started_at=? WHERE id=?", (now, action.job))


def _save_attempt_end(db: sqlite3.Connection, action: SaveAttemptEnd, _b: str, now: float) -> None:
    exit = action.exit
    db.execute(
        "UPDATE attempts SET ended_at=?, ran_s=?, reason=?, status=?, signal=?, peak_bytes=?,"
        " resident_bytes=? WHERE job=? AND attempt=?",
        (
            exit.ended_at or now, exit.ran_s, action.reason.value, exit.status, exit.signal,
            action.peak_bytes, exit.resident_bytes, action.job, action.attempt,
        ),
    )  # fmt: skip


def _save_end(db: sqlite3.Connection, action: SaveEnd, _boot: str, now: float) -> None:
    exit = action.exit
    db.execute(
        "UPDATE jobs SET state='ended', reason=?, text=?, status=?, signal=?, ended_at=?"
        " WHERE id=?",
        (
            action.reason.value, action.text, exit.status if exit else None,
            exit.signal if exit else None, (exit.ended_at if exit else 0) or now, action.job,
        ),
    )  # fmt: skip


def _save_drain(db: sqlite3.Connection, action: SaveDrain, _boot: str, _now: float) -> None:
    db.execute("INSERT OR REPLACE INTO switches VALUES ('drained', ?)", (int(action.is_drained),))


_WRITERS: dict[type, Callable[[sqlite3.Connection, Any, str, float], None]] = {
    SaveState: _save_state,
    SaveBegin: _save_begin,
    SaveAttemptEnd: _save_attempt_end,
    SaveEnd: _save_end,
    SaveDrain: _save_drain,
}
