"""Jobs, their environments and attempts, stored durably before anything else happens.

One transaction per turn of the loop. `journal_file.py` owns the file, `rows.py` its rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from grn.daemon.database import checksum, is_intact
from grn.errors import MachineError
from grn.queue.events import Action, SaveEnd
from grn.queue.jobs.job import BUSY, EndReason, Kept
from grn.queue.journal import new_rows, rows
from grn.queue.journal.journal_file import Disk, NotWritten
from grn.queue.journal.rows import Command, DamagedRow, NewJob, SharedCommand

log = logging.getLogger(__name__)
MAX_RECENT, MAX_RUNS = 2000, 20  # ended jobs that are read for one type, and attempts that count
MAX_AT_HAND = 64
MAX_LAST = 100
MAX_PART = 1000  # rows of jobs that are read at a time
_WITH_ATTEMPT = (
    "FROM jobs LEFT JOIN attempts ON attempts.job = jobs.id AND attempts.attempt = jobs.attempt"
)
_TIMELESS = "state = 'ended' AND typeof(ended_at) NOT IN ('real', 'integer')"
MAX_ID = 1 << 53  # a higher one is damage: exact integers of JSON end there


class Journal:
    """The queue's file."""

    def __init__(self, folder: str, boot: str, wall: Callable[[], float]) -> None:
        self._boot = boot
        self._wall = wall
        self._environments: dict[int, dict[str, str]] = {}
        self._disk = Disk(folder)
        self.path = self._disk.path
        # A new journal numbers its jobs from 1: the identity keeps old jobs' files apart.
        self.identity = self._identity(os.path.join(folder, "jobs"))
        of_files = _highest_with_files(os.path.join(folder, "jobs", self.identity))
        self._last_id = max(self._highest_id(), of_files)
        count = self._db.execute("SELECT count(*) FROM jobs WHERE state = 'ended'")
        self.ended = int(count.fetchone()[0])  # kept up to date: counting many rows is slow
        self.last_ended: deque[int] = deque(maxlen=MAX_LAST)  # in the order of their writes

    @property
    def _db(self) -> sqlite3.Connection:
        return self._disk.db  # replaced when the file was written again

    @property
    def trouble(self) -> str:
        """Return a warning about this journal, or an empty text."""
        return self._disk.trouble

    # --- writing -------------------------------------------------------------------------

    @property
    def next_id(self) -> int:
        """Return the id of the next job that is submitted."""
        return self._last_id + 1

    def submit(self, key: str, jobs: Sequence[NewJob], is_held: bool = False) -> tuple[int, bool]:
        """Persist new jobs; return the first id, and False when this key was known already."""
        known = self.first_of(key)
        if known is not None:
            return known, False
        first_id = self.next_id
        now = self._wall()
        environments: dict[int, int] = {}

        def environment_of(shared: SharedCommand) -> int:
            if id(shared) not in environments:
                environments[id(shared)] = self._environment_id(shared.environment)
            return environments[id(shared)]

        with self._disk.transaction(may_use_ballast=False):
            self._db.executemany(
                rows.INSERT, new_rows.of_jobs(first_id, jobs, environment_of, now, is_held)
            )
            self._db.execute(
                "INSERT INTO submits VALUES (?,?,?,?)", (key, first_id, len(jobs), now)
            )
        try:
            self._disk.keep_in_place()
        except NotWritten:
            self._take_back(key, first_id)
            raise
        self._last_id += len(jobs)
        return first_id, True

    def _take_back(self, key: str, first_id: int) -> None:
        """Remove a submit that is about to be refused: its key would be answered as accepted."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("DELETE FROM submits WHERE key = ?", (key,))
            self._db.execute("DELETE FROM jobs WHERE id >= ?", (first_id,))

    def _highest_id(self) -> int:
        """Return the highest id ever assigned."""
        counted = self._disk.read("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'")
        ((highest,),) = self._disk.read("SELECT max(id) FROM jobs WHERE id < ?", (MAX_ID,))
        known = [one for (one,) in [*counted, (highest,)] if isinstance(one, int)]
        return max((one for one in known if one < MAX_ID), default=0)

    def write(self, actions: Iterable[Action]) -> None:
        """Persist the engine's actions in one transaction; raise NotWritten when it fails."""
        todo = [
            (writer, action) for action in actions if (writer := rows.WRITERS.get(type(action)))
        ]
        if not todo:
            return
        with self._disk.transaction():
            for writer, action in todo:
                writer(self._db, action, self._boot, self._wall())
        ended = [action.job for _, action in todo if isinstance(action, SaveEnd)]
        self.ended += len(ended)
        self.last_ended.extend(ended)

    def clean(self, before: float) -> list[tuple[int, int]]:
        """Remove jobs that ended before a time; return their ids and numbers of attempts."""
        ended = "state = 'ended' AND ended_at <= ?"
        now = self._wall()
        with self._disk.transaction():
            # The clock was wrong when it ended: it counts from now on.
            self._db.execute(
                "UPDATE jobs SET ended_at = ? WHERE state = 'ended' AND ended_at > ?", (now, now)
            )
            self._db.execute("UPDATE submits SET at = ? WHERE at > ?", (now, now))
            gone = self._db.execute(
                f"SELECT id, attempt FROM jobs WHERE {ended}", (before,)
            ).fetchall()
            self._db.execute(
                f"DELETE FROM attempts WHERE job IN (SELECT id FROM jobs WHERE {ended})", (before,)
            )
            self._db.execute(f"DELETE FROM jobs WHERE {ended}", (before,))
            self._db.execute(
                "DELETE FROM environments WHERE id NOT IN (SELECT environment FROM jobs)"
            )
            self._db.execute("DELETE FROM submits WHERE at <= ?", (before - 7 * 86400,))
        self.ended -= len(gone)
        return [(job, count if isinstance(count, int) else 0) for job, count in gone]

    # --- reading -------------------------------------------------------------------------

    def kept(self) -> list[Kept]:
        """Return all jobs that have not ended; a damaged one carries its fault."""
        self._mend_times()
        texts: dict[str, str] = {}
        kept = []
        for row in self._unended():
            one = rows.kept(row, texts, self._latest_attempt)
            if one.fault and rows.has_ended(row):
                self._mend_state(one.spec.id)
                continue
            if one.state in BUSY:
                one = self._with_begin(one)
            if one.fault:
                log.error("action=set-aside job=%d reason=%r", one.spec.id, one.fault)
            kept.append(one)
        return kept

    def _unended(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of all jobs that have not ended, a part of them in memory at a time."""
        last, is_more = -1, True
        while is_more:
            part = self._disk.read(
                f"SELECT {rows.KEPT} FROM jobs WHERE id > ?"
                " AND (typeof(state) <> 'text' OR state <> 'ended') ORDER BY id LIMIT ?",
                (last, MAX_PART),
            )
            yield from part
            is_more = len(part) == MAX_PART
            last = part[-1][0] if part else last

    def _with_begin(self, kept: Kept) -> Kept:
        """Add how the latest attempt was begun.

        Its row is written together with the state, so a missing one is damage. Assuming this boot
        is then safe: a living shim is found, and the attempt is not run again.
        """
        lease, boot = self.lease_of(kept.spec.id, kept.attempt)
        fault = kept.fault if boot else kept.fault or rows.RUN_NO_MORE
        is_same = boot in ("", self._boot) or "/" in lease  # a node has boots of its own
        return kept._replace(lease=lease if is_same else "", fault=fault, is_same_boot=is_same)

    def _latest_attempt(self, job_id: int) -> object:
        sql = "SELECT max(attempt) FROM attempts WHERE job = ?"
        return self._disk.read(sql, (job_id,))[0][0]

    def _mend_times(self) -> None:
        """Set the missing end times of ended jobs to now: they would not be listed."""
        if self._disk.read(f"SELECT id FROM jobs WHERE {_TIMELESS} LIMIT 1"):
            with self._disk.transaction():
                self._db.execute(f"UPDATE jobs SET ended_at = ? WHERE {_TIMELESS}", (self._wall(),))

    def _mend_state(self, job_id: int) -> None:
        """Restore the state of an ended job: its outcome is there, its state is not."""
        log.error("action=mend-state job=%d", job_id)
        with self._disk.transaction():
            self._db.execute("UPDATE jobs SET state = 'ended' WHERE id = ?", (job_id,))
        self.ended += 1

    def first_of(self, key: str) -> int | None:
        """Return the first id of a submit that was accepted, None when it was not."""
        found = self._disk.read("SELECT first FROM submits WHERE key = ?", (key,))
        if not found:
            return None
        (first,) = found[0]
        if not isinstance(first, int):
            raise MachineError(
                "this submit was accepted, but the journal's record of it is damaged.",
                "See `grn ls` for its jobs.",
            )
        return first

    def is_drained(self) -> bool:
        found = self._disk.read("SELECT value FROM switches WHERE name = 'drained'")
        return bool(found and found[0][0])

    def ended_well(self, ids: Iterable[int]) -> dict[int, bool]:
        """Return whether each ended job succeeded."""
        found: dict[int, bool] = {}
        for job_id in ids:
            for (reason,) in self._disk.read(
                "SELECT reason FROM jobs WHERE id = ? AND state = 'ended'", (job_id,)
            ):
                found[job_id] = reason == "ok"
        return found

    def command(self, job_id: int) -> Command:
        """Return the command of a job; raise DamagedRow when its checksum does not match."""
        return self._command(self._submitted(job_id))

    def _command(self, row: dict[str, Any]) -> Command:
        environment = row["environment"]
        return Command(
            tuple(json.loads(row["argv"])), row["cwd"], self._environment(environment),
            row["umask"], row["name"], row["notify"], row["time_limit_s"],
            json.loads(row["extra"]), environment, row["log"], *rows.folders_of(row["options"]),
            rows.ending_of(row["options"]),
            *rows.host_needs_of(row["options"]),
        )  # fmt: skip

    def submitted_again(self, job_id: int, new_id: int) -> NewJob:
        """Return a job as a new one, tied to no process and after no job; raise DamagedRow.

        It has its present priority, and no code: its script may have been mended since.
        """
        job = self.as_submitted(job_id)
        spec = job.spec._replace(
            id=new_id, after=(), submitter="", is_fail_fast=False, array=0,
            array_limit=0,
        )  # fmt: skip
        return replace(job, spec=spec, code="")

    def as_submitted(self, job_id: int) -> NewJob:
        """Return a job as it was submitted, with its present priority; raise DamagedRow."""
        row = self._submitted(job_id)
        ((priority,),) = self._disk.read("SELECT priority FROM jobs WHERE id = ?", (job_id,))
        priority = priority if isinstance(priority, int) else 0
        spec = rows.spec(tuple(row.values()), priority, {})
        shared = SharedCommand(
            row["cwd"], self._environment(row["environment"]), row["umask"], row["notify"],
            *rows.folders_of(row["options"]), rows.ending_of(row["options"]),
        )  # fmt: skip
        return NewJob(
            spec, json.loads(row["argv"]), shared, row["name"], row["log"],
            json.loads(row["extra"]), json.loads(row["arguments"]), row["code"],
        )  # fmt: skip

    def edit(self, job: NewJob) -> None:
        """Replace the submitted part of a queued job; raise NotWritten when that fails."""
        submitted_at = self._submitted(job.spec.id)["submitted_at"]
        with self._disk.transaction():
            environment = self._environment_id(job.shared.environment)
            self._db.execute(rows.REPLACE, new_rows.of_edited(job, environment, submitted_at))

    def _submitted(self, job_id: int) -> dict[str, Any]:
        found = self._disk.read(f"SELECT {rows.SUBMITTED} FROM jobs WHERE id = ?", (job_id,))
        if not found:
            raise DamagedRow(f"job {job_id} is not in the journal any more")
        return rows.submitted(found[0])

    def notify_of(self, job_id: int) -> str:
        """Return the command to run when a job has ended; raise DamagedRow when it is damaged."""
        ((notify,),) = self._disk.read("SELECT notify FROM jobs WHERE id = ?", (job_id,)) or [("",)]
        return str(self._submitted(job_id)["notify"]) if notify else ""

    def state_of(self, job_id: int) -> str | None:
        """Return the state of a job, None when there is no such job; a damaged one has ended."""
        found = self._disk.read("SELECT state FROM jobs WHERE id = ?", (job_id,))
        return next((one if isinstance(one, str) else "ended" for (one,) in found), None)

    def end_of(self, job_id: int) -> dict[str, Any] | None:
        """Return how a job ended, None when there is no such job."""
        names = ("id", "reason", "text", "status", "signal", "attempt", "state")
        found = self._disk.read(f"SELECT {', '.join(names)} FROM jobs WHERE id = ?", (job_id,))
        if not found:
            return None
        row = rows.readable(names, found[0])
        if row.pop("state") == "ended" and row["reason"] is None:
            row["reason"] = EndReason.LOST.value
        return row

    def progress_of(self, job_id: int) -> dict[str, Any] | None:
        """Return the state of a job and the end of its latest attempt, None without such a job."""
        found = self._disk.read(
            f"SELECT {rows.PROGRESS} FROM jobs LEFT JOIN attempts ON attempts.job = jobs.id"
            " AND attempts.attempt = jobs.attempt WHERE jobs.id = ?",
            (job_id,),
        )
        return rows.readable(rows.PROGRESS_NAMES, found[0]) if found else None

    def _environment(self, environment_id: int) -> dict[str, str]:
        """Return an environment; the last few are cached."""
        if environment_id not in self._environments:
            found = self._disk.read(
                "SELECT body, digest FROM environments WHERE id = ?", (environment_id,)
            )
            body, digest = found[0] if found else (None, None)
            if not isinstance(body, bytes) or hashlib.sha256(body).digest() != digest:
                raise DamagedRow(
                    "the journal's record of its environment is damaged: it was not run"
                )
            if len(self._environments) >= MAX_AT_HAND:
                self._environments.clear()
            self._environments[environment_id] = json.loads(body)
        return self._environments[environment_id]

    def told(self, job_id: int) -> tuple[dict[str, Any], str]:
        """Return the job's features for learning: facts of its arguments, and its code.

        Without a checksum test: `command` does that before the job runs.
        """
        found = self._disk.read("SELECT arguments, code FROM jobs WHERE id = ?", (job_id,))
        try:
            ((arguments, code),) = found
            facts = json.loads(arguments)
        except (TypeError, ValueError) as error:
            raise DamagedRow(rows.NEVER_RUN) from error
        if not isinstance(facts, dict) or not isinstance(code, str):
            raise DamagedRow(rows.NEVER_RUN)
        return facts, code

    def usual_s(self, job_type: str) -> float | None:
        """Return the median time of the last good attempts of a type, None if there are none."""
        found = self._disk.read(
            "SELECT ran_s FROM (SELECT id, attempt, job_type FROM jobs WHERE state = 'ended'"
            " ORDER BY ended_at DESC LIMIT ?) AS recent JOIN attempts ON job = recent.id"
            " AND attempts.attempt = recent.attempt WHERE job_type = ? AND reason = 'ok'"
            " AND typeof(ran_s) = 'real' LIMIT ?",
            (MAX_RECENT, job_type, MAX_RUNS),
        )
        times = sorted(ran_s for (ran_s,) in found)
        return times[len(times) // 2] if times else None

    def lease_of(self, job_id: int, attempt: int) -> tuple[str, str]:
        """Return the lease an attempt was begun under and the boot; empty when not known."""
        found = self._disk.read(
            f"SELECT {rows.BEGUN} FROM attempts WHERE job = ? AND attempt = ?", (job_id, attempt)
        )
        return rows.lease_and_boot(found[0]) if found else ("", "")

    def rows(
        self, where: str, values: Sequence[Any], order: str, most: int
    ) -> list[dict[str, Any]]:
        """Return jobs as rows for people; `where` and `order` never come from users."""
        found = self._disk.read(
            f"SELECT {rows.SHOWN} {_WITH_ATTEMPT} WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, most),
        )
        return [rows.readable(rows.SHOWN_NAMES, row) for row in found]

    def ids(self, where: str, values: Sequence[Any], order: str, most: int) -> list[int]:
        """Return ids of jobs; `where` and `order` never come from users."""
        found = self._disk.read(
            f"SELECT id FROM jobs WHERE {where} ORDER BY {order} LIMIT ?", (*values, most)
        )
        return [job_id for (job_id,) in found]

    def count(self, where: str, values: Sequence[Any]) -> int:
        """Return how many jobs `rows` has without a limit."""
        ((found,),) = self._disk.read(f"SELECT count(*) {_WITH_ATTEMPT} WHERE {where}", values)
        return int(found)

    def reason_of(self, job_id: int, attempt: int) -> str:
        """Return how an attempt ended, empty when that is not known."""
        found = self._disk.read(
            "SELECT reason FROM attempts WHERE job = ? AND attempt = ?", (job_id, attempt)
        )
        return str(found[0][0] or "") if found else ""

    def attempts(self, job_id: int) -> list[dict[str, Any]]:
        """Return all attempts of a job as rows for people."""
        names = (
            "attempt", "lease", "gpus", "reserved_bytes", "began_at", "ended_at", "ran_s", "reason",
            "status", "signal", "peak_bytes", "resident_bytes", "text",
        )  # fmt: skip
        found = self._disk.read(
            f"SELECT {', '.join(names)} FROM attempts WHERE job = ? ORDER BY attempt", (job_id,)
        )
        return [rows.readable(names, row) for row in found]

    def keep_in_place(self) -> None:
        """Write a removed file again; raise NotWritten when that fails."""
        self._disk.keep_in_place()

    def keep_copy(self, older_than_s: float) -> bool:
        """Copy the journal into a file beside it, unless the copy is recent."""
        return self._disk.keep_copy(older_than_s)

    def close(self) -> None:
        """Checkpoint the log and close the file."""
        self._disk.close()

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
        try:
            self._environment(row[0])
        except DamagedRow:  # of all bodies only this one has that digest
            self._db.execute("UPDATE environments SET body = ? WHERE id = ?", (body, row[0]))
        return int(row[0])

    def _identity(self, folder: str) -> str:
        """Return the identity of this journal; a damaged one is restored from its jobs' folder.

        Under a wrong identity running attempts would count as never begun, and run twice.
        """
        name, stored = (*self._disk.read("SELECT name, checksum FROM identity"), ("", None))[0]
        if is_intact(stored, (name,)):
            return str(name)
        try:
            folders = os.listdir(folder)
        except OSError:
            folders = []
        right = [one for one in folders if one == name or is_intact(stored, (one,))]
        found = (right or [secrets.token_hex(8)])[0]  # without a folder nothing ever ran
        log.error("action=mend-identity was=%r is=%s", name, found)
        with self._disk.transaction():
            self._db.execute("DELETE FROM identity")
            self._db.execute("INSERT INTO identity VALUES (?,?)", (found, checksum(found)))
        return found


def _highest_with_files(folder: str) -> int:
    """Return the highest id that has files of an attempt.

    A journal may lack its latest changes: its log was damaged, or it is a copy that was put back.
    An id that is given again would find the files of an earlier job, and take its end for its own.
    """
    newest = max((int(name) for name in _names_in(folder) if name.isdecimal()), default=0)
    ids = (name.partition(".")[0] for name in _names_in(os.path.join(folder, str(newest))))
    return max((int(one) for one in ids if one.isdecimal()), default=0)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:  # nothing has run yet
        return []
