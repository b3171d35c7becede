"""Schemas of all requests to the negotiator, checked before anything else sees them.

Only shapes and limits; `negotiator/handlers.py` handles each request.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from grn.model import MAX_CHOICE, MAX_GPUS
from grn.model.job import Run
from grn.protocol import schemas
from grn.protocol.schemas import Cpus, GpuCount, IdleLimit, Key, Priority, Reader

Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Label = Annotated[str, Meta(min_length=1, max_length=256)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]
GpuName = Annotated[str, Meta(min_length=1, max_length=128)]
GpuChoice = Annotated[str, Meta(max_length=MAX_CHOICE)]
GpuNames = Annotated[list[GpuName], Meta(max_length=1024)]
ArgumentName = Annotated[str, Meta(max_length=64)]
Cursor = Annotated[str, Meta(pattern=r"^[0-9]{1,15}\.[0-9]{1,15}\Z")]
ArgumentText = Annotated[str, Meta(max_length=64)]


class NegotiatorMessage(schemas.Message, frozen=True):
    """A request to the negotiator."""


class LeaseRequest(NegotiatorMessage, frozen=True, tag="lease", kw_only=True):
    """Wait for GPUs."""

    key: Key
    type: Name
    label: Label
    gpus: GpuCount = 1
    mem: Bytes | None = None
    exclusive: bool = False
    priority: Priority = 0
    policy: Literal["spread", "pack"] = "spread"
    attempt: Annotated[int, Meta(ge=0, le=100)] = 0
    args: Annotated[dict[ArgumentName, float | ArgumentText | None], Meta(max_length=32)] = field(
        default_factory=dict
    )
    code: Key | None = None
    slots: GpuNames = field(default_factory=list)
    stay: GpuNames = field(default_factory=list)
    on: GpuChoice = ""
    without: GpuNames = field(default_factory=list)
    within: Key | None = None
    command: bool = False
    yields: bool = False  # it may be asked to give way
    at_least: Annotated[float, Meta(ge=0, le=1e9)] = 0.0  # but not before it has run for so long
    urgent: bool = False
    spared: bool = False
    cpus: Cpus | None = None
    ram: Bytes | None = None
    idle_limit: IdleLimit | None = None
    time_limit: Annotated[float, Meta(gt=0, le=1e9)] | None = None  # then the sender ends the job


class QueueRequest(NegotiatorMessage, frozen=True, tag="queue", kw_only=True):
    """Tell that the jobs of this connection are those of a queue, which can end and repeat them."""


class BindRequest(NegotiatorMessage, frozen=True, tag="hold", kw_only=True):
    """Bind a lease to the sender, or to a child of it."""

    lease: Key
    pid: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None


class DoneRequest(NegotiatorMessage, frozen=True, tag="done", kw_only=True):
    """End a lease."""

    lease: Key
    outcome: Literal[
        "ok", "failed", "oom", "profiled", "cancelled", "yielded",
        "killed",  # by SIGKILL, which none of ours sent: perhaps by the kernel
        "out-of-ram",  # at a limit of its own
        "capped",  # out of GPU memory at the cap that came with its lease
    ]  # fmt: skip
    peak: Bytes | None = None  # GPU memory, by the framework
    resident: Bytes | None = None  # host memory, by the system
    asked: Bytes | None = None
    quiet: bool = False  # without an answer: the next grant of the connection acknowledges it


class WatchRequest(NegotiatorMessage, frozen=True, tag="watch", kw_only=True):
    """Register to report the end of a lease that another process holds."""

    lease: Key


class WithdrawRequest(NegotiatorMessage, frozen=True, tag="cancel", kw_only=True):
    """Withdraw a request, granted or not."""

    key: Key


class StatusRequest(NegotiatorMessage, frozen=True, tag="status", kw_only=True):
    """Show GPUs, leases and waiting requests; later pages have leases and requests only."""

    after: Cursor | None = None


class FollowRequest(NegotiatorMessage, frozen=True, tag="follow", kw_only=True):
    """Show all that `status` shows, and then what changes, until the connection ends."""


class SamplesRequest(NegotiatorMessage, frozen=True, tag="samples", kw_only=True):
    """Show the recent past of the GPUs, or of one lease."""

    lease: Key | None = None
    span: Literal["recent", "day"] = "recent"


class WhyRequest(NegotiatorMessage, frozen=True, tag="why", kw_only=True):
    """Explain one lease or request, by the beginning of its id or by its pid."""

    name: Name
    after: Cursor | None = None


class WhenRequest(NegotiatorMessage, frozen=True, tag="when", kw_only=True):
    """Return when a request would be granted if it came now."""

    gpus: GpuCount = 1
    mem: Bytes | None = None
    exclusive: bool = False
    priority: Priority = 0
    type: Name | None = None  # or its label
    lasts_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None


class BookRequest(NegotiatorMessage, frozen=True, tag="book", kw_only=True):
    """Book GPUs for this user."""

    gpus: Annotated[int, Meta(ge=1, le=MAX_GPUS)] = 1
    from_at: Annotated[float, Meta(ge=0, le=1e11)]  # of the wall clock, as is the end
    until_at: Annotated[float, Meta(ge=0, le=1e11)]
    on: GpuChoice = ""
    without: GpuNames = field(default_factory=list)


class BookingsRequest(NegotiatorMessage, frozen=True, tag="bookings", kw_only=True):
    """Show all bookings."""


class UnbookRequest(NegotiatorMessage, frozen=True, tag="unbook", kw_only=True):
    """Remove a booking."""

    booking: Annotated[int, Meta(ge=0, le=1 << 53)]


class ReasonsRequest(NegotiatorMessage, frozen=True, tag="reasons", kw_only=True):
    """Return why requests of this user wait, by their keys."""

    keys: Annotated[list[Key], Meta(max_length=1024)]


class ProfilesRequest(NegotiatorMessage, frozen=True, tag="profiles", kw_only=True):
    """Show what was learned."""

    type: Name | None = None
    after: Cursor | None = None


class RunsRequest(NegotiatorMessage, frozen=True, tag="runs", kw_only=True):
    """Return the runs of this user's job types, for the negotiator of another machine."""

    types: Annotated[list[Name], Meta(max_length=1000)] = field(default_factory=list)  # or all


class LearnRequest(NegotiatorMessage, frozen=True, tag="learn", kw_only=True):
    """Take over runs of a job type that another negotiator has measured on a GPU model."""

    type: Name
    label: Label
    model: Name
    runs: Annotated[list[Run], Meta(max_length=100)]


class AuditRequest(NegotiatorMessage, frozen=True, tag="audit", kw_only=True):
    """Show the audit log."""

    most: Annotated[int, Meta(ge=1, le=100_000)] = 1000


class ForgetRequest(NegotiatorMessage, frozen=True, tag="forget", kw_only=True):
    """Forget what was learned of a type."""

    type: Name


class PingRequest(NegotiatorMessage, frozen=True, tag="ping", kw_only=True):
    """Ask for version, process and user of the negotiator."""


class StopRequest(NegotiatorMessage, frozen=True, tag="stop", kw_only=True):
    """End the negotiator; leases stay."""


KINDS = tuple(NegotiatorMessage.__subclasses__())
read = Reader[NegotiatorMessage](KINDS, "negotiator", "grn stop; grn start").read
