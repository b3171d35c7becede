"""Start a command in its folder, with its environment, as the leader of a new session."""

from __future__ import annotations

import os
import signal

from grn import wire
from grn.client import gpu_environment
from grn.proc import spawn
from grn.queue.local.order import StartOrder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHIM_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class StartedCommand:
    """A running command and its output pipes; no pipes if it has its own log."""

    def __init__(self, pid: int, pipes: tuple[int, ...], log_start: int = 0) -> None:
        self.pid = pid
        self.pipes = pipes
        self.log_start = log_start  # how long its log was before


def meant(environment: dict[str, str]) -> dict[str, str]:
    """Decode an environment."""
    return {wire.meant(name): wire.meant(value) for name, value in environment.items()}


def start(order: StartOrder, environment: dict[str, str]) -> StartedCommand:
    """Start the command of an order in this environment; raise NotStarted."""
    argv = [wire.meant(word) for word in order.argv]
    opened: list[int] = []
    mask = os.umask(order.umask)
    try:
        os.chdir(wire.meant(order.cwd))
        opened.append(null := os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        pipes: tuple[int, ...] = ()
        log_start = 0
        if order.log:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            opened.append(out_end := os.open(wire.meant(order.log), flags, 0o666))
            err_end, log_start = out_end, os.fstat(out_end).st_size
        else:
            out, out_end = os.pipe()
            opened += (out, out_end)
            err, err_end = os.pipe()
            opened += (err, err_end)
            pipes = (out, err)
        environment = gpu_environment.for_command(order.lease, order.visible, environment)
        files = (null, out_end, err_end)
        pid = spawn.command(argv, environment, files, _SHIM_SIGNALS, setsid=True)
        opened = [fd for fd in opened if fd not in pipes]
    except OSError as error:
        raise spawn.not_started(argv, error) from error
    finally:
        os.umask(mask)
        for fd in opened:
            os.close(fd)
    return StartedCommand(pid, pipes, log_start)


def not_started(error: spawn.NotStarted) -> dict[str, Any]:
    """Return the exit record of a command that could not start, with a shell's status."""
    plain = error.trouble.encode("utf-8", "backslashreplace").decode()
    return {"status": error.status, "because": "not-runnable", "text": plain}


def not_yet(why: str) -> dict[str, Any]:
    """Return the exit record of a command that is to start later."""
    return {"status": None, "because": "not-started", "text": why}
