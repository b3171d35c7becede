"""Bytes on the socket to messages and back: a length, then one JSON object.

Knows framing, limits and the protocol version; what the messages mean is for their readers.
"""

from __future__ import annotations

import json
import struct

from grn.errors import ProtocolError

PROTOCOL = 1
MAX_REQUEST_BYTES = 1 << 20
MAX_REPLY_BYTES = 64 << 20
HEADER = struct.Struct(">I")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_decode_json = json.JSONDecoder().decode


def encode(message: Message) -> bytes:
    """Frame one message."""
    body = _encode_json(message).encode()
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """Read the JSON object of one frame."""
    try:
        message = _decode_json(body.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame is not JSON: {type(error).__name__}") from error
    if not isinstance(message, dict):
        raise ProtocolError("a frame must hold one JSON object")
    return message


def decode_reply(body: bytes) -> Message:
    """Read what a negotiator says, who may be anybody: none of its text can drive a terminal."""
    message = decode(body)
    text = body.decode()
    # JSON spells controls with a backslash; all else stands in the text as it is.
    if text.isprintable() and "\\" not in text:
        return message
    try:
        made: Message = _made_harmless(message)
    except RecursionError as error:
        raise ProtocolError("a frame is nested too deeply") from error
    return made


def _made_harmless(value: Any) -> Any:
    from grn.model.text import harmless

    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, list):
        return [_made_harmless(one) for one in value]
    if isinstance(value, dict):
        return {harmless(name): _made_harmless(one) for name, one in value.items()}
    return value


def spelled(argument: str) -> str:
    """Spell a word of the system's that is no text, so that it can travel: NUL, then its bytes."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return "\0" + argument.encode("utf-8", "surrogateescape").decode("latin-1")
    return argument


def meant(text: str) -> str:
    """Return the word that was spelled."""
    if not text.startswith("\0"):
        return text
    return text[1:].encode("latin-1").decode("utf-8", "surrogateescape")


class Frames:
    """Cut a stream of bytes into frame bodies."""

    def __init__(self, max_bytes: int) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    @property
    def is_mid_frame(self) -> bool:
        """True while a frame has begun and not ended."""
        return bool(self._buffer)

    @property
    def unfinished_bytes(self) -> int:
        """Return how much of an unfinished frame is kept."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Add what was received and return the bodies that are complete now."""
        buffer = self._buffer
        if not buffer and len(data) > HEADER.size:
            (length,) = HEADER.unpack_from(data)
            if length == len(data) - HEADER.size <= self._max_bytes:  # one frame, as nearly always
                return [bytes(data[HEADER.size :])]
        buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(buffer) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(buffer, start)
            if length > self._max_bytes:
                raise ProtocolError(f"a frame of {length} bytes is over {self._max_bytes}")
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            bodies.append(bytes(buffer[start + HEADER.size : end]))
            start = end
        if start:
            del buffer[:start]
        return bodies
