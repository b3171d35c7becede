"""`grn run`: commands side by side with a negotiator, which is started and ended if need be."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING

import click

from grn.cli.commands.daemon import STOP_S
from grn.client.daemons import negotiator_argv, start_or_find_negotiator, who_answers
from grn.proc import spawn, terminate

if TYPE_CHECKING:
    import subprocess


@click.command(context_settings={"ignore_unknown_options": False})
@click.option("-d", "--debug", is_flag=True, help="Log every detail of the negotiator.")
@click.option("--virtual", metavar="NxSIZE", help="Virtual GPUs, if a negotiator is started.")
@click.argument("commands", nargs=-1, required=True, metavar="CMD [CMD ...]")
def run(debug: bool, virtual: str | None, commands: tuple[str, ...]) -> int:
    """Run each CMD with the shell, all at once, and wait for all.

    A running negotiator is used; else one is started and ended afterwards. CMD itself gets no
    GPU: it may be doit or make, whose jobs with @grn.job ask for their own.

    \b
    grn run "python job.py" "python job.py"
    grn run "doit -n 9"
    """
    started = None
    if who_answers() is None:
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
    for command in commands:
        children.append(spawn.child(["/bin/sh", "-c", command], start_new_session=True))
    statuses = [child.wait() for child in children]
    failed = [
        (command, status if status > 0 else 128 - status)
        for command, status in zip(commands, statuses, strict=True)
        if status
    ]
    for command, status in failed:
        click.echo(f"grn run: exit status {status}: {command}", err=True)
    return failed[0][1] if failed else 0
