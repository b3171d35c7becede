"""Commands that follow both daemons: events as JSON lines, metrics, `grn gpus --watch`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

import click

from grn import settings
from grn.cli.help import command, flag
from grn.cli.output import metrics as numbers
from grn.cli.output.terminal import is_ascii
from grn.cli.top import draw, screen
from grn.client.state_mirror import StateMirror
from grn.errors import DaemonNotRunning
from grn.paths import own_socket, user_name
from grn.protocol.snapshot import NEGOTIATOR

PATIENCE_S = 10.0
GPUS_PACE_S = 1.0
NAMES = (
    "snapshot", "granted", "lease", "ended", "freed", "waiting", "withdrawn", "gpu", "negotiator",
    "job", "job-ended", "node", "node-gone", "queue", "lost",
)  # fmt: skip


@command()
@flag("-f", "--follow", is_flag=True, help="Keep printing until interrupted, through restarts.")
@flag("--only", "only", multiple=True, type=click.Choice(NAMES), metavar="EVENT",
              help="Print only events of this name (repeatable).")  # fmt: skip
def events(follow: bool, only: tuple[str, ...]) -> int:
    """Print events of the machine and of your queue, one JSON object per line.

    Prints the present state first, then each change. Without --follow it stops after the state.
    """
    heard: set[str] = set()
    with StateMirror() as watch:
        while follow or len(heard) < 2:
            found = watch.wait(None if follow else PATIENCE_S)
            if not follow:
                _check(watch)
            for event in found:
                heard.add(event.source)
                if not only or event.name in only:
                    click.echo(json.dumps(event.row(), separators=(",", ":")))
            sys.stdout.flush()
            if not found:
                break
    return 0


@command()
def metrics() -> int:
    """Print metrics of the machine and of your queue as Prometheus text."""
    with StateMirror() as watch:
        picture = watch.look()
        _check(watch)
        click.echo(numbers.text(picture, time.time()), nl=False)
    return 0


def watch_gpus() -> int:
    """Draw the GPUs again and again, in the same place, until Ctrl-C."""
    drawn = 0
    with StateMirror(with_queue=bool(settings.load().sites)) as watch:
        watch.look()
        _check(watch)
        try:
            while True:
                drawn = _put(sys.stdout, _gpu_lines(watch), drawn)
                watch.wait(GPUS_PACE_S)
        except KeyboardInterrupt:
            return 0


def _gpu_lines(watch: StateMirror) -> list[str]:
    size = shutil.get_terminal_size()
    marks = draw.ASCII if is_ascii() else draw.UNICODE
    look = screen.Look(size.columns, size.lines, marks, os.getuid(), user_name)
    shown = [
        draw.plain(line)
        for line in screen.gpu_lines(watch.picture, look, size.lines - 1, time.time())
    ]
    trouble = watch.picture.trouble[NEGOTIATOR]
    return [*shown, f"! {trouble}"[: size.columns]] if trouble else shown


def _put(stream: TextIO, lines: Sequence[str], drawn: int) -> int:
    """Write over what was drawn before; elsewhere than on a terminal one block follows another."""
    if not stream.isatty():
        stream.write("\n".join(lines) + "\n\n")
        stream.flush()
        return 0
    up = f"\x1b[{drawn}A" if drawn else ""
    stream.write(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
    stream.flush()
    return len(lines)


def _check(watch: StateMirror) -> None:
    """Raise without a negotiator here, unless there are other machines to tell of."""
    if watch.picture.trouble[NEGOTIATOR] and not watch.picture.nodes:
        raise DaemonNotRunning(own_socket())
