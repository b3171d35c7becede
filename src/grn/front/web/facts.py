"""What the page shows, asked from the negotiator and the user's queue; it changes nothing there.

Looks only while somebody watches, and remembers a little of what it has seen: curves of memory and
the leases that ended meanwhile.
"""

from __future__ import annotations

import os
import pwd
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from grn import wire
from grn.client import logs, queue
from grn.client.connection import ask_once
from grn.errors import GrnError

Row = dict[str, Any]

MOST_ROWS = 200  # of waiting requests and queued jobs that the page lists
MOST_POINTS = 720  # of a curve; older halves are thinned out
MOST_ENDS = 2000
LOG_CHUNK_BYTES = 128 << 10


@dataclass(slots=True)
class Curve:
    """The memory of one lease over time."""

    row: Row
    points: list[tuple[float, int | None, float | None]] = field(default_factory=list)

    def add(self, at: float, used_bytes: int | None, load_pct: float | None) -> None:
        """Add a point; a long curve keeps every other one."""
        self.points.append((round(at, 1), used_bytes, load_pct))
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]


class Facts:
    """All that the page may ask for."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # lease or request -> when it began, as first seen
        self._names: dict[int, str] = {}
        self.curves: dict[str, Curve] = {}
        self.ends: deque[Row] = deque(maxlen=MOST_ENDS)

    # --- now -----------------------------------------------------------------------------

    def now(self) -> Row:
        """Return the machine and the queue as they are."""
        at = time.time()
        status, trouble = self._status()
        jobs, counts, queue_trouble = self._jobs()
        leases = [self._lease(row, at) for row in status["leases"]]
        waiting = [self._waiting(row, at) for row in status["waiting"][:MOST_ROWS]]
        self._remember(leases, status["gpus"], at)
        return {
            "gpus": status["gpus"],
            "leases": leases,
            "waiting": waiting,
            "waiting_count": len(status["waiting"]),
            "jobs": jobs,
            "counts": counts,
            "trouble": trouble,
            "queue_trouble": queue_trouble,
            "version": status.get("version", ""),
            "uid": os.getuid(),
        }

    def _status(self) -> tuple[Row, str]:
        try:
            status: Row = ask_once({"op": "status"})["status"]
        except GrnError as error:
            return {"gpus": [], "leases": [], "waiting": []}, f"{error.message} {error.hint}"
        return status, status.get("trouble") or ""

    def _jobs(self) -> tuple[list[Row], Row, str]:
        try:
            answer = queue.ask({"op": "list", "which": "alive", "most": MOST_ROWS}, may_start=False)
            counts = queue.ask({"op": "count"}, may_start=False)["counts"]
        except GrnError:
            return [], {"running": 0, "queued": 0, "ended": 0}, "no queue runs"
        return [job_row(row) for row in answer["jobs"]], counts, ""

    def _lease(self, row: Row, at: float) -> Row:
        row["since"] = self._began(row["id"], "runs", at - row.pop("for_s"))
        row["user_name"] = self.user_name(row["user"])
        return row

    def _waiting(self, row: Row, at: float) -> Row:
        row["since"] = self._began(row["id"], "waits", at - row.pop("for_s"))
        row["user_name"] = self.user_name(row["user"])
        return row

    def _began(self, name: str, what: str, since: float) -> float:
        """Keep the first figure: one that trembles would be a change every time."""
        return self._since.setdefault(f"{name} {what}", round(since, 1))

    def user_name(self, uid: int) -> str:
        """Name a user."""
        if uid not in self._names:
            try:
                self._names[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._names[uid] = str(uid)
        return self._names[uid]

    # --- what was seen -------------------------------------------------------------------

    def _remember(self, leases: list[Row], gpus: list[Row], at: float) -> None:
        loads = {gpu["index"]: gpu["load_pct"] for gpu in gpus}
        here = {row["id"] for row in leases}
        for row in leases:
            curve = self.curves.setdefault(row["id"], Curve(row))
            curve.row = row
            load = max((loads.get(gpu) or 0.0 for gpu in row["gpus"]), default=None)
            curve.add(at, row["used_bytes"], load)
        for name in [name for name in self.curves if name not in here]:
            curve = self.curves[name]
            if curve.row.get("ended_at") is None:
                curve.row = {**curve.row, "ended_at": round(at, 1)}
                self.ends.append(_span(curve.row))
        self._forget(here)

    def _forget(self, here: set[str]) -> None:
        gone = [name for name in self.curves if name not in here]
        for name in gone[: max(0, len(gone) - MOST_ENDS)]:
            del self.curves[name]
        if len(self._since) > 20_000:
            self._since = {key: at for key, at in self._since.items() if key.split()[0] in here}

    def spans(self, since: float) -> list[Row]:
        """Return what ran on which GPU and when: leases of everybody, and one's own past jobs."""
        spans = [_span(curve.row) for curve in self.curves.values() if not _is_over(curve.row)]
        spans += [row for row in self.ends if row["ended_at"] >= since]
        seen = {row["lease"] for row in spans}
        for row in self.history(MOST_ENDS):
            if row["ended_at"] and row["ended_at"] < since:
                break
            if row["started_at"] and row["gpus"] and row["lease"] not in seen:
                spans.append(_job_span(row, self.user_name(os.getuid())))
        return spans

    # --- jobs ----------------------------------------------------------------------------

    def history(self, most: int) -> list[Row]:
        """Return one's jobs that have ended, newest first."""
        try:
            answer = queue.ask({"op": "list", "which": "ended", "most": most}, may_start=False)
        except GrnError:
            return []
        return [job_row(row) for row in answer["jobs"]]

    def job(self, number: int) -> Row:
        """Return all of one job, with the curves of its attempts."""
        row = job_row(queue.ask({"op": "show", "job": number}, may_start=False)["job"])
        leases = [attempt["lease"] for attempt in row["attempts"]]
        row["curves"] = {
            lease: self.curves[lease].points for lease in leases if lease in self.curves
        }
        return row

    def lease(self, name: str) -> Row | None:
        """Return one lease, running or seen before, with its curve."""
        curve = self.curves.get(name)
        return None if curve is None else {**curve.row, "curve": curve.points}

    def log(self, number: int, name: str, at: int, attempt: int | None) -> Row:
        """Return a piece of what a job has printed, and where the next begins."""
        row = queue.ask({"op": "show", "job": number}, may_start=False)["job"]
        folder = row["folder"]
        if folder and attempt:
            folder = f"{folder.rpartition('.')[0]}.{attempt}"
        data = logs.read_log(folder, name)
        start = max(at, len(data) - LOG_CHUNK_BYTES) if at == 0 else at
        piece = data[start : start + LOG_CHUNK_BYTES]
        is_over = row["state"] == "ended" and start + len(piece) >= len(data)
        text = piece.decode("utf-8", "replace")
        return {"text": text, "from": start, "next": start + len(piece), "is_over": is_over}

    def profiles(self) -> list[Row]:
        """Return what was learned of job types."""
        try:
            rows: list[Row] = ask_once({"op": "profiles"})["profiles"]
        except GrnError:
            return []
        return rows


def job_row(row: Row) -> Row:
    """Return a job as the page shows it: words that are no text are spelled out."""
    words = [wire.meant(word) for word in row["argv"]]
    row["argv"] = [word.encode("utf-8", "backslashreplace").decode() for word in words]
    row["cwd"] = wire.meant(row["cwd"]).encode("utf-8", "backslashreplace").decode()
    return row


def _is_over(row: Row) -> bool:
    return row.get("ended_at") is not None


def _span(row: Row) -> Row:
    return {
        "lease": row["id"],
        "job": None,
        "label": row["label"],
        "user": row["user_name"],
        "gpus": row["gpus"],
        "from": row["since"],
        "ended_at": row.get("ended_at"),
        "outcome": "",
        "reserved_bytes": row["reserved_bytes"],
        "peak_bytes": row["peak_bytes"],
    }


def _job_span(row: Row, user: str) -> Row:
    return {
        "lease": row["lease"],
        "job": row["id"],
        "label": row["name"] or row["label"],
        "user": user,
        "gpus": row["gpus"],
        "from": row["started_at"],
        "ended_at": row["ended_at"],
        "outcome": row["reason"] or "",
        "reserved_bytes": row["reserved_bytes"],
        "peak_bytes": row["peak_bytes"],
    }
