"""SQLite store of leases, waiting requests, bookings and remembered runs.

Writes the engine's actions before the loop carries them out. WAL without a sync per commit is
enough: a crash of the negotiator loses nothing, and a power cut ends the holders as well
(docs/decisions/0003-leases-without-fsync.md).
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from grn.daemon import database
from grn.errors import MachineError
from grn.model.job import Holder, Profile
from grn.negotiator.actions import (
    Action,
    DropBooking,
    DropLease,
    DropProfile,
    DropWaiting,
    SaveBooking,
    SaveLease,
    SaveNumber,
    SaveRun,
    SaveStart,
    SaveWaiting,
)
from grn.negotiator.events import Booking, Lease, SaveUse
from grn.negotiator.learn.memory import profiling
from grn.negotiator.storage.schema import (
    LEASE,
    RUN,
    SCHEMA,
    START,
    WRITERS,
    is_good,
    read_run,
    replace_lease,
)

log = logging.getLogger(__name__)
FILE_NAME = "negotiator.sqlite3"
RETRY_S = 0.5
LOCK_PATIENCE_S = 2.0

Row = tuple[str, str]  # table, key

_decode_lease = msgspec.json.Decoder(Lease).decode
_decode_booking = msgspec.json.Decoder(Booking).decode


@dataclass(frozen=True, slots=True)
class Remembered:
    """Saved state: leases of this boot, waiting requests, profiles, usage of users."""

    leases: tuple[Lease, ...]
    waiting: tuple[SaveWaiting, ...]
    profiles: tuple[Profile, ...]
    uses: tuple[SaveUse, ...] = ()
    numbers: tuple[tuple[str, float], ...] = ()  # learned from all jobs together
    starts: tuple[SaveStart, ...] = ()  # the last ones, oldest first
    gpus: frozenset[str] = frozenset()  # UUIDs that were enumerated in this boot
    bookings: tuple[Booking, ...] = ()


class Store:
    """The negotiator's file. One connection, one thread."""

    def __init__(self, folder: str, boot: str) -> None:
        self.path = os.path.join(folder, FILE_NAME)
        self._boot = boot
        self._unwritten: list[Action] = []  # kept while writing fails
        self._learned: list[Action] = []  # kept for a moment
        self._retry_at = 0.0
        self._on_disk: set[Row] = set()
        self._failure: str | None = None  # of the latest write
        self._displaced: str | None = None
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._db, _ = database.open_or_set_aside(self.path, _open)
        except (OSError, sqlite3.Error) as error:
            hint = database.way_out(error)
            if "locked" in str(error):
                hint = "End the negotiator that uses it, or name another in GRN_STATE_DIR."
            raise MachineError(
                f"the state folder {folder} cannot be used: {error}.", hint
            ) from error
        self._in_place = database.InPlace(self.path)

    @property
    def trouble(self) -> str | None:
        """Return why the state is not on disk, None when it is."""
        return self._failure or self._displaced

    def keep_in_place(self) -> bool:
        """Check that the file is still at its path; write it again if not, True if that fails."""
        if self._in_place.is_whole:
            self._displaced = None
            return False
        was, self._displaced = self._displaced, f"{self.path} was removed"
        try:
            self._db = database.restore_file(self._db, self._in_place, _open)
        except (OSError, sqlite3.Error) as error:
            self._displaced += f" and cannot be written again: {error}"
            if was is None:
                log.error("action=restore result=failed reason=%r", self._displaced)
            return True
        self._in_place, self._displaced = database.InPlace(self.path), None
        log.warning("action=restored path=%s", self.path)
        return False

    def load(self) -> Remembered:
        """Read everything; leases of an earlier boot are gone with their processes."""
        db = self._db
        for table in ("leases", "waiting", "gpus"):
            self._tidy(f"DELETE FROM {table} WHERE boot != ?", self._boot)
        leases = []
        for row in db.execute(
            f"SELECT {LEASE}, checksum FROM leases WHERE boot = ?", (self._boot,)
        ).fetchall():
            lease_id = row[0]
            self._on_disk.add(("leases", lease_id))
            try:
                if not is_good(row):
                    raise msgspec.DecodeError("its checksum is another")
                leases.append(_decode_lease(row[2]))
            except (msgspec.DecodeError, TypeError):
                log.error("action=set-aside lease=%s reason=unreadable", lease_id)
                self._set_aside("leases", lease_id, row)
        rows = db.execute(
            "SELECT key, place, pid, started_ticks FROM waiting WHERE boot = ? ORDER BY place",
            (self._boot,),
        ).fetchall()
        self._on_disk.update(("waiting", key) for key, *_ in rows)
        waiting = tuple(
            SaveWaiting(key, place, Holder(pid, ticks) if pid else None)
            for key, place, pid, ticks in rows
            if isinstance(key, str) and _are_numbers(place, pid or 0, ticks or 0)
        )
        seen = db.execute("SELECT uuid FROM gpus WHERE boot = ?", (self._boot,)).fetchall()
        return Remembered(
            tuple(leases),
            waiting,
            self._profiles(),
            self._uses(),
            self._numbers(),
            self._starts(),
            frozenset(uuid for (uuid,) in seen),
            self._bookings(),
        )

    def keep(self, actions: Iterable[Action]) -> None:
        """Persist actions with those of the next `write`.

        What was learned waits for a `write` of more than leases and requests, or of nothing.
        """
        for action in actions:
            if type(action) in _ROWS:
                self._unwritten.append(action)
            elif type(action) in WRITERS:
                self._learned.append(action)

    def write(self, actions: Iterable[Action]) -> None:
        """Persist actions in one transaction.

        When writing fails the negotiator continues from memory and reports the failure: GPUs need
        not be idle because a disk is full. The rest is written as soon as writing works again.
        """
        todo = [action for action in actions if type(action) in WRITERS]
        if self._learned and not (todo and all(type(action) in _ROWS for action in todo)):
            self._unwritten += self._learned
            self._learned = []
        self._unwritten += todo
        if not self._unwritten:
            return
        if self._failure is not None and time.monotonic() < self._retry_at:
            return
        try:
            if not self._is_written_in_one_step():
                self._db.execute("BEGIN IMMEDIATE")
                for action in self._unwritten:
                    WRITERS[type(action)](self._db, self._boot, action)
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            self._unwritten = without_undone(self._unwritten, self._on_disk)
            self._retry_at = time.monotonic() + RETRY_S
            if self._failure is None:
                log.error("action=save-later reason=%r path=%s", str(error), self.path)
            self._failure = f"{self.path} cannot be written: {error}"
        else:
            if self._failure is not None:
                log.warning("action=saved-again path=%s", self.path)
            self._note_written()
            self._unwritten, self._failure = [], None

    def _is_written_in_one_step(self) -> bool:
        """Try to write with one statement, which is a transaction by itself."""
        match self._unwritten:
            case [SaveRun()]:
                return False
            case [action]:
                WRITERS[type(action)](self._db, self._boot, action)
                return True
            case [DropLease() as old, SaveLease() as new]:
                return replace_lease(self._db, self._boot, old, new)
        return False

    @property
    def unwritten(self) -> int:
        """Return how many actions are not on disk yet."""
        return len(self._unwritten) + len(self._learned)

    def close(self) -> None:
        """Retry what was not written, checkpoint the log and close the file."""
        self._retry_at = 0.0
        self.write(())
        self._db.close()

    def _note_written(self) -> None:
        for action in self._unwritten:
            if isinstance(action, _DROPS):
                self._on_disk.discard(_row_of(action))
            elif isinstance(action, _SAVES):
                self._on_disk.add(_row_of(action))

    def _tidy(self, sql: str, value: object) -> None:
        """Remove unused rows; on a full disk they stay for the next time."""
        try:
            self._db.execute(sql, (value,))
        except sqlite3.OperationalError as error:
            log.warning("action=tidy result=failed reason=%r", str(error))

    def _set_aside(self, table: str, key: object, row: Sequence[object]) -> None:
        """Move an unusable row to the `set_aside` table, for people to inspect."""
        values = (table, repr((key, *row)), time.time())
        try:
            self._db.execute("INSERT INTO set_aside VALUES (?, ?, ?)", values)
        except sqlite3.OperationalError as error:
            log.warning("action=set-aside result=failed reason=%r", str(error))
        else:
            self._tidy(f"DELETE FROM {table} WHERE id = ?", key)

    def _bookings(self) -> tuple[Booking, ...]:
        found = []
        for row in self._db.execute("SELECT id, body, checksum FROM bookings ORDER BY id"):
            self._on_disk.add(("bookings", str(row[0])))
            try:
                if not is_good(row):
                    raise msgspec.DecodeError("its checksum is another")
                found.append(_decode_booking(row[1]))
            except (msgspec.DecodeError, TypeError):
                log.error("action=set-aside booking=%s reason=unreadable", row[0])
                self._set_aside("bookings", row[0], row)
        return tuple(found)

    def _uses(self) -> tuple[SaveUse, ...]:
        rows = self._db.execute("SELECT user, used_h, at FROM uses").fetchall()
        good = [row for row in rows if all(isinstance(value, (int, float)) for value in row)]
        return tuple(SaveUse(int(user), float(used_h), float(at)) for user, used_h, at in good)

    def _starts(self) -> tuple[SaveStart, ...]:
        rows = self._db.execute(f"SELECT {START} FROM starts ORDER BY id").fetchall()
        return tuple(SaveStart(*row) for row in rows if _are_numbers(*row))

    def _numbers(self) -> tuple[tuple[str, float], ...]:
        """Return the finite numbers; the others are learned again."""
        rows = self._db.execute("SELECT name, value FROM numbers").fetchall()
        return tuple(
            (name, float(value))
            for name, value in rows
            if isinstance(name, str) and isinstance(value, float) and math.isfinite(value)
        )

    def _profiles(self) -> tuple[Profile, ...]:
        profiles: dict[tuple[str, str], Profile] = {}
        rows = self._db.execute(f"SELECT id, {RUN}, checksum FROM runs ORDER BY id").fetchall()
        for row_id, *columns, stored in rows:
            job_type, model, label, owner, *rest = columns
            try:
                if not is_good((*columns, stored)):
                    raise msgspec.DecodeError("its checksum is another")
                run = read_run(rest)
                whose = {"job_type": job_type, "model": model, "label": label, "owner": owner}
                known = profiles.get((job_type, model)) or msgspec.convert(whose, Profile)
            except (msgspec.DecodeError, TypeError):
                log.error("action=set-aside run=%s type=%r reason=unreadable", row_id, job_type)
                self._set_aside("runs", row_id, columns)
                continue
            profiles[(job_type, model)] = profiling.add_run(known, run)
        return tuple(profiles.values())


def _are_numbers(*values: object) -> bool:
    """True for whole numbers; a damaged row costs a client its place and no more."""
    return all(isinstance(value, int) for value in values)


def without_undone(actions: Sequence[Action], on_disk: Collection[Row]) -> list[Action]:
    """Drop actions that a later action undoes, so that a long failure does not fill the memory."""
    kept: list[Action] = []
    settled: set[Row] = set()
    forgotten: set[str] = set()
    users: set[int] = set()
    runs: Counter[tuple[str, str]] = Counter()
    for action in reversed(actions):
        if isinstance(action, SaveRun):
            runs[(action.job_type, action.model)] += 1
            is_outlived = runs[(action.job_type, action.model)] > profiling.RUNS_KEPT
            if action.job_type in forgotten or is_outlived:
                continue
        elif isinstance(action, DropProfile):
            forgotten.add(action.job_type)
        elif isinstance(action, SaveUse):
            if action.user in users:
                continue
            users.add(action.user)
        elif isinstance(action, SaveNumber):
            if ("numbers", action.name) in settled:
                continue
            settled.add(("numbers", action.name))
        elif isinstance(action, _ROWS):
            row = _row_of(action)
            is_gone = isinstance(action, _DROPS) and row not in on_disk
            if row in settled or is_gone:
                settled.add(row)
                continue
            settled.add(row)
        kept.append(action)
    return kept[::-1]


_Save = SaveLease | SaveWaiting | SaveBooking
_Drop = DropLease | DropWaiting | DropBooking
_SAVES, _DROPS = (SaveLease, SaveWaiting, SaveBooking), (DropLease, DropWaiting, DropBooking)
_ROWS = (*_SAVES, *_DROPS)


def _row_of(action: _Save | _Drop) -> Row:
    match action:
        case SaveLease(lease):
            return "leases", lease.id
        case DropLease(lease_id):
            return "leases", lease_id
        case SaveBooking(booking):
            return "bookings", str(booking.id)
        case DropBooking(number):
            return "bookings", str(number)
        case _:
            return "waiting", action.key


def _open(path: str) -> sqlite3.Connection:
    return database.open_file(path, SCHEMA, "NORMAL", patience_s=LOCK_PATIENCE_S, is_lenient=True)
