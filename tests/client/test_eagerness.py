"""An eager look returns what is there, and gives up when nothing comes."""

from __future__ import annotations

import socket

from grn.client.connection import Eagerness


def test_it_returns_what_has_arrived_or_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        eagerness = Eagerness()
        assert eagerness.look(ours) is None

        theirs.sendall(b"answer")

        assert eagerness.look(ours) in (b"answer", None)  # None: others wanted the core meanwhile


def test_the_end_of_a_connection_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        assert Eagerness().look(ours) == b""
