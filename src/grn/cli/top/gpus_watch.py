"""`grn gpus --watch`: the GPUs in a few lines that stay where they are."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from grn.cli.output.terminal import is_ascii
from grn.cli.top import draw, screen
from grn.cli.top.draw import Line
from grn.cli.top.screen import Look
from grn.client.state_mirror import NEGOTIATOR, StateMirror
from grn.errors import DaemonNotRunning
from grn.paths import own_socket, user_name

PACE_S = 1.0


def watch_gpus() -> int:
    """Draw the GPUs again and again, in the same place, until Ctrl-C."""
    drawn = 0
    with StateMirror(with_queue=False) as watch:
        watch.look()
        if watch.picture.trouble[NEGOTIATOR]:
            raise DaemonNotRunning(own_socket())
        try:
            while True:
                drawn = _put(sys.stdout, _lines(watch), drawn)
                watch.wait(PACE_S)
        except KeyboardInterrupt:
            return 0


def _lines(watch: StateMirror) -> list[str]:
    size = shutil.get_terminal_size()
    marks = draw.ASCII if is_ascii() else draw.UNICODE
    look = Look(size.columns, size.lines, marks, os.getuid(), user_name)
    shown = [_text(line) for line in screen.gpu_lines(watch.picture, look, size.lines - 1)]
    trouble = watch.picture.trouble[NEGOTIATOR]
    return [*shown, f"! {trouble}"[: size.columns]] if trouble else shown


def _text(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()


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
