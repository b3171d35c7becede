"""Start and stop the negotiator, by name and in a process of its own; `grn run` does both."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING

import click

from grn.cli.help import command, flag
from grn.cli.output.job_text import going_on
from grn.client import queue
from grn.client.daemons import (
    negotiator_argv,
    start_aside,
    start_or_find_negotiator,
    who_answers,
)
from grn.client.negotiator import ask_once
from grn.errors import DaemonError, DaemonNotRunning, GrnError, NotTrusted
from grn.model.text import counted
from grn.proc import spawn, terminate

if TYPE_CHECKING:
    import subprocess

STOP_S = 10.0
OLD_NAMES = ("grn-start", "glb-start")  # scripts may read the last line that these print


@command()
@flag(
    "--virtual", metavar="NxSIZE", help="Manage virtual GPUs made of host memory, such as 4x8GiB."
)
@flag("--background", is_flag=True, help="Run in the background; return when ready.")
@flag("--debug", is_flag=True, help="Log every detail.")
@flag("--idle-exit", type=float, metavar="S", help="Exit after S seconds without work.")
def start(virtual: str | None, background: bool, debug: bool, idle_exit: float | None) -> int:
    """Start the negotiator: one process per machine that grants GPUs to jobs.

    It manages all GPUs, or those in CUDA_VISIBLE_DEVICES. Stop it with Ctrl-C or `grn stop`:
    running jobs continue, and the next negotiator adopts their leases.
    """
    is_old = os.path.basename(sys.argv[0]) in OLD_NAMES
    gpus = f"virtual:{virtual}" if virtual else None
    argv = negotiator_argv(gpus, debug, idle_exit, has_old_name=is_old)
    if not background:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(argv[0], argv)
    started = start_aside("negotiator", argv, is_detached=True)
    click.echo(f"negotiator ready: pid {started.process.pid}, log {started.log_path}", err=True)
    return 0


@command()
def stop() -> int:
    """Stop the negotiator. Running jobs continue and keep their GPUs."""
    try:
        answer = ask_once({"op": "ping"})
    except NotTrusted:
        raise
    except DaemonNotRunning as error:
        error.hint = "There is nothing to stop, unless one runs with another GRN_RUNTIME_DIR."
        raise
    stopped = ask_once({"op": "stop"})
    deadline = time.monotonic() + STOP_S
    while (who_answers() or {}).get("pid") == answer["pid"]:
        if time.monotonic() > deadline:
            raise DaemonError(f"the negotiator (pid {answer['pid']}) does not end.")
        time.sleep(0.02)
    note = going_on(stopped["leases"])
    click.echo(f"negotiator stopped (pid {answer['pid']}){note}", err=True)
    if jobs := _jobs_of_queue():
        text = f"your queue has {counted(jobs, 'job')} and starts another one"
        click.echo(f"{text}: run `grn queue stop` if you do not want that", err=True)
    return 0


def _jobs_of_queue() -> int:
    """Return how many jobs of this user's queue have not ended; 0 where none runs."""
    try:
        answer = queue.ask({"op": "list", "which": "alive", "most": 1}, may_start=False)
    except GrnError:
        return 0
    return int(sum(answer["counts"].values()) - answer["counts"]["ended"])


@command(context_settings={"ignore_unknown_options": False})
@flag("-d", "--debug", is_flag=True, help="Log every detail of the negotiator.")
@flag("--virtual", metavar="NxSIZE", help="Use virtual GPUs if a negotiator is started.")
@click.argument("commands", nargs=-1, required=True, metavar="CMD [CMD ...]")
def run(debug: bool, virtual: str | None, commands: tuple[str, ...]) -> int:
    """Run each CMD in the shell, all at once, and wait for all.

    A running negotiator is used; otherwise one is started and stopped afterwards. CMD itself gets
    no GPU: it may be doit or make, whose jobs with @grn.job ask for their own.
    """
    started = None
    if who_answers() is not None:
        if virtual:
            count = counted(len(ask_once({"op": "status"})["status"]["gpus"]), "GPU")
            text = f"a negotiator with {count} runs already; --virtual is not used"
            click.echo(f"warning: {text}", err=True)
    else:
        gpus = f"virtual:{virtual}" if virtual else None
        started = start_or_find_negotiator(negotiator_argv(gpus, debug, None))
        if debug and started is not None:
            click.echo(f"negotiator log: {started.log_path}", err=True)
    try:
        return _run_all(commands)
    finally:
        if started is not None:
            started.end(STOP_S)


def _run_all(commands: tuple[str, ...]) -> int:
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(signum: int, _frame: FrameType | None) -> None:
        for child in children:
            terminate.signal_session(child, signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, pass_on)
    # Each begins a session, so that a signal reaches all a command has started.
    for line in commands:
        children.append(spawn.child(["/bin/sh", "-c", line], start_new_session=True))
    statuses = [child.wait() for child in children]
    failed = [
        (command, status if status > 0 else 128 - status)
        for command, status in zip(commands, statuses, strict=True)
        if status
    ]
    for line, code in failed:
        click.echo(f"grn run: exit status {code}: {line}", err=True)
    return failed[0][1] if failed else 0
