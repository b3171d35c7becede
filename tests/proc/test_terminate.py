"""Ending processes: exactly those that are meant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grn.model.job import Holder
from grn.proc import terminate
from grn.proc.identity import holder_of


def test_only_the_process_that_is_meant_is_killed(cat: subprocess.Popen[bytes]) -> None:
    victim = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    meant, bystander = holder_of(victim.pid), holder_of(cat.pid)
    assert meant is not None
    assert bystander is not None
    reused = Holder(bystander.pid, bystander.started_ticks - 1)

    terminate.kill([Holder(1 << 23, 0), reused, meant])

    assert victim.wait(60) == -signal.SIGKILL
    assert victim.stdin is not None
    victim.stdin.close()
    assert cat.poll() is None


def test_ending_what_has_ended_does_no_harm() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    holder = holder_of(process.pid)
    assert holder is not None
    process.communicate()
    before = len(os.listdir("/proc/self/fd"))

    terminate.kill([holder, holder])

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_of_another_user_is_left_alone_and_the_rest_is_ended() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be another user: run the tests as root for this one")
    code = """
import os, signal, subprocess
from grn.proc import terminate
from grn.proc.identity import holder_of
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # root's
os.setresuid(54321, 54321, 54321)
own = os.fork()
if own == 0:
    signal.pause()
terminate.kill([holder_of(other.pid), holder_of(own)])
print(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]), other.poll(), flush=True)
os._exit(0)
"""
    source = Path(terminate.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout == "-9 None\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_process_of_another_user_is_reported_as_not_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as target:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setuid(65534)
                holder = holder_of(target.pid)
                refused = terminate.kill([holder] if holder else [])
                os.write(writer, b"refused" if refused == [holder] else b"ended")
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as said:
            assert said.read() == "refused"
        os.waitpid(pid, 0)
        assert target.poll() is None
        target.kill()
