"""Join standard input and output to the agent of a queue on this machine; start it if need be.

`ssh host grn agent --pipe --queue ID` is a stream: no port is opened, and whoever may run commands
here as this user may talk to this user's agent. With `--socket` it joins them to the stream that an
adapter at home offers; the adapter says in a first line whether it has one. With `--input` a fifo,
which it makes, takes the place of standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence

from grn import __version__, paths
from grn.client import daemons
from grn.errors import AlreadyRunning, DaemonNotRunning, GrnError, MachineError
from grn.proc import pidfd
from grn.proc.spawn import own_module

GREETING = b"\ngrn-agent-stream 1\n"  # what comes before is a login shell's
CHUNK = 1 << 16
LEAVE_MS = 10_000
CONNECT_AGAIN_S = 0.1
OFFERED = b"ok\n"
MAX_REFUSAL = 1000


def socket_of(queue_id: str) -> str:
    """Return the socket of the agent that works for a queue, on this machine."""
    folder = os.path.dirname(paths.queue_socket())
    return os.path.join(f"{folder}-agent-{queue_id[:12]}", "agent.sock")


def version_file(queue_id: str) -> str:
    """Return the file in which a running agent tells its version."""
    return os.path.join(os.path.dirname(socket_of(queue_id)), "version")


def main(argv: Sequence[str] | None = None) -> int:
    """Relay bytes until either side ends."""
    parser = argparse.ArgumentParser(prog="grn agent --pipe")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--queue", help="the identity of the queue at home")
    where.add_argument("--socket", help="the socket of an adapter's stream")
    waiting = "start no agent: wait so long for the one that is kept here"
    parser.add_argument("--wait-s", type=float, default=0.0, help=waiting)
    parser.add_argument("--input", help="make this fifo, and read it instead of standard input")
    arguments = parser.parse_args(argv)
    source = 0
    try:
        if arguments.socket:
            agent = _offered(arguments.socket)
        else:
            agent = _reach(arguments.queue, arguments.wait_s)
        if arguments.input:
            source = _fed(arguments.input, arguments.wait_s)
    except GrnError as error:
        print(f"grn: {error.message} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code
    with agent, contextlib.suppress(OSError):  # either side may be gone at any time
        _write(1, GREETING)
        _relay(source, agent)
    return 0


def _fed(path: str, wait_s: float) -> int:
    """Make a fifo and return its reading end once something is there."""
    try:
        os.mkfifo(path, 0o600)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            is_fed = bool(poll.poll(wait_s * 1000))
        finally:
            os.unlink(path)
    except OSError as error:
        raise MachineError(f"{path} cannot be used: {error.strerror}.") from error
    if not is_fed:
        raise MachineError(f"nothing has come from home within {wait_s:.0f} s.")
    os.set_blocking(fd, True)
    return fd


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
    has_ended_one = False
    while True:
        try:
            agent = connect(queue_id)
        except DaemonNotRunning:
            if time.monotonic() >= deadline:
                break
            time.sleep(CONNECT_AGAIN_S)
            continue
        if has_ended_one or _version(queue_id) == __version__:
            return agent
        _end(agent)
        has_ended_one = True  # one that is kept here is started again, once for each stream
        if not wait_s:
            break
    if wait_s:
        raise MachineError(f"no agent has answered on this node within {wait_s:.0f} s.")
    try:
        argv = [*own_module("grn.queue.sites.agent.process"), "--queue", queue_id]
        daemons.start_aside("agent", argv, is_detached=True)
    except AlreadyRunning as held:
        return daemons.until_answered(lambda: connect(queue_id), held)
    return connect(queue_id)


def connect(queue_id: str) -> socket.socket:
    """Return a connection to the agent that runs; raise DaemonNotRunning."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(socket_of(queue_id))
    except OSError as error:
        sock.close()
        raise DaemonNotRunning(socket_of(queue_id)) from error
    return sock


def end_older(queue_id: str) -> None:
    """End the agent that runs unless it is of this version; attempts continue."""
    agent = connect(queue_id)
    if _version(queue_id) == __version__:
        agent.close()
    else:
        _end(agent)


def _version(queue_id: str) -> str:
    try:
        with open(version_file(queue_id)) as file:
            return file.read()
    except OSError:
        return ""


def _end(agent: socket.socket) -> None:
    """End an agent of before an update of grn; attempts continue, and the next one finds them."""
    with agent, contextlib.suppress(ConnectionError):
        fd = pidfd.of_peer(agent, pidfd.credentials(agent)[0])
        try:
            pidfd.send_to(fd, signal.SIGTERM)
            pidfd.has_ended(fd, LEAVE_MS)
        finally:
            os.close(fd)


def _relay(source: int, agent: socket.socket) -> None:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(agent, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == source:
                data = os.read(source, CHUNK)
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
