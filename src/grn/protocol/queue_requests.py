"""Schemas of all requests to the queue, checked before anything else sees them.

Only shapes and limits; `queue/requests/handlers.py` handles each request.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from grn import wire
from grn.errors import UsageError
from grn.model import MAX_CHOICE, MAX_RETRIES, fetch_patterns
from grn.model.fetch_patterns import MAX_PATTERNS
from grn.model.windows import MAX_HOURS, parse_hours
from grn.protocol import schemas
from grn.protocol.schemas import Cpus, GpuCount, IdleLimit, Key, Priority, Reader

Text = Annotated[str, Meta(max_length=1024)]
JobId = Annotated[int, Meta(ge=1, le=1 << 60)]
JobIds = Annotated[list[JobId], Meta(max_length=1_000_000)]
Tag = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^\S+$")]
Tags = Annotated[list[Tag], Meta(max_length=32)]
WallClock = Annotated[float, Meta(ge=0, le=1e11)]
MAX_JOBS_AT_ONCE = 10_000


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What differs between the jobs of one submit."""

    argv: Annotated[list[str], Meta(min_length=1, max_length=100_000)]
    type: Annotated[str, Meta(min_length=1, max_length=1024)]
    label: Annotated[str, Meta(min_length=1, max_length=256)]
    name: Annotated[str, Meta(max_length=128)] = ""
    args: Annotated[dict[str, float | Text], Meta(max_length=32)] = field(default_factory=dict)
    code: Key | None = None
    extra: dict[str, str] = field(default_factory=dict)
    log: Annotated[str, Meta(max_length=4096)] = ""


class Sent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A packed folder, and some of its files by name, inode and time of change."""

    pack: Annotated[str, Meta(max_length=4096)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: Annotated[int, Meta(ge=0)]
    inode: int
    files: Annotated[list[tuple[str, int, int]], Meta(max_length=64)] = field(default_factory=list)


class QueueMessage(schemas.Message, frozen=True):
    """A request to the queue."""


class SubmitRequest(QueueMessage, frozen=True, tag="submit", kw_only=True):
    """Accept jobs; the answer is sent when they are on the disk."""

    key: Key
    jobs: Annotated[list[Wanted], Meta(min_length=1, max_length=MAX_JOBS_AT_ONCE)]
    cwd: str
    env: dict[str, str]
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    gpus: GpuCount = 1
    mem: Annotated[int, Meta(ge=1, le=1 << 50)] | None = None
    cpus: Cpus | None = None
    ram: Annotated[int, Meta(ge=1, le=1 << 50)] | None = None
    exclusive: bool = False
    priority: Priority = 0
    after: Annotated[list[tuple[JobId, bool]], Meta(max_length=1000)] = field(default_factory=list)
    retry: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] = 0
    time_limit_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    requeue: bool = False
    held: bool = False
    notify: Annotated[str, Meta(max_length=4096)] = ""
    group: Annotated[str, Meta(max_length=128)] = ""
    tied: bool = False
    fail_fast: bool = False
    policy: Literal["spread", "pack"] = "spread"
    at: Annotated[str, Meta(max_length=128)] = ""
    on: Annotated[str, Meta(max_length=MAX_CHOICE)] = ""
    without: Annotated[list[Text], Meta(max_length=1024)] = field(default_factory=list)
    send: Sent | None = None
    fetch: Annotated[list[Text], Meta(max_length=MAX_PATTERNS)] = field(default_factory=list)
    tags: Tags = field(default_factory=list)
    array: Annotated[str, Meta(max_length=1 << 20)] = ""  # its one job, once for each number
    array_first: JobId | None = None  # the first job of the array that an earlier message began
    array_limit: Annotated[int, Meta(ge=0, le=100_000)] = 0
    begin_at: WallClock = 0.0
    only: Annotated[str, Meta(max_length=MAX_HOURS)] = ""
    yields: bool = False
    at_least_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    urgent: bool = False
    signal: Annotated[int, Meta(ge=0, le=64)] = 0
    grace_s: Annotated[float, Meta(ge=0, le=86400)] | None = None
    again: bool = False
    idle_limit_s: IdleLimit | None = None


class EditRequest(QueueMessage, frozen=True, tag="edit", kw_only=True):
    """Give a queued job other options; those that are not named stay."""

    job: JobId
    command: Wanted | msgspec.UnsetType = msgspec.UNSET  # of it the words and their type
    name: Annotated[str, Meta(max_length=128)] | msgspec.UnsetType = msgspec.UNSET
    cwd: str | msgspec.UnsetType = msgspec.UNSET
    gpus: GpuCount | msgspec.UnsetType = msgspec.UNSET
    mem: Annotated[int, Meta(ge=1, le=1 << 50)] | msgspec.UnsetType | None = msgspec.UNSET
    cpus: Cpus | msgspec.UnsetType | None = msgspec.UNSET
    ram: Annotated[int, Meta(ge=1, le=1 << 50)] | msgspec.UnsetType | None = msgspec.UNSET
    exclusive: bool | msgspec.UnsetType = msgspec.UNSET
    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    retry: Annotated[int, Meta(ge=0, le=MAX_RETRIES)] | msgspec.UnsetType = msgspec.UNSET
    time_limit_s: Annotated[float, Meta(gt=0, le=1e9)] | msgspec.UnsetType | None = msgspec.UNSET
    requeue: bool | msgspec.UnsetType = msgspec.UNSET
    notify: Annotated[str, Meta(max_length=4096)] | msgspec.UnsetType = msgspec.UNSET
    at: Annotated[str, Meta(max_length=128)] | msgspec.UnsetType = msgspec.UNSET
    on: Annotated[str, Meta(max_length=MAX_CHOICE)] | msgspec.UnsetType = msgspec.UNSET
    without: Annotated[list[Text], Meta(max_length=1024)] | msgspec.UnsetType = msgspec.UNSET
    tags: Tags | msgspec.UnsetType = msgspec.UNSET
    begin_at: WallClock | msgspec.UnsetType = msgspec.UNSET
    only: Annotated[str, Meta(max_length=MAX_HOURS)] | msgspec.UnsetType = msgspec.UNSET
    idle_limit_s: IdleLimit | msgspec.UnsetType | None = msgspec.UNSET


class ListRequest(QueueMessage, frozen=True, tag="list", kw_only=True):
    """List jobs: those that have not ended, ended ones, or both; newest ended first.

    `match` is words that each must be found in a job; with it the answer has the `total`. With
    `ids_only` the answer has the ids of the jobs and no more. With `folds` the members of an array
    that are not jobs of their own yet are one row, whose `members` are their ids. `array` is a job
    of an array, whose jobs alone are listed; with it the answer has `array`. `skip` leaves jobs at
    the beginning of the list out, for pages; there is no folded row then.
    """

    which: Literal["alive", "ended", "all"] = "all"
    states: Annotated[list[Text], Meta(max_length=20)] = field(default_factory=list)
    name: Text | None = None
    type: Text | None = None
    group: Text | None = None
    tag: Tag | None = None
    match: Text | None = None
    sort: Literal["id", "name", "ran", "peak", "gpu", "reason", "ended"] = "ended"
    ascending: bool = False
    since: float = 0.0
    most: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    skip: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    array: JobId | None = None
    ids_only: bool = False
    folds: bool = False


class ShowRequest(QueueMessage, frozen=True, tag="show", kw_only=True):
    """Show one job with its attempts."""

    job: JobId


class NamesRequest(QueueMessage, frozen=True, tag="names", kw_only=True):
    """Resolve what people call jobs: an id, a range of ids, a name, `name[3]`, a lease.

    Ranges and names select only jobs in the states of `which`. Unless `whole`, the beginning of an
    id or a lease is enough.
    """

    names: Annotated[list[Text], Meta(max_length=1_000_000)]
    whole: bool = False
    which: Literal["alive", "ended", "queued", "all"] = "all"


class WaitRequest(QueueMessage, frozen=True, tag="wait", kw_only=True):
    """Answer for each job when it has ended."""

    jobs: JobIds


class WatchJobsRequest(QueueMessage, frozen=True, tag="watch", kw_only=True):
    """Report jobs now and at each change; also those that this connection submits."""

    jobs: JobIds = field(default_factory=list)


class CancelRequest(QueueMessage, frozen=True, tag="cancel", kw_only=True):
    """Cancel jobs, or only those of them that have not begun."""

    jobs: JobIds
    now: bool = False
    queued: bool = False


class HoldRequest(QueueMessage, frozen=True, tag="hold", kw_only=True):
    """Hold queued jobs, or release them."""

    jobs: JobIds
    held: bool = True


class MoveRequest(QueueMessage, frozen=True, tag="move", kw_only=True):
    """Give queued jobs another place."""

    jobs: JobIds
    priority: Priority | None = None
    front: bool | None = None


class RetryRequest(QueueMessage, frozen=True, tag="retry", kw_only=True):
    """Submit ended jobs once more, as new jobs."""

    key: Key
    jobs: JobIds


class DrainRequest(QueueMessage, frozen=True, tag="drain", kw_only=True):
    """Stop starting jobs, or resume."""

    drained: bool = True


class CleanRequest(QueueMessage, frozen=True, tag="clean", kw_only=True):
    """Forget ended jobs and their files."""

    older_than_s: Annotated[float, Meta(ge=0)] = 0.0


class CountRequest(QueueMessage, frozen=True, tag="count", kw_only=True):
    """Count the jobs in each state."""


class FollowQueueRequest(QueueMessage, frozen=True, tag="follow", kw_only=True):
    """Show the jobs, and then what changes, until the connection ends."""


class PingQueueRequest(QueueMessage, frozen=True, tag="ping", kw_only=True):
    """Ask for version, process and user of the queue."""


class SitesRequest(QueueMessage, frozen=True, tag="sites", kw_only=True):
    """Show the nodes of all sites; with `reload` read the settings file first."""

    reload: bool = False


class StopQueueRequest(QueueMessage, frozen=True, tag="stop", kw_only=True):
    """End the queue; running jobs continue."""


def check_words(message: SubmitRequest) -> None:
    """Refuse invalid commands, environments and folders."""
    for pattern in message.fetch:
        if fault := fetch_patterns.fault_of(pattern):
            raise UsageError(f"{pattern!r} {fault}.")
    if message.only:
        parse_hours(message.only)
    names = [*message.env, *(name for wanted in message.jobs for name in wanted.extra)]
    for name in names:
        if not name or "=" in name:
            raise UsageError(f"{name!r} cannot be the name of a variable.")
    for wanted in message.jobs:
        check_wanted(wanted)
    for word in (message.cwd, *names, *message.env.values()):
        check_word(word)


def check_wanted(wanted: Wanted) -> None:
    """Refuse an invalid command."""
    if wanted.log and not wanted.log.startswith("/"):
        raise UsageError("the log of a job must be an absolute path.")
    for word in (*wanted.argv, *wanted.extra.values(), wanted.log):
        check_word(word)


def check_word(word: str) -> None:
    """Refuse a word with a NUL byte."""
    if "\0" not in word:
        return
    try:
        is_fine = "\0" not in wire.meant(word)
    except UnicodeEncodeError:  # what follows the NUL is no bytes
        is_fine = False
    if not is_fine:
        raise UsageError("a command, a folder or a variable cannot hold a NUL byte.")


KINDS = tuple(QueueMessage.__subclasses__())
read = Reader[QueueMessage](KINDS, "queue", "grn queue stop").read
