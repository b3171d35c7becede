"""Start and stop the negotiator: by name, in a process of its own."""

from __future__ import annotations

import os
import sys
import time

import click

from grn.cli.output.job_text import going_on
from grn.client.daemons import negotiator_argv, start_aside, who_answers
from grn.client.negotiator import ask_once
from grn.errors import DaemonError

STOP_S = 10.0


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
    started = start_aside("negotiator", argv, is_detached=True)
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
    note = going_on(stopped["leases"])
    click.echo(f"negotiator stopped (pid {answer['pid']}){note}", err=True)
    return 0
