"""Fork a process with everything imported for each command of `grn` that a client orders.

The queue listens at the socket and starts this process at the first connection; it leaves when the
queue does, after a while without orders, and when a file that it has loaded was changed.
`fork_client.py` describes the conversation.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import marshal
import os
import select
import signal
import socket
import sys
import time

import grn
from grn.cli import catalog, fork_client
from grn.client.queue import apart
from grn.proc import pidfd, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IDLE_S = 600.0
ORDER_S = 5.0
MAX_ORDER = 16 << 20
FILES = 4  # standard input, output and error, and the folder
LISTENER, QUEUE = 0, 1  # our files: the socket of the clients, and a pipe that ends with the queue
# What an interpreter or a library reads once, at its start.
_AT_START = (b"PYTHON", b"LC_", b"LANG", b"LD_")
_LATER = (
    "grn.cli.app",
    "grn.cli.main",
    "grn.cli.guard",
    "grn.client.submit",
    "grn.client.logs",
    "rich.console",
)


class Running:
    """Commands that run: one whose client leaves is interrupted, as by Ctrl-C."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._commands: dict[int, tuple[socket.socket, int]] = {}  # by both files

    def __bool__(self) -> bool:
        return bool(self._commands)

    def add(self, client: socket.socket, pid: int) -> None:
        """Watch a command and its client."""
        process = pidfd.open_child(pid)
        for fd in (client.fileno(), process):
            self._commands[fd] = (client, process)
            self._poll.register(fd, select.POLLIN)

    def look(self, fd: int) -> None:
        """Forget a command that has ended; interrupt one whose client has left."""
        if fd not in self._commands:
            return
        client, process = self._commands[fd]
        if fd != process:
            pidfd.send_to(process, signal.SIGINT)
        for one in (client.fileno(), process):
            del self._commands[one]
            self._poll.unregister(one)
        client.close()
        os.close(process)


def main() -> None:
    """Serve until there is a reason to leave, and then until the last command has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are reaped by the system
    listener = socket.socket(fileno=LISTENER)
    listener.setblocking(False)
    _load()
    loaded = _loaded()
    poll = select.poll()
    poll.register(LISTENER, select.POLLIN)
    poll.register(QUEUE, 0)  # for its end
    running = Running(poll)
    is_open = True
    while is_open or running:
        ready = dict(poll.poll(IDLE_S * 1000))
        is_asked = LISTENER in ready
        is_idle = not ready and not running
        if is_open and (is_idle or QUEUE in ready or (is_asked and is_outdated(loaded))):
            is_open = False
            poll.unregister(QUEUE)
        for fd in ready:
            running.look(fd)
        if is_open and is_asked:  # last: a new client may get a closed number
            _accept(listener, running)
        elif is_asked and running:  # no other process accepts clients while a long command runs
            _decline(listener)


def _decline(listener: socket.socket) -> None:
    """Let the next client run its command itself."""
    with contextlib.suppress(OSError):  # it has left
        listener.accept()[0].close()


def _accept(listener: socket.socket, running: Running) -> None:
    """Serve the next client."""
    try:
        client, _ = listener.accept()
    except OSError:  # it has left
        return
    try:
        pid = _serve(client)
    except (OSError, ValueError, EOFError, TypeError, KeyError):  # it runs the command itself
        pid = None
    if pid is None:
        client.close()
    else:
        running.add(client, pid)


def _load() -> None:
    """Import what commands will want."""
    names = {catalog.COMMANDS[name][0].partition(":")[0] for name in fork_client.SERVED}
    for name in (*sorted(names), *_LATER):
        importlib.import_module(name)
    gc.collect()
    gc.disable()  # a collection in a fork would copy these pages
    gc.freeze()


def _loaded() -> dict[str, int]:
    """Return the files of grn and the folders of packages, with the time of their last change."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    ours = os.path.dirname(grn.__file__)
    paths = {path for path in files if path and path.startswith(ours)} | {*sys.path}
    return {path: _changed_at(path) for path in paths}


def is_outdated(loaded: dict[str, int]) -> bool:
    """True when a file has changed since it was loaded."""
    return any(_changed_at(path) != at for path, at in loaded.items())


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _serve(client: socket.socket) -> int | None:
    """Fork the command that a client orders; return its pid, None to decline."""
    if apart(client) is not None:
        return None
    client.settimeout(ORDER_S)
    client.sendall(b"+")
    order, files = _receive(client)
    try:
        is_like_us = order["interpreter"] == fork_client.interpreter()
        if not is_like_us or _read_at_start(order["environment"]) != _read_at_start(os.environb):
            return None
        client.sendall(b"+")
        return spawn.fork(functools.partial(_be_command, client, order, files))
    finally:
        for fd in files:
            os.close(fd)


def _receive(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive an order and its files."""
    data, files, _, _ = socket.recv_fds(client, 1 << 20, FILES)
    try:
        while len(data) < 4 or len(data) < (end := 4 + int.from_bytes(data[:4], "big")):
            more = client.recv(1 << 20)
            if not more or len(data) > MAX_ORDER:
                raise ValueError("the order is not whole")
            data += more
        if len(files) != FILES:
            raise ValueError("files are missing")
        return marshal.loads(data[4:end]), files
    except BaseException:
        for fd in files:
            os.close(fd)
        raise


def _read_at_start(environment: Any) -> dict[bytes, bytes]:
    return {name: environment[name] for name in environment if name.startswith(_AT_START)}


# --- in the fork ---------------------------------------------------------------------------


def _be_command(client: socket.socket, order: dict[str, Any], files: list[int]) -> int:
    """Run the command with the files, folder and environment of the client; report its status."""
    os.close(LISTENER)
    os.close(QUEUE)
    *standard, folder = files
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
    os.fchdir(folder)
    os.environb.clear()
    os.environb.update(order["environment"])
    os.umask(order["umask"])
    time.tzset()
    _open_streams(order["streams"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [os.fsdecode(word) for word in order["argv"]]
    fork_client.is_fork = True
    status = _status_of_command()
    client.send(fork_client.AGAIN.encode() if status is None else bytes([status]))
    return status or 0


def _status_of_command() -> int | None:
    """Run the command; return its exit status, None if the client has to run it itself."""
    from grn.cli.main import run_here

    try:
        run_here()
    except SystemExit as ended:
        code = ended.code
        if code == fork_client.AGAIN:
            return None
    except BaseException:  # the fork reports it as an interpreter would
        sys.excepthook(*sys.exc_info())
        code = 1
    else:
        code = 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code & 0xFF if isinstance(code, int) else int(code is not None)


def _open_streams(streams: list[list[str]]) -> None:
    """Open the standard files as the client's interpreter had opened them."""
    (input_encoding, input_errors), (encoding, errors) = streams
    sys.stdin = os.fdopen(0, "r", -1, input_encoding, input_errors, closefd=False)
    buffering = 1 if os.isatty(1) else -1
    sys.stdout = os.fdopen(1, "w", buffering, encoding, errors, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding, "backslashreplace", closefd=False)


if __name__ == "__main__":
    main()
