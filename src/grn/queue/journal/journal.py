"""Jobs, their environments and attempts, stored durably before anything else happens.

One transaction per turn of the loop. `journal_file.py` owns the file, `rows.py` its rows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from grn.errors import MachineError
from grn.queue.events import Action, SaveEnd
from grn.queue.jobs.job import EndReason, Kept, KeptArray
from grn.queue.journal import array_rows, kept_rows, new_rows, rows
from grn.queue.journal.array_rows import NewArray
from grn.queue.journal.environments import Environments
from grn.queue.journal.identity import highest_with_files, identity_of
from grn.queue.journal.journal_file import Disk, NotWritten
from grn.queue.journal.rows import Command, DamagedRow, NewJob, SharedCommand

log = logging.getLogger(__name__)
MAX_RECENT, MAX_RUNS = 2000, 20  # ended jobs that are read for one type, and attempts that count
MAX_LAST = 100
_WITH_ATTEMPT = (
    "FROM jobs LEFT JOIN attempts ON attempts.job = jobs.id AND attempts.attempt = jobs.attempt"
)
WRITERS = rows.WRITERS | array_rows.WRITERS
MAX_ID = 1 << 53  # a higher one is damage: exact integers of JSON end there


class Journal:
    """The queue's file."""

    def __init__(self, folder: str, boot: str, wall: Callable[[], float]) -> None:
        self._boot = boot
        self._wall = wall
        self._disk = Disk(folder)
        self._environments = Environments(self._disk)
        self.path = self._disk.path
        # A new journal numbers its jobs from 1: the identity keeps old jobs' files apart.
        self.identity = identity_of(self._disk, os.path.join(folder, "jobs"))
        of_files = highest_with_files(os.path.join(folder, "jobs", self.identity))
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
        environments: dict[int, int] = {}

        def environment_of(shared: SharedCommand) -> int:
            if id(shared) not in environments:
                environments[id(shared)] = self._environments.id_of(shared.environment)
            return environments[id(shared)]

        def insert(first_id: int, now: float) -> None:
            ids = range(first_id, first_id + len(jobs))
            new = new_rows.of_jobs(ids, jobs, environment_of, now, is_held)
            self._db.executemany(rows.INSERT, new)

        return self._submit(key, len(jobs), insert)

    def submit_array(self, key: str, array: NewArray, is_held: bool = False) -> tuple[int, bool]:
        """Persist a new array as one record; its members become jobs by `SaveMembers`."""

        def insert(first_id: int, now: float) -> None:
            environment = self._environments.id_of(array.job.shared.environment)
            array_rows.insert(self._db, first_id, array, environment, now, is_held)

        return self._submit(key, array.count, insert)

    def _submit(
        self, key: str, count: int, insert: Callable[[int, float], None]
    ) -> tuple[int, bool]:
        known = self.first_of(key)
        if known is not None:
            return known, False
        first_id, now = self.next_id, self._wall()
        with self._disk.transaction(may_use_ballast=False):
            insert(first_id, now)
            self._db.execute("INSERT INTO submits VALUES (?,?,?,?)", (key, first_id, count, now))
        try:
            self._disk.keep_in_place()
        except NotWritten:
            self._take_back(key, first_id)
            raise
        self._last_id += count
        return first_id, True

    def _take_back(self, key: str, first_id: int) -> None:
        """Remove a submit that is about to be refused: its key would be answered as accepted."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("DELETE FROM submits WHERE key = ?", (key,))
            self._db.execute("DELETE FROM jobs WHERE id >= ?", (first_id,))
            self._db.execute("DELETE FROM arrays WHERE id >= ?", (first_id,))

    def _highest_id(self) -> int:
        """Return the highest id ever assigned."""
        counted = self._disk.read("SELECT seq FROM sqlite_sequence WHERE name = 'jobs'")
        ((highest,),) = self._disk.read("SELECT max(id) FROM jobs WHERE id < ?", (MAX_ID,))
        known = [one for (one,) in [*counted, (highest,)] if isinstance(one, int)]
        known += array_rows.last_ids(self._disk)
        return max((one for one in known if one < MAX_ID), default=0)

    def write(self, actions: Iterable[Action]) -> None:
        """Persist the engine's actions in one transaction; raise NotWritten when it fails."""
        todo = [(writer, action) for action in actions if (writer := WRITERS.get(type(action)))]
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
                "DELETE FROM environments WHERE id NOT IN"
                " (SELECT environment FROM jobs UNION SELECT environment FROM arrays)"
            )
            self._db.execute("DELETE FROM submits WHERE at <= ?", (before - 7 * 86400,))
        self.ended -= len(gone)
        return [(job, count if isinstance(count, int) else 0) for job, count in gone]

    # --- reading -------------------------------------------------------------------------

    def kept(self) -> list[Kept]:
        """Return all jobs that have not ended; a damaged one carries its fault."""
        found = kept_rows.kept(self._disk, self._boot, self._wall())
        self.ended += found.mended
        return found.jobs

    def kept_arrays(self) -> list[KeptArray]:
        """Return all arrays with members that are not jobs yet; a damaged one has its fault."""
        return array_rows.kept(self._disk)

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
            tuple(json.loads(row["argv"])), row["cwd"], self._environments.read(environment),
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
        return rows.as_new(row, priority, self._environments.read(row["environment"]))

    def edit(self, job: NewJob) -> None:
        """Replace the submitted part of a queued job; raise NotWritten when that fails."""
        submitted_at = self._submitted(job.spec.id)["submitted_at"]
        with self._disk.transaction():
            environment = self._environments.id_of(job.shared.environment)
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

    def rows(
        self, where: str, values: Sequence[Any], order: str, most: int, skip: int = 0
    ) -> list[dict[str, Any]]:
        """Return jobs as rows for people; `where` and `order` never come from users."""
        found = self._disk.read(
            f"SELECT {rows.SHOWN} {_WITH_ATTEMPT} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
            (*values, most, skip),
        )
        return [rows.readable(rows.SHOWN_NAMES, row) for row in found]

    def folded_rows(
        self, array: int, members: Sequence[int], where: str, values: Sequence[Any]
    ) -> list[dict[str, Any]]:
        """Return members of an array that are not jobs yet, as `rows` returns jobs."""
        found = array_rows.shown(self._disk, array, members, where, values)
        return [rows.readable(rows.SHOWN_NAMES, row) for row in found]

    def folded_ids(
        self, array: int, members: Sequence[int], where: str, values: Sequence[Any]
    ) -> list[int]:
        """Return the ids of such members."""
        found = array_rows.shown(self._disk, array, members, where, values, "jobs.id")
        return [job_id for (job_id,) in found]

    def numbers_of(self, array: int) -> str:
        """Return the numbers of an array that has such members, as they were written."""
        return array_rows.numbers_of(self._disk, array)

    def ids(self, where: str, values: Sequence[Any], order: str, most: int) -> list[int]:
        """Return ids of jobs; `where` and `order` never come from users."""
        found = self._disk.read(
            f"SELECT jobs.id {_WITH_ATTEMPT} WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, most),
        )
        return [job_id for (job_id,) in found]

    def count(self, where: str, values: Sequence[Any]) -> int:
        """Return how many jobs `rows` has without a limit."""
        ((found,),) = self._disk.read(f"SELECT count(*) {_WITH_ATTEMPT} WHERE {where}", values)
        return int(found)

    def states(self, where: str, values: Sequence[Any]) -> dict[str, int]:
        """Return how many jobs are in each state, the ended ones by their outcome."""
        state = "coalesce(reason, CASE WHEN is_held THEN 'held' ELSE state END)"
        sql = f"SELECT {state}, count(*) FROM jobs WHERE {where} GROUP BY 1"
        return {str(state): int(count) for state, count in self._disk.read(sql, values)}

    def array_of(self, job_id: int) -> range | None:
        """Return the ids of the jobs that were submitted together with a job."""
        sql = "SELECT first, count FROM submits WHERE first <= ? ORDER BY first DESC LIMIT 1"
        for first, count in self._disk.read(sql, (job_id,)):
            if isinstance(first, int) and isinstance(count, int) and job_id < first + count:
                return range(first, first + count)
        return None

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
