"""Frames between a queue and an agent: messages, bytes of a lease conversation, pieces of logs.

Both sides use it; the caller carries the bytes. A login shell may print before the agent does, so
the agent's side of a stream begins with a line of its own, and all before it is skipped. Each frame
ends with a newline: srun passes output on by lines.
"""

from __future__ import annotations

import functools
import json
import re
import struct
from typing import Annotated, Any

import msgspec

from grn import wire
from grn.client.remote_call import REPLY_FILE
from grn.errors import ProtocolError
from grn.queue.jobs.job import Exit
from grn.queue.site import Attempt
from grn.queue.sites.agent.pipe import GREETING

VERSION = 2  # 2: folders are sent and files fetched
MAX_GREETING = 256 << 10
MAX_FRAME = 64 << 20
MAX_PIECE = 256 << 10
LOG_NAME = re.compile(rf"(?:log|err)(?:\.tail[0-9]{{1,9}})?|{REPLY_FILE}")  # sent home
FILE_NAME = re.compile(r"[0-9a-f]{64}|[0-9]{1,18}\.[0-9]{1,9}\.[0-9]{1,4}")
Whole = Annotated[int, msgspec.Meta(ge=0)]
LogName = Annotated[str, msgspec.Meta(pattern=rf"^(?:{LOG_NAME.pattern})\Z")]
FileName = Annotated[str, msgspec.Meta(pattern=rf"^(?:{FILE_NAME.pattern})\Z")]
_HEADER = struct.Struct(">IB")
_MESSAGE, _LEASES, _LOG, _FILE = range(4)
_NEWLINE = ord("\n")
# Up to ten times as fast as `json`, and each job costs both sides several messages.
_encode_json = msgspec.json.Encoder().encode
_decode_json = msgspec.json.Decoder().decode
_decode_log_head = msgspec.json.Decoder(tuple[Whole, Whole, LogName, Whole]).decode
_decode_file_head = msgspec.json.Decoder(tuple[FileName, Whole]).decode
_Undecodable = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

Message = dict[str, Any]


class LeaseBytes(msgspec.Struct, frozen=True):
    """Bytes of the lease conversation with the node's negotiator."""

    data: bytes


class LogPiece(msgspec.Struct, frozen=True):
    """A part of one file of an attempt's output."""

    attempt: Attempt
    name: str  # log, err, a later file of a long one, or the answer of a call
    offset: int
    data: bytes


class FilePiece(msgspec.Struct, frozen=True):
    """A part of a folder's pack, named by its digest, or of a fetched file: job.attempt.number."""

    name: str
    offset: int
    data: bytes


Frame = Message | LeaseBytes | LogPiece | FilePiece


def encode(frame: Frame) -> bytes:
    """Return the bytes of one frame."""
    if isinstance(frame, LeaseBytes):
        return _framed(_LEASES, frame.data)
    if isinstance(frame, LogPiece):
        about = [frame.attempt.job, frame.attempt.number, frame.name, frame.offset]
        return _framed(_LOG, _encode_json(about) + b"\n" + frame.data)
    if isinstance(frame, FilePiece):
        head = _encode_json([frame.name, frame.offset])
        return _framed(_FILE, head + b"\n" + frame.data)
    try:
        return _framed(_MESSAGE, _encode_json(frame))
    except UnicodeEncodeError:  # a file name that is not UTF-8, in the text of an error
        text = json.dumps(msgspec.to_builtins(frame), ensure_ascii=False)
        return _framed(_MESSAGE, text.encode(errors="replace"))


def _decoded(body: bytes) -> Message:
    try:
        message = _decode_json(body)
    except _Undecodable as error:
        raise ProtocolError(f"a frame is not JSON: {type(error).__name__}") from error
    if not isinstance(message, dict):
        raise ProtocolError("a frame must hold one JSON object")
    return message


def _framed(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(len(body), kind) + body + b"\n"


class FrameReader:
    """Cut the bytes of a stream into frames; home trusts no text of a node on its terminal."""

    def __init__(self, *, is_home: bool = False) -> None:
        self._buffer = bytearray()
        self._expects_greeting = is_home
        at_home = functools.partial(wire.decode_reply, decode=_decoded)
        self._decode = at_home if is_home else _decoded

    def feed(self, data: bytes | bytearray) -> list[Frame]:
        """Add received bytes and return the complete frames; raise ProtocolError on others."""
        self._buffer += data
        if self._expects_greeting and not self._skip_greeting():
            return []
        frames: list[Frame] = []
        begin = 0
        while (end := self._end_of_frame(begin)) is not None:
            frames.append(self._frame(begin, end))
            begin = end + 1
        del self._buffer[:begin]
        return frames

    def _skip_greeting(self) -> bool:
        found = (b"\n" + self._buffer).find(GREETING)  # it may be the very first line
        if found < 0:
            if len(self._buffer) > MAX_GREETING:
                raise ProtocolError("what answers there is not an agent of grn.")
            return False
        del self._buffer[: found + len(GREETING) - 1]
        self._expects_greeting = False
        return True

    def _end_of_frame(self, begin: int) -> int | None:
        """Return where the newline behind a frame is; None while it is incomplete."""
        if len(self._buffer) - begin < _HEADER.size:
            return None
        length, _ = _HEADER.unpack_from(self._buffer, begin)
        if length > MAX_FRAME:
            raise ProtocolError(f"a frame of {length} bytes is over {MAX_FRAME}.")
        end: int = begin + _HEADER.size + length
        if len(self._buffer) <= end:
            return None
        if self._buffer[end] != _NEWLINE:
            raise ProtocolError("a frame does not end where it should.")
        return end

    def _frame(self, begin: int, end: int) -> Frame:
        kind = self._buffer[begin + _HEADER.size - 1]
        body = bytes(self._buffer[begin + _HEADER.size : end])
        if kind == _LEASES:
            return LeaseBytes(body)
        if kind == _FILE:
            return _file_piece(body)
        return _log_piece(body) if kind == _LOG else self._decode(body)


def _log_piece(body: bytes) -> LogPiece:
    head, _, data = body.partition(b"\n")
    try:
        job, number, name, offset = _decode_log_head(head)
    except _Undecodable as error:
        raise ProtocolError("a piece of a log is not as it should be.") from error
    return LogPiece(Attempt(job, number), name, offset, data)


def _file_piece(body: bytes) -> FilePiece:
    head, _, data = body.partition(b"\n")
    try:
        return FilePiece(*_decode_file_head(head), data)
    except _Undecodable as error:
        raise ProtocolError("a piece of a file is not as it should be.") from error


def attempt_in(message: Message) -> Attempt:
    """Return the attempt that a message is about."""
    job, number = message.get("job"), message.get("attempt")
    if type(job) is not int or type(number) is not int:
        raise ProtocolError("a message of a stream names no attempt.")
    return Attempt(job, number)


def exit_to_json(exit: Exit | None) -> Message | None:
    """Return an end as a message; None for one that is not known."""
    if exit is None:
        return None
    message: Message = msgspec.to_builtins(exit)
    del message["note"]  # of the queue itself
    return message


def exit_from_json(message: object) -> Exit | None:
    """Read an end; raise ProtocolError where it is malformed, or of a newer version."""
    try:
        return None if message is None else msgspec.convert(message, Exit)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the end of an attempt is not as it should be: {error}.") from error
