"""What the terminal can show, and the `--json` output of every command."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import click

json_flag = click.option("--json", "as_json", is_flag=True, help="JSON, as docs/json.md says.")


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
