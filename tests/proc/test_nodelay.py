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
            number = nodelay.below(child.pid)
            out, _ = child.communicate()

    if number == 0:
        pytest.skip("NO PIDFD_GETFD: another process's sockets cannot be reached here")
    assert (number, out) == (1, "True\n")


def test_a_process_that_has_ended_has_no_connections() -> None:
    process = subprocess.Popen(["true"])
    process.wait()

    assert nodelay.below(process.pid) == 0
