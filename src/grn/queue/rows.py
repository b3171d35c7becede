"""Jobs and attempts as rows of the journal: what is written for each action, and read again.

Values and SQL; transactions are the journal's.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from grn.queue.events import (
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

KEPT = (
    "id, job_type, label, gpus, mem_bytes, is_exclusive, priority, after, retries, may_requeue,"
    " state, attempt, tries_left, memory_attempt, is_held, place, spared"
)
SHOWN = (
    "jobs.id, name, argv, cwd, label, job_type, jobs.gpus AS gpus_asked, mem_bytes, is_exclusive,"
    " after, retries, may_requeue, time_limit_s, submitted_at, state, jobs.attempt, is_held,"
    " priority, jobs.reason, jobs.text AS text, jobs.status, jobs.signal, started_at,"
    " jobs.ended_at, attempts.lease, attempts.gpus AS gpus, reserved_bytes, peak_bytes, ran_s"
)
INSERT = (
    "INSERT INTO jobs (id, name, argv, cwd, environment, extra, umask, notify, time_limit_s,"
    " job_type, label, arguments, gpus, mem_bytes, is_exclusive, after, retries, may_requeue,"
    " submitted_at, state, tries_left, priority, place, code, is_held)"
    " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,'queued',?,?,?,?,?)"
)


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
    code: str = ""  # fingerprint of its script


def of_job(job_id: int, job: NewJob, environment: int, now: float) -> tuple[Any, ...]:
    command, spec = job.command, job.spec
    after = json.dumps([[one.job, one.must_be_ok] for one in spec.after]) if spec.after else ""
    return (
        job_id, command.name, json.dumps(command.argv), command.cwd, environment,
        json.dumps(job.extra), command.umask, command.notify, command.time_limit_s, spec.job_type,
        spec.label, json.dumps(job.arguments), spec.gpus, spec.mem_bytes, spec.is_exclusive, after,
        spec.retries, spec.may_requeue, now, spec.retries, spec.priority, job_id,
        job.code,
    )  # fmt: skip


def kept(row: tuple[Any, ...], texts: dict[str, str]) -> Kept:
    (job_id, job_type, label, gpus, mem, exclusive, priority, after, retries, may_requeue, state,
     attempt, tries_left, memory_attempt, is_held, place, spared) = row  # fmt: skip
    spec = JobSpec(
        job_id, texts.setdefault(job_type, job_type), texts.setdefault(label, label), gpus, mem,
        bool(exclusive), priority,
        tuple(After(*one) for one in json.loads(after)) if after else (),
        retries, bool(may_requeue),
    )  # fmt: skip
    return Kept(
        spec, JobState(state), attempt, tries_left, memory_attempt, bool(is_held), place,
        spared=spared,
    )  # fmt: skip


def _save_state(db: sqlite3.Connection, action: SaveState, _boot: str, now: float) -> None:
    started_at = now if action.state is JobState.STARTING else None
    db.execute(
        "UPDATE jobs SET state=?, attempt=?, tries_left=?, memory_attempt=?, is_held=?,"
        " priority=?, place=?, spared=?, started_at=ifnull(?, started_at) WHERE id=?",
        (
            action.state.value, action.attempt, action.tries_left, action.memory_attempt,
            action.is_held, action.priority, action.place, action.spared, started_at, action.job,
        ),
    )  # fmt: skip


def _save_begin(db: sqlite3.Connection, action: SaveBegin, boot: str, now: float) -> None:
    gpus = ",".join(map(str, action.gpus))
    db.execute(
        "INSERT OR REPLACE INTO attempts (job, attempt, lease, gpus, boot, reserved_bytes,"
        " began_at) VALUES (?,?,?,?,?,?,?)",
        (action.job, action.attempt, action.lease, gpus, boot, action.reserved_bytes, now),
    )


def _save_attempt_end(db: sqlite3.Connection, action: SaveAttemptEnd, _b: str, now: float) -> None:
    exit = action.exit
    db.execute(
        "UPDATE attempts SET ended_at=?, ran_s=?, reason=?, status=?, signal=?, peak_bytes=?,"
        " resident_bytes=?, text=? WHERE job=? AND attempt=?",
        (
            exit.ended_at or now, exit.ran_s, action.reason.value, exit.status, exit.signal,
            action.peak_bytes, exit.resident_bytes, action.text, action.job, action.attempt,
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


WRITERS: dict[type, Callable[[sqlite3.Connection, Any, str, float], None]] = {
    SaveState: _save_state,
    SaveBegin: _save_begin,
    SaveAttemptEnd: _save_attempt_end,
    SaveEnd: _save_end,
    SaveDrain: _save_drain,
}
