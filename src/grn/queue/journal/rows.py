"""Jobs and attempts as rows of the journal: one writer and one reader for each.

Values and SQL; the journal owns transactions. A job's row has two checksums: of the submitted
columns, which never change, and of its state, written with each change. A job whose row does not
match is never run.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

import msgspec

from grn.daemon.database import checksum, is_intact
from grn.queue.events import (
    SaveAttemptEnd,
    SaveBegin,
    SaveDrain,
    SaveEnd,
    SaveState,
)
from grn.queue.jobs.job import (
    After,
    EndReason,
    JobSpec,
    JobState,
    Kept,
)

_SUBMITTED = (
    "id", "name", "argv", "cwd", "environment", "extra", "umask", "notify", "time_limit_s",
    "job_type", "label", "arguments", "gpus", "mem_bytes", "is_exclusive", "after", "retries",
    "may_requeue", "submitted_at", "code",
)  # fmt: skip
# Of a job without a group these are blank, and not part of its checksum: journals from before
# there were groups need no new ones.
_GROUP = ("group_name", "submitter", "log", "is_fail_fast", "policy", "at", "options", "tags")
_NO_GROUP = ("", "", "", 0, "", "", "", "")
# Fields of a JobSpec that few jobs set: together one JSON object, in the column `options`.
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "on": str, "without": tuple, "array": int, "array_limit": int, "begin_at": float,
    "only": str, "yields": bool, "at_least_s": float, "is_urgent": bool, "cpus": float,
    "ram_bytes": int, "idle_limit_s": float,
}  # fmt: skip
STATE = (
    "state", "attempt", "tries_left", "memory_attempt", "is_held", "priority", "place", "spared",
)  # fmt: skip
_BEGUN = ("job", "attempt", "lease", "gpus", "boot", "reserved_bytes", "began_at")

COLUMNS = (*_SUBMITTED, *_GROUP)
_SPEC = (
    "id", "job_type", "label", "gpus", "mem_bytes", "is_exclusive", "after", "retries",
    "may_requeue", "group_name", "submitter", "is_fail_fast", "policy", "at",
    "options", "tags", "time_limit_s",
)  # fmt: skip
_of_spec = itemgetter(*(COLUMNS.index(name) for name in _SPEC))
SUBMITTED = f"{', '.join((*_SUBMITTED, *_GROUP))}, checksum"
BEGUN = f"{', '.join(_BEGUN)}, checksum"
KEPT = f"{SUBMITTED}, {', '.join(STATE)}, state_checksum, reason"
SHOWN = (
    "jobs.id, name, argv, cwd, label, job_type, jobs.gpus AS gpus_asked, mem_bytes, is_exclusive,"
    " after, retries, may_requeue, time_limit_s, submitted_at, state, jobs.attempt, is_held,"
    " priority, jobs.reason, jobs.text AS text, jobs.status, jobs.signal, started_at,"
    " jobs.ended_at, attempts.lease, attempts.gpus AS gpus, reserved_bytes, peak_bytes, ran_s,"
    " group_name, at, log, extra, options, notify, tags"
)
PROGRESS = (
    "jobs.id, state, is_held, jobs.attempt, tries_left, memory_attempt, jobs.reason,"
    " jobs.text AS text, jobs.status, jobs.signal, attempts.lease, attempts.gpus AS gpus, began_at,"
    " ran_s, peak_bytes, attempts.reason AS attempt_reason, attempts.text AS attempt_text,"
    " attempts.status AS attempt_status, attempts.signal AS attempt_signal"
)


def _names(columns: str) -> tuple[str, ...]:
    return tuple(column.split(" AS ")[-1].split(".")[-1] for column in columns.split(", "))


ARRAY_INDEX = "json_extract(CASE WHEN json_valid(extra) THEN extra END, '$.GRN_ARRAY_INDEX')"
# Where jobs are searched, without their commands, which are JSON.
_SEARCHED = (
    "jobs.id || ' ' || name || ' ' || label || ' ' || group_name || ' ' || jobs.text || ' ' ||"
    " coalesce(jobs.reason, CASE WHEN is_held THEN 'held' ELSE state END) || ' ' ||"
    " coalesce(attempts.lease, '') || CASE WHEN extra = '{}' THEN '' ELSE"
    f" coalesce(' ' || coalesce(nullif(name, ''), label) || '[' || {ARRAY_INDEX} || ']', '') END"
)
MAX_WORDS = 8  # that are searched for
SHOWN_NAMES, PROGRESS_NAMES = _names(SHOWN), _names(PROGRESS)
_SUBMITTED_COLUMNS = "=?, ".join((*_SUBMITTED, *_GROUP))
REPLACE = f"UPDATE jobs SET {_SUBMITTED_COLUMNS}=?, checksum=? WHERE id=?"
INSERT = (
    f"INSERT INTO jobs ({SUBMITTED}, {', '.join(STATE)}, state_checksum)"
    f" VALUES ({','.join('?' * (len(_SUBMITTED) + len(_GROUP) + len(STATE) + 2))})"
)
NEVER_RUN = "the journal's record of it is damaged: it is kept there and was not run"
RUN_NO_MORE = "the journal's record of it is damaged: it is kept there and is not run again"

_encode_json = msgspec.json.Encoder().encode
_STATES = {state.value: state for state in JobState}
_REASONS = {reason.value for reason in EndReason}
_NUMBER = (int, float)
_SHOWN_KINDS: dict[str, tuple[type | tuple[type, ...], object]] = {  # and what replaces damage
    "id": (int, 0), "name": (str, ""), "argv": (str, "[]"), "cwd": (str, ""), "label": (str, ""),
    "job_type": (str, ""), "gpus_asked": (int, 0), "mem_bytes": (int, None),
    "is_exclusive": (int, 0), "after": (str, ""), "retries": (int, 0), "may_requeue": (int, 0),
    "time_limit_s": (_NUMBER, None), "submitted_at": (_NUMBER, 0.0), "state": (str, "ended"),
    "attempt": (int, 0), "is_held": (int, 0), "priority": (int, 0), "reason": (str, None),
    "text": (str, ""), "status": (int, None), "signal": (int, None), "started_at": (_NUMBER, None),
    "ended_at": (_NUMBER, None), "lease": (str, None), "gpus": (str, None),
    "reserved_bytes": (int, None), "peak_bytes": (int, None), "ran_s": (_NUMBER, None),
    "began_at": (_NUMBER, None), "resident_bytes": (int, None), "group_name": (str, ""),
    "at": (str, ""), "log": (str, ""), "tries_left": (int, 0), "memory_attempt": (int, 0),
    "attempt_reason": (str, None), "attempt_text": (str, None), "attempt_status": (int, None),
    "attempt_signal": (int, None), "extra": (str, "{}"), "options": (str, ""), "notify": (str, ""),
    "tags": (str, ""),
}  # fmt: skip


_GOOD_SHAPES: set[tuple[object, ...]] = set()  # a cache: few shapes occur


class DamagedRow(ValueError):
    """A row that does not match its checksum."""


@dataclass(frozen=True, slots=True)
class SentFolder:
    """The packed folder of a job, and the marks by which a shared one is known."""

    pack: str
    digest: str
    bytes: int
    inode: int
    files: tuple[tuple[str, int, int], ...] = ()  # some: name, inode, time of change in ns


@dataclass(frozen=True, slots=True)
class StopRules:
    """How a job is asked to end, and whether its time limit makes it run again."""

    signal: int = 0  # 0: SIGTERM
    grace_s: float | None = None  # None: as set for all jobs
    again: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """The part of a job that only its launch needs."""

    argv: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    umask: int
    name: str = ""
    notify: str = ""
    time_limit_s: float | None = None
    extra: dict[str, str] = field(default_factory=dict)  # variables of this job alone
    environment_id: int = 0  # the environment's id in the journal
    log: str = ""  # the file that both outputs are appended to, instead of the attempt's
    send: SentFolder | None = None  # for a node that does not have the folder
    fetch: tuple[str, ...] = ()  # patterns of the files that come back from a node
    ending: StopRules = field(default_factory=StopRules)
    cpus: float | None = None  # as stated
    ram_bytes: int | None = None
    memory_cap: float | None = None  # of this attempt: the part of its GPUs that it may take


class SharedCommand(msgspec.Struct, frozen=True):
    """The part of a command that all jobs of one submit share."""

    cwd: str
    environment: dict[str, str]
    umask: int
    notify: str = ""
    send: SentFolder | None = None
    fetch: tuple[str, ...] = ()
    ending: StopRules = StopRules()


class NewJob(msgspec.Struct, frozen=True):
    """A job as it is submitted; no dataclass, which is slow to make 100,000 times."""

    spec: JobSpec  # its id is the one that the journal assigns
    argv: Sequence[str]
    shared: SharedCommand
    name: str = ""
    log: str = ""
    extra: dict[str, str] = {}
    arguments: dict[str, float | str] = {}
    code: str = ""  # fingerprint of its script


_WORDS = "substr(argv, 2, length(argv) - 2)"  # without the brackets of JSON


def matching(text: str) -> tuple[str, list[str]]:
    """Return a condition with its values: each word of a text is found somewhere in a job."""
    words = text.split()[:MAX_WORDS]
    condition = f" AND (instr(lower({_SEARCHED}), ?) OR instr(lower({_WORDS}), ?))"
    values = [lower(spelled) for word in words for spelled in (word, json.dumps(word)[1:-1])]
    return condition * len(words), values


def not_shared(row: dict[str, Any], words: Sequence[str]) -> list[str]:
    """Return the words, lowered, that are not found in what members of an array share.

    As `matching` finds them; a member's id and number are its own.
    """
    state = "held" if row["is_held"] else row["state"]
    texts = lower(" ".join((row["name"], row["label"], row["group_name"], row["text"], state)))
    command = lower(row["argv"][1:-1])
    return [
        lower(word) for word in words
        if lower(word) not in texts and lower(json.dumps(word)[1:-1]) not in command
    ]  # fmt: skip


def lower(word: str) -> str:
    """Lower a word as SQLite does: letters of ASCII only."""
    return "".join(char.lower() if char.isascii() else char for char in word)


def to_json(value: Any) -> str:
    """Encode as JSON of ASCII characters, as `matching` expects it; quickly where it can be."""
    try:
        return _encode_json(value).decode("ascii")
    except UnicodeError:  # also of lone surrogates
        return json.dumps(value)


def told(group: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the columns of a group that a checksum covers."""
    if group == _NO_GROUP:
        return ()
    last = len(group)
    while last > 4 and not group[last - 1]:  # versions 5 to 9 had fewer columns
        last -= 1
    return group[:last] if group[:last] != _NO_GROUP[:4] else ()


def show_tags(tags: Sequence[str]) -> str:
    """Spell tags for their column, a blank on either side of each, so that one can be searched."""
    return f" {' '.join(tags)} " if tags else ""


def options_of(spec: JobSpec, shared: SharedCommand) -> str:
    """Spell the options that few jobs set, empty when this job sets none."""
    given = {name: value for name in _OPTIONS if (value := getattr(spec, name))}
    if shared.send is not None:
        given["send"] = asdict(shared.send)
    if shared.fetch:
        given["fetch"] = shared.fetch
    if shared.ending != StopRules():
        given["ending"] = asdict(shared.ending)
    return json.dumps(given) if given else ""


def submitted(row: tuple[Any, ...]) -> dict[str, Any]:
    """Return the submitted columns by name; raise DamagedRow when they are damaged."""
    _check(row)
    return dict(zip(COLUMNS, row[:-1], strict=True))


def _check(row: tuple[Any, ...]) -> None:
    """Raise DamagedRow when the submitted columns do not match their checksum, the last column."""
    count = len(_SUBMITTED)
    if not is_intact(row[-1], row[:count] + told(row[count:-1])):
        raise DamagedRow(NEVER_RUN)


def kept(
    row: tuple[Any, ...], texts: dict[str, str], latest_attempt: Callable[[int], object]
) -> Kept:
    """Return a job that has not ended; a damaged one with its fault."""
    count = len(_SUBMITTED) + len(_GROUP) + 1
    state, state_sum = row[count:-2], row[-2]
    try:
        _check(row[:count])
        return _kept(spec(row, state[5], texts), state, state_sum)
    except DamagedRow:
        is_state_good = is_intact(state_sum, state)
        return _damaged(row[0], state, is_state_good, latest_attempt(row[0]))


def has_ended(row: tuple[Any, ...]) -> bool:
    """True when a job whose state cannot be read has an outcome: it had ended."""
    return row[-1] in _REASONS


def _kept(spec: JobSpec, state: tuple[Any, ...], stored: object) -> Kept:
    if not is_intact(stored, state):
        raise DamagedRow(NEVER_RUN)
    name, attempt, tries_left, memory_attempt, is_held, _, place, spared = state
    return Kept(
        spec, _STATES[name], attempt, tries_left, memory_attempt, bool(is_held), place,
        spared=spared,
    )  # fmt: skip


def spec(row: tuple[Any, ...], priority: int, texts: dict[str, str]) -> JobSpec:
    """Return what the engine needs of a job; `texts` shares equal texts between jobs."""
    (
        job_id, job_type, label, gpus, mem_bytes, is_exclusive, after, retries, may_requeue, group,
        submitter, is_fail_fast, policy, at, options, tags, limit_s,
    ) = _of_spec(row)  # fmt: skip
    share = texts.setdefault
    # A checksum takes NULL for an empty text: so does this.
    return JobSpec(
        job_id, share(job_type, job_type), share(label, label), gpus, mem_bytes,
        bool(is_exclusive), priority,
        tuple(After(*one) for one in json.loads(after)) if after else (), retries,
        bool(may_requeue), share(group, group or ""), share(submitter, submitter or ""),
        bool(is_fail_fast), share(policy, policy or ""), share(at, at or ""),
        tags=tuple((tags or "").split()), time_limit_s=limit_s,
        **(_read_options(options) if options else {}),
    )  # fmt: skip


def as_new(row: dict[str, Any], priority: int, environment: dict[str, str]) -> NewJob:
    """Return a job as it was submitted, with its present priority."""
    shared = SharedCommand(
        row["cwd"], environment, row["umask"], row["notify"], *folders_of(row["options"]),
        ending_of(row["options"]),
    )  # fmt: skip
    return NewJob(
        spec(tuple(row.values()), priority, {}), json.loads(row["argv"]), shared, row["name"],
        row["log"], json.loads(row["extra"]), json.loads(row["arguments"]), row["code"],
    )  # fmt: skip


def _read_options(text: str) -> dict[str, Any]:
    given = json.loads(text)
    return {name: read(given[name]) for name, read in _OPTIONS.items() if name in given}


def host_needs_of(options: str) -> tuple[float | None, int | None]:
    """Return the stated cores and host memory of a job."""
    given = json.loads(options) if options else {}
    return given.get("cpus"), given.get("ram_bytes")


def folders_of(options: str) -> tuple[SentFolder | None, tuple[str, ...]]:
    """Return the folder that is sent with a job, and the patterns of the files it gives back."""
    given = json.loads(options) if options else {}
    send = given.get("send")
    if send is not None:
        send = SentFolder(**{**send, "files": tuple(tuple(one) for one in send["files"])})
    return send, tuple(given.get("fetch", ()))


def ending_of(options: str) -> StopRules:
    """Return how a job is asked to end."""
    given = json.loads(options) if options else {}
    return StopRules(**given.get("ending", {}))


def _damaged(job_id: int, state: tuple[Any, ...], is_state_good: bool, last: object) -> Kept:
    """Return a job that must not be run from its row; an attempt of it may still be alive.

    Where its state cannot be read it may have been queued or running: the latest attempt's own
    files decide.
    """
    if is_state_good:
        known, attempt = JobState(state[0]), state[1]
    else:
        attempt = last if isinstance(last, int) and last > 0 else 0
        known = JobState.STARTING if attempt else JobState.QUEUED
    fault = NEVER_RUN if not attempt else RUN_NO_MORE
    return Kept(JobSpec(job_id, "", ""), known, attempt, place=job_id, fault=fault)


def lease_and_boot(row: tuple[Any, ...]) -> tuple[str, str]:
    """Return the lease and the boot of an attempt's row, empty when it is damaged."""
    *begun, stored = row
    return (begun[2], begun[4]) if is_intact(stored, tuple(begun)) else ("", "")


def readable(names: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row for people; name damaged values and leave them blank."""
    row = dict(zip(names, values, strict=True))
    shape = (names, *map(type, values))
    if shape in _GOOD_SHAPES:
        return row
    damaged = [name for name, value in row.items() if not _is_kind(name, value)]
    for name in damaged:
        row[name] = _SHOWN_KINDS[name][1]
    if damaged:
        text = f"damaged in the journal: {', '.join(damaged)}"
        row["text"] = "; ".join(filter(None, (row["text"], text)))
    else:
        _GOOD_SHAPES.add(shape)
    return row


def _is_kind(name: str, value: object) -> bool:
    kind, blank = _SHOWN_KINDS[name]
    return isinstance(value, kind) or (value is None and blank is None)


def fill_checksums(db: sqlite3.Connection) -> None:
    """Add checksums to all rows of a journal of an older version."""
    lenient, db.text_factory = db.text_factory, _undecoded  # undecodable text will not match
    for table, columns, target in (
        ("jobs", _SUBMITTED, "checksum"),
        ("jobs", STATE, "state_checksum"),
        ("attempts", _BEGUN, "checksum"),
        ("identity", ("name",), "checksum"),
    ):
        keys = {"jobs": ("id",), "attempts": ("job", "attempt"), "identity": ("rowid",)}[table]
        found = db.execute(f"SELECT {', '.join((*keys, *columns))} FROM {table}").fetchall()
        where = " AND ".join(f"{key} = ?" for key in keys)
        db.executemany(
            f"UPDATE {table} SET {target} = ? WHERE {where}",
            [(checksum(*row[len(keys) :]), *row[: len(keys)]) for row in found],
        )
    db.text_factory = lenient


def _undecoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _save_state(db: sqlite3.Connection, action: SaveState, _boot: str, now: float) -> None:
    started_at = now if action.state is JobState.STARTING else None
    state = (
        action.state.value, action.attempt, action.tries_left, action.memory_attempt,
        int(action.is_held), action.priority, action.place, action.spared,
    )  # fmt: skip
    db.execute(
        f"UPDATE jobs SET {'=?, '.join(STATE)}=?, state_checksum=?,"
        " started_at=ifnull(?, started_at) WHERE id=?",
        (*state, checksum(*state), started_at, action.job),
    )


def _save_begin(db: sqlite3.Connection, action: SaveBegin, boot: str, now: float) -> None:
    gpus = ",".join(map(str, action.gpus))
    begun = (
        action.job, action.attempt, action.lease, gpus, boot, action.reserved_bytes, float(now),
    )  # fmt: skip
    db.execute(
        f"INSERT OR REPLACE INTO attempts ({BEGUN}) VALUES (?,?,?,?,?,?,?,?)",
        (*begun, checksum(*begun)),
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
