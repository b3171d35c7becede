"""What jobs of stories do: say a line, wait at a gate, take memory."""

from __future__ import annotations

import fcntl
import os

FOLDER = os.environ["STORY"]


def say(*words: object) -> None:
    """Add a line that the test will hear; lines of several processes never mix."""
    line = " ".join(map(str, words)) + "\n"
    fd = os.open(os.path.join(FOLDER, "said"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def gate(name: str) -> None:
    """Wait until the test opens this gate."""
    with open(os.path.join(FOLDER, "gates", name)) as file:
        fcntl.flock(file, fcntl.LOCK_SH)


def take(mib: int) -> bytes:
    """Take so much memory, in fact and not only on paper."""
    return b"x" * (mib << 20)
