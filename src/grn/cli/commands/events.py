"""Commands that print what happens for programs: events as JSON lines, metrics for Prometheus."""

from __future__ import annotations

import json
import sys
import time

import click

from grn.cli.output import metrics as numbers
from grn.client.state_mirror import NEGOTIATOR, StateMirror
from grn.errors import DaemonNotRunning
from grn.paths import own_socket

PATIENCE_S = 10.0
NAMES = (
    "snapshot", "granted", "lease", "ended", "freed", "waiting", "withdrawn", "gpu", "negotiator",
    "job", "job-ended", "queue", "lost",
)  # fmt: skip


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until interrupted, through restarts.")
@click.option("--only", "only", multiple=True, type=click.Choice(NAMES), metavar="EVENT",
              help="Only events of this name (repeatable).")  # fmt: skip
def events(follow: bool, only: tuple[str, ...]) -> int:
    """Print what happens on the machine and in your queue, a JSON object a line.

    First all there is, then what changes. Without --follow it ends after the first.

    \b
    grn events --follow --only ended
    grn events --follow --only waiting --only granted | jq .data.why
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


@click.command()
def metrics() -> int:
    """Print the numbers of the machine and of your queue as Prometheus text."""
    with StateMirror() as watch:
        picture = watch.look()
        _check(watch)
        click.echo(numbers.text(picture, time.time()), nl=False)
    return 0


def _check(watch: StateMirror) -> None:
    if watch.picture.trouble[NEGOTIATOR]:
        raise DaemonNotRunning(own_socket())
