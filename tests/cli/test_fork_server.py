"""Short commands are forked from a warm process, and nobody can tell by their behaviour."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn import paths
from grn.cli import fork_server
from tests.harness import is_running, wait_for
from tests.queue.daemon import SMALL, Queue, being_here

WARM = {"GRN_COLD_START": None}
# Runs a command by the fork server alone: the status is 99 when that does not serve it.
SERVED = (
    sys.executable,
    "-c",
    "import sys; from grn import paths; from grn.cli import fork_client;"
    "status = fork_client.run(paths.commands_socket(), sys.argv);"
    "sys.exit(99 if status is None else status)",
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    queue = Queue.begin()
    yield queue
    with being_here(queue):
        queue.end()


@pytest.fixture
def queue(shared: Queue) -> Iterator[Queue]:
    with being_here(shared):
        shared.wake()
        yield shared
        shared.cancel_all()


def servers(queue: Queue) -> list[int]:
    """Return the fork servers of a story."""
    found = []
    for pid in queue.story.left_behind():
        with contextlib.suppress(OSError):
            if b"grn.cli.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def the_server(queue: Queue) -> int:
    """Return the fork server once the last fork has ended."""
    wait_for(lambda: len(servers(queue)) == 1, "one fork server")
    return servers(queue)[0]


def test_a_served_command_has_files_folder_and_environment_of_its_client(queue: Queue) -> None:
    folder = queue.story.folder / "here"
    folder.mkdir()
    words = ("submit", *SMALL, "--shell", "--", "pwd; umask; echo $SPECIAL")
    ended = queue.story.start(
        *SERVED, *words, env={"SPECIAL": "one"}, cwd=folder, umask=0o027
    ).wait()
    assert (ended.code, ended.err) == (0, "")
    job = int(ended.out)
    queue.ended(job)
    assert queue.log(job).split() == [str(folder), "0027", "one"]


def test_status_and_errors_are_those_of_the_command(queue: Queue) -> None:
    for words in (("logs", "98765"), ("ls", "--no-such-option"), ("profiles",)):
        own = queue(*words)
        served = queue.story.start(*SERVED, *words).wait()
        assert (served.code, served.out, served.err) == (own.code, own.out, own.err)


def test_one_server_serves_many_commands_and_leaves_with_the_queue(queue: Queue) -> None:
    for _ in range(3):
        assert queue.story.start(*SERVED, "ls").wait().code == 0
    pid = the_server(queue)
    queue.fine("queue", "stop")
    wait_for(lambda: not is_running(pid), "the fork server to leave")
    queue.fine("queue", "start")


def test_a_command_works_when_its_server_was_killed(queue: Queue) -> None:
    queue.fine("ls", env=WARM)
    pid = the_server(queue)
    os.kill(pid, signal.SIGKILL)
    assert queue.fine("ls", env=WARM) == queue.fine("ls")


def test_a_client_that_leaves_interrupts_its_command(queue: Queue) -> None:
    queue.gate("never")
    job = queue.sh("gate never")
    queue.fine("ls", env=WARM)
    the_server(queue)
    waiting = queue.story.start(*SERVED, "wait", str(job))
    wait_for(lambda: len(servers(queue)) == 2, "the server and its fork")
    waiting.process.kill()
    wait_for(lambda: len(servers(queue)) == 1, "the fork to end")


def test_a_server_that_leaves_declines_while_a_long_command_runs() -> None:
    """It was left open, and unanswered, for as long as a `grn wait` took."""
    queue = Queue.begin()
    folder = queue.story.folder / "modules"
    folder.mkdir()
    queue.story.env["PYTHONPATH"] = f"{folder}:{queue.story.environment()['PYTHONPATH']}"
    with being_here(queue):
        gate = queue.gate("long")
        job = queue.sh("gate long")
        queue.fine("ls", env=WARM)
        the_server(queue)
        waiting = queue.story.start(*SERVED, "wait", str(job))
        wait_for(lambda: len(servers(queue)) == 2, "the server and its fork")
        os.utime(folder, ns=(0, time.time_ns() + 1))  # as after an update of a package
        assert queue.story.start(*SERVED, "ls").wait().code == 99
        assert str(job) in queue.fine("ls", env=WARM)
        gate.open()
        assert waiting.wait().code == 0
        queue.end()


def test_another_interpreter_setting_is_declined(queue: Queue) -> None:
    env = {"PYTHONWARNINGS": "error"}
    assert queue.story.start(*SERVED, "ls", env=env).wait().code == 99
    assert queue.fine("ls", env={**WARM, **env}) == queue.fine("ls")


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("")
    loaded = {str(file): file.stat().st_mtime_ns}
    assert not fork_server.is_outdated(loaded)
    os.utime(file, ns=(0, time.time_ns() + 1))
    assert fork_server.is_outdated(loaded)
    file.unlink()
    assert fork_server.is_outdated(loaded)


def test_without_a_queue_a_command_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from grn.cli import fork_client

    assert fork_client.run(paths.commands_socket(), ["grn", "ls"]) is None
