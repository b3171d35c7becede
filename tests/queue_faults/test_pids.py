"""G13: the number of a process that is gone belongs to a stranger now, who is never signalled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.harness import ROOT

ENTER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _wrong(*what: str) -> list[str]:
    """Run a reuse of pids in a pid namespace; return what went wrong there."""
    if os.getuid() != 0 or subprocess.run([*ENTER, "true"], check=False).returncode:
        pytest.skip("NO PID NAMESPACE CAN BE MADE: no pid was used again")
    if what[0] == "children" and shutil.which("strace") is None:
        pytest.skip("STRACE IS MISSING: no shim was slowed down")
    done = subprocess.run(
        [*ENTER, sys.executable, "-m", "tests.queue_faults.reuse", *what],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["done"], f"{done.stdout}\n{done.stderr}"
    return lines[:-1]


def test_strangers_with_the_numbers_of_killed_shims_are_left_alone() -> None:
    assert not _wrong("shims")


def test_strangers_with_the_numbers_of_shims_are_left_alone_though_a_lock_is_still_held() -> None:
    assert not _wrong("shims-with-lock")


def test_a_stranger_with_the_number_of_a_jobs_child_is_left_alone() -> None:
    assert not _wrong("children")


def test_the_check_finds_out_a_queue_that_trusts_the_number_of_a_shim() -> None:
    assert any("got the signals" in one for one in _wrong("shims", "trust-pids"))
