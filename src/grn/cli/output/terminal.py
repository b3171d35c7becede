"""What the terminal can show, and the printing of every command: coloured text, JSON."""

from __future__ import annotations

import os
import sys

from grn.cli.output.style import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

_chosen: list[str] = []  # the last `--color`, or GRN_COLOR
USUAL_COLUMNS = 80


def choose_colour(when: str | None) -> None:
    """Follow `--color`, if it is given, for the rest of this process."""
    if when:
        _chosen[:] = [when]


def has_colour(stream: TextIO) -> bool:
    """True when a stream gets colour: by `--color`, NO_COLOR, or as a terminal."""
    if _chosen and _chosen != ["auto"]:
        return _chosen == ["always"]
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def echo(text: str, *, err: bool = False) -> None:
    """Print a painted text, without its colours where they are not wanted."""
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{text if has_colour(stream) else plain(text)}\n")
    stream.flush()


def print_json(data: Any) -> int:
    """Print data as JSON and return exit status 0."""
    import json

    echo(json.dumps(data, indent=2))
    return 0


def width() -> int:
    """Return the columns of the terminal; 0 when standard output is no terminal."""
    return columns() if sys.stdout.isatty() else 0


def columns() -> int:
    """Return the columns of the terminal, by COLUMNS or as it says."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    for stream in (sys.__stdout__, sys.__stderr__):
        try:
            return os.get_terminal_size(stream.fileno()).columns if stream else USUAL_COLUMNS
        except (OSError, ValueError):
            continue
    return USUAL_COLUMNS


def is_ascii() -> bool:
    """True when standard output cannot show block characters."""
    return "utf" not in (sys.stdout.encoding or "").lower()
