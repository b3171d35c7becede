"""Processes as /proc shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from grn.model.job import Holder
from grn.proc import processes
from grn.proc.identity import holder_of, is_alive
from grn.proc.tree import Process
from tests.harness import wait_for

ME = os.getpid()


def test_a_process_is_read_as_it_is(cat: subprocess.Popen[bytes]) -> None:
    def read() -> Process | None:
        """Read it once it has memory, which the kernel counts a little late."""
        process = processes.living(cat.pid)
        return process if process and process.resident_bytes else None

    found = wait_for(read, "a process with memory")

    assert found is not None
    assert (found.pid, found.parent) == (cat.pid, ME)
    assert found.session == os.getsid(cat.pid)
    assert not found.is_over


def test_a_name_full_of_brackets_hides_nothing(tmp_path: Path) -> None:
    """The kernel puts the name into the line unescaped."""
    program = shutil.copy(shutil.which("cat") or "/bin/cat", tmp_path / "a) R 1 (b\n) 7")
    process = subprocess.Popen([program], stdin=subprocess.PIPE)
    try:
        found = processes.living(process.pid)
        assert found is not None
        assert found.parent == ME
    finally:
        process.communicate()


def test_a_process_that_has_ended_is_gone_even_before_its_parent_looks() -> None:
    process = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(process.pid)
    try:
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()  # its exit status still is there
        assert processes.living(process.pid) is None
        assert holder_of(process.pid) is None
        zombie = processes.look(process.pid)
        assert zombie is not None
        assert zombie.is_over
    finally:
        os.close(pidfd)
        process.wait()
    assert processes.living(process.pid) is None
    assert processes.inner_pids(process.pid) == [process.pid]


def test_all_processes_are_listed(cat: subprocess.Popen[bytes]) -> None:
    assert {ME, cat.pid} <= {process.pid for process in processes.everyone()}
    assert {ME, cat.pid} <= set(processes.pids())


def test_a_process_under_a_used_pid_is_another(cat: subprocess.Popen[bytes]) -> None:
    holder = holder_of(cat.pid)
    assert holder is not None

    assert is_alive(holder)
    assert not is_alive(Holder(holder.pid, holder.started_ticks - 1))
    cat.communicate()
    assert not is_alive(holder)


def test_the_peak_is_remembered_when_the_memory_is_gone() -> None:
    code = "x = bytearray(64 << 20); del x; print(flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()

    files, found = processes.MemoryFiles(), processes.living(process.pid)
    assert found is not None
    sizes = files.resident_and_peak_bytes(found.pid, found.started_ticks)
    process.communicate(b"\n")

    assert sizes is not None
    now, peak = sizes
    assert peak >= 64 << 20 > now
    assert files.resident_and_peak_bytes(found.pid, found.started_ticks) is None  # it is gone
    files.close()


def test_outside_a_container_a_process_has_one_number() -> None:
    assert processes.inner_pids(ME)[0] == ME
