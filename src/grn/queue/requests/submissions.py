"""Accept new and edited jobs: refuse what can never run, persist, tell the engine."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET
from msgspec.structs import replace

from grn.errors import MachineError, NeverFits, UnknownJob, UsageError
from grn.model.gpu_choice import selected
from grn.model.ranges import parse_ranges
from grn.model.units import show_size
from grn.model.windows import parse_hours
from grn.protocol import queue_requests
from grn.queue.events import ArraySubmitted, Submitted
from grn.queue.jobs.job import OF_ONE, After, JobSpec, KeptArray
from grn.queue.journal.array_rows import NewArray
from grn.queue.journal.rows import DamagedRow, NewJob, SentFolder, SharedCommand, StopRules
from grn.queue.loop import QueueLoop
from grn.queue.server import QueuePeer
from grn.queue.sites.leases.choice import LOCAL

MAX_QUEUED = 1_000_000
_EDITED = {  # fields of a request to edit, and of JobSpec
    "gpus": "gpus", "mem": "mem_bytes", "exclusive": "is_exclusive", "priority": "priority",
    "retry": "retries", "requeue": "may_requeue", "at": "at", "on": "on", "without": "without",
    "tags": "tags", "begin_at": "begin_at", "only": "only", "cpus": "cpus", "ram": "ram_bytes",
    "time_limit_s": "time_limit_s", "idle_limit_s": "idle_limit_s",
}  # fmt: skip
_CALLS = "GRN_CALLS"  # a worker of an executor talks to a socket of this machine


def new_jobs(peer: QueuePeer, message: queue_requests.SubmitRequest) -> range:
    """Accept the jobs of a request, all or none; return their ids."""
    queue_requests.check_words(message)
    loop = peer.loop
    loop.catch_up()  # a job it depends on may have ended just now
    check_disk(loop)
    after = tuple(After(job, must_be_ok) for job, must_be_ok in message.after)
    ends = _ends_of(loop, after)
    submitter = peer.tie() if message.tied else ""
    shared = SharedCommand(
        message.cwd, message.env, message.umask, message.notify, _sent(message.send),
        tuple(message.fetch),
        StopRules(message.signal, message.grace_s, message.again),
    )  # fmt: skip
    next_id = loop.journal.next_id
    common = _common_spec(next_id, message, after, submitter)[OF_ONE:]
    jobs = [
        _new_job(job_id, wanted, shared, common)
        for job_id, wanted in enumerate(message.jobs, next_id)
    ]
    if not message.array:
        return accept(loop, message.key, jobs, ends, message.held)
    if len(jobs) > 1 or submitter:
        raise UsageError("an array is one command, and tied to no process.")
    return _accept_array(loop, message, jobs[0], ends)


def count(message: queue_requests.SubmitRequest) -> int:
    """Return how many jobs a request submits."""
    return len(parse_ranges(message.array)) if message.array else len(message.jobs)


def _accept_array(
    loop: QueueLoop, message: queue_requests.SubmitRequest, job: NewJob, ends: dict[int, bool]
) -> range:
    array = NewArray(job, message.array, count(message))
    _check_new(loop, [job], array.count)
    first, is_new = loop.journal.submit_array(message.key, array, message.held)
    ids = range(first, first + array.count)
    if is_new:
        kept = KeptArray(job.spec, ((first, ids[-1]),), message.held)
        loop.tell_now(ArraySubmitted(loop.now(), kept, tuple(ends.items())))
    return ids


def accept(
    loop: QueueLoop, key: str, jobs: list[NewJob], ends: dict[int, bool], is_held: bool = False
) -> range:
    """Persist jobs and pass them to the engine; return their ids."""
    _check_new(loop, jobs, len(jobs))
    first, is_new = loop.journal.submit(key, jobs, is_held)
    if is_new:
        specs = tuple(job.spec for job in jobs)
        loop.tell_now(Submitted(loop.now(), specs, tuple(ends.items()), is_held))
    return range(first, first + len(jobs))


def _check_new(loop: QueueLoop, jobs: Iterable[NewJob], new: int) -> None:
    check_disk(loop)
    if len(loop.engine.jobs) + new > MAX_QUEUED:
        raise UsageError(f"not accepted: {MAX_QUEUED} jobs are queued at the most.")
    checked: tuple[object, ...] = ()
    for job in jobs:
        if (common := job.spec[OF_ONE:]) != checked:
            check_spec(job.spec, loop)
            checked = common


def check_spec(spec: JobSpec, loop: QueueLoop) -> None:
    """Refuse a job whose place is not known, or that this machine can never run."""
    _check_place(spec.at, loop)
    _check_fits(spec, loop)


def check_disk(loop: QueueLoop) -> None:
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


def _sent(send: queue_requests.Sent | None) -> SentFolder | None:
    if send is None:
        return None
    return SentFolder(send.pack, send.digest, send.bytes, send.inode, tuple(send.files))


def again(peer: QueuePeer, job_id: int, new_id: int) -> NewJob:
    state = peer.state(job_id)
    if state != "ended":
        raise UsageError(f"job {job_id} has not ended: it is {state}.")
    try:
        return peer.loop.journal.submitted_again(job_id, new_id)
    except DamagedRow as error:
        raise MachineError(
            f"job {job_id} cannot be run again: {error}.", "Submit it again."
        ) from error


def _ends_of(loop: QueueLoop, after: tuple[After, ...]) -> dict[int, bool]:
    """Return whether each ended dependency succeeded."""
    asked = {one.job for one in after}
    alive = asked & loop.engine.jobs.keys()
    ends = loop.journal.ended_well(asked - alive)
    unknown = asked - alive - ends.keys()
    if unknown:
        raise UnknownJob(f"there is no job {min(unknown)} to come after.", "See `grn ls`.")
    return ends


def _common_spec(
    first: int, message: queue_requests.SubmitRequest, after: tuple[After, ...], submitter: str
) -> JobSpec:
    """Return a job of a request without what is its own."""
    return JobSpec(
        first, "", "", message.gpus, message.mem, message.exclusive,
        message.priority, after, message.retry, message.requeue, message.group, submitter,
        message.fail_fast, "pack" if message.policy == "pack" else "", message.at, message.on,
        tuple(message.without), tuple(message.tags),
        (message.array_first or first) if message.array_limit else 0, message.array_limit,
        message.begin_at, message.only, message.yields, message.at_least_s, message.urgent,
        message.cpus, message.ram, message.idle_limit_s, message.time_limit_s,
    )  # fmt: skip


def _new_job(
    job_id: int, wanted: queue_requests.Wanted, shared: SharedCommand, common: tuple[object, ...]
) -> NewJob:
    spec = JobSpec._make((job_id, wanted.type, wanted.label, *common))
    if _CALLS in wanted.extra and not spec.at:
        spec = spec._replace(at=LOCAL)
    return NewJob(
        spec, wanted.argv, shared, wanted.name, wanted.log, wanted.extra, wanted.args,
        wanted.code or "",
    )  # fmt: skip


def edited(job: NewJob, message: queue_requests.EditRequest) -> NewJob:
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
