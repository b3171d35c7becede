"""What the terminal can show, and the printing of every command: coloured text, JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any, TextIO

import click

from grn.cli.output.style import plain

WHEN = ("auto", "always", "never")
_chosen: list[str] = []  # the last `--color`, or GRN_COLOR

json_flag = click.option("--json", "as_json", is_flag=True, help="JSON, as docs/json.md says.")


def choose_colour(when: str | None) -> None:
    """Follow `--color`, if it is given, for the rest of this process."""
    if when is not None:
        _chosen[:] = [when]


def has_colour(stream: TextIO) -> bool:
    """True when a stream gets colour: by `--color`, NO_COLOR, or as a terminal."""
    if _chosen and _chosen != ["auto"]:
        return _chosen == ["always"]
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def echo(text: str, *, err: bool = False) -> None:
    """Print a painted text, without its colours where they are not wanted."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text if has_colour(stream) else plain(text), file=stream, color=True)


def print_json(data: Any) -> int:
    """Print data as JSON and return exit status 0."""
    click.echo(json.dumps(data, indent=2))
    return 0


def width() -> int:
    """Return the columns of the terminal; 0 when standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def is_ascii() -> bool:
    """True when standard output cannot show block characters."""
    return "utf" not in (sys.stdout.encoding or "").lower()
