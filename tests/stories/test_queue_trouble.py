"""What goes wrong is one clear line with a proper exit code, and the queue goes on."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from grn import paths
from grn.client import negotiator
from tests.harness import wait_for
from tests.queue.daemon import SMALL, Queue, a_queue, being_here


@pytest.fixture(scope="module")
def shared() -> Iterator[Queue]:
    queue = Queue.begin()
    yield queue
    with being_here(queue):
        queue.end()


@pytest.fixture
def queue(shared: Queue) -> Iterator[Queue]:
    """Talk to the one queue of this file, which must be the same at the end."""
    with being_here(shared):
        shared.wake()
        pid = shared.pid
        yield shared
        assert shared.ended(shared.sh("true"))["reason"] == "ok"
        assert shared.pid == pid
        shared.cancel_all()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("no-such-program-anywhere",), 127, "no-such-program-anywhere: command not found"),
        (("./no-such-file",), 127, "./no-such-file: No such file or directory"),
        (("./plain",), 126, "./plain: Permission denied"),
        (("/",), 126, "/: Permission denied"),
    ],
)
def test_what_cannot_be_run_ends_with_the_reason(
    queue: Queue, words: tuple[str, ...], code: int, text: str
) -> None:
    queue.story.write("plain", "no right to run")
    job = queue.submit(*SMALL, "--retry", "3", "--", *words)
    row = queue.ended(job)
    assert (row["reason"], row["status"], row["text"]) == ("not-runnable", code, text)
    assert row["attempt"] == 1, "another try would not change it"
    assert queue("wait", str(job)).code == code


def test_a_good_end_frees_its_gpu_before_the_queue_hears_of_it(queue: Queue) -> None:
    gate = queue.gate("last")
    job = queue.sh("gate last")
    pid, log = queue.pid, Path(queue.story.env["GRN_STATE_DIR"], "negotiator.log")
    leases = lambda: negotiator.status()["leases"]  # noqa: E731
    wait_for(lambda: [lease["pid"] for lease in leases()] not in ([], [pid]), "its command's lease")
    (lease,) = leases()
    os.kill(pid, signal.SIGSTOP)
    try:
        gate.open()
        wait_for(lambda: f"action=release lease={lease['id']} outcome=ok" in log.read_text())
        assert leases() == []
    finally:
        os.kill(pid, signal.SIGCONT)
    row = queue.ended(job)
    assert row["reason"] == "ok"
    assert row["peak_bytes"], "it was told how the lease had ended"


def test_a_folder_that_is_gone_when_the_job_starts(queue: Queue) -> None:
    folder = queue.story.folder / "gone"
    folder.mkdir()
    job = queue.submit(*SMALL, "--hold", "--cwd", str(folder), "--", "true")
    folder.rmdir()
    queue.fine("release", str(job))
    row = queue.ended(job)
    assert (row["reason"], row["text"]) == ("not-runnable", f"{folder}: No such file or directory")


def test_a_binary_name_of_a_program_that_is_not_there(queue: Queue) -> None:
    job = queue.submit(*SMALL, "--", os.fsdecode(b"./\xff\xfe"))
    row = queue.ended(job)
    assert (row["reason"], row["status"]) == ("not-runnable", 127)
    assert row["text"] == r"./\udcff\udcfe: No such file or directory"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 2) + b"{}",
        struct.pack(">I", 4) + b"\xff\xff\xff\xff",
        struct.pack(">I", 23) + b'{"id":1,"op":"no-such"}',
        struct.pack(">I", 200_000) + b"[" * 200_000,
        struct.pack(">I", 10),
    ],
    ids=["http", "too long", "no id", "no text", "unknown", "deep", "half"],
)
def test_garbage_on_the_socket_harms_nobody(queue: Queue, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(paths.queue_socket())
        line.sendall(data)
        if len(data) > 4 and data != struct.pack(">I", 10):
            assert b"error" in line.recv(65536)


def test_a_state_folder_that_cannot_be_used_is_one_clear_line(queue: Queue) -> None:
    queue.story.write("file", "not a folder")
    elsewhere = {
        "GRN_STATE_DIR": str(queue.story.folder / "file" / "state"),
        "GRN_RUNTIME_DIR": str(queue.story.folder / "run2"),
    }
    ended = queue("submit", "--", "true", env=elsewhere)
    assert (ended.code, ended.out) == (4, "")
    error, hint = ended.err.splitlines()
    assert error.startswith("error: the log ")
    assert error.endswith("cannot be written: Not a directory.")
    assert "GRN_STATE_DIR" in hint


def test_a_journal_that_is_none_is_set_aside_and_told() -> None:
    with a_queue() as queue:
        folder = queue.story.folder / "state" / "queue"
        folder.mkdir(parents=True)
        (folder / "queue.sqlite3").write_bytes(b"this is no database" * 1000)
        assert queue.ended(queue.sh("true"))["reason"] == "ok"
        (aside,) = folder.glob("*.broken-*")
        assert aside.read_bytes() == b"this is no database" * 1000
        for words in (("queue",), ("ls",)):
            assert str(aside) in queue(*words).err


def test_without_gpus_a_job_is_accepted_and_says_why_it_waits() -> None:
    with a_queue("virtual:none") as queue:
        job = queue.sh("true")
        wait_for(lambda: "did not start" in queue.job(job)["why"], lambda: queue.job(job)["why"])
        why = "no negotiator answers: the negotiator did not start: 'none' does not describe"
        assert queue.job(job)["why"].startswith(why)
        ended = queue("submit", *SMALL, "--", "true")
        assert ended.code == 0
        assert ended.err.startswith("grn: accepted, but: the negotiator did not start: ")
        assert queue("submit", "-q", *SMALL, "--", "true").err == ""
        assert "warning: " in queue("queue").err


def test_a_start_that_failed_is_forgotten_with_the_last_job_that_needed_it() -> None:
    with a_queue("virtual:none") as queue:
        job = queue.sh("true")
        wait_for(lambda: "did not start" in queue.job(job)["why"], lambda: queue.job(job)["why"])
        assert queue("cancel", str(job)).code == 0
        wait_for(lambda: "warning" not in queue("queue").err, lambda: queue("queue").err)


def test_the_first_job_of_all_that_can_never_run_ends_as_refused() -> None:
    """Nobody could say so at submit: the negotiator was not there yet."""
    with a_queue() as queue:
        ended = queue("submit", "--gpus", "9", "--", "true")
        if ended.code == 4:
            assert "you asked for 9 GPUs; this machine has 4" in ended.err
            return
        row = queue.ended(int(ended.out))
        assert (row["reason"], row["attempt"]) == ("refused", 0)
        assert row["text"].startswith("you asked for 9 GPUs; this machine has 4.")
        assert queue("wait", ended.out.strip()).code == 125
