"""Every job, its environment and its attempts, durable before anything else happens.

One transaction for all that a turn of the loop brings. The file itself is `disk.py`, what stands in
its rows `rows.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from grn.queue import rows
from grn.queue.disk import Disk
from grn.queue.events import Action, Kept, SaveEnd
from grn.queue.rows import Command, NewJob

MOST_AT_HAND = 64


class Journal:
    """The queue's file."""

    def __init__(self, folder: str, boot: str, wall: Callable[[], float]) -> None:
        self._boot = boot
        self._wall = wall
        self._environments: dict[int, dict[str, str]] = {}
        self._disk = Disk(folder)
        self.path = self._disk.path
        self._db = self._disk.db
        # A journal made anew numbers its jobs anew: this keeps old jobs' files apart from them.
        self.identity = str(self._db.execute("SELECT name FROM identity").fetchone()[0])
        count = self._db.execute("SELECT count(*) FROM jobs WHERE state = 'ended'")
        self.ended = int(count.fetchone()[0])  # kept up to date: counting takes long with many

    @property
    def trouble(self) -> str:
        """Return what is to be told to whoever uses this journal, or nothing."""
        return self._disk.trouble

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

        def new_rows() -> Iterable[tuple[Any, ...]]:
            for job_id, job in enumerate(jobs, first_id):
                identity = id(job.command.environment)
                if identity not in environments:
                    environments[identity] = self._environment_id(job.command.environment)
                yield (*rows.of_job(job_id, job, environments[identity], now), is_held)

        with self._disk.transaction(may_use_ballast=False):
            self._db.executemany(rows.INSERT, new_rows())
            self._db.execute(
                "INSERT INTO submits VALUES (?,?,?,?)", (key, first_id, len(jobs), now)
            )
        return first_id, True

    def write(self, actions: Iterable[Action]) -> None:
        """Write down what the engine says, in one transaction; raise NotWritten when it fails."""
        todo = [
            (writer, action) for action in actions if (writer := rows.WRITERS.get(type(action)))
        ]
        if not todo:
            return
        with self._disk.transaction():
            for writer, action in todo:
                writer(self._db, action, self._boot, self._wall())
        self.ended += sum(isinstance(action, SaveEnd) for _, action in todo)

    def clean(self, before: float) -> list[tuple[int, int]]:
        """Forget jobs that ended before a time; return their ids and how often each was tried."""
        ended = "state = 'ended' AND ended_at <= ?"
        gone = self._db.execute(f"SELECT id, attempt FROM jobs WHERE {ended}", (before,)).fetchall()
        with self._disk.transaction():
            self._db.execute(
                f"DELETE FROM attempts WHERE job IN (SELECT id FROM jobs WHERE {ended})", (before,)
            )
            self._db.execute(f"DELETE FROM jobs WHERE {ended}", (before,))
            self._db.execute(
                "DELETE FROM environments WHERE id NOT IN (SELECT environment FROM jobs)"
            )
            self._db.execute("DELETE FROM submits WHERE at <= ?", (before - 7 * 86400,))
        self.ended -= len(gone)
        return gone

    # --- reading -------------------------------------------------------------------------

    def kept(self) -> list[Kept]:
        """Return all jobs that have not ended."""
        found = self._db.execute(
            f"SELECT {rows.KEPT} FROM jobs"
            " WHERE state IN ('queued','starting','running','stopping') ORDER BY id"
        )
        texts: dict[str, str] = {}
        return [rows.kept(row, texts) for row in found]

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

    def told(self, job_id: int) -> tuple[dict[str, Any], str]:
        """Return what there is to learn from: facts of a job's arguments, and its code."""
        row = self._db.execute(
            "SELECT arguments, code FROM jobs WHERE id = ?", (job_id,)
        ).fetchone()
        return json.loads(row[0]), row[1]

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
            f"SELECT {rows.SHOWN} FROM jobs LEFT JOIN attempts ON attempts.job = jobs.id"
            f" AND attempts.attempt = jobs.attempt WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, most),
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def attempts(self, job_id: int) -> list[dict[str, Any]]:
        """Return all attempts of a job as rows for people."""
        cursor = self._db.execute(
            "SELECT attempt, lease, gpus, reserved_bytes, began_at, ended_at, ran_s, reason,"
            " status, signal, peak_bytes, resident_bytes, text FROM attempts WHERE job = ?"
            " ORDER BY attempt",
            (job_id,),
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def keep_copy(self, older_than_s: float) -> bool:
        """Copy all of it into a file beside, unless there is a copy that is not older than this."""
        return self._disk.keep_copy(older_than_s)

    def close(self) -> None:
        """Fold the log into the file and let go."""
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
        return int(row[0])
