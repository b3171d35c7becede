"""Bytes on the socket to messages and back: a length, then one JSON object.

Knows framing, limits, message ids and the protocol version; the meaning of a message is defined in
`protocol/`.
"""

from __future__ import annotations

import json
import struct

from grn.errors import GrnError, ProtocolError, from_code

PROTOCOL = 1
NOT_UNDERSTOOD = "a message was not understood"  # what daemons of all versions answer
MAX_REQUEST_BYTES = 1 << 20
MAX_REPLY_BYTES = 64 << 20
HEADER = struct.Struct(">I")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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


def decode_reply(body: bytes, decode: Callable[[bytes], Message] = decode) -> Message:
    """Read a reply of a negotiator, which may be any user's: no text in it can drive a terminal."""
    message = decode(body)
    text = body.decode()
    # JSON writes control characters with a backslash; every other character is unescaped.
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


def error_in(message: Message) -> GrnError | None:
    """Return the error that a reply carries, or None."""
    error = message.get("error")
    if error is None:
        return None
    if not isinstance(error, dict):
        return ProtocolError("the error in a reply is not an object.")
    found = from_code(*(str(error.get(name, "")) for name in ("code", "message", "hint")))
    if isinstance(found, ProtocolError) and found.message.startswith(NOT_UNDERSTOOD):
        detail = found.message[len(NOT_UNDERSTOOD) :].strip(": .")
        return ProtocolError(
            f"this needs a newer version of grn than the one that answers ({detail}).",
            "Restart it: `grn queue stop`, `grn stop`, then repeat; running jobs go on.",
        )
    return found


def spelled(argument: str) -> str:
    """Encode a system string that is not UTF-8 as JSON text: NUL, then one character per byte."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return "\0" + argument.encode("utf-8", "surrogateescape").decode("latin-1")
    return argument


def meant(text: str) -> str:
    """Decode a string that `spelled` encoded."""
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
        """True while a frame is incomplete."""
        return bool(self._buffer)

    @property
    def unfinished_bytes(self) -> int:
        """Return the size of the incomplete frame so far."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Add received bytes and return the bodies that are complete now."""
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


class Exchange:
    """Ids, version and frames of the messages of one client; the caller carries the bytes.

    Ids are never repeated, also not over a later connection.
    """

    def __init__(self, decode: Callable[[bytes], Message] = decode_reply) -> None:
        self._decode = decode
        self._last_id = 0
        self._unsent: list[bytes] = []
        self._frames = Frames(MAX_REPLY_BYTES)

    def connection_made(self) -> None:
        """Begin a new connection: drop unsent bytes and an incomplete frame of the last one."""
        self._unsent = []
        self._frames = Frames(MAX_REPLY_BYTES)

    def say(self, message: Message) -> int:
        """Add one message to the bytes to send and return the id that its answers carry."""
        self._last_id = number = self._last_id + 1
        message["id"], message["v"] = number, PROTOCOL
        self._unsent.append(encode(message))
        return number

    def data_to_send(self) -> bytes:
        """Return the bytes to send now; each is returned once."""
        unsent, self._unsent = self._unsent, []
        return b"".join(unsent)

    def receive_data(self, data: bytes) -> list[Message]:
        """Add received bytes and return the messages that are complete now."""
        return [self._decode(body) for body in self._frames.feed(data)]
