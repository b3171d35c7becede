"""Read the output of a job straight from its files."""

from __future__ import annotations

import os

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SEPARATE_STDERR = "GRN_SEPARATE_STDERR"  # set for a job whose standard error has a file of its own
LINE_BYTES = 4096  # read for the last line of a log
DROPPED = b"\n[grn: what came here was too much to keep; the end follows]\n"


def parts(path: str) -> list[str]:
    """Return the files of a log in the order they were written."""
    folder, name = os.path.split(path)
    try:
        found = os.listdir(folder)
    except OSError:
        return []
    mark = f"{name}.tail"
    numbers = [one[len(mark) :] for one in found if one.startswith(mark)]
    tails = [f"{path}.tail{number}" for number in sorted(map(int, filter(str.isdigit, numbers)))]
    return ([path] if name in found else []) + tails


def read_log(folder: str | None, name: str) -> bytes:
    """Return a whole log: its head, and its tail when output was dropped between."""
    if folder is None:
        return b""
    text = b""
    for place, path in enumerate(parts(os.path.join(folder, name))):
        if place == 1 and not path.endswith(".tail0"):
            text += DROPPED
        text += read_from(path, 0)
    return text


def check_stderr(folder: str | None, job_id: int, variables: Sequence[str]) -> None:
    """Raise UsageError for a job whose standard error is not in a file of its own."""
    is_there = folder is not None and bool(parts(os.path.join(folder, "err")))
    if not is_there and SEPARATE_STDERR not in variables:
        raise UsageError(
            f"the log of job {job_id} holds both of its streams, in the order of its writes.",
            "Submit a job with --separate-stderr to keep its standard error apart.",
        )


def read_from(path: str, at: int) -> bytes:
    """Return the bytes of a log file from a position on; empty if it was dropped meanwhile."""
    try:
        with open(path, "rb") as file:
            file.seek(at)
            return file.read()
    except FileNotFoundError:
        return b""


def last_line(path: str) -> str:
    """Return the last line of a file that is not blank; empty if there is none."""
    lines = tail(path, LINE_BYTES).decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def tail(path: str, most: int, start: int = 0) -> bytes:
    """Return the last bytes of a file after a position; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - most))
            return file.read(most)
    except OSError:
        return b""
