"""One line on the terminal of a process: whose it is, and what happens where there is none."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from grn.proc import tty

CHILD = (
    "import os, sys; os.setsid(); os.open(os.ttyname(0), os.O_RDWR);"
    " print('on', flush=True); sys.stdin.read()"
)


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A process on a terminal of its own: its pid, and the other side of the terminal."""
    master, slave = pty.openpty()
    os.fchmod(slave, 0o620)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=slave, stdout=subprocess.PIPE, stderr=slave
    )
    assert child.stdout is not None
    child.stdout.readline()
    os.close(slave)
    yield child.pid, master
    child.kill()
    child.wait()
    child.stdout.close()
    os.close(master)


def received(master: int) -> bytes:
    ready, _, _ = select.select([master], [], [], 20)
    return os.read(master, 1000) if ready else b""


def test_a_line_is_written_without_control_characters(terminal: tuple[int, int]) -> None:
    pid, master = terminal
    tty.write_line(pid, os.getuid(), "grn: \x1b[31mred\x07")

    text = received(master)
    assert b"grn: " in text
    assert b"red" in text
    assert b"\x1b" not in text
    assert b"\x07" not in text


def test_the_terminal_of_another_user_is_left_alone(terminal: tuple[int, int]) -> None:
    with pytest.raises(OSError, match="not a terminal of user"):
        tty.write_line(terminal[0], os.getuid() + 1, "hello")


def test_a_terminal_that_takes_no_messages_is_left_alone(terminal: tuple[int, int]) -> None:
    pid, _ = terminal
    os.chmod(os.readlink(f"/proc/{pid}/fd/0"), 0o600)

    with pytest.raises(OSError, match="takes no messages"):
        tty.write_line(pid, os.getuid(), "hello")


def test_a_process_without_a_terminal_is_an_error() -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with pytest.raises(OSError, match="no terminal"):
        tty.write_line(child.pid, os.getuid(), "hello")
    child.kill()
    child.wait()

    with pytest.raises(OSError, match="No such file"):
        tty.write_line(child.pid, os.getuid(), "hello")
