"""Start and stop the negotiator: by name, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import click

from grn import places
from grn.client.connection import ask_once
from grn.errors import DaemonError, DaemonNotRunning, GrnError, MachineError

READY_S = 30.0
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Started:
    """A negotiator this process has started."""

    process: subprocess.Popen[bytes]
    log_path: str


def negotiator_argv(gpus: str | None, debug: bool, idle_exit_s: float | None) -> list[str]:
    """Return the command that runs a negotiator."""
    argv = [sys.executable, "-m", "grn.negotiator"]
    if gpus:
        argv += ["--gpus", gpus]
    if idle_exit_s is not None:
        argv += ["--idle-exit-s", str(idle_exit_s)]
    return [*argv, "--debug"] if debug else argv


def who_answers() -> dict[str, object] | None:
    """Return what a running negotiator says of itself, None when there is none."""
    try:
        return ask_once({"op": "ping"})
    except DaemonNotRunning:
        return None


def start_aside(argv: list[str], *, is_detached: bool) -> Started:
    """Start a negotiator beside us and return when it is ready, or raise with its reason."""
    log_path = os.path.join(places.state_dir(), "negotiator.log")
    try:
        os.makedirs(places.state_dir(), mode=0o700, exist_ok=True)
        log = open(log_path, "ab")  # noqa: SIM115 - closed below, with the pipe
    except OSError as error:
        raise MachineError(
            f"the log {log_path} cannot be written: {error.strerror}.",
            "Make the folder writable, or name another in GRN_STATE_DIR.",
        ) from error
    reader, writer = os.pipe()
    with log, os.fdopen(reader, "rb") as said:
        process = subprocess.Popen(
            [*argv, "--ready-fd", str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writer],
            start_new_session=is_detached,
        )
        os.close(writer)
        line = said.readline().decode(errors="replace").strip()
    if line != "ready":
        process.wait()
        reason = line.removeprefix("error: ") or f"it ended with status {process.returncode}"
        raise MachineError(f"the negotiator did not start: {reason}", f"Its log is {log_path}.")
    return Started(process, log_path)


def ensure_running(idle_exit_s: float) -> None:
    """Start a negotiator in the background unless one answers; it leaves when idle."""
    if who_answers() is None:
        argv = negotiator_argv(None, debug=False, idle_exit_s=idle_exit_s)
        try:
            start_aside(argv, is_detached=True)
        except GrnError:
            if who_answers() is None:  # else somebody else was faster
                raise


@click.command()
@click.option("--virtual", metavar="NxSIZE", help="Make virtual GPUs of host memory: 4x8GiB.")
@click.option("--background", is_flag=True, help="Return when it is ready; log to a file.")
@click.option("--debug", is_flag=True, help="Log every detail.")
@click.option("--idle-exit", type=float, metavar="S", help="Leave after S seconds without work.")
def start(virtual: str | None, background: bool, debug: bool, idle_exit: float | None) -> int:
    """Start the negotiator: one process per machine that grants GPUs to jobs.

    It manages all GPUs, or those in CUDA_VISIBLE_DEVICES. End it with Ctrl-C or `grn stop`;
    running jobs are not touched, and a new negotiator takes their leases over.
    """
    argv = negotiator_argv(f"virtual:{virtual}" if virtual else None, debug, idle_exit)
    if not background:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(argv[0], argv)
    started = start_aside(argv, is_detached=True)
    click.echo(f"negotiator ready: pid {started.process.pid}, log {started.log_path}", err=True)
    return 0


@click.command()
def stop() -> int:
    """Stop the negotiator. Running jobs go on and keep their GPUs."""
    answer = ask_once({"op": "ping"})
    stopped = ask_once({"op": "stop"})
    deadline = time.monotonic() + STOP_S
    while who_answers() is not None:
        if time.monotonic() > deadline:
            raise DaemonError(f"the negotiator (pid {answer['pid']}) does not end.")
        time.sleep(0.02)
    left = stopped["leases"]
    note = f"; {left} running job(s) go on" if left else ""
    click.echo(f"negotiator stopped (pid {answer['pid']}){note}", err=True)
    return 0


def end(started: Started) -> None:
    """End a negotiator we started."""
    started.process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.process.wait(STOP_S)
        return
    started.process.kill()
    started.process.wait()
