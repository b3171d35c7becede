"""SQLite: the leases, who waits, and every remembered run.

Writes what the engine says before the loop acts on it. WAL without a sync per commit is enough
here: what a crash of the negotiator must not lose is in the system's cache, and a power cut ends
the holders as well (docs/decisions/0003-leases-without-fsync.md).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from grn.errors import MachineError
from grn.model.job import Argument, Holder, Outcome
from grn.model.profile import Profile, Run
from grn.negotiator import learn
from grn.negotiator.events import (
    Action,
    DropLease,
    DropProfile,
    DropWaiting,
    Lease,
    SaveLease,
    SaveRun,
    SaveWaiting,
)

log = logging.getLogger(__name__)
SCHEMA_VERSION = 1
FILE_NAME = "negotiator.sqlite3"

_SCHEMA = """
CREATE TABLE leases (id TEXT PRIMARY KEY, boot TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE waiting (
  key TEXT PRIMARY KEY, boot TEXT NOT NULL, place INTEGER NOT NULL,
  pid INTEGER, started_ticks INTEGER
) WITHOUT ROWID;
CREATE TABLE runs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, job_type TEXT NOT NULL, model TEXT NOT NULL,
  label TEXT NOT NULL, owner INTEGER NOT NULL, outcome TEXT NOT NULL, peak_bytes INTEGER NOT NULL,
  duration_s REAL NOT NULL, ended_at REAL NOT NULL, reserved_bytes INTEGER NOT NULL,
  arguments TEXT NOT NULL, is_full INTEGER NOT NULL
);
CREATE INDEX runs_by_type ON runs (job_type, model);
"""

_encode = msgspec.json.Encoder().encode
_decode_lease = msgspec.json.Decoder(Lease).decode
_decode_arguments = msgspec.json.Decoder(tuple[Argument, ...]).decode


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was saved: leases of this boot, who waited (with who that was), and profiles."""

    leases: tuple[Lease, ...]
    waiting: tuple[tuple[str, Holder | None], ...]
    profiles: tuple[Profile, ...]


class Store:
    """The negotiator's file. One connection, one thread."""

    def __init__(self, folder: str, boot: str) -> None:
        self.path = os.path.join(folder, FILE_NAME)
        self._boot = boot
        self._unwritten: list[Action] = []  # kept while the disk does not take them
        self.trouble: str | None = None
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._db = self._open()
        except (OSError, sqlite3.Error) as error:
            raise MachineError(
                f"the state folder {folder} cannot be used: {error}.",
                "Make it writable, or name another in GRN_STATE_DIR.",
            ) from error

    def load(self) -> Remembered:
        """Read everything; leases of an earlier boot are gone with their processes."""
        db = self._db
        db.execute("DELETE FROM leases WHERE boot != ?", (self._boot,))
        db.execute("DELETE FROM waiting WHERE boot != ?", (self._boot,))
        leases = []
        for lease_id, body in db.execute("SELECT id, body FROM leases").fetchall():
            try:
                leases.append(_decode_lease(body))
            except msgspec.DecodeError:
                log.error("action=set-aside lease=%s reason=unreadable", lease_id)
                db.execute("DELETE FROM leases WHERE id = ?", (lease_id,))
        rows = db.execute("SELECT key, pid, started_ticks FROM waiting ORDER BY place").fetchall()
        waiting = tuple((key, Holder(pid, ticks) if pid else None) for key, pid, ticks in rows)
        return Remembered(tuple(leases), waiting, self._profiles())

    def write(self, actions: Iterable[Action]) -> None:
        """Write down what must be remembered, in one transaction.

        When the disk does not take it the negotiator goes on from memory and says so: GPUs need
        not stand idle because a disk is full. All is written as soon as it goes again.
        """
        todo = [action for action in actions if type(action) in _WRITERS]
        if not todo and not self._unwritten:
            return
        todo = self._unwritten + todo
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for action in todo:
                _WRITERS[type(action)](self._db, self._boot, action)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._unwritten = todo
            if self.trouble is None:
                log.error("action=save-later reason=%r path=%s", str(error), self.path)
            self.trouble = f"{self.path} cannot be written: {error}"
        else:
            if self.trouble is not None:
                log.warning("action=saved-again path=%s", self.path)
            self._unwritten, self.trouble = [], None

    def close(self) -> None:
        """Fold the log into the file and let go."""
        self._db.close()

    def _open(self) -> sqlite3.Connection:
        old_mask = os.umask(0o077)
        try:
            db = sqlite3.connect(self.path, isolation_level=None)
        finally:
            os.umask(old_mask)
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise MachineError(
                f"{self.path} was written by a newer grn (schema {version}).",
                "Use that grn, or name another folder in GRN_STATE_DIR.",
            )
        if version == 0:
            db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;")
        return db

    def _profiles(self) -> tuple[Profile, ...]:
        profiles: dict[tuple[str, str], Profile] = {}
        rows = self._db.execute(
            "SELECT job_type, model, label, owner, outcome, peak_bytes, duration_s, ended_at,"
            " reserved_bytes, arguments, is_full FROM runs ORDER BY id"
        )
        for job_type, model, label, owner, outcome, peak, duration, ended, *rest in rows:
            reserved, arguments, is_full = rest
            run = Run(
                Outcome(outcome), peak, duration, ended, reserved,
                _decode_arguments(arguments), bool(is_full),
            )  # fmt: skip
            known = profiles.get((job_type, model), Profile(job_type, model, label, owner))
            profiles[(job_type, model)] = learn.add_run(known, run)
        return tuple(profiles.values())


def _save_lease(db: sqlite3.Connection, boot: str, action: SaveLease) -> None:
    lease = action.lease
    db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?)", (lease.id, boot, _encode(lease)))


def _drop_lease(db: sqlite3.Connection, _boot: str, action: DropLease) -> None:
    db.execute("DELETE FROM leases WHERE id = ?", (action.lease,))


def _save_waiting(db: sqlite3.Connection, boot: str, action: SaveWaiting) -> None:
    pid, ticks = (action.holder.pid, action.holder.started_ticks) if action.holder else (None, None)
    row = (action.key, boot, action.sequence, pid, ticks)
    db.execute("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?, ?)", row)


def _drop_waiting(db: sqlite3.Connection, _boot: str, action: DropWaiting) -> None:
    db.execute("DELETE FROM waiting WHERE key = ?", (action.key,))


def _save_run(db: sqlite3.Connection, _boot: str, action: SaveRun) -> None:
    run = action.run
    db.execute(
        "INSERT INTO runs (job_type, model, label, owner, outcome, peak_bytes, duration_s,"
        " ended_at, reserved_bytes, arguments, is_full) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        (
            action.job_type, action.model, action.label, action.owner, run.outcome.value,
            run.peak_bytes, run.duration_s, run.ended_at, run.reserved_bytes,
            _encode(run.arguments).decode(), int(run.is_full),
        ),
    )  # fmt: skip
    db.execute(
        "DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE job_type = ? AND model = ?"
        " ORDER BY id DESC LIMIT -1 OFFSET ?)",
        (action.job_type, action.model, learn.RUNS_KEPT),
    )


def _drop_profile(db: sqlite3.Connection, _boot: str, action: DropProfile) -> None:
    db.execute("DELETE FROM runs WHERE job_type = ?", (action.job_type,))


_WRITERS: dict[type, Callable[[sqlite3.Connection, str, Any], None]] = {
    SaveLease: _save_lease,
    DropLease: _drop_lease,
    SaveWaiting: _save_waiting,
    DropWaiting: _drop_waiting,
    SaveRun: _save_run,
    DropProfile: _drop_profile,
}
