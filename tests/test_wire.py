"""Frames and messages: whatever comes in is a message or a ProtocolError."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn import wire
from grn.errors import ProtocolError
from grn.wire import HEADER, MAX_REQUEST_BYTES, Frames, decode, decode_reply, encode

HELLO = {"verb": "acquire", "text": "grün ✓ \ud800", "numbers": [1, 2.5, None, True], "in": {}}


def messages(data, pieces=None, max_bytes=MAX_REQUEST_BYTES):
    """Feed bytes, whole or in pieces, and return the messages that come out."""
    frames = Frames(max_bytes)
    found = [decode(body) for piece in pieces or [data] for body in frames.feed(piece)]
    return found, frames.is_mid_frame


def test_a_message_comes_out_as_it_went_in():
    assert messages(encode(HELLO)) == ([HELLO], False)


@pytest.mark.parametrize("cut", range(1, len(encode(HELLO)) + len(encode({"b": 2}))))
def test_two_frames_cut_at_any_byte_are_the_same_two_messages(cut):
    data = encode(HELLO) + encode({"b": 2})

    assert messages(data, [data[:cut], data[cut:]]) == ([HELLO, {"b": 2}], False)


def test_a_frame_may_come_byte_by_byte():
    data = encode(HELLO)

    assert messages(data, [data[i : i + 1] for i in range(len(data))]) == ([HELLO], False)


def test_many_frames_may_come_at_once():
    many = [{"n": n} for n in range(1000)]

    assert messages(b"".join(map(encode, many))) == (many, False)


def test_a_frame_that_has_begun_is_known_to_be_unfinished():
    frames = Frames(MAX_REQUEST_BYTES)

    assert not frames.is_mid_frame
    for byte in encode({"a": 1})[:-1]:
        assert frames.feed(bytes([byte])) == []
        assert frames.is_mid_frame


def test_an_empty_frame_is_a_frame_but_no_message():
    (body,) = Frames(10).feed(HEADER.pack(0))

    with pytest.raises(ProtocolError):
        decode(body)


@pytest.mark.parametrize(("length", "is_fine"), [(10, True), (11, False), (2**32 - 1, False)])
def test_a_frame_over_the_limit_is_refused_by_its_header_alone(length, is_fine):
    frames = Frames(max_bytes=10)

    if is_fine:
        assert frames.feed(HEADER.pack(length)) == []
    else:
        with pytest.raises(ProtocolError, match=str(length)):
            frames.feed(HEADER.pack(length))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"hello", b"\xff\xfe\xfa", b"\x00", b'{"a":1}}', b'{"a":1} {"b":2}',
     b'{"a":' + b"1" * 10_000 + b"}"],
)  # fmt: skip
def test_what_is_not_json_is_a_protocol_error(body):
    with pytest.raises(ProtocolError):
        decode(body)


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"text"', b"true", b'[{"a":1}]', b"NaN"])
def test_json_that_is_not_an_object_is_a_protocol_error(body):
    with pytest.raises(ProtocolError, match="object"):
        decode(body)


@pytest.mark.parametrize(("opening", "closing"), [(b'{"a":', b"}"), (b"[", b"]")])
def test_deep_nesting_is_a_protocol_error_and_never_a_crash(opening, closing):
    depth = MAX_REQUEST_BYTES // len(opening + closing) - 8

    with pytest.raises(ProtocolError):
        decode(opening * depth + b"1" + closing * depth)


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_bytes_of_any_kind_raise_nothing_but_protocol_errors(pieces):
    frames = Frames(max_bytes=64)
    try:
        for piece in pieces:
            for body in frames.feed(piece):
                assert isinstance(decode(body), dict)
    except ProtocolError:
        pass


@given(
    st.binary(max_size=60) | st.text(alphabet='{}[]":,0123456789.eE+-truefalsn\\u ').map(str.encode)
)
def test_a_body_of_any_kind_is_an_object_or_a_protocol_error(body):
    try:
        assert isinstance(decode(body), dict)
    except ProtocolError:
        pass


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=4), st.data())
def test_messages_survive_any_cut_of_the_stream(sent, data):
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert messages(stream, pieces) == (sent, False)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_frame_is_plain_ascii_json_after_its_length(message):
    data = encode(message)

    assert HEADER.unpack(data[: HEADER.size]) == (len(data) - HEADER.size,)
    assert data[HEADER.size :].isascii()
    assert json.loads(data[HEADER.size :]) == message


# --- what a negotiator says ----------------------------------------------------------------


@pytest.mark.parametrize(
    "mark", ["\x1b[2J", "\x07", "\n", "\r", "\x7f", "\x9b", "\u202e", "\ud800"]
)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_no_text_of_a_reply_can_drive_a_terminal(mark: str, is_ascii: bool) -> None:
    message = {"id": 1, "rows": [{"why": f"a{mark}b", f"k{mark}": [mark]}]}
    body = json.dumps(message, ensure_ascii=is_ascii or mark == "\ud800").encode()

    ((why, [other]),) = [row.values() for row in decode_reply(body)["rows"]]
    assert why.isprintable()
    assert other.isprintable()
    assert (why[0], why[-1]) == ("a", "b")
    assert all(name.isprintable() for name in decode_reply(body)["rows"][0])


def test_a_harmless_reply_is_as_it_was_sent() -> None:
    message = {"id": 1, "why": "GPU 0 → „voll“ …", "spelled": r"\x1b[2J \u202e", "mem": [1.5, None]}
    for is_ascii in (True, False):
        body = json.dumps(message, ensure_ascii=is_ascii).encode()
        assert decode_reply(body) == message


@pytest.mark.parametrize("depth", [300, 900, 100_000])
def test_a_reply_that_is_nested_deeply_breaks_nothing(depth: int) -> None:
    with contextlib.suppress(ProtocolError):
        decode_reply(b'{"a":' + b"[" * depth + rb'"\n"' + b"]" * depth + b"}")


def test_a_daemon_that_does_not_know_a_message_is_said_to_be_older():
    said = "a message was not understood: Object contains unknown field `whole`."
    error = wire.error_in({"id": 1, "error": {"code": "ProtocolError", "message": said}})

    assert isinstance(error, ProtocolError)
    assert "newer version of grn" in error.message
    assert "unknown field `whole`" in error.message
    assert "grn queue stop" in error.hint
