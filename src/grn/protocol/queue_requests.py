"""Schemas of all requests to the queue, checked before anything else sees them.

Only shapes and limits; `queue/handlers.py` handles each request.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from grn import wire
from grn.errors import UsageError
from grn.model import MAX_CHOICE, MAX_RETRIES
from grn.protocol import schemas
from grn.protocol.schemas import GpuCount, Key, Priority, Reader

Text = Annotated[str, Meta(max_length=1024)]
JobId = Annotated[int, Meta(ge=1, le=1 << 60)]
JobIds = Annotated[list[JobId], Meta(max_length=1_000_000)]
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


class SubmitRequest(schemas.Message, frozen=True, tag="submit", kw_only=True):
    """Accept jobs; the answer is sent when they are on the disk."""

    key: Key
    jobs: Annotated[list[Wanted], Meta(min_length=1, max_length=MAX_JOBS_AT_ONCE)]
    cwd: str
    env: dict[str, str]
    umask: Annotated[int, Meta(ge=0, le=0o777)] = 0o022
    gpus: GpuCount = 1
    mem: Annotated[int, Meta(ge=1, le=1 << 50)] | None = None
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


class ListRequest(schemas.Message, frozen=True, tag="list", kw_only=True):
    """List jobs: those that have not ended, ended ones, or both; newest ended first.

    `match` is words that each must be found in a job; with it the answer has the `total`.
    """

    which: Literal["alive", "ended", "all"] = "all"
    states: Annotated[list[Text], Meta(max_length=20)] = field(default_factory=list)
    name: Text | None = None
    type: Text | None = None
    group: Text | None = None
    match: Text | None = None
    sort: Literal["id", "name", "ran", "peak", "gpu", "reason", "ended"] = "ended"
    ascending: bool = False
    since: float = 0.0
    most: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000


class ShowRequest(schemas.Message, frozen=True, tag="show", kw_only=True):
    """Show one job with its attempts."""

    job: JobId


class NamesRequest(schemas.Message, frozen=True, tag="names", kw_only=True):
    """Resolve ids, or the beginning of one."""

    names: Annotated[
        list[Annotated[str, Meta(pattern="^[0-9]{1,18}$")]], Meta(max_length=1_000_000)
    ]


class WaitRequest(schemas.Message, frozen=True, tag="wait", kw_only=True):
    """Answer for each job when it has ended."""

    jobs: JobIds


class WatchJobsRequest(schemas.Message, frozen=True, tag="watch", kw_only=True):
    """Report jobs now and at each change; also those that this connection submits."""

    jobs: JobIds = field(default_factory=list)


class CancelRequest(schemas.Message, frozen=True, tag="cancel", kw_only=True):
    """Cancel jobs, or only those of them that have not begun."""

    jobs: JobIds
    now: bool = False
    queued: bool = False


class HoldRequest(schemas.Message, frozen=True, tag="hold", kw_only=True):
    """Hold queued jobs, or release them."""

    jobs: JobIds
    held: bool = True


class MoveRequest(schemas.Message, frozen=True, tag="move", kw_only=True):
    """Give queued jobs another place."""

    jobs: JobIds
    priority: Priority | None = None
    front: bool | None = None


class RetryRequest(schemas.Message, frozen=True, tag="retry", kw_only=True):
    """Submit ended jobs once more, as new jobs."""

    key: Key
    jobs: JobIds


class DrainRequest(schemas.Message, frozen=True, tag="drain", kw_only=True):
    """Stop starting jobs, or resume."""

    drained: bool = True


class CleanRequest(schemas.Message, frozen=True, tag="clean", kw_only=True):
    """Forget ended jobs and their files."""

    older_than_s: Annotated[float, Meta(ge=0)] = 0.0


class CountRequest(schemas.Message, frozen=True, tag="count", kw_only=True):
    """Count the jobs in each state."""


class FollowQueueRequest(schemas.Message, frozen=True, tag="follow", kw_only=True):
    """Show the jobs, and then what changes, until the connection ends."""


class PingQueueRequest(schemas.Message, frozen=True, tag="ping", kw_only=True):
    """Ask for version, process and user of the queue."""


class SitesRequest(schemas.Message, frozen=True, tag="sites", kw_only=True):
    """Show the nodes of all sites; with `reload` read the settings file first."""

    reload: bool = False


class StopQueueRequest(schemas.Message, frozen=True, tag="stop", kw_only=True):
    """End the queue; running jobs continue."""


Message = (
    SubmitRequest
    | ListRequest
    | ShowRequest
    | NamesRequest
    | WaitRequest
    | WatchJobsRequest
    | CancelRequest
    | HoldRequest
    | MoveRequest
    | RetryRequest
    | DrainRequest
    | CleanRequest
    | CountRequest
    | FollowQueueRequest
    | PingQueueRequest
    | SitesRequest
    | StopQueueRequest
)


def check_words(message: SubmitRequest) -> None:
    """Refuse invalid commands, environments and folders."""
    names = [*message.env, *(name for wanted in message.jobs for name in wanted.extra)]
    for name in names:
        if not name or "=" in name:
            raise UsageError(f"{name!r} cannot be the name of a variable.")
    for wanted in message.jobs:
        if wanted.log and not wanted.log.startswith("/"):
            raise UsageError("the log of a job must be an absolute path.")
        for word in (*wanted.argv, *wanted.extra.values(), wanted.log):
            _check_word(word)
    for word in (message.cwd, *names, *message.env.values()):
        _check_word(word)


def _check_word(word: str) -> None:
    if "\0" not in word:
        return
    try:
        is_fine = "\0" not in wire.meant(word)
    except UnicodeEncodeError:  # what follows the NUL is no bytes
        is_fine = False
    if not is_fine:
        raise UsageError("a command, a folder or a variable cannot hold a NUL byte.")


read = Reader[Message](Message, "queue", "grn queue stop").read
