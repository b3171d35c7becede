"""Which frames are messages, and what is said about those that are not."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn import wire
from grn.errors import GrnError, ProtocolError, VersionMismatch
from grn.protocol import negotiator_requests, schemas

LEASE = {"op": "lease", "id": 7, "key": "ab" * 12, "type": "t.py", "label": "t.py"}
DONE = {"op": "done", "id": 7, "lease": "ab" * 4, "outcome": "ok"}


def read(**message: Any) -> negotiator_requests.NegotiatorMessage:
    return negotiator_requests.read(json.dumps(message).encode())


def rejected(body: bytes | dict[str, Any]) -> schemas.Rejected:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(schemas.Rejected) as caught:
        negotiator_requests.read(raw)
    return caught.value


@pytest.mark.parametrize(
    "message",
    [
        {"op": "ping", "id": 0},
        {"op": "ping", "id": 1 << 53, "v": wire.PROTOCOL},
        {"op": "status", "id": 1},
        {"op": "stop", "id": 1},
        {"op": "why", "id": 1, "name": "x"},
        {"op": "why", "id": 1, "name": "\x1b[2J\u202e"},  # made harmless on its way out
        {"op": "profiles", "id": 1},
        {"op": "profiles", "id": 1, "type": None},
        {"op": "forget", "id": 1, "type": "t" * 1024},
        {"op": "hold", "id": 1, "lease": "0123456789abcdef"},
        {"op": "cancel", "id": 1, "key": "0" * 8},
        LEASE,
        LEASE | {"gpus": 1_000_000, "mem": 1 << 50, "priority": -1000, "attempt": 100},
        LEASE | {"args": {"lr": 0.1, "bs": 64, "name": "x" * 64, "none": None, "huge": 1e308}},
        LEASE | {"code": "0a" * 32},
        LEASE | {"slots": ["0", "GPU-1"], "stay": ["GPU-1"], "within": "ab" * 4},
        DONE | {"peak": 1, "resident": 1 << 50, "asked": 5},
    ],
)
def test_a_message_of_ours_is_read(message: dict[str, Any]) -> None:
    assert read(**message).id == message["id"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"[" * 1000,
        b"7",
        b"null",
        b'"ping"',
        b'{"op":"ping","id":7',
        b'{"op":"ping","id":7}{"op":"ping","id":8}',
        b"\xff\xfe\x00\x01",
        b'{"a":' * 100_000,
        b"[" * wire.MAX_REQUEST_BYTES,
        b'{"op":"ping","id":7,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"op":"why","id":7,"name":"\\ud800"}',
    ],
    ids=lambda body: body[:24],
)
def test_what_is_no_json_object_is_refused_to_nobody_in_particular(body: bytes) -> None:
    found = rejected(body)

    assert found.message_id is None
    assert type(found.error) is ProtocolError


@pytest.mark.parametrize("number", [-1, 1.5, "7", None, True, [7], (1 << 53) + 1, 10**30, 10**300])
def test_an_id_is_a_whole_number_that_every_json_reader_keeps(number: object) -> None:
    found = rejected({"op": "ping", "id": number})

    assert found.message_id is None
    assert type(found.error) is ProtocolError


@pytest.mark.parametrize(
    "message",
    [
        {"id": 7},
        {"id": 7, "op": "launch"},
        {"id": 7, "op": "__class__"},
        {"id": 7, "op": 5},
        {"id": 7, "op": None},
        {"id": 7, "op": "ping", "extra": 1},
        {"id": 7, "op": "status", "user": 0},  # who asks is known from the kernel
        {"id": 7, "op": "hold"},
        {"id": 7, "op": "hold", "lease": "../../etc"},
        {"id": 7, "op": "hold", "lease": "ABCDEF01"},
        {"id": 7, "op": "hold", "lease": "0123456\n"},
        {"id": 7, "op": "hold", "lease": "01234567\n"},
        {"id": 7, "op": "cancel", "key": "ab" * 33},
        {"id": 7, "op": "why", "name": ""},
        {"id": 7, "op": "why", "name": "x" * 1025},
        {"id": 7, "op": "profiles", "type": 5},
        {k: v for k, v in LEASE.items() if k != "key"},
        LEASE | {"user": 0},
        LEASE | {"uid": 0},
        LEASE | {"label": "x" * 257},
        LEASE | {"label": ""},
        LEASE | {"cpus": 0},
        LEASE | {"gpus": -1},
        LEASE | {"gpus": 1_000_001},
        LEASE | {"gpus": 1.5},
        LEASE | {"gpus": "1"},
        LEASE | {"gpus": True},
        LEASE | {"mem": 0},
        LEASE | {"mem": -5},
        LEASE | {"mem": (1 << 50) + 1},
        LEASE | {"mem": 1e9 + 0.5},
        LEASE | {"mem": "6GiB"},
        LEASE | {"exclusive": 1},
        LEASE | {"priority": 1001},
        LEASE | {"policy": "random"},
        LEASE | {"attempt": -1},
        LEASE | {"args": {"x" * 65: 1}},
        LEASE | {"args": {"x": "y" * 65}},
        LEASE | {"args": {"x": True}},
        LEASE | {"args": {"x": {"y": 1}}},
        LEASE | {"args": {str(n): n for n in range(33)}},
        LEASE | {"args": [1]},
        LEASE | {"code": ""},
        LEASE | {"code": "x" * 8},
        LEASE | {"code": "0" * 65},
        LEASE | {"slots": ["0"] * 1025},
        LEASE | {"slots": [0]},
        LEASE | {"slots": "0"},
        LEASE | {"within": "x"},
        DONE | {"outcome": "not-started"},  # only the negotiator sees that
        DONE | {"outcome": "OK"},
        DONE | {"peak": -1},
        DONE | {"peak": 0},
        DONE | {"resident": 1 << 51},
    ],
    ids=str,
)
def test_a_wrong_shape_is_refused_to_the_message_it_came_with(message: dict[str, Any]) -> None:
    found = rejected(message)

    assert found.message_id == 7
    assert type(found.error) is ProtocolError
    assert "\n" not in found.error.message


@pytest.mark.parametrize("version", [0, 2, 99, 1 << 31])
@pytest.mark.parametrize("rest", [{"op": "ping"}, {"op": "brand-new", "unheard": 1}])
def test_another_version_is_named_even_when_the_rest_is_not_understood(
    version: int, rest: dict[str, Any]
) -> None:
    found = rejected({"id": 7, "v": version, **rest})

    assert found.message_id == 7
    assert type(found.error) is VersionMismatch
    assert str(version) in found.error.message
    assert "grn stop; grn start" in found.error.hint


@pytest.mark.parametrize("version", [-1, 10**30, 1.5, "1", None])
def test_a_version_that_is_none_is_refused(version: object) -> None:
    assert isinstance(rejected({"id": 7, "op": "ping", "v": version}).error, GrnError)


@given(st.binary(max_size=200))
def test_bytes_are_read_or_rejected_and_nothing_else(body: bytes) -> None:
    with contextlib.suppress(schemas.Rejected):
        negotiator_requests.read(body)


def test_every_message_has_a_place_in_the_table_of_verbs() -> None:
    """A frame decides nothing but which literal entry answers it."""
    kinds = set(negotiator_requests.KINDS)
    tags = {kind.__struct_config__.tag for kind in kinds}

    assert len(tags) == len(kinds)
    assert all(isinstance(tag, str) and tag.isalpha() for tag in tags)
