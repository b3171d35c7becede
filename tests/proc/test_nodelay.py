"""Relays that send small pieces at once: an option set on the sockets of other processes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from grn.proc import nodelay

# Connects, says so, and tells on request whether the option is set.
CLIENT = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
unix = socket.socketpair()
print("ready", flush=True)
sys.stdin.read()
print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
"""


def test_connections_of_a_child_and_of_its_children_send_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        inner = [sys.executable, "-c", CLIENT, port]
        code = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
        with subprocess.Popen([sys.executable, "-c", code, *inner], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # fmt: skip
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            found = nodelay.below(child.pid)
            peers = [one.getpeername() for one in found]
            for one in found:
                one.close()
            out, _ = child.communicate()

    if not found:
        pytest.skip("NO PIDFD_GETFD: another process's sockets cannot be reached here")
    assert (peers, out) == ([("127.0.0.1", int(port))], "True\n")


def test_what_has_come_is_acknowledged_on_demand() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = socket.create_connection(server.getsockname())
        sender, _ = server.accept()
    with receiver, sender:
        for _ in range(20):
            receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)  # wait for an answer
            sender.send(b"x")
            receiver.recv(1)
            nodelay.acknowledge([receiver])
            assert _unacknowledged(sender) == 0


def _unacknowledged(sender: socket.socket) -> int:
    """Return how many segments wait for an acknowledgement: `tcpi_unacked` of `struct tcp_info`."""
    info = sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
    return int.from_bytes(info[24:28], sys.byteorder)


def test_a_connection_that_was_reset_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        receiver = socket.create_connection(server.getsockname())
        server.accept()[0].close()
    receiver.close()

    nodelay.acknowledge([receiver])


def test_a_process_that_has_ended_has_no_connections() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert nodelay.below(process.pid) == []
