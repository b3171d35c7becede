"""A service whose lock, socket or folder is removed makes them again and stays the only one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from grn import paths
from grn.client.negotiator import ask_once
from grn.daemon.lockfile import DaemonLock
from grn.errors import AlreadyRunning, MachineError
from tests.harness import Negotiator, Story, unshare, wait_for
from tests.negotiator.live import OTHER_UID, begin, needs_root, negotiator_of

VIRTUAL = ("--gpus", "virtual:1x1GiB")
NO_LOCKS = """
import errno, fcntl, os

flock = fcntl.flock

def fail(fd, how):
    number = fd if isinstance(fd, int) else fd.fileno()
    if os.readlink(f"/proc/self/fd/{number}").startswith(os.environ["NO_LOCKS"]):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    flock(fd, how)

fcntl.flock = fail
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a runtime folder for this process."""
    folder = tmp_path / "run"
    monkeypatch.setenv("GRN_RUNTIME_DIR", str(folder))
    return folder


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def is_echoed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"?")
    return await reader.readexactly(1) == b"?"


def remove_socket(path: Path) -> None:
    path.unlink()


def replace_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def remove_all(path: Path) -> None:
    shutil.rmtree(os.environ["GRN_RUNTIME_DIR"], ignore_errors=True)
    shutil.rmtree(path.parent, ignore_errors=True)


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("harm", [remove_socket, replace_socket, remove_folder, remove_all])
def test_it_is_reachable_again_and_open_connections_stay(
    run: Path, harm: Callable[[Path], None], is_private: bool
) -> None:
    async def story(daemon_lock: DaemonLock) -> None:
        path = Path(daemon_lock.socket_path)
        await daemon_lock.serve(Echo)
        care = asyncio.create_task(daemon_lock.look_after(lambda: None))
        before = await asyncio.open_unix_connection(path)
        modes = [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path)]

        harm(path)
        anew = None
        while anew is None:
            try:
                anew = await asyncio.open_unix_connection(path)
            except OSError:
                await asyncio.sleep(0.01)

        assert await is_echoed(*anew)
        assert await is_echoed(*before)
        assert modes == [stat.S_IMODE(one.stat().st_mode) for one in (path.parent, path)]
        assert is_locked(path.parent / "lock")
        for _, writer in (anew, before):
            writer.close()
        care.cancel()
        daemon_lock.close()

    socket_path = paths.queue_socket() if is_private else None
    with DaemonLock(socket_path, is_private=is_private) as daemon_lock:
        asyncio.run(asyncio.wait_for(story(daemon_lock), 60))

    assert not os.path.exists(daemon_lock.socket_path)


def test_a_removed_lock_is_taken_again_before_anything_is_promised(run: Path) -> None:
    with DaemonLock() as daemon_lock:
        (run / "lock").unlink()

        daemon_lock.hold()

        assert is_locked(run / "lock")


@pytest.mark.parametrize("is_private", [False, True])
def test_without_its_files_it_still_keeps_a_second_one_out(run: Path, is_private: bool) -> None:
    socket_path = paths.queue_socket() if is_private else None
    with DaemonLock(socket_path, is_private=is_private) as daemon_lock:
        shutil.rmtree(os.path.dirname(daemon_lock.socket_path))

        with pytest.raises(AlreadyRunning):
            DaemonLock(socket_path, is_private=is_private).__enter__()


def test_it_leaves_when_another_process_holds_the_new_lock(run: Path) -> None:
    """In another network namespace, for example, or of a version that knows no second lock."""
    left = []
    with DaemonLock() as daemon_lock:
        (run / "lock").unlink()
        with (run / "lock").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX)

            with pytest.raises(AlreadyRunning):
                daemon_lock.hold()
            asyncio.run(asyncio.wait_for(daemon_lock.look_after(lambda: left.append(True)), 60))

    assert left == [True]


def test_at_its_end_it_removes_no_socket_but_its_own(run: Path) -> None:
    with DaemonLock() as daemon_lock, daemon_lock.listen():
        replace_socket(Path(daemon_lock.socket_path))

    assert os.path.exists(daemon_lock.socket_path)


def test_a_folder_that_another_file_stands_for_is_tried_again_at_each_look(run: Path) -> None:
    with DaemonLock() as daemon_lock:
        shutil.rmtree(run)
        run.touch()
        with pytest.raises(MachineError, match="cannot be used"):
            daemon_lock.hold()
        run.unlink()

        daemon_lock.hold()

        assert is_locked(run / "lock")


# --- real negotiators ----------------------------------------------------------------------


def test_a_second_negotiator_names_the_first_whatever_was_removed(story: Story) -> None:
    first = Negotiator(story, "virtual:1x1GiB").start()
    shutil.rmtree(story.folder / "run")

    second = begin(story, negotiator_of(None, *VIRTUAL))

    assert f"process {first.pid} of user" in second.first_line
    assert f"kill {first.pid}" in second.first_line
    assert second.end()[0] == 3
    wait_for(first.is_answering, "its socket to be there again")
    assert ask_once({"op": "ping"})["pid"] == first.pid
    assert first.stop() == 0


@needs_root
def test_another_user_does_not_start_a_second_one_in_a_removed_folder(story: Story) -> None:
    story.folder.chmod(0o777)
    first = Negotiator(story, "virtual:1x1GiB").start()
    shutil.rmtree(story.folder / "run")
    story.env["GRN_STATE_DIR"] = str(story.folder / "other-state")

    second = begin(story, negotiator_of(OTHER_UID, *VIRTUAL))

    assert "already runs on this machine" in second.first_line
    assert second.end()[0] == 3
    assert first.stop() == 0


def test_two_private_tmps_have_one_negotiator(story: Story) -> None:
    run = story.folder / "run"
    run.mkdir()
    script = f'mount -t tmpfs none {run} && exec "$@"'
    enter = (*unshare("--mount"), "/bin/sh", "-c", script, "sh")
    command = (*enter, sys.executable, "-m", "grn.negotiator", *VIRTUAL)
    first = story.start(*command)
    wait_for(lambda: "Managing GPUs" in first.err, lambda: f"the first one: {first.err}")

    second = story.start(*command, env={"GRN_STATE_DIR": str(story.folder / "other-state")}).wait()

    assert second.code == 3
    assert f"process {first.pid} of user" in second.err
    first.signal(signal.SIGTERM)
    assert first.wait().code == 0


# --- file systems without locks ------------------------------------------------------------


@pytest.mark.parametrize(
    ("service", "place", "variable"),
    [
        ("negotiator", "run", "GRN_RUNTIME_DIR"),
        ("queue", "run", "GRN_RUNTIME_DIR"),
        ("queue", "state", "GRN_STATE_DIR"),
    ],
)
def test_a_file_system_without_locks_is_one_clear_line(
    story: Story, service: str, place: str, variable: str
) -> None:
    story.write("nolocks/sitecustomize.py", NO_LOCKS)
    story.prepend_path(story.folder / "nolocks")

    ended = story.start(
        sys.executable, "-m", f"grn.{service}", env={"NO_LOCKS": str(story.folder / place)}
    ).wait()

    assert ended.code == 4
    assert "cannot be locked: No locks available" in ended.err
    assert variable in ended.err
    assert "Traceback" not in ended.err
