"""Reading what a job printed, straight from its files: nobody carries it."""

from __future__ import annotations

import os

DROPPED = b"\n[grn: what came here was too much to keep; the end follows]\n"


def parts(path: str) -> list[str]:
    """Return the files of a log in the order they were written."""
    tails = [name for turn in (0, 1) if os.path.exists(name := f"{path}.tail{turn}")]
    tails.sort(key=lambda name: os.stat(name).st_mtime_ns)
    return ([path] if os.path.exists(path) else []) + tails


def read_log(folder: str | None, name: str) -> bytes:
    """Return a log whole: its head, and its tail when there was more than is kept."""
    if folder is None:
        return b""
    files = parts(os.path.join(folder, name))
    text = b""
    for place, path in enumerate(files):
        if place == 1:
            text += DROPPED
        with open(path, "rb") as file:
            text += file.read()
    return text
