"""Read-only queries of the page: to the negotiator, the user's queue, and a folder of sweeps."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from typing import Any

from grn.cli.output.job_text import spelled
from grn.cli.report import sweep_chart, sweep_page
from grn.cli.report.usage import IdleUse, Period, Span
from grn.cli.web import job_list
from grn.client import logs, queue
from grn.client.negotiator import ask_all, ask_once
from grn.errors import DaemonError, DaemonNotRunning, GrnError, UnknownJob, UsageError
from grn.model import ansi
from grn.model.outcome import Outcome, OutcomeKind, kind_of
from grn.model.text import cut
from grn.paths import user_name
from grn.protocol.negotiator_rows import BookingRow, CurveRow, EndRow, GpuRow, LeaseRow, WaitingRow
from grn.protocol.queue_rows import FoldedRow, JobRow, NodeRow
from grn.protocol.rows import as_json, read, read_all
from grn.protocol.snapshot import MAX_ENDS, NEGOTIATOR, QUEUE, Snapshot
from grn.sweep.manifest import SweepFolder
from grn.sweep.results import ranked

Row = dict[str, Any]

MAX_FAILED = 10_000  # jobs that are looked through for failed ones
MAX_ALIVE = 5000  # jobs of a long queue that are looked through
MAX_PAST = 2000  # ended jobs that a timeline looks at: the latest
MAX_LONG = 500  # and the longest, which thousands of short ones must not hide
MAX_SWEEPS = 200
MAX_COMMAND = 200  # characters of a command in a timeline or report
LOG_CHUNK_BYTES = 128 << 10
FIRST_WORD_S = 5.0  # for a busy daemon; one that does not run is known at once
NO_COUNTS = {"running": 0, "queued": 0, "held": 0, "ended": 0}


# --- now -----------------------------------------------------------------------------------


def now(picture: Snapshot) -> Row:
    """Return the machine and the queue as they are."""
    gpus = sorted(picture.gpus.values(), key=lambda gpu: gpu.index)
    is_lost = bool(picture.trouble[NEGOTIATOR])
    trouble = picture.trouble[NEGOTIATOR] or picture.negotiator.trouble or ""
    if is_lost and any(node.gpus for node in picture.nodes.values()):
        trouble = ""  # with other machines this one need not have GPUs
    host = picture.negotiator.host
    names = job_list.lease_names(picture)
    leases = picture.leases.values()
    return {
        "gpus": [] if is_lost else [_gpu(gpu) for gpu in gpus],
        "host": None if is_lost or host is None else as_json(host),
        "loads": [] if is_lost else recent_loads(picture, [gpu.index for gpu in gpus]),
        "leases": [] if is_lost else [_named(row) | {"name": names.get(row.id)} for row in leases],
        **jobs(picture),
        "counts": picture.queue.counts or NO_COUNTS,
        "is_drained": picture.queue.drained,
        "is_lost": is_lost,
        "trouble": trouble,
        "queue_trouble": picture.trouble[QUEUE] or picture.queue.trouble,
        "bookings": [] if is_lost else [_named(row) for row in picture.negotiator.bookings],
        "nodes": [] if picture.trouble[QUEUE] else [_node(node) for node in _sorted_nodes(picture)],
        "uid": os.getuid(),
    }


def jobs_of_queue(picture: Snapshot, wanted: str, most: int) -> Row:
    """Do as `jobs` does, and ask the queue for jobs that its feed leaves out of a long queue."""
    alive = sum(count for state, count in picture.queue.counts.items() if state != "ended")
    if len(picture.jobs) >= alive:
        return jobs(picture, wanted, most)
    rows, _ = _jobs({"which": "alive", "most": MAX_ALIVE, "match": wanted, "folds": True})
    picture = copy.copy(picture)
    picture.jobs = picture.jobs | {row.id: row for row in rows}
    members = [FoldedRow(row.array, row.numbers, row.members) for row in rows if row.members]
    return jobs(picture, wanted, most, members)


def jobs(
    picture: Snapshot, wanted: str = "", most: int = job_list.MAX_ROWS,
    members: Sequence[FoldedRow] | None = None,
) -> Row:  # fmt: skip
    """Return the jobs that run and wait, those that match if a filter is given.

    `members` are those of arrays that match, without rows of their own.
    """
    unlisted = members if members is not None else () if wanted else picture.queue.folded
    found = job_list.listed(picture, os.getuid(), wanted, most, unlisted)
    return {
        "jobs": [as_json(row) for row in found.rows],
        "running": found.running,
        "waiting": found.waiting,
        "shown": found.shown,
        "next_start_at": found.next_start_at,
    }


def _gpu(gpu: GpuRow) -> Row:
    """Return a GPU with the names of the users of idle processes."""
    strangers = [
        {**as_json(one), "user_name": "?" if one.user is None else user_name(one.user)}
        for one in gpu.idle_strangers
    ]
    return {**as_json(gpu), "idle_strangers": strangers}


def _sorted_nodes(picture: Snapshot) -> list[NodeRow]:
    return sorted(picture.nodes.values(), key=lambda node: node.key)


def _node(node: NodeRow) -> Row:
    """Return a node as the page shows it; its users are those of another machine."""
    row = {**as_json(node), "leases": [{**as_json(one), "user_name": ""} for one in node.leases]}
    return row | ({"heard_at": None} if node.state == "up" else {})


def _named(row: LeaseRow | WaitingRow | EndRow | BookingRow) -> Row:
    return {**as_json(row), "user_name": user_name(row.user)}


# --- the past ------------------------------------------------------------------------------


def spans(picture: Snapshot, since: float, ended: Sequence[JobRow]) -> list[Span]:
    """Return what ran on which GPU and when: the user's own jobs, and all other leases.

    A lease of one's own queue that has ended stands for no job: one lease may have served
    several jobs, and one job may have had several leases.
    """
    past = [(job, job.started_at) for job in ended if job.started_at and job.gpus]
    served = {job.lease for job, _ in past}
    origin = picture.queue.origin
    busy = {job.lease: job for job in picture.jobs.values() if job.lease}
    spans = [_span(row, job=busy.get(row.id)) for row in picture.leases.values()]
    user = user_name(os.getuid())
    spans += [
        _job_span(job, job.started_at, user)
        for job in picture.jobs.values()
        if job.where and job.started_at
    ]
    for row in picture.ends:
        is_unused = row.outcome == Outcome.NOT_STARTED.value
        if row.ended_at >= since and row.id not in served and not is_unused:
            is_own = row.user == os.getuid() and origin is not None
            is_job = not (is_own and row.origin == origin)
            spans.append(_span(row, is_job=is_job))
    return spans + [_job_span(job, began_at, user) for job, began_at in past]


def idle_uses(picture: Snapshot, period: Period) -> list[IdleUse]:
    """Return who held GPUs in a period and did not use them, as far as it is known."""
    found = []
    for lease in picture.leases.values():
        now_s = 0.0 if lease.idle_since_at is None else period.until - lease.idle_since_at
        idle_s = min(lease.idled_s + max(0.0, now_s), period.until - period.since)
        found.append(IdleUse(user_name(lease.user), idle_s, len(lease.gpus)))
    for end in picture.ends:
        idle_s = min(end.idled_s, max(0.0, end.ended_at - period.since))
        found.append(IdleUse(user_name(end.user), idle_s, len(end.gpus)))
    for gpu in picture.gpus.values():
        for one in gpu.idle_strangers:
            user = "?" if one.user is None else user_name(one.user)
            since = max(period.since, one.idle_since_at or period.until)
            found.append(IdleUse(user, period.until - since))
    return found


def gaps(picture: Snapshot, since: float) -> list[str]:
    """Return which parts of a period are unknown."""
    found = []
    if len(picture.ends) == picture.ends.maxlen:
        text = f"Of jobs outside your own queue, only the last {MAX_ENDS} that ended and those"
        found.append(f"{text} running now are known.")
    started_at = picture.negotiator.started_at or 0.0
    if started_at > since:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(started_at))
        found.append(f"The negotiator started at {when}; jobs of others before that are not known.")
    return found


def _span(row: LeaseRow | EndRow, *, job: JobRow | None = None, is_job: bool = True) -> Span:
    end = row if isinstance(row, EndRow) else None
    return Span(
        label=job_list.job_name(job) if job is not None else row.label,
        type=row.label,
        user=user_name(row.user),
        gpus=row.gpus,
        began_at=row.since_at,
        ended_at=end.ended_at if end is not None else None,
        outcome=end.outcome if end is not None else "",
        reserved_bytes=row.reserved_bytes,
        peak_bytes=row.peak_bytes,
        lease=row.id,
        job=job.id if job is not None else None,
        is_job=is_job,
    )


def timeline(since: float, most: int = MAX_PAST) -> tuple[list[JobRow], bool]:
    """Return the latest and the longest of one's jobs that have ended since; True if not all."""
    latest = past(since, most)
    if len(latest) < most:
        return latest, False
    asked = {"which": "ended", "most": MAX_LONG, "since": since, "sort": "ran"}
    found = {row.id: row for row in (*latest, *_jobs(asked)[0])}
    return list(found.values()), True


def past(since: float, most: int = MAX_PAST) -> list[JobRow]:
    """Return one's jobs that have ended since, newest first; none if no queue runs."""
    try:
        return _jobs({"which": "ended", "most": most, "since": since})[0]
    except DaemonError:  # leases are shown without them
        return []


def history(
    most: int, sort: str = "ended", is_ascending: bool = False, wanted: str = "", skip: int = 0
) -> Row:
    """Return a page of one's jobs that have ended and match, and how many match."""
    asked: Row = {"sort": sort, "ascending": is_ascending, "match": wanted}
    if skip:  # which an older queue does not know
        asked["skip"] = skip
    found, total = _jobs({"which": "ended", "most": most, **asked})
    user = user_name(os.getuid())
    return {"jobs": [_ended(row) | {"user": user} for row in found], "total": total}


def check_queue() -> None:
    """Raise unless the user's queue answers."""
    _jobs({"which": "ended", "most": 1})


def failed(wanted: str = "") -> list[int]:
    """Return the ended jobs that match and failed, except those run again since."""
    latest: dict[tuple[object, ...], JobRow] = {}
    rows, _ = _jobs({"which": "all", "most": MAX_FAILED, "match": wanted})
    for row in sorted(rows, key=lambda row: row.id):
        latest[row.argv, row.cwd, row.name, row.group, row.array_index] = row
    return [row.id for row in latest.values() if row.has_ended and _is_bad(row)]


def _is_bad(row: JobRow) -> bool:
    return kind_of(row.reason or "") is OutcomeKind.BAD


def _jobs(asked: Row) -> tuple[list[JobRow], int]:
    try:
        answer = queue.ask({"op": "list", **asked}, may_start=False)
    except DaemonNotRunning as error:
        text = "Your queue does not run: what has ended there cannot be shown."
        raise DaemonError(text, "`grn queue start` starts it.") from error
    rows = read_all(JobRow, map(queue.typed, answer["jobs"]))
    return rows, int(answer.get("total", len(rows)))


def _ended(row: JobRow) -> Row:
    name, command = job_list.job_name(row), spelled(row)
    return {
        "id": row.id,
        "name": name,
        "command": "" if command == name else command,
        "group": row.group,
        "ended_at": row.ended_at,
        "ran_s": row.ran_s,
        "peak_bytes": row.peak_bytes,
        "gpus": list(row.gpus),
        "where": row.where,
        "reason": row.reason,
        "is_bad": _is_bad(row),
        "text": "" if row.text == row.reason else row.text,
    }


def profiles() -> list[Row]:
    """Return what was learned of job types."""
    rows: list[Row] = ask_all({"op": "profiles"})["profiles"]
    return rows


# --- one job, one lease --------------------------------------------------------------------


def job(picture: Snapshot, number: int) -> Row:
    """Return all of one job, with the curve of its last attempt."""
    found = read(JobRow, queue.show(number, may_start=False))
    row = readable(found) | {"title": job_list.job_name(found)}
    row["curve"] = _curve(found.lease) if found.lease else []
    lease = picture.leases.get(found.lease or "")
    row["loads"] = recent_loads(picture, found.gpus) if lease else []
    if lease:  # a run gives back what it does not need
        row |= {"used_bytes": lease.used_bytes, "reserved_bytes": lease.reserved_bytes}
    return row


def lease(picture: Snapshot, name: str) -> Row | None:
    """Return one lease, running or recently ended, with its curve."""
    row = picture.leases.get(name) or next((end for end in picture.ends if end.id == name), None)
    if row is None:
        return None
    loads = recent_loads(picture, row.gpus) if name in picture.leases else []
    return {**_named(row), "curve": _curve(name), "loads": loads}


def _curve(lease: str) -> list[tuple[float, int | None]]:
    try:
        curve = read(CurveRow, ask_once({"op": "samples", "lease": lease})["curve"])
    except GrnError:
        return []  # too short to have one, or forgotten
    values = enumerate(curve.used_bytes)
    return [(round(curve.since_at + n * curve.step_s, 1), used) for n, used in values]


def log(number: int, name: str, at: int, attempt: int | None, style: str = "") -> Row:
    """Return a piece of a job's output as styled lines, and where the next piece begins.

    The next piece begins with the last line of this one, which may still change, in `style`.
    """
    row, data = _output(number, name, attempt)
    start = at or max(0, len(data) - LOG_CHUNK_BYTES)
    piece = data[start : start + LOG_CHUNK_BYTES]
    text = piece.decode("utf-8", "replace")
    lines, rest = ansi.styled_lines(text, ansi.with_sgr(ansi.PLAIN, style) if style else ansi.PLAIN)
    whole = piece.rfind(b"\n") + 1
    if not whole and len(piece) == LOG_CHUNK_BYTES:  # one line longer than a piece
        whole = piece.rfind(b"\r") + 1 or len(piece)
    return {
        "lines": [[(text, ansi.sgr(look)) for text, look in line] for line in lines],
        "from": start,
        "next": start + whole,
        "style": ansi.sgr(rest),
        "is_over": row.has_ended and start + len(piece) >= len(data),
    }


def output(number: int, name: str) -> bytes:
    """Return all that is kept of a job's output."""
    return _output(number, name, None)[1]


def _output(number: int, name: str, attempt: int | None) -> tuple[JobRow, bytes]:
    row = read(JobRow, queue.show(number, may_start=False))
    folder = row.folder_of(attempt) if row.folder and attempt else row.folder
    return row, logs.read_log(folder, name)


def recent_loads(picture: Snapshot, indices: Sequence[int]) -> list[Row]:
    """Return how busy some GPUs were in the last two minutes."""
    gpus = {gpu.index: uuid for uuid, gpu in picture.gpus.items()}
    known = [(index, picture.samples.get(gpus.get(index, ""))) for index in indices]
    return [
        {"gpu": index, "step_s": past.step_s, "load_pct": list(past.load_pct)}
        for index, past in known
        if past is not None
    ]


def readable(row: JobRow) -> Row:
    """Return a job as the page shows it: words that are no text are spelled out."""
    words = [*row.argv, row.cwd]
    *argv, cwd = (word.encode("utf-8", "backslashreplace").decode() for word in words)
    return {**as_json(row), "argv": argv, "cwd": cwd}


def _job_span(row: JobRow, began_at: float, user: str) -> Span:
    return Span(
        label=job_list.job_name(row),
        type=row.label,
        user=user,
        gpus=row.gpus,
        began_at=began_at,
        ended_at=row.ended_at,
        outcome=row.reason or "",
        reserved_bytes=row.reserved_bytes,
        peak_bytes=row.peak_bytes,
        lease=row.lease,
        job=row.id,
        where=row.where,
        command=cut(spelled(row), MAX_COMMAND, "…"),
        text=row.text or "",
    )


def settle(picture: Snapshot, since: float) -> bool:
    """True when both daemons have answered, or their time is over."""
    is_settled = picture.has_heard(NEGOTIATOR) and picture.has_heard(QUEUE)
    return is_settled or time.monotonic() - since > FIRST_WORD_S


class Sweeps:
    """Finds sweeps by name in the folder that the page was started for."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def all(self) -> list[Row]:
        """Return one row for each sweep, the latest first."""
        rows = [row for name in self._names() if (row := self._row(name))]
        return sorted(rows, key=lambda row: -row["created_at"])[:MAX_SWEEPS]

    def one(self, name: str, metric: str = "") -> Row:
        """Return a sweep as `grn sweep plot` draws it, or its runs while none has a number."""
        if name not in self._names():
            raise UnknownJob(f"there is no sweep '{name}' here.")
        path = os.path.join(self._folder, name)
        try:
            about, table, ranking = ranked(path)
            if ranking is not None and metric in table.numeric_metrics:
                about, table, ranking = ranked(path, metric)
        except UsageError as error:
            raise UnknownJob(f"there is no sweep '{name}' here.") from error
        drawn = sweep_chart.draw(about, table, ranking) if ranking is not None else None
        states = [{"run": row["run"], "state": row["state"]} for row in table]
        return {
            "name": name,
            "command": about.command,
            "metrics": list(table.numeric_metrics),
            "metric": ranking.metric if ranking else "",
            "html": sweep_page.body(drawn) if drawn is not None else "",
            "runs": states if drawn is None else [],
        }

    def _names(self) -> list[str]:
        try:
            found = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in found if os.path.isdir(os.path.join(self._folder, name))]

    def _row(self, name: str) -> Row | None:
        folder = SweepFolder(os.path.join(self._folder, name))
        about = folder.about()
        if about is None:
            return None
        states = [run.state.value for run in folder.runs()]
        counts = {state: states.count(state) for state in set(states)}
        return {
            "name": name,
            "command": about.command,
            "created_at": about.created_at,
            "counts": counts,
        }
