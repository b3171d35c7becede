"""Accept new jobs: write them first, tell the engine, then answer the client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from grn.errors import MachineError, NeverFits, UnknownJob, UsageError
from grn.model.units import show_size
from grn.protocol import queue_requests
from grn.queue.events import Submitted
from grn.queue.job import After, JobSpec
from grn.queue.journal.rows import BadRow, Command, NewJob
from grn.queue.loop import QueueLoop
from grn.queue.server import QueuePeer

MAX_QUEUED = 1_000_000


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
    jobs = [_new_job(message, wanted, after, submitter) for wanted in message.jobs]
    first = _accept(peer.loop, message.key, jobs, ends, message.held)
    _tell_accepted(peer, message.id, first, len(jobs), is_new=True)


def retry(peer: QueuePeer, message: queue_requests.RetryRequest) -> None:
    """Submit ended jobs again."""
    peer.server.hold()
    if _is_known(peer, message.id, message.key, len(message.jobs)):
        return
    jobs: list[NewJob] = []
    for job_id in message.jobs:
        row = peer.row(job_id)
        if row["state"] != "ended":
            raise UsageError(f"job {job_id} has not ended: it is {row['state']}.")
        jobs.append(_again(peer.loop, job_id, row))
    first = _accept(peer.loop, message.key, jobs, {})
    _tell_accepted(peer, message.id, first, len(jobs))


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
        _check_fits(job.spec, loop.leases.gpu_bytes)
    first, is_new = loop.journal.submit(key, jobs, is_held)
    if is_new:
        specs = tuple(replace(job.spec, id=first + place) for place, job in enumerate(jobs))
        loop.tell_now(Submitted(loop.now(), specs, tuple(ends.items()), is_held))
    return first


def _check_disk(loop: QueueLoop) -> None:
    if loop.trouble:
        raise MachineError(
            f"not accepted: {loop.trouble}",
            "Running jobs go on. Make room on that disk, or look for its errors in `dmesg`.",
        )


def _check_fits(spec: JobSpec, gpu_bytes: list[int]) -> None:
    """Refuse a job that this machine can never run; the negotiator would refuse it only later."""
    if not gpu_bytes:
        return
    if spec.gpus > len(gpu_bytes):
        text = f"{spec.gpus} GPUs are asked for and {len(gpu_bytes)} are managed."
        raise NeverFits(text, "Ask for fewer.")
    largest = gpu_bytes[spec.gpus - 1]
    if spec.mem_bytes is not None and spec.mem_bytes > largest:
        where = "the largest GPU has" if spec.gpus == 1 else f"{spec.gpus} GPUs have at most"
        text = f"{show_size(spec.mem_bytes)} of memory are asked for and {where}"
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
    message: queue_requests.SubmitRequest,
    wanted: queue_requests.Wanted,
    after: tuple[After, ...],
    submitter: str,
) -> NewJob:
    spec = JobSpec(
        0, wanted.type, wanted.label, message.gpus, message.mem, message.exclusive,
        message.priority, after, message.retry, message.requeue, message.group, submitter,
        message.fail_fast, "pack" if message.policy == "pack" else "",
    )  # fmt: skip
    command = Command(
        tuple(wanted.argv), message.cwd, message.env, message.umask, wanted.name, message.notify,
        message.time_limit_s, log=wanted.log,
    )  # fmt: skip
    return NewJob(command, spec, wanted.extra, wanted.args, wanted.code or "")


def _again(loop: QueueLoop, job_id: int, row: dict[str, Any]) -> NewJob:
    spec = JobSpec(
        0, row["job_type"], row["label"], row["gpus_asked"], row["mem_bytes"],
        bool(row["is_exclusive"]), row["priority"], (), row["retries"],
        bool(row["may_requeue"]), row["group_name"], policy=row["policy"],
    )  # fmt: skip
    try:
        command = loop.journal.command(job_id)
    except BadRow as error:
        raise MachineError(
            f"job {job_id} cannot be run again: {error}.", "Submit it anew."
        ) from error
    facts, _ = loop.journal.told(job_id)  # its script may have been mended since
    return NewJob(command, spec, command.extra, facts)
