"""Frames of a stream: any cut of the bytes gives the same frames, and nonsense is refused."""

from __future__ import annotations

import itertools
import json
import random
import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grn.errors import ProtocolError
from grn.queue.jobs.job import EndReason, Exit
from grn.queue.site import Attempt
from grn.queue.sites import stream
from grn.queue.sites.stream import Frame, FrameReader, LeaseBytes, LogPiece, encode

FRAMES: list[Frame] = [
    {"op": "hello", "text": "ä\n", "number": 7},
    LeaseBytes(bytes(range(256))),
    LogPiece(Attempt(41, 2), "log", 1 << 40, b"\n{}\x00\xff\n"),
    LeaseBytes(b""),
    LogPiece(Attempt(1, 1), "err.tail12", 0, b""),
    {"ev": "pong"},
]


def _framed(kind: int, body: bytes) -> bytes:
    return struct.pack(">IB", len(body), kind) + body + b"\n"


def _fed(reader: FrameReader, data: bytes, cuts: list[int]) -> list[Frame]:
    """Feed bytes in pieces that end at some places."""
    found: list[Frame] = []
    places = [0, *sorted(cuts), len(data)]
    for begin, end in itertools.pairwise(places):
        found += reader.feed(data[begin:end])
    return found


@given(st.data())
def test_frames_survive_any_cut(data: st.DataObject) -> None:
    whole = b"".join(map(encode, FRAMES))
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=20))

    assert _fed(FrameReader(), whole, cuts) == FRAMES


@given(st.binary(max_size=400), st.integers(1, 40))
def test_what_a_login_shell_prints_is_skipped(junk: bytes, size: int) -> None:
    said = junk + stream.GREETING + encode({"ev": "hello"})
    reader = FrameReader(is_home=True)
    assume(b"grn-agent-stream" not in junk)
    found = [one for at in range(0, len(said), size) for one in reader.feed(said[at : at + size])]

    assert found == [{"ev": "hello"}]


def test_a_greeting_at_the_very_beginning_needs_no_line_before_it() -> None:
    reader = FrameReader(is_home=True)

    assert reader.feed(stream.GREETING.lstrip(b"\n") + encode({"ev": "pong"})) == [{"ev": "pong"}]


def test_endless_text_without_a_greeting_is_no_agent() -> None:
    reader = FrameReader(is_home=True)
    reader.feed(b"x" * stream.MAX_GREETING)
    with pytest.raises(ProtocolError, match="not an agent of grn"):
        reader.feed(b"x")


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProtocolError, match="over"):
        FrameReader().feed(struct.pack(">IB", stream.MAX_FRAME + 1, 0))


@pytest.mark.parametrize(
    "head",
    [
        b"", b"{}", b"[1, 2]", b'[1, 1, "log", -1]', b'[1, 1, "../log", 0]', b'[1, 1, "exit", 0]',
        b'["1", 1, "log", 0]', b'[1, true, "log", 0]', b'[1, 1, "log.tail", 0]', b"[1, 1, null, 0]",
    ],
)  # fmt: skip
def test_a_piece_of_a_log_names_an_attempt_and_a_log_or_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameReader().feed(_framed(2, head + b"\ndata"))


def test_garbage_is_refused_or_incomplete_and_never_anything_else() -> None:
    chance = random.Random(7)
    for _ in range(2000):
        reader = FrameReader()
        data = chance.randbytes(chance.randrange(1, 60))
        if chance.random() < 0.5:
            data = struct.pack(">IB", len(data), chance.randrange(4)) + data + b"\n"
        try:
            frames = reader.feed(data)
        except ProtocolError:
            continue
        assert all(isinstance(one, (dict, LeaseBytes, LogPiece)) for one in frames)


def test_home_believes_no_text_that_could_drive_a_terminal() -> None:
    sent = encode({"ev": "refused", "text": "\x1b[2J", "\x07": 1})
    (found,) = FrameReader(is_home=True).feed(stream.GREETING + sent)

    assert isinstance(found, dict)
    assert json.dumps(found).isprintable()
    assert "\\x1b" in found["text"]


def test_a_text_that_is_not_unicode_does_not_break_the_stream() -> None:
    sent = encode({"ev": "unsent", "text": "no such file: a\udcffb"})

    assert FrameReader().feed(sent) == [{"ev": "unsent", "text": "no such file: a?b"}]


@pytest.mark.parametrize("message", [{}, {"job": 1}, {"job": "1", "attempt": 1}, {"job": True}])
def test_a_message_that_names_no_attempt_is_refused(message: stream.Message) -> None:
    with pytest.raises(ProtocolError):
        stream.attempt_in(message)


@pytest.mark.parametrize(
    "exit",
    [
        Exit(0),
        Exit(
            3,
            text="as it is",
            ran_s=1.5,
            ended_at=2.5,
            resident_bytes=7,
            gpu_peak_bytes=9,
            is_killed=True,
        ),
        Exit(None, signal=9),
        Exit(1, because=EndReason.OUT_OF_MEMORY, asked_bytes=5),
        None,
    ],
)
def test_an_end_arrives_as_it_was_sent(exit: Exit | None) -> None:
    sent = json.loads(json.dumps(stream.exit_to_json(exit)))

    assert stream.exit_from_json(sent) == exit


@pytest.mark.parametrize(
    "message",
    [7, [], {"status": "0"}, {"status": 0, "text": None}, {"status": 0, "because": "eaten"}],
)
def test_an_end_that_is_malformed_is_refused(message: object) -> None:
    with pytest.raises(ProtocolError):
        stream.exit_from_json(message)
