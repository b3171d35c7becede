"""Closed message schemas: the part that negotiator and queue share.

Decodes and rejects; each daemon lists its own messages.
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar, Union

import msgspec
from msgspec import Meta

from grn import wire
from grn.errors import GrnError, ProtocolError, VersionMismatch
from grn.model import MAX_CPUS, MAX_GPUS, MAX_PRIORITY

Id = Annotated[int, Meta(ge=0, le=1 << 53)]
Version = Annotated[int, Meta(ge=0, le=1 << 31)]
Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{8,64}\Z")]
GpuCount = Annotated[int, Meta(ge=0, le=MAX_GPUS)]  # 0: a job that needs none
Cpus = Annotated[float, Meta(gt=0, le=MAX_CPUS)]
IdleLimit = Annotated[float, Meta(ge=1, le=1e9)]  # seconds
Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]

Kind = TypeVar("Kind", bound="Message")
_Undecodable = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", kw_only=True
):
    """What every message has: the id its answers carry, and the version its sender speaks."""

    id: Id
    v: Version = wire.PROTOCOL


class _Envelope(msgspec.Struct, frozen=True):
    id: Id | None = None
    v: Version = wire.PROTOCOL


class Rejected(Exception):
    """A frame that is no message: the error to send back and the id to send it to."""

    def __init__(self, message_id: int | None, error: GrnError) -> None:
        super().__init__(str(error))
        self.message_id = message_id
        self.error = error


class Reader(Generic[Kind]):
    """Reads the messages of one service, named by `who`; `restart` is how one restarts it."""

    def __init__(self, kinds: tuple[type[Kind], ...], who: str, restart: str) -> None:
        self._decoder: msgspec.json.Decoder[Kind] = msgspec.json.Decoder(Union[kinds])  # noqa: UP007
        self._who = who
        self._restart = restart

    def read(self, body: bytes) -> Kind:
        """Check one frame against the schemas."""
        try:
            message = self._decoder.decode(body)
        except _Undecodable as error:
            raise self._rejected(body, error) from error
        if message.v != wire.PROTOCOL:
            raise Rejected(message.id, self._mismatch(message.v))
        return message

    def _rejected(self, body: bytes, error: Exception) -> Rejected:
        try:
            envelope = _envelope.decode(body)
        except _Undecodable:
            return Rejected(None, ProtocolError("a message is not a JSON object with an id."))
        if envelope.v != wire.PROTOCOL:
            return Rejected(envelope.id, self._mismatch(envelope.v))
        return Rejected(envelope.id, ProtocolError(f"{wire.NOT_UNDERSTOOD}: {error}."))

    def _mismatch(self, version: int) -> VersionMismatch:
        return VersionMismatch(
            f"the {self._who} speaks protocol {wire.PROTOCOL} and this client {version}.",
            f"Install one version of grn for both and restart it: `{self._restart}`.",
        )


_envelope = msgspec.json.Decoder(_Envelope)
