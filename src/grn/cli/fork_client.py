"""Run a command of `grn` as a fork of the queue's fork server, which has everything imported.

Imports little: starting an interpreter with click takes four times as long as a bare one. Without a
fork server, or when it declines, the caller runs the command itself.

The conversation on the socket: the server writes `+` once it trusts the client; the client sends an
order (see `pack`) with its standard files and its folder; the server writes `+` when it has forked,
and the fork one byte, the exit status, or `AGAIN` for a command that its client has to run itself.
"""

from __future__ import annotations

import marshal
import os
import sys

COLD = "GRN_COLD_START"  # set: each command gets an interpreter of its own
MARSHAL = 2  # its format is the same in all versions of Python
LOST = 3
AGAIN = "again"  # nothing was printed or changed; the command needs the terminal of its client
is_fork = False  # this process is a fork of the fork server
# Commands that read or change the state of daemons and end soon, or when their client does. `edit`
# is none: its editor needs the terminal that controls the client.
SERVED = {
    "submit", "ls", "show", "logs", "wait", "cancel", "retry", "hold", "release", "move",
    "drain", "history", "queue", "sites", "gpus", "ps", "why", "when", "idle", "shares", "profiles",
}  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def interpreter() -> list[str]:
    """Name this interpreter and this copy of grn: a fork server serves its like only."""
    return [sys.version, sys.prefix, __file__]


def pack(argv: list[str]) -> bytes:
    """Return an order: its length, then what a command finds in its process."""
    mask = os.umask(0)
    os.umask(mask)
    order: dict[str, Any] = {
        "interpreter": interpreter(),
        "argv": [os.fsencode(word) for word in argv],
        "environment": dict(os.environb),
        "umask": mask,
        "streams": [[stream.encoding, stream.errors] for stream in (sys.stdin, sys.stdout)],
    }
    body = marshal.dumps(order, MARSHAL)
    return len(body).to_bytes(4, "big") + body


def run(path: str, argv: list[str]) -> int | None:
    """Run a command by the fork server; return its status, None if it has not been started."""
    if None in (sys.stdin, sys.stdout, sys.stderr):  # closed by the caller
        return None
    import _socket  # `socket` makes enumerations of all constants, which takes as long as the rest

    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        try:
            if os.lstat(path).st_uid != os.getuid():  # the environment may hold secrets
                return None
            sock.connect(path)
            if sock.recv(1) != b"+":
                return None
            order = pack(argv)
            folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
            files = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, folder))
            rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
            sent = sock.sendmsg([order], rights)
            sock.sendall(order[sent:])
            if sock.recv(1) != b"+":
                return None
        except OSError:
            return None
        try:
            status = sock.recv(len(AGAIN))
        except ConnectionError:
            status = b""
        if not status:
            print("error: the process that ran the command was ended.", file=sys.stderr)
            return LOST
        return None if status == AGAIN.encode() else status[0]
    finally:
        sock.close()
