"""Frames to and from a daemon."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grn import wire
from grn.client.connection import Connection, drive
from grn.errors import NeverFits


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    """Return a connection and the socket at its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Connection(ours), theirs


@contextmanager
def a_listener(path: Path) -> Iterator[socket.socket]:
    path.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def test_a_frame_in_pieces_is_put_together(ends: tuple[Connection, socket.socket]) -> None:
    connection, theirs = ends
    bytes_sent = wire.encode({"id": 1, "ev": "one"}) + wire.encode({"id": 1, "ev": "two"})
    for byte in bytes_sent[:-1]:
        theirs.send(bytes([byte]))
    steps = connection.receive(None)
    assert drive(steps)["ev"] == "one"
    theirs.send(bytes_sent[-1:])
    assert drive(connection.receive(None))["ev"] == "two"


def test_an_error_of_the_negotiator_is_raised_as_what_it_is(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = ends
    error = {"code": "NeverFits", "message": "too large.", "hint": "Ask for less."}
    theirs.send(wire.encode({"id": 1, "error": error}))

    with pytest.raises(NeverFits, match=r"too large\. Ask for less\."):
        drive(connection.ask({"op": "ping"}))


def test_a_negotiator_that_hangs_up_is_a_lost_connection(
    ends: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = ends
    theirs.close()

    with pytest.raises(ConnectionError):
        drive(connection.receive(None))


def test_every_question_has_an_id_of_its_own(ends: tuple[Connection, socket.socket]) -> None:
    connection, theirs = ends
    theirs.send(wire.encode({"id": 1}) + wire.encode({"id": 2}))
    drive(connection.ask({"op": "ping"}))
    drive(connection.ask({"op": "ping"}))

    frames = wire.Frames(wire.MAX_REQUEST_BYTES)
    asked = [wire.decode(body) for body in frames.feed(theirs.recv(65536))]
    assert [message["id"] for message in asked] == [1, 2]
