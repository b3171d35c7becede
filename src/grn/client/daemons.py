"""Start grn's daemons in the background and wait until they are ready."""

from __future__ import annotations

import os
import time

from grn import paths
from grn.client.negotiator import ask_once
from grn.errors import AlreadyRunning, DaemonNotRunning, MachineError, NotTrusted, UsageError
from grn.proc import spawn, terminate
from grn.proc.spawn import own_module, service_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from typing import TypeVar

    Answer = TypeVar("Answer")

_TROUBLES = {kind.exit_code: kind for kind in (UsageError, AlreadyRunning)}
READY_S = 30.0  # an idle driver takes seconds to start
IDLE_EXIT_S = 300.0  # a negotiator that was started by the way ends after this idle time


class DaemonProcess:
    """A daemon that this process has started."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: str) -> None:
        self.process = process
        self.log_path = log_path

    def end(self, patience_s: float) -> None:
        """End it, with SIGTERM first."""
        terminate.end_child(self.process, patience_s)


def negotiator_argv(
    gpus: str | None, debug: bool, idle_exit_s: float | None, *, has_old_name: bool = False
) -> list[str]:
    """Return the command that runs a negotiator; `grn-start` ends with a line of its own."""
    argv = own_module("grn.negotiator")
    if has_old_name:
        argv.append("--old-name")
    if gpus:
        argv += ["--gpus", gpus]
    if idle_exit_s is not None:
        argv += ["--idle-exit-s", str(idle_exit_s)]
    return [*argv, "--debug"] if debug else argv


def who_answers() -> dict[str, object] | None:
    """Return version, process and user of a running negotiator, None when there is none."""
    try:
        return ask_once({"op": "ping"})
    except DaemonNotRunning:
        return None


def start_aside(what: str, argv: list[str], *, is_detached: bool) -> DaemonProcess:
    """Start `what` in the background and return when it is ready, or raise with its reason."""
    log_path = os.path.join(paths.state_dir(), f"{what}.log")
    try:
        os.makedirs(paths.state_dir(), mode=0o700, exist_ok=True)
        log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MachineError(
            f"the log {log_path} cannot be written: {error.strerror}.",
            "Make the folder writable, or name another in GRN_STATE_DIR.",
        ) from error
    reader, writer = os.pipe()
    with os.fdopen(log_fd, "ab") as log, os.fdopen(reader, "rb") as said:
        process = spawn.child(
            [*argv, "--log", log_path, "--ready-fd", str(writer)],
            stdin=spawn.NO_INPUT,
            stdout=log,
            stderr=log,
            pass_fds=[writer],
            start_new_session=is_detached,
            env=service_environment(what),
        )
        os.close(writer)
        if "GRN_LEASE" in os.environ:
            spawn.end_no_earlier_than_others(process.pid)
        try:
            line = said.readline().decode(errors="replace").strip()
        except BaseException:  # Ctrl-C: it would run unknown to the user
            process.terminate()
            raise
    if line != "ready":
        process.wait()
        reason = line.removeprefix("error: ") or f"it ended with status {process.returncode}"
        kind = _TROUBLES.get(process.returncode, MachineError)
        raise kind(f"the {what} did not start: {reason}", f"Its log is {log_path}.")
    return DaemonProcess(process, log_path)


def start_or_find_negotiator(argv: list[str]) -> DaemonProcess | None:
    """Start a negotiator in the background; None when another one was faster and answers."""
    try:
        return start_aside("negotiator", argv, is_detached=True)
    except AlreadyRunning as held:
        until_answered(lambda: ask_once({"op": "ping"}), held)
    return None


def until_answered(ask: Callable[[], Answer], held: AlreadyRunning) -> Answer:
    """Ask until there is an answer; raise the second process's error when there is none.

    The holder of the lock is about to be ready, or restores a removed socket.
    """
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            return ask()
        except NotTrusted:  # it will not be another soon
            raise
        except DaemonNotRunning:
            time.sleep(0.05)
    raise held


def ensure_negotiator(idle_exit_s: float | None = IDLE_EXIT_S) -> None:
    """Start a negotiator in the background unless one answers."""
    if who_answers() is None:
        start_or_find_negotiator(negotiator_argv(None, debug=False, idle_exit_s=idle_exit_s))
