"""Frames to and from a negotiator, and the search for one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grn import wire
from grn.client.connection import Connection, ask_once, connect, drive
from grn.client.lease import IDLE, LeaseConnection
from grn.errors import DaemonNotRunning, NeverFits
from tests.harness import Story


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


def own_socket(story: Story) -> Path:
    return story.folder / "run" / f"{os.getuid()}.sock"


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


def test_where_nobody_listens_there_is_no_negotiator(story: Story) -> None:
    with pytest.raises(DaemonNotRunning, match=str(own_socket(story))):
        ask_once({"op": "ping"})


def test_the_socket_of_a_killed_negotiator_is_nobody(story: Story) -> None:
    with a_listener(own_socket(story)):
        pass
    assert own_socket(story).exists()

    with pytest.raises(DaemonNotRunning):
        connect()


def test_one_that_hangs_up_at_once_is_no_negotiator(story: Story) -> None:
    with a_listener(own_socket(story)) as listener:
        hangs_up = threading.Thread(target=lambda: listener.accept()[0].close())
        hangs_up.start()
        with pytest.raises(DaemonNotRunning):
            ask_once({"op": "ping"})
        hangs_up.join()


def test_ones_own_negotiator_is_asked_first_then_that_of_another_user(story: Story) -> None:
    others = own_socket(story).with_name("4242.sock")
    with a_listener(others):
        with a_listener(own_socket(story)):
            mine = connect()
            assert mine.sock.getpeername() == str(own_socket(story))
            mine.close()
        theirs = connect()  # the socket file of our own is there, but nobody behind it
        assert theirs.sock.getpeername() == str(others)
        theirs.close()


def test_a_socket_that_is_named_is_the_only_one(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRN_SOCKET", str(story.folder / "named.sock"))
    with a_listener(own_socket(story)), pytest.raises(DaemonNotRunning, match=r"named\.sock"):
        connect()


def test_a_forked_child_lets_go_of_the_kept_connection(story: Story) -> None:
    story.run_script(
        """
        import os, socket
        from grn.client.lease import IDLE, LeaseConnection

        ours, theirs = socket.socketpair()
        IDLE.give(LeaseConnection(ours))
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # live until the parent has looked
            os._exit(0 if IDLE.take() is None else 1)
        IDLE.take().close()
        assert theirs.recv(1) == b""  # the child does not keep the other end open
        os.close(writer)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )


def test_at_most_one_connection_is_kept() -> None:
    first, second = socket.socketpair()
    IDLE.give(LeaseConnection(first))
    IDLE.give(LeaseConnection(second))

    kept = IDLE.take()
    assert kept is not None
    assert kept.sock is first
    assert second.fileno() == -1
    kept.close()
