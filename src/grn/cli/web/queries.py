"""Read-only queries of the page to the negotiator and the user's queue."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from grn.cli.report.usage import Span
from grn.client import logs, negotiator, queue
from grn.client.negotiator import ask_once
from grn.client.state_mirror import MAX_ENDS, NEGOTIATOR, QUEUE, Snapshot
from grn.errors import DaemonError, DaemonNotRunning, GrnError
from grn.model.outcome import Outcome
from grn.paths import user_name

Row = dict[str, Any]

MAX_ROWS = 200  # of waiting requests and queued jobs that the page lists
MAX_PAST = 2000  # ended jobs that a timeline looks at
LOG_CHUNK_BYTES = 128 << 10
FIRST_WORD_S = 5.0  # for a busy daemon; one that does not run is known at once
NO_COUNTS = {"running": 0, "queued": 0, "ended": 0}


class Facts:
    """The queries of the page."""

    # --- now -----------------------------------------------------------------------------

    def now(self, picture: Snapshot) -> Row:
        """Return the machine and the queue as they are."""
        waiting = picture.in_turn()
        whys = {row["tag"]: row["why"] for row in waiting}  # one text for a job and its request
        jobs = sorted(picture.jobs.values(), key=_by_state)[:MAX_ROWS]
        is_lost = bool(picture.trouble[NEGOTIATOR])
        return {
            "gpus": [] if is_lost else sorted(picture.gpus.values(), key=lambda gpu: gpu["index"]),
            "leases": [] if is_lost else [self._named(row) for row in picture.leases.values()],
            "waiting": [
                self._named(row) | {"place": place}
                for place, row in enumerate(waiting[:MAX_ROWS], 1)
            ],
            "waiting_count": len(waiting),
            "jobs": [
                readable({**row, "why": whys.get(row.get("tag"), row["why"])}) for row in jobs
            ],
            "counts": picture.queue.get("counts", NO_COUNTS),
            "trouble": picture.trouble[NEGOTIATOR] or picture.negotiator.get("trouble") or "",
            "queue_trouble": picture.trouble[QUEUE] or picture.queue.get("trouble") or "",
            "uid": os.getuid(),
        }

    def _named(self, row: Row) -> Row:
        return {**row, "user_name": user_name(row["user"])}

    # --- the past ------------------------------------------------------------------------

    def spans(self, picture: Snapshot, since: float, ended: Sequence[Row]) -> list[Span]:
        """Return what ran on which GPU and when: the user's own jobs, and all other leases.

        A lease of one's own queue that has ended stands for no job: one lease may have served
        several jobs, and one job may have had several leases.
        """
        past = [job for job in ended if job["started_at"] and job["gpus"]]
        served = {job["lease"] for job in past}
        origin = picture.queue.get("origin")
        busy = {job["lease"]: job["id"] for job in picture.jobs.values() if job["lease"]}
        spans = [self._span(row, job=busy.get(row["id"])) for row in picture.leases.values()]
        for row in picture.ends:
            is_unused = row["outcome"] == Outcome.CANCELLED.value
            if row["ended_at"] >= since and row["id"] not in served and not is_unused:
                is_own = row["user"] == os.getuid() and origin is not None
                is_job = not (is_own and row.get("origin") == origin)
                spans.append(self._span(row, is_job=is_job))
        user = user_name(os.getuid())
        return spans + [_job_span(job, user) for job in past]

    def gaps(self, picture: Snapshot, since: float) -> list[str]:
        """Return which parts of a period are unknown."""
        found = []
        if len(picture.ends) == picture.ends.maxlen:
            text = f"Of all that did not come from your own queue the last {MAX_ENDS} leases are"
            found.append(f"{text} known, and what runs now.")
        started_at = picture.negotiator.get("started_at") or 0.0
        if started_at > since:
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(started_at))
            found.append(f"The negotiator was started at {when}: of others' jobs before that"
                         " nothing is known.")  # fmt: skip
        return found

    def _span(self, row: Row, *, job: int | None = None, is_job: bool = True) -> Span:
        return Span(
            label=row["label"],
            type=row["label"],
            user=user_name(row["user"]),
            gpus=tuple(row["gpus"]),
            began_at=row["since_at"],
            ended_at=row.get("ended_at"),
            outcome=row.get("outcome", ""),
            reserved_bytes=row["reserved_bytes"],
            peak_bytes=row["peak_bytes"],
            lease=row["id"],
            job=job,
            is_job=is_job,
        )

    def past(self, since: float, most: int = MAX_PAST) -> list[Row]:
        """Return one's jobs that have ended since, newest first; none if no queue runs."""
        try:
            return self.history(most, since)
        except DaemonError:  # leases are shown without them
            return []

    def history(self, most: int, since: float = 0.0) -> list[Row]:
        """Return one's jobs that have ended, newest first."""
        message = {"op": "list", "which": "ended", "most": most, "since": since}
        try:
            answer = queue.ask(message, may_start=False)
        except DaemonNotRunning as error:
            text = "Your queue does not run: what has ended there cannot be shown."
            raise DaemonError(text, "`grn queue start` starts it.") from error
        return [readable(queue.typed(row)) for row in answer["jobs"]]

    def profiles(self) -> list[Row]:
        """Return what was learned of job types."""
        rows: list[Row] = negotiator.ask_all({"op": "profiles"})["profiles"]
        return rows

    # --- one job, one lease --------------------------------------------------------------

    def job(self, picture: Snapshot, number: int) -> Row:
        """Return all of one job, with the curve of its last attempt."""
        row = readable(queue.show(number, may_start=False))
        row["curve"] = self._curve(row["lease"]) if row["lease"] else []
        lease = picture.leases.get(row["lease"])
        row["loads"] = recent_loads(picture, row["gpus"]) if lease else []
        if lease:  # a run gives back what it does not need
            row |= {key: lease[key] for key in ("used_bytes", "reserved_bytes")}
        return row

    def lease(self, picture: Snapshot, name: str) -> Row | None:
        """Return one lease, running or ended of late, with its curve."""
        row = picture.leases.get(name) or next((r for r in picture.ends if r["id"] == name), None)
        if row is None:
            return None
        loads = recent_loads(picture, row["gpus"]) if name in picture.leases else []
        return {**self._named(row), "curve": self._curve(name), "loads": loads}

    def _curve(self, lease: str) -> list[tuple[float, int | None]]:
        try:
            curve = ask_once({"op": "samples", "lease": lease})["curve"]
        except GrnError:
            return []  # too short to have one, or forgotten
        values = enumerate(curve["used_bytes"])
        return [(round(curve["since_at"] + n * curve["step_s"], 1), used) for n, used in values]

    def log(self, number: int, name: str, at: int, attempt: int | None) -> Row:
        """Return a piece of what a job has printed, and where the next begins."""
        row = queue.show(number, may_start=False)
        folder = row["folder"]
        if folder and attempt:
            folder = f"{folder.rpartition('.')[0]}.{attempt}"
        data = logs.read_log(folder, name)
        start = at or max(0, len(data) - LOG_CHUNK_BYTES)
        piece = data[start : start + LOG_CHUNK_BYTES]
        is_over = row["state"] == "ended" and start + len(piece) >= len(data)
        text = piece.decode("utf-8", "replace")
        return {"text": text, "from": start, "next": start + len(piece), "is_over": is_over}


def recent_loads(picture: Snapshot, indices: Sequence[int]) -> list[Row]:
    """Return how busy some GPUs were in the last two minutes."""
    gpus = {gpu["index"]: uuid for uuid, gpu in picture.gpus.items()}
    known = [(index, picture.samples.get(gpus.get(index, ""))) for index in indices]
    return [
        {"gpu": index, "step_s": past.step_s, "load_pct": list(past.load_pct)}
        for index, past in known
        if past is not None
    ]


def readable(row: Row) -> Row:
    """Return a job as the page shows it: words that are no text are spelled out."""
    words = [*row["argv"], row["cwd"]]
    *argv, cwd = (word.encode("utf-8", "backslashreplace").decode() for word in words)
    return {**row, "argv": argv, "cwd": cwd}


def _by_state(row: Row) -> tuple[bool, int, int]:
    """Sort what runs first, then by priority and age."""
    return (row["state"] in ("queued", "held"), -row["priority"], row["id"])


def _job_span(row: Row, user: str) -> Span:
    return Span(
        label=row["name"] or row["label"],
        type=row["label"],
        user=user,
        gpus=tuple(row["gpus"]),
        began_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["reason"] or "",
        reserved_bytes=row["reserved_bytes"],
        peak_bytes=row["peak_bytes"],
        lease=row["lease"],
        job=row["id"],
    )


def settle(picture: Snapshot, since: float) -> bool:
    """True when both daemons have answered, or their time is over."""
    has_spoken = bool(picture.negotiator or picture.trouble[NEGOTIATOR])
    has_queue = bool(picture.queue or picture.trouble[QUEUE])
    return (has_spoken and has_queue) or time.monotonic() - since > FIRST_WORD_S
