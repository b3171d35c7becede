"""The tables of the state file, their migrations, and the engine's state as their rows.

One function writes each kind of action; `store.py` decides when.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from grn.daemon.database import Schema, checksum, is_intact
from grn.model.job import Argument, Run
from grn.negotiator.actions import (
    DropBooking,
    DropLease,
    DropProfile,
    DropWaiting,
    SaveBooking,
    SaveGpu,
    SaveLease,
    SaveNumber,
    SaveRun,
    SaveStart,
    SaveWaiting,
)
from grn.negotiator.events import SaveUse
from grn.negotiator.learn.memory import profiling

SCHEMA_VERSION = 10
STARTS_KEPT = 200
_PRUNED_SHARE = 1 / 16  # of saved runs: each costs a search, and a few rows too many cost nothing

_encode = msgspec.json.Encoder().encode
_decode_arguments = msgspec.json.Decoder(tuple[Argument, ...]).decode
_decode_beside = msgspec.json.Decoder(tuple[tuple[str, float], ...]).decode

_SET_ASIDE = "CREATE TABLE set_aside (source TEXT, body TEXT, at REAL);"  # for people to inspect
_USES = "CREATE TABLE uses (user INTEGER PRIMARY KEY, used_h REAL NOT NULL, at REAL NOT NULL);"
_GPUS = "CREATE TABLE gpus (uuid TEXT PRIMARY KEY, boot TEXT NOT NULL) WITHOUT ROWID;"
_BOOKINGS = (
    "CREATE TABLE bookings (id INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL);"
)
_STARTS = (
    "CREATE TABLE starts (id INTEGER PRIMARY KEY, earliest_s REAL NOT NULL, latest_s REAL NOT NULL,"
    " low_s REAL NOT NULL, high_s REAL NOT NULL, waited_s REAL NOT NULL);"
)
_SCHEMA = f"""{_USES} {_SET_ASIDE} {_GPUS} {_STARTS} {_BOOKINGS}
CREATE TABLE leases (
  id TEXT PRIMARY KEY, boot TEXT NOT NULL, body BLOB NOT NULL, checksum INTEGER
) WITHOUT ROWID;
CREATE TABLE waiting (
  key TEXT PRIMARY KEY, boot TEXT NOT NULL, place INTEGER NOT NULL,
  pid INTEGER, started_ticks INTEGER
) WITHOUT ROWID;
CREATE TABLE runs (
  id INTEGER PRIMARY KEY, job_type TEXT NOT NULL, model TEXT NOT NULL,
  label TEXT NOT NULL, owner INTEGER NOT NULL, outcome TEXT NOT NULL, peak_bytes INTEGER NOT NULL,
  duration_s REAL NOT NULL, ended_at REAL NOT NULL, reserved_bytes INTEGER NOT NULL,
  arguments TEXT NOT NULL, is_full INTEGER NOT NULL, load REAL,
  crowd REAL, beside TEXT, code TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', grown REAL,
  ran_out_alone INTEGER NOT NULL DEFAULT 0, checksum INTEGER, ram_bytes INTEGER, cpus REAL,
  peak_cpus REAL
);
CREATE INDEX runs_by_type ON runs (job_type, model);
CREATE TABLE numbers (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID;
"""

_CHANGES = {  # migrations from one version to the next
    1: "ALTER TABLE runs ADD COLUMN load REAL;",
    2: "ALTER TABLE runs ADD COLUMN crowd REAL; ALTER TABLE runs ADD COLUMN beside TEXT;",
    3: _USES,
    4: "ALTER TABLE runs ADD COLUMN code TEXT NOT NULL DEFAULT '';"
    " CREATE TABLE numbers (name TEXT PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID;",
    5: "ALTER TABLE runs ADD COLUMN note TEXT NOT NULL DEFAULT '';"
    " ALTER TABLE runs ADD COLUMN grown REAL;",
    6: "ALTER TABLE leases ADD COLUMN checksum INTEGER;"
    " ALTER TABLE runs ADD COLUMN ran_out_alone INTEGER NOT NULL DEFAULT 0;"
    f" ALTER TABLE runs ADD COLUMN checksum INTEGER; {_SET_ASIDE} {_GPUS}",
    7: _STARTS,
    8: "ALTER TABLE runs ADD COLUMN ram_bytes INTEGER; ALTER TABLE runs ADD COLUMN cpus REAL;"
    " ALTER TABLE runs ADD COLUMN peak_cpus REAL;",
    9: _BOOKINGS,
}

_RUN_TO_8 = (  # the columns up to version 8
    "job_type, model, label, owner, outcome, peak_bytes, duration_s, ended_at, reserved_bytes,"
    " arguments, is_full, load, crowd, beside, code, note, grown, ran_out_alone"
)
RUN = f"{_RUN_TO_8}, ram_bytes, cpus, peak_cpus"
_OF_RUN = tuple(RUN.split(", ")[4:])  # without type, model, label and owner
LEASE = "id, boot, body"
START = "earliest_s, latest_s, low_s, high_s, waited_s"


def is_good(row: Sequence[Any]) -> bool:
    """True when the columns of a lease, a run or a booking match the checksum behind them."""
    *values, stored = row
    return is_intact(stored, tuple(values))


def _fill_checksums(db: sqlite3.Connection) -> None:
    """Add checksums to all rows of a file of an older version."""
    for table, columns in (("leases", LEASE), ("runs", _RUN_TO_8)):
        found = db.execute(f"SELECT id, {columns} FROM {table}").fetchall()
        db.executemany(
            f"UPDATE {table} SET checksum = ? WHERE id = ?",
            [(checksum(*values), key) for key, *values in found],
        )


def _extend_checksums(db: sqlite3.Connection) -> None:
    """Count the new columns of intact runs in their checksums; a damaged run stays damaged."""
    found = db.execute(f"SELECT id, {_RUN_TO_8}, checksum FROM runs").fetchall()
    db.executemany(
        "UPDATE runs SET checksum = ? WHERE id = ?",
        [(checksum(*row[:-1], None, None, None), key) for key, *row in found if is_good(row)],
    )


SCHEMA = Schema(SCHEMA_VERSION, _SCHEMA, _CHANGES, {6: _fill_checksums, 8: _extend_checksums})


def _real(value: float | None) -> float | None:
    """Return a number as SQLite reads it from a REAL column."""
    return None if value is None else float(value)


def read_run(row: Sequence[Any]) -> Run:
    """Return a run from its columns, as they are read with a profile."""
    found = dict(zip(_OF_RUN, row, strict=True))
    return msgspec.convert(
        {
            **found,
            "arguments": _decode_arguments(found["arguments"]),
            "is_full": bool(found["is_full"]),
            "beside": _decode_beside(found["beside"]) if found["beside"] else (),
            "ran_out_alone": bool(found["ran_out_alone"]),
        },
        Run,
    )


def _save_lease(db: sqlite3.Connection, boot: str, action: SaveLease) -> None:
    row = (action.lease.id, boot, _encode(action.lease))
    db.execute(
        f"INSERT OR REPLACE INTO leases ({LEASE}, checksum) VALUES (?,?,?,?)",
        (*row, checksum(*row)),
    )


def replace_lease(db: sqlite3.Connection, boot: str, old: DropLease, new: SaveLease) -> bool:
    """Put a lease in the place of another in one step; False where the other is not there."""
    row = (new.lease.id, boot, _encode(new.lease))
    changed = db.execute(
        f"UPDATE leases SET ({LEASE}, checksum) = (?,?,?,?) WHERE id = ?",
        (*row, checksum(*row), old.lease),
    )
    return changed.rowcount == 1


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
    row = (
        action.job_type, action.model, action.label, action.owner, run.outcome.lease_word,
        int(run.peak_bytes), _real(run.duration_s), _real(run.ended_at), int(run.reserved_bytes),
        _encode(run.arguments).decode(), int(run.is_full), _real(run.load),
        _real(run.crowd), _encode(run.beside).decode() if run.beside else None, run.code,
        run.note, _real(run.grown), int(run.ran_out_alone),
        None if run.ram_bytes is None else int(run.ram_bytes), _real(run.cpus),
        _real(run.peak_cpus),
    )  # fmt: skip
    marks = ",".join("?" * (len(row) + 1))
    db.execute(f"INSERT INTO runs ({RUN}, checksum) VALUES ({marks})", (*row, checksum(*row)))
    if random.random() < _PRUNED_SHARE:
        db.execute(
            "DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE job_type = ? AND model = ?"
            " ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (action.job_type, action.model, profiling.RUNS_KEPT),
        )


def _save_use(db: sqlite3.Connection, _boot: str, action: SaveUse) -> None:
    if action.used_h:
        row = (action.user, action.used_h, action.at)
        db.execute("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", row)
    else:
        db.execute("DELETE FROM uses WHERE user = ?", (action.user,))


def _save_number(db: sqlite3.Connection, _boot: str, action: SaveNumber) -> None:
    db.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (action.name, action.value))


def _save_start(db: sqlite3.Connection, _boot: str, action: SaveStart) -> None:
    row = (action.earliest_s, action.latest_s, action.low_s, action.high_s, action.waited_s)
    db.execute(f"INSERT INTO starts ({START}) VALUES (?,?,?,?,?)", row)
    db.execute("DELETE FROM starts WHERE id <= (SELECT MAX(id) FROM starts) - ?", (STARTS_KEPT,))


def _save_gpu(db: sqlite3.Connection, boot: str, action: SaveGpu) -> None:
    db.execute("INSERT OR REPLACE INTO gpus VALUES (?, ?)", (action.uuid, boot))


def _save_booking(db: sqlite3.Connection, _boot: str, action: SaveBooking) -> None:
    row = (action.booking.id, _encode(action.booking))
    db.execute("INSERT OR REPLACE INTO bookings VALUES (?, ?, ?)", (*row, checksum(*row)))


def _drop_booking(db: sqlite3.Connection, _boot: str, action: DropBooking) -> None:
    db.execute("DELETE FROM bookings WHERE id = ?", (action.booking,))


def _drop_profile(db: sqlite3.Connection, _boot: str, action: DropProfile) -> None:
    db.execute("DELETE FROM runs WHERE job_type = ?", (action.job_type,))


WRITERS: dict[type, Callable[[sqlite3.Connection, str, Any], None]] = {
    SaveLease: _save_lease,
    DropLease: _drop_lease,
    SaveWaiting: _save_waiting,
    DropWaiting: _drop_waiting,
    SaveRun: _save_run,
    SaveUse: _save_use,
    SaveNumber: _save_number,
    SaveStart: _save_start,
    SaveGpu: _save_gpu,
    SaveBooking: _save_booking,
    DropBooking: _drop_booking,
    DropProfile: _drop_profile,
}
