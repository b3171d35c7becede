"""Start a command in its folder, with its environment, as the leader of a new session."""

from __future__ import annotations

import errno
import os
import signal

from grn import wire
from grn.client import gpu_environment
from grn.proc import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_RUNNABLE, NOT_FOUND = 126, 127
_COMMON_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE,
                   signal.SIGXFSZ, signal.SIGCHLD)  # fmt: skip


class StartedCommand:
    """A command that runs, and the pipes its output comes from; none if it has a log of its own."""

    def __init__(self, pid: int, pipes: tuple[int, ...], log_start: int = 0) -> None:
        self.pid = pid
        self.pipes = pipes
        self.log_start = log_start  # how long its log was before


def meant(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment that was spelled."""
    return {wire.meant(name): wire.meant(value) for name, value in environment.items()}


def start(order: dict[str, Any]) -> StartedCommand:
    """Start the command of an order; raise OSError when the system does not run it."""
    os.chdir(wire.meant(order["cwd"]))
    environment = gpu_environment.for_command(order["lease"], order["visible"], order["env"])
    argv = [wire.meant(word) for word in order["argv"]]
    program = processes.find_program(argv[0], environment.get("PATH", os.defpath))
    opened: list[int] = []
    mask = os.umask(order["umask"])
    try:
        opened.append(null := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        pipes: tuple[int, ...] = ()
        log_start = 0
        if order.get("log"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            opened.append(out_end := os.open(wire.meant(order["log"]), flags, 0o666))
            err_end, log_start = out_end, os.fstat(out_end).st_size
        else:
            out, out_end = os.pipe()
            opened += (out, out_end)
            err, err_end = os.pipe()
            opened += (err, err_end)
            pipes = (out, err)
        pid = processes.spawn(
            program,
            argv,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, out_end, 1),
                (os.POSIX_SPAWN_DUP2, err_end, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_COMMON_SIGNALS,
        )
        opened = [fd for fd in opened if fd not in pipes]
    finally:
        os.umask(mask)
        for fd in opened:
            os.close(fd)
    return StartedCommand(pid, pipes, log_start)


def not_started(argv: list[str], error: OSError) -> dict[str, Any]:
    """Say for the exit record why a command did not start, with the status a shell would give."""
    known = error.errno in (errno.ENOENT, errno.ENOTDIR)
    text = f"{error.filename or argv[0]}: {error.strerror}"
    status = NOT_FOUND if known else NOT_RUNNABLE
    plain = text.encode("utf-8", "backslashreplace").decode()
    return {"status": status, "because": "not-runnable", "text": plain}


def not_yet(why: str) -> dict[str, Any]:
    """Say for the exit record that a command did not begin, and should, later."""
    return {"status": None, "because": "not-started", "text": why}
