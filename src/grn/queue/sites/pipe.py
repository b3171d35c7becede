"""Join standard input and output to the agent of a queue on this machine; start it if need be.

`ssh host grn agent --pipe --queue ID` is a stream: no port is opened, and whoever may run commands
here as this user may talk to this user's agent. With `--socket` it joins them to the stream that an
adapter at home offers; the adapter says in a first line whether it has one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

from grn.client import daemons
from grn.errors import AlreadyRunning, DaemonNotRunning, GrnError, MachineError
from grn.interpreter import own_module
from grn.queue.sites.agent import socket_of
from grn.queue.sites.stream import GREETING

CHUNK = 1 << 16
CONNECT_AGAIN_S = 0.1
OFFERED = b"ok\n"
MAX_REFUSAL = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Relay bytes until either side ends."""
    parser = argparse.ArgumentParser(prog="grn agent --pipe")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--queue", help="the identity of the queue at home")
    where.add_argument("--socket", help="the socket of an adapter's stream")
    waiting = "start no agent: wait so long for the one that is kept here"
    parser.add_argument("--wait-s", type=float, default=0.0, help=waiting)
    arguments = parser.parse_args(argv)
    try:
        if arguments.socket:
            agent = _offered(arguments.socket)
        else:
            agent = _reach(arguments.queue, arguments.wait_s)
    except GrnError as error:
        print(f"grn: {error.message} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code
    with agent, contextlib.suppress(OSError):  # either side may be gone at any time
        _write(1, GREETING)
        _relay(agent)
    return 0


def _offered(path: str) -> socket.socket:
    """Return the stream of an adapter."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
        said = b""
        while not said.endswith(b"\n") and len(said) < MAX_REFUSAL:
            said += (byte := sock.recv(1))
            if not byte:
                break
    except OSError as error:
        raise MachineError(f"the adapter does not answer: {error.strerror}.") from error
    if said != OFFERED:
        raise MachineError(said.decode(errors="replace").strip() or "the adapter has ended.")
    return sock


def _reach(queue_id: str, wait_s: float) -> socket.socket:
    """Return a connection to the agent."""
    deadline = time.monotonic() + wait_s

    def connect() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(socket_of(queue_id))
        except OSError as error:
            sock.close()
            raise DaemonNotRunning(socket_of(queue_id)) from error
        return sock

    while True:
        try:
            return connect()
        except DaemonNotRunning:
            if time.monotonic() >= deadline:
                break
            time.sleep(CONNECT_AGAIN_S)
    if wait_s:
        raise MachineError(f"no agent has answered on this node within {wait_s:.0f} s.")
    argv = [*own_module("grn.queue.sites.agent"), "--queue", queue_id]
    try:
        daemons.start_aside("agent", argv, is_detached=True)
    except AlreadyRunning as held:
        return daemons.until_answered(connect, held)
    return connect()


def _relay(agent: socket.socket) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(agent, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == 0:
                data = os.read(0, CHUNK)
                if data:
                    agent.sendall(data)
            else:
                data = agent.recv(CHUNK)
                _write(1, data)
            if not data:
                return


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    sys.exit(main())
