"""The engine's state as rows of the database: one function for each kind of action."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from grn.daemon.database import checksum, is_intact
from grn.model.job import Argument, Run
from grn.negotiator.events import (
    DropLease,
    DropProfile,
    DropWaiting,
    SaveGpu,
    SaveLease,
    SaveNumber,
    SaveRun,
    SaveUse,
    SaveWaiting,
)
from grn.negotiator.learn import profiling

_PRUNED_SHARE = 1 / 16  # of saved runs: each costs a search, and a few rows too many cost nothing

_encode = msgspec.json.Encoder().encode
_decode_arguments = msgspec.json.Decoder(tuple[Argument, ...]).decode
_decode_beside = msgspec.json.Decoder(tuple[tuple[str, float], ...]).decode


RUN = (
    "job_type, model, label, owner, outcome, peak_bytes, duration_s, ended_at, reserved_bytes,"
    " arguments, is_full, load, crowd, beside, code, note, grown, ran_out_alone"
)
LEASE = "id, boot, body"


def is_good(row: Sequence[Any]) -> bool:
    """True when the columns of a lease or a run match the checksum behind them."""
    *values, stored = row
    return is_intact(stored, tuple(values))


def fill_checksums(db: sqlite3.Connection) -> None:
    """Add checksums to all rows of a file of an older version."""
    for table, columns in (("leases", LEASE), ("runs", RUN)):
        found = db.execute(f"SELECT id, {columns} FROM {table}").fetchall()
        db.executemany(
            f"UPDATE {table} SET checksum = ? WHERE id = ?",
            [(checksum(*values), key) for key, *values in found],
        )


def _real(value: float | None) -> float | None:
    """Return a number as SQLite reads it from a REAL column."""
    return None if value is None else float(value)


def read_run(row: Sequence[Any]) -> Run:
    """Return a run from its columns, as they are read with a profile."""
    outcome, peak, duration_s, ended_at, reserved, arguments, is_full, load, *rest = row
    crowd, beside, code, note, grown, ran_out_alone = rest
    return msgspec.convert(
        {
            "outcome": outcome,
            "peak_bytes": peak,
            "duration_s": duration_s,
            "ended_at": ended_at,
            "reserved_bytes": reserved,
            "arguments": _decode_arguments(arguments),
            "is_full": bool(is_full),
            "load": load,
            "crowd": crowd,
            "beside": _decode_beside(beside) if beside else (),
            "code": code,
            "note": note,
            "grown": grown,
            "ran_out_alone": bool(ran_out_alone),
        },
        Run,
    )


def _save_lease(db: sqlite3.Connection, boot: str, action: SaveLease) -> None:
    row = (action.lease.id, boot, _encode(action.lease))
    db.execute(
        f"INSERT OR REPLACE INTO leases ({LEASE}, checksum) VALUES (?,?,?,?)",
        (*row, checksum(*row)),
    )


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


def _save_gpu(db: sqlite3.Connection, boot: str, action: SaveGpu) -> None:
    db.execute("INSERT OR REPLACE INTO gpus VALUES (?, ?)", (action.uuid, boot))


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
    SaveGpu: _save_gpu,
    DropProfile: _drop_profile,
}
