"""Children and ancestors of a process: only such a one may be named as the holder of a lease."""

from __future__ import annotations

import os
import subprocess
import sys

from grn.proc.identity import ancestor_of, child_of, holder_of

SOMEBODY_ELSE = os.getuid() + 1


def test_parents_and_their_parents_are_found() -> None:
    uid = os.getuid()
    script = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {script!r}])"
    command = [sys.executable, "-c", middle]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert ancestor_of(child, parent.pid, uid) == holder_of(parent.pid)
        assert ancestor_of(child, os.getpid(), uid) == holder_of(os.getpid())
        assert ancestor_of(parent.pid, child, uid) is None  # below, not above
        assert ancestor_of(child, child, uid) is None
        parent.stdin.close()


def test_a_process_of_another_user_is_not_taken() -> None:
    assert ancestor_of(os.getpid(), os.getppid(), SOMEBODY_ELSE) is None
    assert ancestor_of(os.getpid(), os.getppid(), 0) == holder_of(os.getppid())


def test_what_is_not_there_is_not_found() -> None:
    assert ancestor_of(os.getpid(), 2**22 + 1, os.getuid()) is None
    assert ancestor_of(2**22 + 1, os.getpid(), os.getuid()) is None


def test_a_child_is_found_by_its_pid_and_a_stranger_is_not(cat: subprocess.Popen[bytes]) -> None:
    assert child_of(os.getpid(), cat.pid) == holder_of(cat.pid)
    assert child_of(cat.pid, os.getpid()) is None
    assert child_of(os.getpid(), 1) is None
    assert child_of(1 << 23, cat.pid) is None
