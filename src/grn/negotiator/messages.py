"""The closed schemas of what clients may say, checked before anything else sees it.

Only shapes and limits; what a message does is in the server's table.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from grn import wire
from grn.errors import GrnError, ProtocolError, VersionMismatch

Id = Annotated[int, Meta(ge=0, le=1 << 53)]
Version = Annotated[int, Meta(ge=0, le=1 << 31)]
Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{8,64}\Z")]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Label = Annotated[str, Meta(min_length=1, max_length=256)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]
GpuName = Annotated[str, Meta(min_length=1, max_length=128)]
GpuNames = Annotated[list[GpuName], Meta(max_length=1024)]
ArgumentName = Annotated[str, Meta(max_length=64)]
ArgumentText = Annotated[str, Meta(max_length=64)]


class _Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", kw_only=True
):
    id: Id
    v: Version = wire.PROTOCOL


class LeaseAsked(_Message, frozen=True, tag="lease", kw_only=True):
    """Wait for GPUs."""

    key: Key
    type: Name
    label: Label
    gpus: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    mem: Bytes | None = None
    exclusive: bool = False
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    policy: Literal["spread", "pack"] = "spread"
    attempt: Annotated[int, Meta(ge=0, le=100)] = 0
    args: Annotated[dict[ArgumentName, float | ArgumentText | None], Meta(max_length=32)] = {}
    slots: GpuNames = []
    stay: GpuNames = []
    within: Key | None = None
    command: bool = False


class HoldAsked(_Message, frozen=True, tag="hold", kw_only=True):
    """Bind a lease to the process that says this, or to a child of it."""

    lease: Key
    pid: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None


class DoneSaid(_Message, frozen=True, tag="done", kw_only=True):
    """End a lease."""

    lease: Key
    outcome: Literal["ok", "failed", "oom", "profiled"]
    peak: Bytes | None = None  # GPU memory, as the framework says
    resident: Bytes | None = None  # host memory, as the system says
    asked: Bytes | None = None


class WatchAsked(_Message, frozen=True, tag="watch", kw_only=True):
    """Promise to say how a lease ends, which another process holds."""

    lease: Key


class CancelAsked(_Message, frozen=True, tag="cancel", kw_only=True):
    """Take a request back, granted or not."""

    key: Key


class StatusAsked(_Message, frozen=True, tag="status", kw_only=True):
    """Show GPUs, leases and who waits."""


class WhyAsked(_Message, frozen=True, tag="why", kw_only=True):
    """Explain one lease or request, by the beginning of its id or by its pid."""

    name: Name


class ProfilesAsked(_Message, frozen=True, tag="profiles", kw_only=True):
    """Show what was learned."""

    type: Name | None = None


class ForgetAsked(_Message, frozen=True, tag="forget", kw_only=True):
    """Forget what was learned of a type."""

    type: Name


class PingSaid(_Message, frozen=True, tag="ping", kw_only=True):
    """Ask who is there."""


class StopAsked(_Message, frozen=True, tag="stop", kw_only=True):
    """End the negotiator; leases go on."""


Message = (
    LeaseAsked
    | HoldAsked
    | DoneSaid
    | WatchAsked
    | CancelAsked
    | StatusAsked
    | WhyAsked
    | ProfilesAsked
    | ForgetAsked
    | PingSaid
    | StopAsked
)

_decoder = msgspec.json.Decoder(Message)


class _Envelope(msgspec.Struct, frozen=True):
    id: Id | None = None
    v: Version = wire.PROTOCOL


_envelope = msgspec.json.Decoder(_Envelope)


class Rejected(Exception):
    """A frame that is no message: the error to send back and the id to send it to."""

    def __init__(self, message_id: int | None, error: GrnError) -> None:
        super().__init__(str(error))
        self.message_id = message_id
        self.error = error


def read(body: bytes) -> Message:
    """Check one frame against the schemas."""
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _rejected(body, error) from error
    if message.v != wire.PROTOCOL:
        raise Rejected(message.id, _mismatch(message.v))
    try:
        _repeats.decode(body.decode())
    except _Repeated as error:
        raise Rejected(message.id, ProtocolError(f"a message says {error} twice.")) from error
    return message


class _Repeated(Exception):
    """A key stands twice in one object: two readers could take it for different messages."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _Repeated(repr(name))
        seen.add(name)


_repeats = json.JSONDecoder(object_pairs_hook=_without_repeats)


def _rejected(body: bytes, error: Exception) -> Rejected:
    try:
        envelope = _envelope.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Rejected(None, ProtocolError("a message is not a JSON object with an id."))
    if envelope.v != wire.PROTOCOL:
        return Rejected(envelope.id, _mismatch(envelope.v))
    return Rejected(envelope.id, ProtocolError(f"a message was not understood: {error}."))


def _mismatch(version: int) -> VersionMismatch:
    return VersionMismatch(
        f"the negotiator speaks protocol {wire.PROTOCOL} and this client {version}.",
        "Install one version of grn for both and restart the negotiator: `grn stop; grn start`.",
    )
