"""Long output through the pager of the user: on a terminal only, as git and gh do it.

A pager needs the terminal that controls it. A fork of the fork server has none: it has printed
nothing yet and leaves the command to its client (`fork_client.AGAIN`).
"""

from __future__ import annotations

import os
import re
import sys

from grn.cli import fork_client

USUAL = "less"
LESS = "FRX"  # leave at once if all fits, show colours, keep the screen
NONE = ("", "cat")
_OVERWRITTEN = re.compile(rb"[^\n]*\r(?!\n)")  # what a bar has drawn before, in its line


def write(data: bytes, *, is_paged: bool = True) -> None:
    """Write to standard output, through a pager if it is a terminal that does not hold it all."""
    sys.stdout.flush()
    pager = _pager() if is_paged and sys.stdout.isatty() and not _fits(data) else ""
    if pager and fork_client.is_fork:
        sys.exit(fork_client.AGAIN)
    if not pager or not _page(pager, _OVERWRITTEN.sub(b"", data)):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def _pager() -> str:
    """Return the command of the pager; empty for none."""
    for variable in ("GRN_PAGER", "PAGER"):
        if variable in os.environ:
            chosen = os.environ[variable].strip()
            return "" if chosen in NONE else chosen
    import shutil

    is_known = os.environ.get("TERM", "dumb") != "dumb" and shutil.which(USUAL)
    return USUAL if is_known else ""


def _fits(data: bytes) -> bool:
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return True
    lines, columns = lines or 24, columns or 80  # 0: the terminal does not know
    return data.count(b"\n") < lines and len(data) < lines * columns


def _page(pager: str, data: bytes) -> bool:
    """Show data in a pager; False if there is no such program."""
    import signal
    import subprocess

    environment = {"LESS": LESS, "LV": "-c"} | os.environ
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
    try:
        shown = subprocess.run(pager, shell=True, input=data, env=environment, check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    return shown.returncode not in (126, 127)
