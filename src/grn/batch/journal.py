"""The journal of a batch, beside its file: one JSON line for each job that ended.

Append-only: a killed batch loses at most the line it was writing, and runs that job again. Each run
of a batch first adds a line with the version of the lines that follow; lines before any such line
are of version 1, which differs in nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from grn.batch.file import BatchJob
from grn.errors import MachineError, UsageError

VERSION = 2
JOURNAL, REPORT, LOGS = "journal.jsonl", "report.json", "logs"
_KINDS: dict[str, type | tuple[type, ...]] = {  # the types of fields that every version wrote
    "id": str, "line": int, "command": str, "outcome": str, "status": int, "gpu": str,
    "started_at": (int, float), "duration_s": (int, float), "attempts": int, "log": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """How one job of a batch ended."""

    id: str  # of its text, so that lines may be moved about in the file
    line: int
    command: str
    outcome: str  # ok, failed, oom, interrupted
    status: int  # exit status, or minus the signal
    gpu: str
    started_at: float
    duration_s: float
    attempts: int
    peak_bytes: int | None
    log: str
    trouble: str = ""
    because: str = ""  # the cause of running out of memory, if it did
    past: str = ""  # why earlier attempts failed, where the job was not to blame

    @property
    def is_ok(self) -> bool:
        return self.outcome == "ok"

    def row(self) -> dict[str, object]:
        """Return its fields, as in the journal and the report."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in fields(Entry))


def id_of(job: BatchJob) -> str:
    """Return the id of a job, which is the same in the next run of the batch."""
    return hashlib.sha256(job.text).hexdigest()[:16] + (f"-{job.repeat}" if job.repeat else "")


class BatchJournal:
    """The folder of a batch, locked while the batch runs."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._file = -1

    def open(self, *, is_resumed: bool) -> dict[str, Entry]:
        """Lock the folder; return the finished jobs when the batch is resumed."""
        try:
            os.makedirs(os.path.join(self.folder, LOGS), exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(os.path.join(self.folder, JOURNAL), flags, 0o666)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise UsageError(
                f"another batch is writing to {self.folder}.", "Wait for it, or choose --out DIR."
            ) from error
        except OSError as error:
            raise MachineError(
                f"the folder {self.folder} cannot be used: {error.strerror}.",
                "Choose another with --out DIR.",
            ) from error
        before = finished(self.folder) if is_resumed else {}
        self._add({"version": VERSION} if is_resumed else {"version": VERSION, "begin": "anew"})
        return before

    def close(self) -> None:
        """Unlock the folder."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def log_path(self, job: BatchJob) -> str:
        """Return the log file of a job."""
        return os.path.join(self.folder, LOGS, f"{job.line:04d}.log")

    def add(self, entry: Entry) -> None:
        """Append how a job ended."""
        self._add(entry.row())

    def write_report(self, report: dict[str, object]) -> str:
        """Write the report atomically, a line for each job; return its path."""
        path = os.path.join(self.folder, REPORT)
        # By hand: the encoder that indents takes ten times as long.
        parts = [f"{json.dumps(name)}: {_in_lines(value)}" for name, value in report.items()]
        with open(f"{path}.new", "w") as file:
            file.write("{" + ",\n".join(parts) + "}\n")
        os.replace(f"{path}.new", path)
        return path

    def _add(self, row: dict[str, object]) -> None:
        data = json.dumps(row).encode() + b"\n"
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise MachineError(
                f"{self.folder}/{JOURNAL} cannot be written: {error.strerror}.",
                "Make room, and go on with --resume.",
            ) from error
        if written < len(data):
            raise MachineError(
                f"{self.folder}/{JOURNAL} cannot be written: the disk is full.",
                "Make room, and go on with --resume.",
            )


def finished(folder: str) -> dict[str, Entry]:
    """Return the jobs that succeeded since the batch was last started without --resume."""
    found: dict[str, Entry] = {}
    version: object = 1
    for row in _rows(os.path.join(folder, JOURNAL)):
        if "begin" in row:
            found.clear()
        if "begin" in row or "version" in row:
            version = row.get("version", 1)
            continue
        if isinstance(version, int) and version > VERSION:
            raise UsageError(
                f"{folder}/{JOURNAL} was written by a newer grn.", "Use that one, or --out DIR."
            )
        entry = _entry(row)
        if entry is None:
            continue  # of another version: that job runs again
        if entry.is_ok:
            found[entry.id] = entry
        else:
            found.pop(entry.id, None)
    return found


def _entry(row: dict[str, Any]) -> Entry | None:
    if not all(isinstance(row.get(name), kind) for name, kind in _KINDS.items()):
        return None
    try:
        return Entry(**row)
    except TypeError:
        return None


def _rows(path: str) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a batch that was killed
        if isinstance(row, dict):
            yield row


def _in_lines(value: object) -> str:
    """Write a list as a line for each element."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "]"
