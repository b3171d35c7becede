"""Handlers of client messages, and their table; every decision about jobs is the engine's.

New jobs are written first, then told to the engine, then answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import UNSET

from grn.daemon.connection import Verbs
from grn.errors import MachineError, NeverFits, UnknownJob, UsageError
from grn.model.gpu_choice import selected
from grn.model.outcome import JOB_OUTCOMES
from grn.model.units import show_size
from grn.model.windows import parse_hours
from grn.protocol import queue_requests
from grn.queue import naming
from grn.queue.events import CancelAsked, DrainAsked, Edited, HoldAsked, MoveAsked, Submitted
from grn.queue.jobs.job import After, JobSpec, JobState
from grn.queue.journal import rows
from grn.queue.journal.rows import DamagedRow, NewJob, SentFolder, SharedCommand, StopRules
from grn.queue.loop import QueueLoop
from grn.queue.server import Changes, Ends, QueuePeer, numbers
from grn.queue.sites.leases.choice import LOCAL
from grn.queue.sites.leases.remote_lease import node_of

log = logging.getLogger(__name__)
MAX_NAMED = 20
FIRST_CONTACT_S, LOOK_S = 3.0, 0.1
MAX_QUEUED = 1_000_000
_STATES = {
    "queued": "(state = 'queued' AND NOT is_held)",
    "held": "(state = 'queued' AND is_held)",
    # The journal does not distinguish these: a start is not worth a write.
    "starting": "state IN ('starting','running')",
    "running": "state IN ('starting','running')",
    "stopping": "state = 'stopping'",
    "ended": "state = 'ended'",
}
_SORTS = {
    "id": "jobs.id", "name": "lower(CASE name WHEN '' THEN label ELSE name END)", "ran": "ran_s",
    "peak": "peak_bytes", "gpu": "attempts.gpus", "reason": "jobs.reason", "ended": "jobs.ended_at",
}  # fmt: skip
_EDITED = {  # fields of a request to edit, and of JobSpec
    "gpus": "gpus", "mem": "mem_bytes", "exclusive": "is_exclusive", "priority": "priority",
    "retry": "retries", "requeue": "may_requeue", "at": "at", "on": "on", "without": "without",
    "tags": "tags", "begin_at": "begin_at", "only": "only", "cpus": "cpus", "ram": "ram_bytes",
    "time_limit_s": "time_limit_s", "idle_limit_s": "idle_limit_s",
}  # fmt: skip
_CALLS = "GRN_CALLS"  # a worker of an executor talks to a socket of this machine
_REASONS = {reason.value for reason in JOB_OUTCOMES}
_ALL_STATES = ", ".join([*_STATES, *(reason.value for reason in JOB_OUTCOMES)])


def submit(peer: QueuePeer, message: queue_requests.SubmitRequest) -> None:
    """Accept new jobs, all or none."""
    peer.server.hold()
    if _is_known(peer, message.id, message.key, len(message.jobs)):
        return
    queue_requests.check_words(message)
    peer.loop.catch_up()  # a job it depends on may have ended just now
    _check_disk(peer.loop)
    after = tuple(After(job, must_be_ok) for job, must_be_ok in message.after)
    ends = _ends_of(peer.loop, after)
    submitter = peer.tie() if message.tied else ""
    shared = SharedCommand(
        message.cwd, message.env, message.umask, message.notify, _sent(message.send),
        tuple(message.fetch),
        StopRules(message.signal, message.grace_s, message.again),
    )  # fmt: skip
    next_id = peer.loop.journal.next_id
    jobs = [
        _new_job(job_id, next_id, message, wanted, shared, after, submitter)
        for job_id, wanted in enumerate(message.jobs, next_id)
    ]
    first = _accept(peer.loop, message.key, jobs, ends, message.held)
    _tell_accepted(peer, message.id, first, len(jobs), is_new=True)


def retry(peer: QueuePeer, message: queue_requests.RetryRequest) -> None:
    """Submit ended jobs again."""
    peer.server.hold()
    if _is_known(peer, message.id, message.key, len(message.jobs)):
        return
    first = peer.loop.journal.next_id
    jobs = [_again(peer, job_id, new_id) for new_id, job_id in enumerate(message.jobs, first)]
    first = _accept(peer.loop, message.key, jobs, {})
    _tell_accepted(peer, message.id, first, len(jobs))


def wait(peer: QueuePeer, message: queue_requests.WaitRequest) -> None:
    """Answer once for each job, as it ends; the client counts."""
    ends = Ends(peer, message.id)
    for job_id in message.jobs:
        if job_id in peer.loop.engine.jobs or not peer.end_of(job_id)["reason"]:
            # Its end may not be on disk yet.
            peer.wait_for(job_id, ends.tell)
        else:
            ends.tell(job_id)


def watch(peer: QueuePeer, message: queue_requests.WatchJobsRequest) -> None:
    """Report changes of jobs from now on, also of jobs that this connection submits later."""
    peer.changes = Changes(peer, message.id)
    peer.watch(message.jobs)


def cancel(peer: QueuePeer, message: queue_requests.CancelRequest) -> None:
    """Cancel jobs, running or queued."""
    loop = peer.loop
    for job_id in message.jobs:
        if job_id not in loop.engine.jobs:
            peer.state(job_id)  # raises when there is no such job
    alive = [job for job in message.jobs if job in loop.engine.jobs]
    if message.queued:
        alive = [job for job in alive if loop.engine.jobs[job].state is JobState.QUEUED]
    _note(peer, "cancel", alive)
    loop.tell_now(CancelAsked(loop.now(), tuple(alive), message.now))
    peer.send(message.id, {"cancelled": alive, "trouble": loop.trouble or ""})


def hold(peer: QueuePeer, message: queue_requests.HoldRequest) -> None:
    """Hold jobs, or release them."""
    _check_queued(peer, message.jobs)
    _note(peer, "hold" if message.held else "release", message.jobs)
    peer.loop.tell_now(HoldAsked(peer.loop.now(), tuple(message.jobs), message.held))
    peer.send(message.id, {"ok": True, "trouble": peer.loop.trouble or ""})


def move(peer: QueuePeer, message: queue_requests.MoveRequest) -> None:
    """Give jobs another position in the queue."""
    _check_queued(peer, message.jobs)
    _note(peer, "move", message.jobs)
    now, jobs = peer.loop.now(), tuple(message.jobs)
    peer.loop.tell_now(MoveAsked(now, jobs, message.priority, message.front))
    peer.send(message.id, {"ok": True, "trouble": peer.loop.trouble or ""})


def edit(peer: QueuePeer, message: queue_requests.EditRequest) -> None:
    """Give a queued job other options; all of them, or none when one is refused."""
    loop = peer.loop
    loop.catch_up()  # it may have begun just now
    _check_queued(peer, [message.job])
    _check_disk(loop)
    try:
        job = _edited(loop.journal.as_submitted(message.job), message)
    except DamagedRow as error:
        raise MachineError(f"job {message.job} cannot be edited: {error}.") from error
    _check_place(job.spec.at, loop)
    _check_fits(job.spec, loop)
    _note(peer, "edit", [message.job])
    loop.journal.edit(job)
    loop.tell_now(Edited(loop.now(), job.spec))
    peer.send(message.id, {"ok": True, "trouble": loop.trouble or ""})


def drain(peer: QueuePeer, message: queue_requests.DrainRequest) -> None:
    """Stop starting jobs, or resume."""
    _note(peer, "drain" if message.drained else "drain-off")
    peer.loop.tell_now(DrainAsked(peer.loop.now(), message.drained))
    running = peer.loop.engine.counts()["running"]
    peer.send(message.id, {"running": running, "trouble": peer.loop.trouble or ""})


def clean(peer: QueuePeer, message: queue_requests.CleanRequest) -> None:
    """Forget jobs that have ended, with their files."""
    loop = peer.loop
    if loop.trouble:  # the ends of their dependents may not be written yet
        raise UsageError(f"not now: {loop.trouble}")
    _note(peer, "clean")
    gone = loop.journal.clean(time.time() - message.older_than_s)
    # Removing many folders takes time: do it in a thread.
    asyncio.get_running_loop().run_in_executor(None, loop.site.remove, gone)
    loop.site.remove_elsewhere(gone)
    peer.send(message.id, {"cleaned": len(gone)})


def stop(peer: QueuePeer, message: queue_requests.StopQueueRequest) -> None:
    """Stop the queue; running jobs continue."""
    _note(peer, "stop")
    peer.send(message.id, peer.loop.engine.counts())
    peer.server.stop()


def listing(peer: QueuePeer, message: queue_requests.ListRequest) -> None:
    """List jobs: running, then queued, then ended."""
    found: list[dict[str, Any]] = []
    where, values = _where(message)
    read, total, is_counted = peer.server.rows, 0, message.match is not None
    if message.which in ("alive", "all"):
        order = "priority DESC, place"
        for state in ("state IN ('starting','running','stopping')", "state = 'queued'"):
            left = message.most - len(found)
            found += read(f"{state}{where}", values, order, left) if left else []
            total += peer.loop.journal.count(f"{state}{where}", values) if is_counted else 0
    if message.which in ("ended", "all"):
        sql, all_values = f"state = 'ended' AND jobs.ended_at >= ?{where}", [message.since, *values]
        order = f"{_SORTS[message.sort]} {'ASC' if message.ascending else 'DESC'}"
        left = message.most - len(found)
        found += read(sql, all_values, order, left) if left else []
        total += peer.loop.journal.count(sql, all_values) if is_counted else 0
    if message.states:
        found = [row for row in found if {row["state"], row["reason"]} & set(message.states)]
    has_sites = peer.loop.fleet is not None and bool(peer.loop.fleet.sites)
    peer.send(message.id, {
        "jobs": found, "counts": peer.server.counts(), "has_sites": has_sites,
        "trouble": peer.loop.trouble or peer.loop.journal.trouble,
        "drained": peer.loop.engine.is_drained,
        **({"total": total} if is_counted else {}),
    })  # fmt: skip


def show(peer: QueuePeer, message: queue_requests.ShowRequest) -> None:
    """Show one job with its attempts; of its environment only the names."""
    row = peer.row(message.job)
    row["attempts"] = peer.loop.journal.attempts(message.job)
    for one in row["attempts"]:
        one["gpus"] = numbers(one["gpus"])
        one["where"] = node_of(one["lease"])
    try:
        command = peer.loop.journal.command(message.job)
        row["environment"] = sorted({*command.environment, *command.extra})
    except DamagedRow as error:
        row["environment"] = []
        row["text"] = row["text"] or str(error)
    peer.send(message.id, {"job": row})


def follow(peer: QueuePeer, message: queue_requests.FollowQueueRequest) -> None:
    """Send a snapshot, then changes."""
    if peer.follows:
        raise UsageError("this connection follows already.")
    peer.server.followers.add(peer.talk, peer.uid, message.id)
    peer.follows = True


def names(peer: QueuePeer, message: queue_requests.NamesRequest) -> None:
    """Resolve what people call jobs; each job once, in the order they are named."""
    found: dict[int, None] = {}
    for name in message.names:
        found.update(dict.fromkeys(naming.resolve(peer, name, message)))
    peer.send(message.id, {"jobs": list(found)})


def count(peer: QueuePeer, message: queue_requests.CountRequest) -> None:
    """Answer with the number of jobs."""
    peer.send(message.id, {"counts": peer.server.counts()})


def ping(peer: QueuePeer, message: queue_requests.PingQueueRequest) -> None:
    """Answer with version, process and user of the queue."""
    said = {"version": peer.server.version, "pid": os.getpid(), "uid": os.getuid()}
    drained = peer.loop.engine.is_drained
    peer.send(message.id, {**said, "trouble": peer.server.trouble, "drained": drained})


def _fresh(verb: Callable[[QueuePeer, Any], None]) -> Callable[[QueuePeer, Any], None]:
    """Make a handler answer with up-to-date waiting reasons."""
    return lambda peer, message: peer.when_fresh(message.id, lambda: verb(peer, message))


def sites(peer: QueuePeer, message: queue_requests.SitesRequest) -> None:
    """Show the nodes of all sites, after reading the settings again if that is wanted."""
    if message.reload:
        peer.server.load_sites()
    peer.loop.leases.retry()
    until = peer.loop.now() + FIRST_CONTACT_S

    def answer() -> None:
        """Give nodes that were never reached a moment: somebody has just added them."""
        nodes = peer.server.nodes()
        is_soon = any(node["state"] == "connecting" for node in nodes)
        if is_soon and peer.loop.now() < until:
            asyncio.get_running_loop().call_later(LOOK_S, peer.when_fresh, message.id, answer)
        else:
            peer.send(message.id, {"nodes": nodes})

    peer.when_fresh(message.id, answer)


VERBS: Verbs = {
    queue_requests.SubmitRequest: submit,
    queue_requests.RetryRequest: retry,
    queue_requests.ListRequest: _fresh(listing),
    queue_requests.ShowRequest: _fresh(show),
    queue_requests.NamesRequest: names,
    queue_requests.CountRequest: count,
    queue_requests.FollowQueueRequest: _fresh(follow),
    queue_requests.PingQueueRequest: ping,
    queue_requests.WaitRequest: wait,
    queue_requests.WatchJobsRequest: watch,
    queue_requests.CancelRequest: cancel,
    queue_requests.HoldRequest: hold,
    queue_requests.MoveRequest: move,
    queue_requests.EditRequest: edit,
    queue_requests.DrainRequest: drain,
    queue_requests.CleanRequest: clean,
    queue_requests.SitesRequest: sites,
    queue_requests.StopQueueRequest: stop,
}


def _note(peer: QueuePeer, verb: str, jobs: Sequence[int] = ()) -> None:
    """Log an action with the user who asked for it: the owner, or root."""
    some = ",".join(map(str, jobs[:MAX_NAMED]))
    log.info("action=%s uid=%d count=%d jobs=%s", verb, peer.uid, len(jobs), some)


def _is_known(peer: QueuePeer, message_id: int, key: str, count: int) -> bool:
    """Answer a repeated submit as accepted, whatever has changed since."""
    first = peer.loop.journal.first_of(key)
    if first is not None:
        _tell_accepted(peer, message_id, first, count)
    return first is not None


def _tell_accepted(
    peer: QueuePeer, message_id: int, first: int, count: int, *, is_new: bool = False
) -> None:
    trouble = peer.server.trouble
    peer.send(message_id, {"first": first, "count": count, "trouble": trouble})
    peer.watch(range(first, first + count), is_new=is_new)


def _accept(
    loop: QueueLoop, key: str, jobs: list[NewJob], ends: dict[int, bool], is_held: bool = False
) -> int:
    """Persist jobs and pass them to the engine; return the id of the first."""
    _check_disk(loop)
    if len(loop.engine.jobs) + len(jobs) > MAX_QUEUED:
        raise UsageError(f"not accepted: {MAX_QUEUED} jobs are queued at the most.")
    for job in jobs:
        _check_place(job.spec.at, loop)
        _check_fits(job.spec, loop)
    first, is_new = loop.journal.submit(key, jobs, is_held)
    if is_new:
        specs = tuple(job.spec for job in jobs)
        loop.tell_now(Submitted(loop.now(), specs, tuple(ends.items()), is_held))
    return first


def _check_disk(loop: QueueLoop) -> None:
    if loop.trouble:
        raise MachineError(
            f"not accepted: {loop.trouble}",
            "Running jobs go on. Make room on that disk, or look for its errors in `dmesg`.",
        )


def _check_place(at: str, loop: QueueLoop) -> None:
    """Refuse the name of a place that is not known."""
    if at in ("", LOCAL):
        return
    sites = loop.fleet.sites if loop.fleet is not None else []
    if at not in {*loop.site.names(), *(site.name for site in sites)}:
        raise UsageError(f"there is no site or node {at}.", "See `grn sites`.")


def _check_fits(spec: JobSpec, loop: QueueLoop) -> None:
    """Refuse a job that this machine can never run; the negotiator would refuse it only later."""
    gpus, host = loop.leases.gpu_facts, loop.leases.host
    if host is not None and spec.ram_bytes is not None and spec.ram_bytes > host.ram_bytes:
        text = f"you asked for {show_size(spec.ram_bytes)} of host memory; this machine has"
        raise NeverFits(f"{text} {show_size(host.ram_bytes)}.", "Ask for less with --ram.")
    if host is not None and spec.cpus is not None and spec.cpus > host.cpus:
        text = f"you asked for {spec.cpus:g} cores; this machine has {host.cpus:g}."
        raise NeverFits(text, "Ask for fewer with --cpus.")
    if not gpus or not spec.gpus:
        return
    if spec.gpus > len(gpus):
        text = f"you asked for {spec.gpus} GPUs; this machine has {len(gpus)}."
        raise NeverFits(text, "Ask for fewer.")
    allowed = selected(gpus, spec.gpus, spec.on, spec.without)
    largest = sorted((gpu.total_bytes for gpu in allowed), reverse=True)[spec.gpus - 1]
    if spec.mem_bytes is not None and spec.mem_bytes > largest:
        where = "the largest GPU has" if spec.gpus == 1 else f"{spec.gpus} GPUs have at most"
        text = f"you asked for {show_size(spec.mem_bytes)} of memory; {where}"
        raise NeverFits(f"{text} {show_size(largest)}.", "Ask for less memory per GPU.")


def _ends_of(loop: QueueLoop, after: tuple[After, ...]) -> dict[int, bool]:
    """Return whether each ended dependency succeeded."""
    asked = {one.job for one in after}
    alive = asked & loop.engine.jobs.keys()
    ends = loop.journal.ended_well(asked - alive)
    unknown = asked - alive - ends.keys()
    if unknown:
        raise UnknownJob(f"there is no job {min(unknown)} to come after.", "See `grn ls`.")
    return ends


def _new_job(
    job_id: int,
    first: int,
    message: queue_requests.SubmitRequest,
    wanted: queue_requests.Wanted,
    shared: SharedCommand,
    after: tuple[After, ...],
    submitter: str,
) -> NewJob:
    at = message.at or (LOCAL if _CALLS in wanted.extra else "")
    spec = JobSpec(
        job_id, wanted.type, wanted.label, message.gpus, message.mem, message.exclusive,
        message.priority, after, message.retry, message.requeue, message.group, submitter,
        message.fail_fast, "pack" if message.policy == "pack" else "", at, message.on,
        tuple(message.without), tuple(message.tags),
        (message.array_first or first) if message.array_limit else 0, message.array_limit,
        message.begin_at, message.only, message.yields, message.at_least_s, message.urgent,
        message.cpus, message.ram, message.idle_limit_s, message.time_limit_s,
    )  # fmt: skip
    return NewJob(
        spec, wanted.argv, shared, wanted.name, wanted.log, wanted.extra, wanted.args,
        wanted.code or "",
    )  # fmt: skip


def _sent(send: queue_requests.Sent | None) -> SentFolder | None:
    if send is None:
        return None
    return SentFolder(send.pack, send.digest, send.bytes, send.inode, tuple(send.files))


def _again(peer: QueuePeer, job_id: int, new_id: int) -> NewJob:
    state = peer.state(job_id)
    if state != "ended":
        raise UsageError(f"job {job_id} has not ended: it is {state}.")
    try:
        return peer.loop.journal.submitted_again(job_id, new_id)
    except DamagedRow as error:
        raise MachineError(
            f"job {job_id} cannot be run again: {error}.", "Submit it again."
        ) from error


def _check_queued(peer: QueuePeer, jobs: list[int]) -> None:
    for job_id in jobs:
        job = peer.loop.engine.jobs.get(job_id)
        state = job.state.value if job is not None else peer.state(job_id)
        if state != "queued":
            now = "has already ended" if state == "ended" else f"is {state} already"
            raise UsageError(f"job {job_id} {now}.")


def _edited(job: NewJob, message: queue_requests.EditRequest) -> NewJob:
    """Return a job with the options that a request names."""
    given = {name: getattr(message, name) for name in _EDITED}
    spec = {_EDITED[name]: value for name, value in given.items() if value is not UNSET}
    spec |= {name: tuple(spec[name]) for name in ("without", "tags") if name in spec}
    shared = {
        name: value for name in ("cwd", "notify") if (value := getattr(message, name)) is not UNSET
    }
    if message.name is not UNSET:
        job = replace(job, name=message.name)
    if message.command is not UNSET:
        queue_requests.check_wanted(message.command)
        spec |= {"job_type": message.command.type, "label": message.command.label}
        job = replace(
            job, argv=message.command.argv, arguments=message.command.args,
            code=message.command.code or "",
        )  # fmt: skip
    if message.cwd is not UNSET:
        queue_requests.check_word(message.cwd)
    if message.only is not UNSET and message.only:
        parse_hours(message.only)
    return replace(job, spec=job.spec._replace(**spec), shared=replace(job.shared, **shared))


def _where(message: queue_requests.ListRequest) -> tuple[str, list[Any]]:
    where, values = "", []
    if message.states:
        unknown = set(message.states) - _STATES.keys() - _REASONS
        if unknown:
            raise UsageError(f"there is no state '{min(unknown)}'.", f"There are {_ALL_STATES}.")
        states = [_STATES[state] for state in message.states if state in _STATES]
        reasons = [state for state in message.states if state in _REASONS]
        marks = ",".join("?" * len(reasons))
        where += f" AND ({' OR '.join([*states, f'jobs.reason IN ({marks})'])})"
        values += reasons
    if message.name is not None:
        where += " AND name = ?"
        values.append(message.name)
    if message.group is not None:
        where += " AND group_name = ?"
        values.append(message.group)
    if message.tag is not None:
        where += " AND instr(tags, ?)"
        values.append(rows.show_tags([message.tag]))
    if message.type is not None:
        where += " AND (label = ? OR job_type = ?)"
        values += [message.type, message.type]
    matching, words = rows.matching(message.match or "")
    return where + matching, values + words
