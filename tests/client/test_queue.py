"""Who is taken for this user's queue: processes of the same namespaces and root only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from grn.client.queue import apart
from tests.client.test_connection import a_listener
from tests.harness import Story
from tests.negotiator.live import needs_root

CONNECTS = """
import os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
if sys.argv[2:]:
    os.chroot(sys.argv[2])
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def a_client(listener: socket.socket, *words: str) -> Iterator[socket.socket]:
    """Return our end of a line to another process, which lives as long as the block."""
    command = [sys.executable, "-c", CONNECTS, listener.getsockname(), *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"up\n"
        with listener.accept()[0] as line:
            yield line
        process.communicate()


def test_a_process_beside_us_shares_our_world(story: Story) -> None:
    with a_listener(story.folder / "x.sock") as listener, a_client(listener) as line:
        assert apart(line) is None


@needs_root
def test_a_process_under_another_root_does_not(story: Story) -> None:
    folder = str(story.folder)
    with a_listener(story.folder / "x.sock") as listener, a_client(listener, folder) as line:
        assert "different containers" in str(apart(line))


def test_a_process_that_has_ended_is_a_lost_connection(story: Story) -> None:
    with a_listener(story.folder / "x.sock") as listener:
        with a_client(listener) as line:
            kept = line.dup()
        with kept, pytest.raises(ConnectionError):
            apart(kept)


def test_a_process_that_is_just_ending_is_never_taken_for_one_in_a_container(story: Story) -> None:
    """The kernel takes its namespaces away a moment before it counts as ended."""
    for number in range(100):
        path = str(story.folder / f"{number}.sock")
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen()
            os.write(writer, b"x")
            signal.pause()
        os.read(reader, 1)
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(path)
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ConnectionError):
                assert apart(line) is None
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
