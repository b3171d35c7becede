"""Impostors: other users who answer at a negotiator's socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grn import paths
from grn.client import trust
from grn.client.connection import ask_once, connect
from grn.errors import DaemonNotRunning, NotTrusted
from tests.client.test_connection import a_listener
from tests.harness import DEADLINE_S, Story
from tests.negotiator.live import OTHER_UID, as_user, needs_root

ANSWERS = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
print(listener.accept()[0].recv(1), flush=True)
"""


@pytest.fixture
def folder(story: Story) -> Path:
    """Return the folder where all users meet; it is ours, and open to all."""
    run = story.folder / "run"
    run.mkdir(exist_ok=True)
    story.folder.chmod(0o711)
    run.chmod(0o1777)
    return run


@contextmanager
def an_impostor(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another user listen at a path; it prints what the first who comes says."""
    command = as_user(OTHER_UID, "import socket", ANSWERS, str(path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


@needs_root
def test_another_user_under_our_name_is_told_nothing(folder: Path) -> None:
    path = folder / f"{os.getuid()}.sock"
    with an_impostor(path) as impostor:
        with pytest.raises(NotTrusted, match=f"{path} is answered by user {OTHER_UID}, not by"):
            ask_once({"op": "ping"})
        heard, _ = impostor.communicate(timeout=DEADLINE_S)

    assert heard == "b''\n"


@needs_root
def test_an_impostor_is_no_negotiator_and_no_hindrance(folder: Path) -> None:
    with an_impostor(folder / "1.sock"):
        with pytest.raises(DaemonNotRunning):
            connect()
        with a_listener(folder / "2.sock"):
            found = connect()
            assert found.sock.getpeername() == str(folder / "2.sock")
            found.close()


@needs_root
def test_the_negotiator_of_another_user_is_used_under_that_users_name(folder: Path) -> None:
    path = folder / f"{OTHER_UID}.sock"
    with an_impostor(path):
        found = connect()
        assert found.sock.getpeername() == str(path)
        found.close()


@needs_root
@pytest.mark.parametrize(
    ("trusted", "is_used"), [("", False), ("daemon, 4242", False), (f"ada,{OTHER_UID}", True)]
)
def test_trust_can_be_limited_to_some_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch, trusted: str, is_used: bool
) -> None:
    monkeypatch.setenv("GRN_TRUSTED_USERS", trusted)
    with an_impostor(folder / f"{OTHER_UID}.sock"):
        if is_used:
            connect().close()
        else:
            with pytest.raises(NotTrusted, match="GRN_TRUSTED_USERS"):
                connect()


@needs_root
def test_who_keeps_the_folder_is_asked_before_others(folder: Path) -> None:
    for name in ("0", "1", "2", str(OTHER_UID)):
        (folder / f"{name}.sock").touch()
    os.chown(folder, OTHER_UID, -1)

    names = [Path(path).stem for path in paths.sockets_to_try()]
    assert names == ["0", str(OTHER_UID), "1", "2"]


def test_all_others_are_asked_in_the_order_of_their_numbers(folder: Path) -> None:
    for name in ("1002", "998", "70000", "x", "12"):
        (folder / f"{name}.sock").touch()

    names = [Path(path).stem for path in paths.sockets_to_try()]
    assert names == [str(os.getuid()), "12", "998", "1002", "70000", "x"]


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
        assert trust.apart(line) is None


@needs_root
def test_a_process_under_another_root_does_not(story: Story) -> None:
    folder = str(story.folder)
    with a_listener(story.folder / "x.sock") as listener, a_client(listener, folder) as line:
        assert "different containers" in str(trust.apart(line))


def test_a_process_that_has_ended_is_a_lost_connection(story: Story) -> None:
    with a_listener(story.folder / "x.sock") as listener:
        with a_client(listener) as line:
            kept = line.dup()
        with kept, pytest.raises(ConnectionError):
            trust.apart(kept)


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
                assert trust.apart(line) is None
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
